"""A bucket with versioning keeps what is deleted: `forget --check` names versions with records of
the keys, and with `--old-versions` deletes them, and no others.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from bench.s3_server import S3Server
from lakehead.lake.jobs.forget import JOB as FORGET
from lakehead.lake.jobs.forget_options import ForgetOptions
from lakehead.lake.jobs.forget_result import ForgetResult
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.job import run_job
from lakehead.storage.jobs.sweep import JOB as SWEEP
from lakehead.storage.jobs.sweep import SweepOptions
from lakehead.storage.object_store.s3.store import S3Store
from tests.support.emulated_aws import emulated_aws
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic
from tests.terraform.emulator import Emulator

BUCKET = "lake-of-versions"
KEY = b"customer-7"


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with emulated_aws(tmp_path, monkeypatch, bucket=BUCKET) as served:
        yield served


def copied(folder: Path, client: Any, bucket: str) -> None:
    """A cluster with a topic, put into a bucket."""
    records = [TestRecord(offset=0, key=key, value=b"v") for key in (KEY, b"a", KEY)]
    write_topic(folder, "orders", {0: records})
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.put_object(
                Bucket=bucket, Key=path.relative_to(folder).as_posix(), Body=path.read_bytes()
            )


def checked(uri: str, *, old_versions: bool = False) -> ForgetResult:
    return run_job(FORGET, uri, ForgetOptions(topic="orders", check=1, old_versions=old_versions))


def versions(client: Any) -> dict[str, set[str]]:
    """The versions of objects in the bucket, by key."""
    found: dict[str, set[str]] = {}
    for page in client.get_paginator("list_object_versions").paginate(Bucket=BUCKET):
        for one in page.get("Versions", ()):
            found.setdefault(one["Key"], set()).add(one["VersionId"])
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_old_versions_with_records_of_the_keys_are_deleted_and_no_others(
    aws: Emulator, tmp_path: Path
) -> None:
    client: Any = aws.client("s3")
    client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    others = [TestRecord(offset=0, key=b"a", value=b"of another topic")]
    write_topic(tmp_path / "store", "other", {0: others})
    copied(tmp_path / "store", client, BUCKET)
    uri = f"s3://{BUCKET}?endpoint={aws.address}"
    assert run_job(FORGET, uri, ForgetOptions(topic="orders", keys=(KEY.decode(),))).records == 2
    # Beside the replaced object, an older one that a kill left, and an object of another topic.
    [step] = json.loads(
        client.get_object(Bucket=BUCKET, Key="forget/0000000001/certificate.json")["Body"].read()
    )["objects"]
    replaced = step["before"]["key"]
    [other] = {one for one in versions(client) if one.startswith("data/")} - {
        replaced,
        *(one["key"] for one in step["after"]),
    }
    client.delete_object(Bucket=BUCKET, Key=other)
    run_job(SWEEP, uri, SweepOptions(grace_s=0, margin_s=0))

    found = checked(uri)
    assert (found.held, found.versions, found.versions_deleted) == ((), 1, 0)
    (line,) = found.pending
    assert f"2 records in version {next(iter(versions(client)[replaced]))} of {replaced}" in line
    assert "--check 1 --old-versions" in line

    before = versions(client)
    found = checked(uri, old_versions=True)
    assert found.verdict.startswith("certificate 1 holds")
    assert (found.versions, found.versions_deleted) == (0, 1)
    left = versions(client)
    assert replaced not in left
    assert {key: left.get(key) for key in before if key != replaced} == {
        key: ids for key, ids in before.items() if key != replaced
    }
    assert checked(uri).versions_deleted == 1

    [note] = [key for key in left if "/versions-" in key]
    body = client.get_object(Bucket=BUCKET, Key=note)["Body"].read()
    client.put_object(Bucket=BUCKET, Key=note, Body=body.replace(b'"records":2', b'"records":1'))
    assert "does NOT hold" in checked(uri).verdict


def test_old_versions_are_deleted_after_the_certificate_only(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--old-versions needs --check"):
        run_job(
            FORGET,
            f"file:{tmp_path}",
            ForgetOptions(topic="orders", keys=("a",), old_versions=True),
        )


async def test_a_server_without_versions_has_none(s3_server: S3Server) -> None:
    store = S3Store(s3_server.uri)
    await store.create("data/a", [b"1"])
    await store.delete(["data/a"])
    await store.create("data/b", [b"1"])
    assert list(await store.old_versions("data/")) == []
    await store.close()


def test_on_an_s3_server_the_check_holds_after_the_sweep(
    s3_server: S3Server, tmp_path: Path
) -> None:
    copied(tmp_path / "store", boto3.Session().client("s3"), s3_server.bucket)
    assert (
        run_job(FORGET, s3_server.uri, ForgetOptions(topic="orders", keys=(KEY.decode(),))).records
        == 2
    )
    assert "is pending" in checked(s3_server.uri).verdict
    run_job(SWEEP, s3_server.uri, SweepOptions(grace_s=0, margin_s=0))
    assert checked(s3_server.uri).verdict.startswith("certificate 1 holds")
