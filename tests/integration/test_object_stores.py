"""Every object store keeps the same promises: one suite over memory, files, an S3 server, and the
same server behind a proxy that spoils requests.
"""

import asyncio
import errno
import itertools
import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pytest

from bench.s3_server import S3Server
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import (
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    SettingsError,
    StoreUnavailable,
)
from lakehead.storage.object_store import FileStore, MemoryStore, ObjectStore, open_store
from lakehead.storage.object_store.counted import CountedStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.object_store.pages import pages
from lakehead.storage.object_store.retrying import RetryingStore
from tests.support.s3_proxy import (
    CONFLICT,
    INTERNAL_ERROR,
    READS,
    SLOW_DOWN,
    TOO_MANY_REQUESTS,
    Delay,
    Fault,
    FaultProxy,
    Rule,
)

STORES = ("memory", "file", "s3", "s3-spoiled")

SPOILED = [
    Rule(fault=SLOW_DOWN, probability=0.05),
    Rule(fault=TOO_MANY_REQUESTS, probability=0.05),
    Rule(fault=INTERNAL_ERROR, probability=0.05, operations=READS),
    Rule(fault=CONFLICT, probability=0.1, operations=("PUT",)),
    Rule(fault=Fault.RESET, probability=0.05, operations=READS),
    Rule(fault=Fault.LOST_ANSWER, probability=0.05, operations=READS),
    Rule(fault=Fault.CUT_BODY, probability=0.05, operations=("GET",)),
    Rule(fault=Delay(0.0, 0.01), probability=0.5),
]
"""Whatever is repeated below the store's users, so that they see nothing of it."""


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    if request.param in {"memory", "file"}:
        opened = MemoryStore() if request.param == "memory" else open_store(str(tmp_path / "root"))
        yield opened
        await opened.close()
        return
    server: S3Server = request.getfixturevalue("s3_server")
    seed = crc32(request.node.name.encode())
    async with FaultProxy(server.endpoint, seed=seed, rules=SPOILED) as proxy:
        spoiled = request.param == "s3-spoiled"
        endpoint = proxy.endpoint if spoiled else server.endpoint
        opened = open_store(f"{server.uri}/deep/prefix?endpoint={endpoint}")
        retrying = RetryingStore(opened, rng=random.Random(seed))
        retrying.is_patient = True
        counted = CountedStore(retrying, clock=SystemClock())
        yield counted if spoiled else opened
        await counted.close()


async def test_what_was_created_is_read_whole_in_ranges_and_from_the_end(
    store: ObjectStore,
) -> None:
    await store.create("data/a1/x", [b"01", memoryview(b"234"), bytearray(b"56789")])
    assert await store.get("data/a1/x") == b"0123456789"
    assert await store.get_range("data/a1/x", 3, 4) == b"3456"
    target = bytearray(6)
    await store.get_range_into("data/a1/x", 3, memoryview(target)[1:5])
    assert target == b"\x003456\x00"
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


@pytest.mark.parametrize("size", [100, 3 << 20])
async def test_a_file_system_without_nameless_files_is_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """NFS and FUSE have none; no such file system can be mounted here."""
    really_open = os.open

    def refusing(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return really_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    store, body = FileStore(tmp_path), os.urandom(size)
    await store.create("a/b", [body])
    with pytest.raises(ObjectExists):
        await store.create("a/b", [b"another"])
    assert await store.get("a/b") == body
    assert not list((tmp_path / ".tmp").iterdir())
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
        lambda: store.get_range_into("no", 0, memoryview(bytearray(1))),
        lambda: store.get_suffix("no", 1),
    ]
    for read in reads:
        with pytest.raises(ObjectNotFound):
            await read()  # type: ignore[misc]


async def test_a_range_beyond_the_end_is_an_error(store: ObjectStore) -> None:
    await store.create("k", [b"0123"])
    with pytest.raises(CorruptObject):
        await store.get_range("k", 2, 10)
    with pytest.raises(CorruptObject):
        await store.get_range("k", 20, 10)
    for start in (2, 20):
        with pytest.raises(CorruptObject):
            await store.get_range_into("k", start, memoryview(bytearray(10)))


async def test_listing_is_by_prefix_in_key_order(store: ObjectStore) -> None:
    for key in ("b/2", "b/10", "a/1", "b/sub/3", "bb/4"):
        await store.create(key, [b"abc"])
    assert [meta.key for meta in await store.list("b/")] == ["b/10", "b/2", "b/sub/3"]
    assert [meta.key for meta in await store.list("b/", start_after="b/10")] == ["b/2", "b/sub/3"]
    assert [meta.key for meta in await store.list("b/s")] == ["b/sub/3"]
    assert [meta.size for meta in await store.list("a/")] == [3]
    assert list(await store.list("none/")) == []


async def test_the_pages_of_a_listing_are_the_listing(store: ObjectStore) -> None:
    keys = ["p/a-b", "p/a.c", "p/a/1", "p/a/sub/2", "p/a/sub-3", "p/a0/4", "p/b", "q/5"]
    for key in keys:
        await store.create(key, [b"x"])
    for size in (1, 2, 3, 100):
        found = [tuple(meta.key for meta in page) async for page in pages(store, "p/", size=size)]
        assert [key for page in found for key in page] == sorted(keys[:-1])
        assert all(0 < len(page) <= size for page in found)
    first = await store.list("p/", start_after="p/a/1", limit=2)
    assert [meta.key for meta in first] == ["p/a/sub-3", "p/a/sub/2"]
    assert [page async for page in pages(store, "none/")] == []


async def test_deleting_is_idempotent(store: ObjectStore) -> None:
    await store.create("a", [b"1"])
    await store.create("b", [b"1"])
    await store.delete(["a", "absent"])
    await store.delete(["a"])
    assert [meta.key for meta in await store.list("")] == ["b"]


async def test_many_keys_are_listed_and_deleted(store: ObjectStore) -> None:
    keys = [f"many/{number:04d}" for number in range(100)]
    for first in range(0, len(keys), 50):
        await asyncio.gather(*(store.create(key, [b"x"]) for key in keys[first : first + 50]))
    assert [meta.key for meta in await store.list("many/")] == keys
    after = await store.list("many/", start_after="many/0050")
    assert [meta.key for meta in after] == keys[51:]
    await store.delete(keys)
    assert list(await store.list("many/")) == []


async def test_nothing_is_half_written_after_quiet_work(store: ObjectStore) -> None:
    await store.create("k", [b"x"])
    assert await store.abort_uploads(before_ms=2**62) == 0


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
    store = FaultyStore(inner, rng=random.Random(1), profile=FaultProfile(lost_response=1))
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
