"""What an S3 server may do to a request, and what each must mean: a real server behind a proxy.

Numbers in docstrings are those of the known bug classes of other systems on S3.
"""

import asyncio
import contextlib
import random
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import obstore
import pytest

from bench.s3_server import S3Server
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import (
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StorageError,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
)
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store import ObjectStore
from lakehead.storage.object_store.retrying import RetryingStore
from lakehead.storage.object_store.s3 import store as s3_store
from lakehead.storage.object_store.s3.limits import MULTIPART_SIZE_MIN
from lakehead.storage.object_store.s3.store import S3Store
from tests.support.s3_proxy import (
    ACCESS_DENIED,
    CONFLICT,
    INTERNAL_ERROR,
    SLOW_DOWN,
    TOO_MANY_REQUESTS,
    Answer,
    Delay,
    Fault,
    FaultProxy,
    Rule,
    Slow,
)


@dataclass(slots=True)
class Spoilt:
    """A store, and the proxy before it."""

    proxy: FaultProxy
    store: S3Store

    def once(self, fault: Answer | Delay | Slow | Fault, *operations: str) -> None:
        """Let the fault happen to the next such request, and nothing else to any other."""
        self.proxy.rules = [Rule(fault=fault, operations=operations, first=1)]


@pytest.fixture
async def spoilt(s3_server: S3Server) -> AsyncIterator[Spoilt]:
    async with FaultProxy(s3_server.endpoint, seed=1) as proxy:
        store = S3Store(f"{s3_server.uri}/prefix?endpoint={proxy.endpoint}")
        yield Spoilt(proxy, store)
        await store.close()


def retrying(store: S3Store, *, seed: int = 1) -> RetryingStore:
    patient = RetryingStore(store, rng=random.Random(seed))
    patient.is_patient = True
    return patient


WRITE_MEANINGS = [
    (SLOW_DOWN, StoreThrottled, False),
    (TOO_MANY_REQUESTS, StoreThrottled, False),
    (CONFLICT, StoreUnavailable, False),
    (Answer(400, "RequestTimeout"), StoreUnavailable, False),
    (ACCESS_DENIED, StoreRefused, False),
    (Answer(403, "RequestTimeTooSkewed"), StoreRefused, False),
    (Answer(404, "NoSuchBucket"), StoreRefused, False),
    (Answer(301, "PermanentRedirect"), StoreRefused, False),
    (Answer(400, "ExpiredToken"), StoreRefused, False),
    (INTERNAL_ERROR, OutcomeUnknown, False),
    (Answer(502, "BadGateway"), OutcomeUnknown, False),
    (Fault.RESET, OutcomeUnknown, False),
    (Fault.LOST_ANSWER, ObjectExists, True),
]


@pytest.mark.parametrize(("fault", "meaning", "happened"), WRITE_MEANINGS, ids=str)
async def test_each_answer_to_a_put_means_not_done_or_unknown(
    spoilt: Spoilt, fault: Answer | Fault, meaning: type[StorageError], happened: bool
) -> None:
    """And never "taken" or "absent" by mistake, of which logs draw conclusions. A put that was
    carried out, by whomever, is a taken name.
    """
    spoilt.once(fault, "PUT")
    with pytest.raises(StorageError) as raised:
        await spoilt.store.create("k", [b"body"])
    assert type(raised.value) is meaning, raised.value
    assert re.search(r"\n|Debug source", str(raised.value)) is None, "one line"
    assert spoilt.proxy.seen.requests["PUT"] == 1, "repeated below the store's users"
    if happened:
        assert await spoilt.store.get("k") == b"body"
        with pytest.raises(ObjectExists):
            await spoilt.store.create("k", [b"body"])
    else:
        with pytest.raises(ObjectNotFound):
            await spoilt.store.get("k")
        await spoilt.store.create("k", [b"body"])


READ_FAULTS = [
    SLOW_DOWN,
    TOO_MANY_REQUESTS,
    INTERNAL_ERROR,
    ACCESS_DENIED,
    Answer(404, "NoSuchBucket"),
    Answer(404, "NotFound"),
    Fault.RESET,
    Fault.LOST_ANSWER,
    Fault.CUT_BODY,
]


