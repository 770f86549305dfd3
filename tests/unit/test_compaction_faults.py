"""Compaction beside traffic, over a store that fails, loses requests and answers, and by processes
that are killed at any moment: what a consumer ends up with is the newest of each key, always.
"""

import asyncio
import random
from functools import partial

import pytest

from lakehead.storage.compaction.log_compaction import (
    LogCompaction,
    LogCompactionResult,
    LogCompactionSettings,
)
from lakehead.storage.format.object_names import JobName
from lakehead.storage.garbage import check_leaks
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.object_store.retrying import RetryingStore
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.wal import MemoryWal
from tests.simulation.loop import LoopClock, simulate
from tests.unit.test_compaction_job import Writer, read, upload
from tests.unit.test_stream_engine import running

ROUNDS = 25
BAD = FaultProfile(unavailable=0.01, lost_request=0.02, lost_response=0.05, latency_s_max=0.02)
SETTINGS = StorageSettings(upload_size=1 << 30, upload_age_s=3600, cache_size=1 << 26)


async def compact(store: ObjectStore, stream: Stream, rng: random.Random) -> LogCompactionResult:
    """What one process does from its start."""
    writer_id = f"maintenance/{rng.getrandbits(64)}"
    clock, store = LoopClock(asyncio.get_running_loop()), RetryingStore(store, rng=rng)
    log = await MetadataLog.open(store, writer_id=writer_id, clock=clock, rng=rng)
    settings = LogCompactionSettings(
        until_ms=1 << 62,
        delete_retention_ms=1 << 40,
        map_memory=24 * rng.choice([16, 1000]),
        group_size=rng.choice([1, 500, 1 << 20]),
    )
    return await LogCompaction(
        store, log, clock, rng, stream_id=stream.stream_id, settings=settings
    ).run()


@pytest.mark.parametrize("seed", range(8))
def test_the_newest_of_each_key_is_there_whatever_happens(seed: int) -> None:
    simulate(partial(newest_of_each_key, seed), seed=seed)


async def newest_of_each_key(seed: int) -> None:
    rng, inner = random.Random(seed), MemoryStore()
    store = FaultyStore(inner, rng=rng, profile=BAD)
    values: dict[bytes, tuple[int, bytes]] = {}
    killed = passes = 0
    async with running(inner, MemoryWal(), settings=SETTINGS) as (engine, (stream,)):
        writer = Writer(stream)
        for _ in range(ROUNDS):
            for _ in range(rng.randint(1, 8)):
                key, value = b"k%d" % rng.randrange(15), b"%d" % rng.getrandbits(30)
                values[key] = (stream.next_offset, value)
                writer.append((key, value), producer_id=rng.choice([-1, 4]))
                if rng.random() < 0.3:
                    await upload(engine)
            await upload(engine)
            try:
                async with asyncio.timeout(rng.choice([0.1, 0.5, 2.0, 600.0])):
                    passes += (await compact(store, stream, rng)).passes
            except TimeoutError:
                killed += 1
            await engine.metadata.refresh()
            found = {r.key: (r.offset, r.value) for r in await read(stream)}
            assert found == values
        await compact(inner, stream, rng)
        await engine.metadata.refresh()
        records = await read(stream)
        assert {r.key: (r.offset, r.value) for r in records} == values
        assert len(records) == len(values)
        report = await check_leaks(inner, engine.metadata)
        assert (report.missing, report.leaked, report.strange) == ((), (), ())
        assert all(JobName.parse(key) for key in report.uploading)
    assert passes > 0
    assert killed > 0
