"""Every object store keeps the same promises: one suite over memory, files and an S3 server."""

import asyncio
import itertools
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from storage.errors import (
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    SettingsError,
    StoreUnavailable,
)
from storage.object_store import FileStore, MemoryStore, ObjectStore, open_store
from storage.object_store.faulty import FaultProfile, FaultyStore


@pytest.fixture(scope="module")
def s3_bucket() -> Iterator[str]:
    """An S3 server of its own process, with one bucket, reached by the standard AWS variables."""
    import boto3

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "us-east-1",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert server.poll() is None, "the S3 server ended"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < deadline
            select_pause()
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="lake")
        yield "s3://lake"
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.terminate()
        server.wait()


def select_pause() -> None:
    """Give the other process the processor."""
    os.sched_yield()


@pytest.fixture(params=["memory", "file", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    if request.param == "s3":
        bucket = request.getfixturevalue("s3_bucket")
        opened = open_store(f"{bucket}/{tmp_path.name}")
    else:
        opened = MemoryStore() if request.param == "memory" else open_store(str(tmp_path / "root"))
    yield opened
    await opened.close()


async def test_what_was_created_is_read_whole_in_ranges_and_from_the_end(
    store: ObjectStore,
) -> None:
    await store.create("data/a1/x", [b"01", memoryview(b"234"), bytearray(b"56789")])
    assert await store.get("data/a1/x") == b"0123456789"
    assert await store.get_range("data/a1/x", 3, 4) == b"3456"
    assert await store.get_suffix("data/a1/x", 3) == (b"789", 10)
    assert await store.get_suffix("data/a1/x", 99) == (b"0123456789", 10)


@pytest.mark.parametrize("size", [1 << 20, (9 << 20) + 4095, 12 << 20])
async def test_a_large_object_of_odd_pieces_is_what_was_given(tmp_path: Path, size: int) -> None:
    body = random.Random(size).randbytes(size)
    cuts = [0, 33, 5000, 4096 * 1024 + 1, 4096 * 1024 + 2, size]
    pieces = [
        memoryview(body)[a:b] for a, b in itertools.pairwise(sorted(min(c, size) for c in cuts))
    ]
    store = FileStore(tmp_path)
    await store.create("data/big", pieces)
    assert await store.get("data/big") == body
    assert [meta.size for meta in await store.list("data/")] == [size]
    await store.close()


async def test_a_large_buffer_of_signed_bytes_is_written(store: ObjectStore) -> None:
    body = pa.py_buffer(bytes(range(256)) * 8192)  # Arrow lends its buffers as signed bytes
    await store.create("data/arrow", [memoryview(body)])
    assert await store.get("data/arrow") == body.to_pybytes()


async def test_a_name_is_created_once(store: ObjectStore) -> None:
    await store.create("k", [b"first"])
    with pytest.raises(ObjectExists):
        await store.create("k", [b"second"])
    assert await store.get("k") == b"first"


async def test_of_many_racing_creators_one_wins(store: ObjectStore) -> None:
    async def create(writer: int) -> bool:
        try:
            await store.create("race", [b"%d" % writer])
        except ObjectExists:
            return False
        return True

    won = await asyncio.gather(*(create(writer) for writer in range(16)))
    assert won.count(True) == 1
    assert await store.get("race") == b"%d" % won.index(True)


async def test_what_is_absent_is_not_found(store: ObjectStore) -> None:
    reads: list[Callable[[], object]] = [
        lambda: store.get("no"),
        lambda: store.get_range("no", 0, 1),
        lambda: store.get_suffix("no", 1),
    ]
    for read in reads:
        with pytest.raises(ObjectNotFound):
            await read()  # type: ignore[misc]


async def test_a_range_beyond_the_end_is_an_error(store: ObjectStore) -> None:
    await store.create("k", [b"0123"])
    with pytest.raises((CorruptObject, StoreUnavailable)):
        await store.get_range("k", 2, 10)


async def test_listing_is_by_prefix_in_key_order(store: ObjectStore) -> None:
    for key in ("b/2", "b/10", "a/1", "b/sub/3", "bb/4"):
        await store.create(key, [b"abc"])
    assert [meta.key for meta in await store.list("b/")] == ["b/10", "b/2", "b/sub/3"]
    assert [meta.key for meta in await store.list("b/", start_after="b/10")] == ["b/2", "b/sub/3"]
    assert [meta.key for meta in await store.list("b/s")] == ["b/sub/3"]
    assert [meta.size for meta in await store.list("a/")] == [3]
    assert list(await store.list("none/")) == []


async def test_deleting_is_idempotent(store: ObjectStore) -> None:
    await store.create("a", [b"1"])
    await store.create("b", [b"1"])
    await store.delete(["a", "absent"])
    await store.delete(["a"])
    assert [meta.key for meta in await store.list("")] == ["b"]


async def test_a_file_store_takes_no_key_that_leaves_its_root(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")
    for key in ("../x", "a/../../x", "/etc/x", "", "a//b", ".tmp/x"):
        with pytest.raises(ValueError, match="key"):
            await store.create(key, [b"x"])
    await store.close()


async def test_a_store_that_cannot_be_written_says_so_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file where the folder should be")
    store = FileStore(tmp_path / "root")
    with pytest.raises(StoreUnavailable, match="root"):
        await store.create("k", [b"x"])
    await store.close()


def test_an_unknown_scheme_is_one_clear_line() -> None:
    with pytest.raises(SettingsError, match="ftp"):
        open_store("ftp://host/x")


async def test_the_faulty_store_loses_requests_and_answers_as_told() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, rng=random.Random(1), profile=FaultProfile(lost_answer=1))
    with pytest.raises(OutcomeUnknown):
        await store.create("k", [b"x"])
    assert inner.objects == {"k": b"x"}
    store.profile = FaultProfile(lost_request=1)
    with pytest.raises(OutcomeUnknown):
        await store.create("l", [b"x"])
    store.profile = FaultProfile(unavailable=1)
    with pytest.raises(StoreUnavailable):
        await store.get("k")
    assert set(inner.objects) == {"k"}
    assert store.faults == 3