@pytest.mark.parametrize("fault", READ_FAULTS, ids=str)
async def test_a_read_that_fails_never_passes_for_an_absent_object(
    spoilt: Spoilt, fault: Answer | Fault
) -> None:
    """An absent bucket answers 404 too; a log that takes it for its end loses its tail."""
    body = bytes(range(256)) * 4096
    await spoilt.store.create("a/k", [body])
    for read in (
        lambda: spoilt.store.get("a/k"),
        lambda: spoilt.store.get_range("a/k", 5, 100_000),
        lambda: spoilt.store.get_suffix("a/k", 100_000),
        lambda: spoilt.store.list("a/"),
    ):
        spoilt.once(fault, "GET", "LIST")
        with pytest.raises(StoreUnavailable):
            await read()
    spoilt.once(fault, "GET")
    assert await retrying(spoilt.store).get("a/k") == body


async def test_a_store_that_is_gone_has_done_nothing(spoilt: Spoilt) -> None:
    await spoilt.store.create("k", [b"x"])
    await spoilt.proxy.stop()
    with pytest.raises(StoreUnavailable, match="refused"):
        await spoilt.store.create("l", [b"x"])
    with pytest.raises(StoreUnavailable):
        await spoilt.store.get("k")
    with pytest.raises(StoreUnavailable):
        await spoilt.store.delete(["k"])
    await spoilt.proxy.start()
    assert await spoilt.store.get("k") == b"x"


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.HANG_AFTER])
async def test_a_request_that_hangs_is_given_up(
    spoilt: Spoilt, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hung read is sent again; a hung write is unknown, unless the object turns up."""
    monkeypatch.setattr(s3_store, "_READ_S", 0.2)
    monkeypatch.setattr(s3_store, "_WRITE_S", 0.2)
    await spoilt.store.create("k", [b"x"])
    spoilt.once(fault, "GET")
    with pytest.raises(StoreUnavailable, match="no response in time"):
        await spoilt.store.get("k")
    spoilt.once(fault, "GET")
    assert await retrying(spoilt.store).get("k") == b"x"
    spoilt.once(fault, "PUT")
    with pytest.raises(ObjectExists if fault is Fault.HANG_AFTER else OutcomeUnknown):
        await spoilt.store.create("l", [b"x"])
    if fault is Fault.HANG_AFTER:
        assert await spoilt.store.get("l") == b"x"


async def test_a_slow_link_gets_more_time_instead_of_never_succeeding(
    spoilt: Spoilt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "_READ_S", 0.1)
    body = bytes(600_000)
    await spoilt.store.create("k", [body])
    spoilt.proxy.rules = [Rule(fault=Slow(1_200_000), operations=("GET",))]
    started = time.monotonic()
    assert await retrying(spoilt.store).get("k") == body
    assert time.monotonic() - started < 20


async def open_log(store: ObjectStore, writer: str) -> MetadataLog:
    rng = random.Random(2)
    return await MetadataLog.open(store, writer_id=writer, clock=SystemClock(), rng=rng)


async def test_a_byte_changed_on_the_way_is_named_by_the_reader_and_poisons_nothing(
    spoilt: Spoilt,
) -> None:
    """The store cannot know; whoever reads a format checks it (here the metadata log's)."""
    await (await open_log(spoilt.store, "a")).create_cluster("c" * 32)
    spoilt.proxy.rules = [Rule(fault=Fault.FLIP_BYTE, operations=("GET",), key="meta/log/")]
    with pytest.raises(CorruptObject, match="meta/log/"):
        await open_log(spoilt.store, "b")
    spoilt.proxy.rules = []
    assert (await open_log(spoilt.store, "b")).state.cluster_id == "c" * 32


@pytest.mark.parametrize(
    "fault", [Fault.LOST_ANSWER, Fault.RESET, CONFLICT, SLOW_DOWN, INTERNAL_ERROR], ids=str
)
async def test_a_put_of_which_the_answer_was_lost_is_recognised_as_ones_own(
    spoilt: Spoilt, fault: Answer | Fault
) -> None:
    """The metadata log commits once, under one number, whatever happens to the answers."""
    log = await open_log(retrying(spoilt.store), "a")
    spoilt.once(fault, "PUT")
    await log.create_cluster("c" * 32)
    assert log.state.next_entry == 1
    assert len(await spoilt.store.list("meta/log/")) == 1
    other = await open_log(spoilt.store, "b")
    assert (other.state.next_entry, other.state.cluster_id) == (1, "c" * 32)


async def test_of_32_creators_of_one_key_one_wins_50_times(spoilt: Spoilt) -> None:
    """Races on a real server, some answers late, some refused by a conflict, none lost."""
    spoilt.proxy.rules = [
        Rule(fault=Delay(0.0, 0.01), probability=0.3),
        Rule(fault=CONFLICT, operations=("PUT",), probability=0.05),
    ]
    patient = retrying(spoilt.store)

    async def create(key: str, writer: int) -> bool:
        try:
            await patient.create(key, [b"%d" % writer])
        except ObjectExists:
            return False
        return True

    for number in range(50):
        key = f"race/{number}"
        won = await asyncio.gather(*(create(key, writer) for writer in range(32)))
        assert won.count(True) == 1
        assert await spoilt.store.get(key) == b"%d" % won.index(True)


async def test_a_large_put_of_a_taken_name_is_refused_however_early_the_server_breaks_off(
    s3_server: S3Server,
) -> None:
    """The server answers before it has read the body, and resets: the refusal may be lost."""
    store = S3Store(s3_server.uri)
    body = bytes(12_000_000)
    await store.create("k", [body])
    for _ in range(20):
        with pytest.raises(ObjectExists):
            await store.create("k", [body])
    await store.close()


async def test_throttled_deletes_drain_and_their_errors_stay_short(spoilt: Spoilt) -> None:
    """A thousand keys, a store that refuses half of what it is asked."""
    keys = [f"old/{number:05d}-{'x' * 100}" for number in range(1200)]
    for first in range(0, len(keys), 100):
        await asyncio.gather(
            *(spoilt.store.create(key, [b"x"]) for key in keys[first : first + 100])
        )
    spoilt.proxy.rules = [Rule(fault=SLOW_DOWN, operations=("DELETE_OBJECTS",), first=1)]
    with pytest.raises(StoreThrottled) as refused:
        await spoilt.store.delete(keys)
    assert len(str(refused.value)) < 500
    left = len(await spoilt.store.list("old/"))
    while left:
        spoilt.proxy.rules = [
            Rule(fault=SLOW_DOWN, operations=("DELETE_OBJECTS",), probability=0.5)
        ]
        with contextlib.suppress(StoreThrottled):
            await spoilt.store.delete(keys)
        now = len(await spoilt.store.list("old/"))
        assert now <= left
        left = now


async def test_an_outage_is_met_with_few_requests_and_outlived(spoilt: Spoilt) -> None:
    """Sixty-four calls wait; each asks a handful of times in two seconds, then all do well.

    How they spread over the end of an outage is shown in virtual time, in the unit tests.
    """
    await spoilt.store.create("k", [b"x"])
    spoilt.proxy.rules = [Rule(fault=Answer(503, "ServiceUnavailable"))]
    before = spoilt.proxy.seen.requests["GET"]
    patient = retrying(spoilt.store)
    calls = [asyncio.ensure_future(patient.get("k")) for _ in range(64)]
    await asyncio.sleep(2.0)
    asked = spoilt.proxy.seen.requests["GET"] - before
    assert 64 <= asked <= 64 * 8, f"{asked} requests in 2 s"
    assert not any(call.done() for call in calls)
    spoilt.proxy.rules = []
    async with asyncio.timeout(30):
        assert await asyncio.gather(*calls) == [b"x"] * 64


async def test_what_is_below_the_size_of_parts_goes_in_one_request(spoilt: Spoilt) -> None:
    rng = random.Random(7)
    pieces = [rng.randbytes(777_777) for _ in range(30)]
    await spoilt.store.create("large", pieces)
    assert await spoilt.store.get("large") == b"".join(pieces)
    assert sum(map(len, pieces)) < MULTIPART_SIZE_MIN
    assert spoilt.proxy.seen.requests == {"PUT": 1, "GET": 1}


async def test_a_range_is_a_view_of_what_the_client_received(s3_server: S3Server) -> None:
    store = S3Store(f"{s3_server.uri}/views")
    await store.create("k", [bytes(range(200))])
    found = await store.get_range("k", 10, 100)
    assert found == bytes(range(10, 110))
    assert isinstance(found.obj, obstore.Bytes), "no copy of it"
    assert found.readonly, "batches of many responses are slices of it"
