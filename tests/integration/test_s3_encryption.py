"""Encryption by S3 (SSE-S3, SSE-KMS), on an emulator of S3 and KMS: every object that a store or a
node writes has the key that the store's URI names, whichever way it is written."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehead.broker.node import start_node
from lakehead.broker.settings import Settings
from lakehead.storage.object_store.s3 import multipart
from lakehead.storage.object_store.s3 import store as s3_store
from lakehead.storage.object_store.s3.store import S3Store
from tests.support.emulated_aws import emulated_aws, kms_key
from tests.support.node_client import Client, close_clients
from tests.support.wire import Batch
from tests.terraform.emulator import Emulator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BUCKET = "lake-at-rest"
PART = 5 << 20
Encryption = tuple[str | None, str | None, bool]


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with emulated_aws(tmp_path, monkeypatch, bucket=BUCKET) as served:
        yield served


def encryptions(aws: Emulator) -> dict[str, Encryption]:
    """Return algorithm, KMS key and use of a bucket key of each object of the bucket."""
    client: Any = aws.client("s3")
    found: dict[str, Encryption] = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for one in page.get("Contents", ()):
            head = client.head_object(Bucket=BUCKET, Key=one["Key"])
            found[one["Key"]] = (
                head.get("ServerSideEncryption"),
                head.get("SSEKMSKeyId"),
                bool(head.get("BucketKeyEnabled")),
            )
    return found


def by_s3(_: Emulator) -> tuple[str, Encryption]:
    return "sse=AES256", ("AES256", None, False)


def by_kms(aws: Emulator) -> tuple[str, Encryption]:
    key = kms_key(aws)
    return f"sse=aws:kms&kms_key={key}", ("aws:kms", key, False)


def by_kms_with_a_bucket_key(aws: Emulator) -> tuple[str, Encryption]:
    key = kms_key(aws)
    return f"sse=aws:kms&kms_key={key}&bucket_key=true", ("aws:kms", key, True)


WAYS = [by_s3, by_kms, by_kms_with_a_bucket_key]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_each_way_of_writing_an_object_encrypts_it(
    aws: Emulator,
    way: Callable[[Emulator], tuple[str, Encryption]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3_store, "MULTIPART_SIZE_MIN", 2 * PART)
    monkeypatch.setattr(multipart, "PART_SIZE", PART)
    options, expected = way(aws)
    store = S3Store(f"s3://{BUCKET}/prefix?endpoint={aws.address}&{options}")
    content = random.Random(1).randbytes(2 * PART + 100)
    try:
        await store.create("small", [b"a few ", b"bytes"])
        await store.create("in-parts", [content])
        assert await store.get("small") == b"a few bytes"
        assert await store.get_range("in-parts", PART - 10, 20) == content[PART - 10 : PART + 10]
    finally:
        await store.close()
    found = encryptions(aws)
    assert found["prefix/small"] == expected
    # moto forgets the bucket key of an upload in parts.
    assert found["prefix/in-parts"][:2] == expected[:2]
    assert len(found) == 2


async def test_every_object_of_a_node_has_the_key_and_objects_of_an_older_key_stay_readable(
    aws: Emulator, tmp_path: Path
) -> None:
    """The log, data and metadata; after a change of the key only new objects have the new one."""
    keys = [kms_key(aws), kms_key(aws)]

    async def one_life(key: str, values: tuple[bytes, ...]) -> bytes:
        store = f"s3://{BUCKET}/cluster?endpoint={aws.address}&sse=aws:kms&kms_key={key}"
        settings = Settings(data=str(tmp_path), port=0, store=store, wal="object:", maintain=False)
        node = await start_node(settings, rng=random.Random(len(values)))
        try:
            if "t" not in node.topics.by_name:
                await node.replication_control.create("t", 1)
            client = await Client.connect(node)
            client.produce(Batch(values=values).encode())
            code, _ = await client.produced()
            assert code == 0
            client.fetch({0: 0})
            return bytes((await client.fetched())[0].records)
        finally:
            await close_clients()
            await node.close()

    await one_life(keys[0], (b"older",))
    before = encryptions(aws)
    assert {kind.split("/")[1] for kind in before} == {"data", "meta"}
    assert set(before.values()) == {("aws:kms", keys[0], False)}
    records = await one_life(keys[1], (b"newer", b"record"))
    assert b"older" in records
    after = encryptions(aws)
    assert {after[name] for name in after.keys() - before.keys()} == {("aws:kms", keys[1], False)}
    assert {after[name] for name in after.keys() & before.keys()} == {("aws:kms", keys[0], False)}
