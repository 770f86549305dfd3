"""The engine while the store is gone for long, and while clocks jump: simulated time, real code."""

import asyncio
import random
from collections.abc import Callable

import pytest

from lakehead.storage.clock import Clock
from lakehead.storage.garbage import check_leaks
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import MemoryWal
from tests.simulation.loop import LoopClock, simulate
from tests.support.wal_tools import opener
from tests.unit.test_stream_engine import append, create_topic, read_all

KIB = 1024
SETTINGS = StorageSettings(
    upload_size=64 * KIB,
    upload_age_s=1.0,
    stream_object_size=16 * KIB,
    cache_size=256 * KIB,
    block_cache_size=256 * KIB,
)
OUTAGE_S = 600.0
GONE = FaultProfile(unavailable=0.9, lost_request=0.1, latency_s_max=0.2)


class World:
    """One node on a store that fails when it is told to."""

    def __init__(self, make_clock: Callable[[LoopClock], Clock] = lambda clock: clock) -> None:
        self.rng = random.Random(4)
        self.objects: dict[str, bytes] = {}
        self.store = FaultyStore(
            MemoryStore(self.objects), rng=self.rng, profile=FaultProfile(latency_s_max=0.05)
        )
        self.make_clock = make_clock
        self.wal = MemoryWal(capacity=1 << 20)
        self.crashes: list[str] = []
        self.most_cached = 0

    async def open(self) -> tuple[StreamEngine, list[Stream], TaskScope]:
        scope = TaskScope(lambda name, error: self.crashes.append(f"{name}: {error!r}"))
        engine = await StreamEngine.open(
            store=self.store,
            open_wal=opener(self.wal),
            node=NodeIdentity(node_id=0, host="h", port=1),
            clock=self.make_clock(LoopClock(asyncio.get_running_loop())),
            rng=self.rng,
            settings=SETTINGS,
            scope=scope,
        )
        state = await engine.metadata.commit_with(create_topic(2))
        return engine, await engine.open_streams(list(state.topics["t"].partitions)), scope

    async def produce(self, engine: StreamEngine, streams: list[Stream], until: float) -> list[int]:
        """Append as fast as back-pressure lets; return the base offsets of the first stream."""
        loop = asyncio.get_running_loop()
        bases = []
        while loop.time() < until:
            if not engine.writable():
                await asyncio.sleep(0.1)
                continue
            bases.append(await append(streams[0], size=2000))
            await append(streams[1], size=200)
            self.most_cached = max(self.most_cached, engine.cache.size)
            await asyncio.sleep(0.02)
        return bases


def test_a_store_that_is_gone_for_ten_minutes_stops_producers_and_loses_nothing() -> None:
    async def life() -> None:
        world = World()
        loop = asyncio.get_running_loop()
        engine, streams, scope = await world.open()
        bases = await world.produce(engine, streams, 5.0)
        assert bases

        world.store.profile = GONE
        during = await world.produce(engine, streams, loop.time() + OUTAGE_S)
        assert not engine.writable(), "producers wait"
        full = SETTINGS.cache_size // 6000  # batches of both streams, and their overhead
        assert len(during) < 2 * full, "and did for most of the time"
        assert world.most_cached < SETTINGS.cache_size + 16 * KIB
        bases += during
        assert streams[0].confirmed_offset == bases[-1] + 3, "what was acknowledged stays so"

        world.store.profile = FaultProfile(latency_s_max=0.05)
        healed = loop.time()
        while not engine.writable():  # noqa: ASYNC110 - as a producer finds out
            await asyncio.sleep(0.1)
        assert loop.time() - healed < 30, "goes on by itself"
        bases += await world.produce(engine, streams, loop.time() + 5)
        assert await read_all(streams[0]) == bases
        await engine.close()
        await scope.close()
        assert not world.crashes
        # Puts of unknown outcome were settled: no object is left over.
        assert (await check_leaks(world.store, engine.metadata)).uploading == ()
        state = engine.metadata.state
        assert {key for key in world.objects if key.startswith("data/")} == set(state.objects)

    simulate(life, seed=1)


class JumpingClock:
    """A wall clock that is an hour ahead or behind, another way each time it is asked."""

    def __init__(self, inner: LoopClock, seed: int) -> None:
        self._inner = inner
        self._rng = random.Random(seed)

    def now_ms(self) -> int:
        return self._inner.now_ms() + self._rng.choice([-3_600_000, 0, 3_600_000])

    def monotonic(self) -> float:
        return self._inner.monotonic()


@pytest.mark.parametrize("seed", range(5))
def test_nothing_depends_on_a_wall_clock_that_jumps(seed: int) -> None:
    async def life(make_clock: Callable[[LoopClock], Clock]) -> tuple[list[int], list[float], int]:
        loop = asyncio.get_running_loop()
        world = World(make_clock)
        engine, streams, scope = await world.open()
        commits: list[float] = []
        engine.metadata.subscribe(lambda _: commits.append(loop.time()))
        bases = await world.produce(engine, streams, 20.0)
        assert await read_all(streams[0]) == bases
        assert engine.writable()
        await engine.close()
        await scope.close()
        assert not world.crashes
        return bases, commits, len(engine.metadata.state.objects)

    steady = simulate(lambda: life(lambda clock: clock), seed=seed)
    jumping = simulate(lambda: life(lambda clock: JumpingClock(clock, seed)), seed=seed)
    assert jumping == steady
