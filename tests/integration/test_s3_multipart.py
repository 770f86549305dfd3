"""Large objects in parts, on a real S3 server: whole or absent, one winner, nothing left behind."""

import asyncio
import itertools
import os
import random
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.s3_server import S3Server
from lakehead.storage.errors import ObjectExists, ObjectNotFound, OutcomeUnknown, StoreUnavailable
from lakehead.storage.format.object_names import DataName, JobName
from lakehead.storage.garbage import is_own_name
from lakehead.storage.object_store.retrying import RetryingStore
from lakehead.storage.object_store.s3 import multipart
from lakehead.storage.object_store.s3 import store as s3_store
from lakehead.storage.object_store.s3.limits import PART_SIZE
from lakehead.storage.object_store.s3.store import S3Store
from tests.support.s3_proxy import (
    CONFLICT,
    INTERNAL_ERROR,
    SLOW_DOWN,
    Answer,
    Delay,
    Fault,
    FaultProxy,
    Rule,
)

PART = 5 * 1024 * 1024
FOR_EVER_MS = 2**62


@pytest.fixture
async def proxy(s3_server: S3Server) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(s3_server.endpoint, seed=3) as running:
        yield running


@pytest.fixture
async def store(
    s3_server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[S3Store]:
    """A store whose parts are as small as a server takes them, so that tests are quick."""
    monkeypatch.setattr(s3_store, "MULTIPART_SIZE_MIN", 2 * PART)
    monkeypatch.setattr(multipart, "PART_SIZE", PART)
    opened = S3Store(f"{s3_server.uri}/prefix?endpoint={proxy.endpoint}")
    yield opened
    await opened.close()


def large(seed: int = 1, parts: float = 3.5) -> list[memoryview]:
    """A body of odd pieces."""
    body = memoryview(random.Random(seed).randbytes(int(PART * parts)))
    cuts = [0, 1, 5000, PART - 1, PART + 7, 2 * PART, 2 * PART + 1, len(body)]
    return [body[start:end] for start, end in itertools.pairwise(cuts)]


async def parts_seen(proxy: FaultProxy, count: int) -> None:
    async with asyncio.timeout(20):
        while proxy.seen.requests["UPLOAD_PART"] < count:  # noqa: ASYNC110 - counted elsewhere
            await asyncio.sleep(0.01)


def test_pieces_are_cut_into_runs() -> None:
    assert list(multipart.cut([b"abc", b"", b"defgh", b"i"], 4)) == [b"abcd", b"efgh", b"i"]
    assert list(multipart.cut([b"abcd"], 4)) == [b"abcd"]
    assert list(multipart.cut([], 4)) == []
    for size in range(1, 12):
        runs = list(multipart.cut([b"abc", bytearray(b"defg"), memoryview(b"hij")], size))
        assert b"".join(runs) == b"abcdefghij"
        assert {len(run) for run in runs[:-1]} <= {size}


async def test_a_large_object_goes_in_parts_and_is_whole(store: S3Store, proxy: FaultProxy) -> None:
    pieces = large()
    await store.create("large", pieces)
    assert await store.get("large") == b"".join(pieces)
    assert proxy.seen.requests["UPLOAD_PART"] == 4
    assert proxy.seen.requests["PUT"] == 0
    assert await store.abort_uploads(before_ms=FOR_EVER_MS) == 0


async def test_of_racing_large_objects_one_wins_and_it_is_whole(store: S3Store) -> None:
    bodies = {seed: large(seed) for seed in range(4)}

    async def create(seed: int) -> bool:
        try:
            await store.create("race", bodies[seed])
        except ObjectExists:
            return False
        return True

    won = await asyncio.gather(*(create(seed) for seed in bodies))
    assert won.count(True) == 1
    assert await store.get("race") == b"".join(bodies[won.index(True)])
    assert await store.abort_uploads(before_ms=FOR_EVER_MS) == 0, "the losers' parts stay"


async def test_a_large_object_never_overwrites_a_small_one(store: S3Store) -> None:
    await store.create("k", [b"small"])
    with pytest.raises(ObjectExists):
        await store.create("k", large())
    assert await store.get("k") == b"small"


async def test_parts_are_repeated_each_by_itself(store: S3Store, proxy: FaultProxy) -> None:
    proxy.rules = [
        Rule(fault=SLOW_DOWN, operations=("UPLOAD_PART",), probability=0.3),
        Rule(fault=INTERNAL_ERROR, operations=("UPLOAD_PART",), probability=0.1),
        Rule(fault=Fault.LOST_ANSWER, operations=("UPLOAD_PART",), probability=0.1),
        Rule(fault=Delay(0.0, 0.02), probability=0.5),
    ]
    pieces = large()
    await store.create("large", pieces)
    assert await store.get("large") == b"".join(pieces)
    assert proxy.seen.faults.total() > 0
    assert proxy.seen.requests["CREATE_UPLOAD"] == 1


@pytest.mark.parametrize(
    ("operation", "fault", "meaning"),
    [
        ("CREATE_UPLOAD", SLOW_DOWN, StoreUnavailable),
        ("CREATE_UPLOAD", Fault.LOST_ANSWER, StoreUnavailable),
        ("UPLOAD_PART", Answer(403, "AccessDenied"), StoreUnavailable),
        ("COMPLETE_UPLOAD", SLOW_DOWN, StoreUnavailable),
        ("COMPLETE_UPLOAD", CONFLICT, StoreUnavailable),
        ("COMPLETE_UPLOAD", Answer(404, "NoSuchUpload"), StoreUnavailable),
        ("COMPLETE_UPLOAD", INTERNAL_ERROR, OutcomeUnknown),
        ("COMPLETE_UPLOAD", Fault.RESET, OutcomeUnknown),
    ],
    ids=str,
)
async def test_an_upload_that_fails_leaves_nothing_to_be_seen_and_can_be_made_again(
    store: S3Store,
    proxy: FaultProxy,
    operation: str,
    fault: Answer | Fault,
    meaning: type[Exception],
) -> None:
    """Parts are never visible, and given up at once where that is possible."""
    pieces = large()
    proxy.rules = [Rule(fault=fault, operations=(operation,), first=1)]
    with pytest.raises(meaning):
        await store.create("large", pieces)
    with pytest.raises(ObjectNotFound):
        await store.get("large")
    assert list(await store.list("")) == []
    await store.create("large", pieces)
    assert await store.get("large") == b"".join(pieces)
    left = await store.abort_uploads(before_ms=FOR_EVER_MS)
    assert left == (fault is Fault.LOST_ANSWER), "an upload of which nobody knew the id"


async def test_a_completion_of_which_the_answer_was_lost_is_a_taken_name(
    store: S3Store, proxy: FaultProxy
) -> None:
    """As of small objects."""
    pieces = large()
    proxy.rules = [Rule(fault=Fault.LOST_ANSWER, operations=("COMPLETE_UPLOAD",), first=1)]
    with pytest.raises(ObjectExists):
        await store.create("large", pieces)
    assert await store.get("large") == b"".join(pieces)
    with pytest.raises(ObjectExists):
        await store.create("large", pieces)


async def test_abandoned_uploads_are_swept_by_age_and_the_young_are_left(store: S3Store) -> None:
    """What a crash between two parts leaves behind."""
    uploads = store.multipart
    for number in range(3):
        upload = await store.in_thread(lambda key=f"dead/{number}": uploads.begin(key))  # type: ignore[misc]
        await store.in_thread(
            lambda key=f"dead/{number}", upload=upload: uploads.put_part(key, upload, 1, b"x")  # type: ignore[misc]
        )
    assert await store.abort_uploads(before_ms=0) == 0
    assert await store.abort_uploads(before_ms=FOR_EVER_MS) == 3
    assert await store.abort_uploads(before_ms=FOR_EVER_MS) == 0
    assert list(await store.list("")) == []


async def test_a_sweep_gives_up_the_clusters_own_uploads_alone(store: S3Store) -> None:
    """Spark's committers leave uploads of tables open for as long as a job takes."""
    own = [
        DataName(node_id=1, epoch=0, number=2).key,
        JobName(entry=3, nonce=4).key,
        "meta/checkpoint/00000000000000000001.parquet",
    ]
    others = ["tables/orders/part-1.parquet", "data/part-1.parquet", "data/ab/rows.csv", "x"]
    for key in (*own, *others):
        await store.in_thread(lambda key=key: store.multipart.begin(key))  # type: ignore[misc]
    assert await store.abort_uploads(before_ms=FOR_EVER_MS, owns=is_own_name) == len(own)
    assert await store.abort_uploads(before_ms=FOR_EVER_MS) == len(others)


async def test_an_upload_that_is_swept_while_it_lives_is_whole_or_absent(
    store: S3Store, proxy: FaultProxy
) -> None:
    """A part in flight may outrun the sweep, as in S3 itself: then the object is whole."""
    proxy.rules = [Rule(fault=Delay(1.0), operations=("UPLOAD_PART",))]
    pieces = large()
    writing = asyncio.ensure_future(store.create("large", pieces))
    await parts_seen(proxy, 4)
    patient = RetryingStore(store, rng=random.Random(1))  # the server may stumble over the part
    await patient.abort_uploads(before_ms=FOR_EVER_MS)
    proxy.rules = []
    try:
        await writing
    except StoreUnavailable:
        with pytest.raises(ObjectNotFound):
            await store.get("large")
        await patient.create("large", pieces)
    assert await store.get("large") == b"".join(pieces)
    assert [meta.key for meta in await store.list("")] == ["large"]


async def test_a_store_told_not_to_use_parts_writes_in_one_request(
    store: S3Store, s3_server: S3Server, proxy: FaultProxy
) -> None:
    plain = S3Store(f"{s3_server.uri}?endpoint={proxy.endpoint}&multipart=false")
    await plain.create("large", large())
    assert proxy.seen.requests == {"PUT": 1}
    await plain.close()


async def test_closing_a_store_ends_an_upload_in_the_middle(
    store: S3Store, proxy: FaultProxy
) -> None:
    proxy.rules = [Rule(fault=SLOW_DOWN, operations=("UPLOAD_PART",))]
    writing = asyncio.ensure_future(store.create("large", large()))
    await parts_seen(proxy, 6)
    await store.close()
    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(30):
            await writing


@pytest.mark.serial
async def test_the_memory_of_an_upload_is_bounded(s3_server: S3Server) -> None:
    """160 MB out of one buffer of 16 MB: at most five parts of 8 MiB are held at once."""
    store = S3Store(s3_server.uri)
    piece = os.urandom(16_000_000)
    await store.create("warm", [piece] * 5)
    before = _peak_kib(reset=True)
    await store.create("large", [piece] * 10)
    grown = _peak_kib() - before
    assert grown < 6 * PART_SIZE // 1024, f"{grown} KiB"
    assert (await store.list("large"))[0].size == 160_000_000
    assert await store.get_range("large", 16_000_000 - 5, 10) == piece[-5:] + piece[:5]
    await store.close()


def _peak_kib(*, reset: bool = False) -> int:
    """The process's greatest resident size since it was reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
