"""A bucket with versioning keeps what is deleted: `forget --check` names it, and is pending."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from bench.s3_server import S3Server
from lakehead.lake.jobs.forget import JOB as FORGET
from lakehead.lake.jobs.forget_options import ForgetOptions
from lakehead.lake.jobs.forget_result import ForgetResult
from lakehead.storage.jobs.job import run_job
from lakehead.storage.jobs.sweep import JOB as SWEEP
from lakehead.storage.jobs.sweep import SweepOptions
from lakehead.storage.object_store import S3Store
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


def checked(uri: str) -> ForgetResult:
    return run_job(FORGET, uri, ForgetOptions(topic="orders", check=1))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_old_versions_of_deleted_objects_are_pending(aws: Emulator, tmp_path: Path) -> None:
    client: Any = aws.client("s3")
    client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    copied(tmp_path / "store", client, BUCKET)
    uri = f"s3://{BUCKET}?endpoint={aws.address}"
    assert run_job(FORGET, uri, ForgetOptions(topic="orders", keys=(KEY.decode(),))).records == 2
    run_job(SWEEP, uri, SweepOptions(grace_s=0, margin_s=0))
    found = checked(uri)
    assert not found.held
    (line,) = found.pending
    assert "the bucket keeps old versions of 1 objects below data/" in line
    for page in client.get_paginator("list_object_versions").paginate(Bucket=BUCKET):
        for one in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
            if one["Key"].startswith("data/") and one["Key"] in line:
                client.delete_object(Bucket=BUCKET, Key=one["Key"], VersionId=one["VersionId"])
    assert checked(uri).verdict.startswith("certificate 1 holds")


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
