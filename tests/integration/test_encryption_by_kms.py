"""Encryption by data keys of AWS KMS, on an emulator of S3 and KMS: nodes, readers and commands use
one data key for each process, and objects of another cluster or without their key are refused.
"""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lakehead
from lakehead.broker.node import start_node
from lakehead.broker.setting_sources import load
from lakehead.storage.encryption.chunks import Trailer, is_encrypted
from lakehead.storage.encryption.key_provider import KMS
from lakehead.storage.errors import KeyUnavailable
from tests.support.command_line import CommandLine
from tests.support.emulated_aws import emulated_aws, kms_key
from tests.support.node_client import Client, close_clients
from tests.support.wire import Batch
from tests.terraform.emulator import Emulator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BUCKET = "lake-encrypted"
MARK = b"4111-1111-1111-1111"


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with emulated_aws(tmp_path, monkeypatch, bucket=BUCKET) as served:
        yield served


def objects(aws: Emulator, prefix: str) -> dict[str, bytes]:
    client: Any = aws.client("s3")
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())
    return {
        one["Key"]: client.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read()
        for one in listed
    }


async def one_life(
    aws: Emulator, folder: Path, value: bytes, *, wal: str = "object:", **settings: str
) -> bytes:
    """Start a node, produce a record, and return what a fetch from the first one gets."""
    given = {name.replace("_", "."): text for name, text in settings.items()}
    store = f"s3://{BUCKET}/cluster?endpoint={aws.address}"
    node = await start_node(
        load(
            {"data": str(folder), "port": 0, "store": store, "wal": wal, "maintain": False} | given
        ),
        rng=random.Random(value),
    )
    try:
        if "t" not in node.topics.by_name:
            await node.replication_control.create("t", 1)
        client = await Client.connect(node)
        client.produce(Batch(values=(value,)).encode())
        code, _ = await client.produced()
        assert code == 0
        client.fetch({0: 0})
        return bytes((await client.fetched())[0].records)
    finally:
        await close_clients()
        await node.close()


def wrapped_in(bodies: dict[str, bytes]) -> set[tuple[str, bytes]]:
    """Return the wrapping keys and wrapped data keys of encrypted objects."""
    trailers = [Trailer.decode(k, b, len(b)) for k, b in bodies.items() if is_encrypted(b)]
    assert all(trailer.key.provider == KMS for trailer in trailers)
    return {(trailer.key.key_id, trailer.key.wrapped) for trailer in trailers}


def refused(place: str, options: dict[str, str]) -> str:
    with pytest.raises(KeyUnavailable) as error:
        lakehead.scan(place, "t", encryption=options).read_all()
    return str(error.value)


@pytest.mark.parametrize("wal", ["object:", "block:{}/wal?size=64MiB"], ids=["object", "block"])
async def test_a_node_encrypts_by_one_data_key_and_another_life_reads_it(
    aws: Emulator, tmp_path: Path, wal: str
) -> None:
    keys = [kms_key(aws), kms_key(aws)]
    wal = wal.format(tmp_path)
    by_kms = {"encryption_key_provider": "kms"}
    await one_life(aws, tmp_path, MARK + b"-1", wal=wal, encryption_kms_key=keys[0], **by_kms)
    before = objects(aws, "cluster/")
    assert not [key for key, body in before.items() if MARK in body]
    assert {name for name, _ in wrapped_in(before)} == {keys[0]}
    assert len(wrapped_in(before)) == 1, "not one for each object"
    if "block" in wal:
        assert MARK not in (tmp_path / "wal").read_bytes()
    aws.client("kms").create_alias(AliasName="alias/lake", TargetKeyId=keys[1])
    records = await one_life(
        aws, tmp_path, MARK + b"-2", wal=wal, encryption_kms_key="alias/lake", **by_kms
    )
    assert MARK + b"-1" in records
    after = objects(aws, "cluster/")
    new = {key: body for key, body in after.items() if key not in before}
    assert {name for name, _ in wrapped_in(new)} == {keys[1]}, "what wraps it, not its alias"


def test_readers_need_the_key_and_the_place_of_the_cluster(
    aws: Emulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    key = kms_key(aws)
    asyncio.run(
        one_life(aws, tmp_path, MARK, encryption_key_provider="kms", encryption_kms_key=key)
    )
    place = f"s3://{BUCKET}/cluster?endpoint={aws.address}"
    options = {"encryption.key.provider": "kms"}
    found = lakehead.scan(place, "t", encryption=options).read_all()["value"].to_pylist()
    assert found == [MARK], "a reader names no key"
    command = CommandLine(monkeypatch, capsys)
    assert command("verify", "--path", f"{place}#encryption.key.provider=kms").status == 0
    assert "set encryption.key.provider" in command.fails("verify", "--path", place)

    client: Any = aws.client("s3")
    for name, body in objects(aws, "cluster/").items():
        client.put_object(Bucket=BUCKET, Key=name.replace("cluster/", "copy/"), Body=body)
    said = refused(f"s3://{BUCKET}/copy?endpoint={aws.address}", options)
    assert f"context lakehead:cluster={BUCKET}/copy: AWS refuses: InvalidCiphertext" in said

    gone = f"{key[:-4]}0000"
    with pytest.raises(KeyUnavailable, match=f"KMS key {gone}, .* NotFoundException"):
        asyncio.run(
            one_life(aws, tmp_path, MARK, encryption_key_provider="kms", encryption_kms_key=gone)
        )
