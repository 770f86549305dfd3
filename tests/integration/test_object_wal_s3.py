"""The object WAL on a real S3 server, behind a proxy that spoils what passes."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from bench.s3_server import S3Server
from lakehead.storage.errors import WalFailed, WalFull
from lakehead.storage.object_store.retrying import RetryingStore
from lakehead.storage.object_store.s3.store import S3Store
from lakehead.storage.wal import ObjectWal, ObjectWalSettings
from lakehead.storage.wal.object import BatchingSettings, is_seal_size
from lakehead.storage.wal.object.hedging import HedgingSettings
from lakehead.storage.wal.protocol import WalFloor
from tests.support.object_wal_tools import make_sealer, make_wal, offsets
from tests.support.s3_proxy import (
    CONFLICT,
    INTERNAL_ERROR,
    SLOW_DOWN,
    Delay,
    Fault,
    FaultProxy,
    Rule,
)
from tests.support.wal_tools import Listener

HASTY = ObjectWalSettings(
    put_timeout_s=0.3, batching=BatchingSettings(object_size=16 * 1024, linger_s=0.001)
)
STORM = [
    Rule(fault=Fault.LOST_ANSWER, operations=("PUT",), probability=0.1),
    Rule(fault=Fault.RESET, probability=0.05),
    Rule(fault=Fault.HANG, operations=("PUT",), probability=0.03),
    Rule(fault=Fault.HANG_AFTER, operations=("PUT",), probability=0.03),
    Rule(fault=SLOW_DOWN, probability=0.05),
    Rule(fault=CONFLICT, operations=("PUT",), probability=0.03),
    Rule(fault=INTERNAL_ERROR, probability=0.05),
    Rule(fault=Delay(0.001, 0.02), probability=0.5),
]


@pytest.fixture
async def proxy(s3_server: S3Server) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(s3_server.endpoint, seed=3) as running:
        yield running


async def begun(
    store: S3Store, wal_settings: ObjectWalSettings = HASTY
) -> tuple[ObjectWal, Listener]:
    wal = make_wal(store, wal_settings)
    await wal.seal(WalFloor(0, 0), before=0)
    listener = Listener()
    await wal.start(epoch=0, listener=listener)
    return wal, listener


async def test_a_storm_of_faults_delays_and_loses_nothing(
    s3_server: S3Server, proxy: FaultProxy
) -> None:
    """A 412 may be our own put, whose answer was lost."""
    spoilt = S3Store(f"{s3_server.uri}/p?endpoint={proxy.endpoint}")
    plain = S3Store(f"{s3_server.uri}/p")
    wal, listener = await begun(spoilt)
    proxy.rules = STORM
    rng = random.Random(1)
    end = 0
    for offset in range(400):
        end = wal.append(1, 0, offset, 1, rng.randbytes(rng.randrange(4000)))
        await asyncio.sleep(rng.random() * 0.004)
    async with asyncio.timeout(60):
        await listener.wait_released(end)
    assert wal.stats.put_retries >= 3
    sealed = await make_sealer(plain).seal(WalFloor(0, 0), before=1)
    spans = [span for item in sealed.objects for span in item.ranges]
    assert (spans[0].start_offset, spans[-1].end_offset) == (0, 400)
    assert [a.end_offset for a in spans[:-1]] == [b.start_offset for b in spans[1:]]
    await wal.close()
    for store in (spoilt, plain):
        await store.close()


@pytest.mark.slow
async def test_a_live_writer_is_sealed_under_a_storm_and_is_told_nothing_false(
    s3_server: S3Server, proxy: FaultProxy
) -> None:
    """The taker does not wait for the old owner to notice."""
    spoilt = S3Store(f"{s3_server.uri}/p?endpoint={proxy.endpoint}")
    plain = S3Store(f"{s3_server.uri}/p")
    wal, listener = await begun(spoilt)
    # Without what hangs, since then the writer meets the seal before its next put.
    proxy.rules = [rule for rule in STORM if rule.fault not in {Fault.HANG, Fault.HANG_AFTER}]
    ends: list[int] = []

    async def write() -> None:
        with pytest.raises(WalFailed):
            while True:
                try:
                    ends.append(wal.append(1, 0, len(ends), 1, b"x" * 2000))
                except WalFull:
                    pass
                await asyncio.sleep(0.002)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(write())
        await asyncio.sleep(0.3)
        patient = RetryingStore(spoilt, rng=random.Random(2))
        patient.is_patient = True
        sealed = await make_sealer(patient).seal(WalFloor(0, 0), before=1)
    proxy.rules = []
    released = listener.positions[-1] if listener.positions else 0
    acknowledged = sum(end <= released for end in ends)
    held = sealed.objects[-1].ranges[0].end_offset if sealed.objects else 0
    assert acknowledged <= held
    assert len(ends) > acknowledged, "the writer was at work when its log was sealed"
    again = await make_sealer(plain).seal(WalFloor(0, 0), before=1)
    assert again.objects == sealed.objects
    await wal.close()
    for store in (spoilt, plain):
        await store.close()


async def test_slow_puts_of_a_server_are_raced_and_each_record_is_there_once(
    s3_server: S3Server, proxy: FaultProxy
) -> None:
    spoilt = S3Store(f"{s3_server.uri}/p?endpoint={proxy.endpoint}")
    plain = S3Store(f"{s3_server.uri}/p")
    hedging = HedgingSettings(share=0.3, puts_min=5)
    wal, listener = await begun(spoilt, ObjectWalSettings(hedging=hedging))
    for offset in range(20):
        await listener.wait_released(wal.append(1, 0, offset, 1, b"x"))
    proxy.rules = [Rule(fault=Delay(3.0), operations=("PUT",), first=1)]
    async with asyncio.timeout(60):
        await listener.wait_released(wal.append(1, 0, 20, 1, b"slow"))
    assert wal.stats.hedges_won >= 1
    assert offsets(await make_sealer(plain).seal(WalFloor(0, 0), before=1)) == list(range(21))
    await wal.close()
    for store in (spoilt, plain):
        await store.close()


async def test_a_store_that_is_gone_for_a_while_holds_producers_back_and_no_more(
    s3_server: S3Server, proxy: FaultProxy
) -> None:
    store = S3Store(f"{s3_server.uri}/p?endpoint={proxy.endpoint}")
    wal, listener = await begun(store)
    await listener.wait_released(wal.append(1, 0, 0, 1, b"before"))
    proxy.rules = [Rule(fault=SLOW_DOWN)]
    end = 0
    for offset in range(1, 40):
        end = wal.append(1, 0, offset, 1, b"x" * 5000)
        await asyncio.sleep(0.02)
    assert wal.pending_bytes > 150_000
    assert wal.stats.in_flight_limit == 1, "what is refused is not asked for more often"
    assert not listener.errors
    proxy.rules = []
    async with asyncio.timeout(20):
        await listener.wait_released(end)
    await wal.trim(end)
    await wal.close()
    found = await store.list("wal/")
    assert [meta.key for meta in found if not is_seal_size(meta.size)] == []
    assert offsets(await make_sealer(store).seal(wal.floor_at(end), before=1)) == []
    await store.close()
