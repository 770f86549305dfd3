"""Uploads: planned within their limits, spread over time, and without limit when it matters."""

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from lakehead.storage.format.partition_state import StateSnapshot
from lakehead.storage.object_store import Buffer, MemoryStore
from lakehead.storage.stream.log_cache import CacheBlock, CachedBatch, LogCache
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.stream.upload import UploadPace, plan_objects
from lakehead.storage.wal import MemoryWal
from tests.simulation.loop import LoopClock, simulate
from tests.unit.test_stream_engine import append, read_all, running

MIB = 1 << 20


def batch(base: int, size: int) -> CachedBatch:
    return CachedBatch(base, base + 1, 0, 0, memoryview(bytes(size)))


@given(
    st.dictionaries(
        st.integers(0, 5), st.lists(st.integers(1, 400), min_size=1, max_size=20), min_size=1
    ),
    st.sampled_from((400, 1000, 1500, 9000)),
)
def test_every_batch_is_in_one_object_in_order_and_objects_keep_their_size(
    sizes: dict[int, list[int]], size_max: int
) -> None:
    batches = {
        stream_id: [batch(number, size) for number, size in enumerate(of_stream)]
        for stream_id, of_stream in sizes.items()
    }
    planned = asyncio.run(plan_objects(batches, stream_object_size=1000, object_size_max=size_max))
    seen: dict[int, list[CachedBatch]] = {}
    for one in planned:
        assert one.size <= size_max
        ids = [part.stream_id for part in one.parts]
        assert ids == sorted(set(ids))
        assert (one.kind == "so") == (len(ids) == 1)
        for part in one.parts:
            known = seen.setdefault(part.stream_id, [])
            known += batches[part.stream_id][part.first : part.end]
            assert part.is_last == (len(known) == len(batches[part.stream_id]))
            if len(ids) > 1:
                assert sum(sizes[part.stream_id]) < 1000
    assert seen == batches


def test_planning_a_hundred_thousand_batches_gives_others_their_turns() -> None:
    count = 100_000
    batches = {0: [batch(number, 1) for number in range(count)]}

    async def turns_of_others() -> int:
        planning = asyncio.create_task(
            plan_objects(batches, stream_object_size=1000, object_size_max=30_000)
        )
        turns = 0
        while not planning.done():
            turns += 1
            await asyncio.sleep(0)
        ends = [part.end for one in planning.result() for part in one.parts]
        assert ends == [30_000, 60_000, 90_000, count]
        return turns

    assert asyncio.run(turns_of_others()) >= count // 10_000


def sent(
    rate: float, fill: float, seconds: float, *, hurry: bool = False
) -> list[tuple[float, int]]:
    """Return when an upload in 1 MiB pieces sends them while `rate` bytes a second come in."""

    async def world() -> list[tuple[float, int]]:
        loop = asyncio.get_running_loop()
        pace = UploadPace(
            LoopClock(loop), produced=lambda: int(loop.time() * rate), fill=lambda: fill
        )
        times: list[tuple[float, int]] = []

        async def upload() -> None:
            while loop.time() < seconds and len(times) < 20_000:
                await pace.spend(MIB)
                times.append((loop.time(), MIB))

        if hurry:
            with pace.hurry():
                await upload()
        else:
            await upload()
        return times

    return simulate(world, seed=1)


def test_uploads_take_twice_the_rate_that_comes_in_without_bursts() -> None:
    times = sent(100 * MIB, 0.3, 20.0)
    last = [size for at, size in times if at > 10]
    assert 190 * MIB <= sum(last) / 10 <= 205 * MIB
    windows = [sum(s for at, s in times if t <= at < t + 0.1) for t in range(10, 19)]
    assert max(windows) <= 25 * MIB


def test_an_idle_node_uploads_what_is_left_at_a_floor() -> None:
    assert 30 * MIB <= sum(size for _, size in sent(0, 0.1, 10.0)) / 10 <= 34 * MIB


def test_uploads_speed_up_as_memory_fills_and_have_no_limit_before_producers_wait() -> None:
    calm, fuller = (len(sent(100 * MIB, fill, 10.0)) for fill in (0.4, 0.7))
    assert fuller > 2 * calm
    assert len(sent(100 * MIB, 0.8, 1.0)) == 20_000
    assert len(sent(100 * MIB, 0.1, 1.0, hurry=True)) == 20_000


class TimedStore(MemoryStore):
    """Notes the sizes of objects."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        if key.startswith("data/"):
            self.sizes.append(sum(map(len, pieces)))
        await super().create(key, pieces)


async def test_objects_are_cut_and_the_state_is_in_the_last_of_a_stream() -> None:
    settings = StorageSettings(
        upload_age_s=3600, stream_object_size=10_000, object_size_max=20_000, cache_size=1 << 20
    )
    store = TimedStore()
    async with running(store, MemoryWal(), settings=settings, clean=False) as (engine, streams):
        streams[0].state_snapshot = lambda _, end: StateSnapshot(str(end).encode())
        bases = [await append(streams[0], size=1000) for _ in range(20)]
        await engine.upload_now()
        assert len(store.sizes) > 3
        assert max(store.sizes) < 25_000
        assert await read_all(streams[0]) == bases
        assert (await streams[0].load_state())[::2] == ([b"60"], 60)
        for extent in list(engine.metadata.state.streams[0].extents)[:-1]:
            index = await engine.reader.index(extent.object_key)
            assert index.streams[0].state is None


def test_the_log_cache_is_bounded_and_lets_go_a_little_at_a_time() -> None:
    cache = LogCache(100_000)
    blocks: list[CacheBlock] = []
    for number in range(10_000):
        before = cache.size
        cache.add(number % 3, batch(number // 3, 100))
        assert before - cache.size <= 64 * 356, "no pause for a large block"
        if number % 100 == 99:
            blocks.append(cache.seal())
        if len(blocks) == 2:
            cache.committed(blocks.pop(0))
        assert cache.size <= max(cache.capacity, cache.uncommitted) + 356
    cache.committed(blocks.pop())
    assert cache.uncommitted == 0
    assert cache.fetch(0, 3332, 1) is not None
    assert cache.fetch(0, 0, 1) is None


def test_a_forgotten_stream_gives_its_memory_back() -> None:
    cache = LogCache(1000)
    for number in range(100):
        cache.add(number % 2, batch(number // 2, 100))
    cache.forget(1)
    cache.committed(cache.seal())
    assert cache.size <= cache.capacity
    cache.add(0, batch(50, 100))
    assert cache.size <= cache.capacity
