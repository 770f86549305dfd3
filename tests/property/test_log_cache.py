"""The log cache's accounts, whatever is sealed, apart or with all, committed or forgotten."""

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lakehead.storage.stream.log_cache import BATCH_OVERHEAD, CacheBlock, CachedBatch, LogCache
from tests.support.repetitions import examples

STREAMS = st.integers(0, 3)
CAPACITY = 8 * (BATCH_OVERHEAD + 100)


class CacheMachine(RuleBasedStateMachine):
    """Blocks are committed in the order of their seals, as uploads are."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = LogCache(CAPACITY)
        self.sealed: list[CacheBlock] = []
        self.ends = dict.fromkeys(range(4), 0)
        self.first = dict.fromkeys(range(4), 0)
        self.committed = dict.fromkeys(range(4), 0)
        self.waiting = 0

    @rule(stream_id=STREAMS, size=st.integers(1, 300))
    def add(self, stream_id: int, size: int) -> None:
        offset = self.ends[stream_id]
        self.cache.add(stream_id, CachedBatch(offset, offset + 1, 0, 0, memoryview(bytes(size))))
        self.ends[stream_id] += 1
        self.waiting += size + BATCH_OVERHEAD

    @rule(stream_ids=st.none() | st.frozensets(STREAMS))
    def seal(self, stream_ids: frozenset[int] | None) -> None:
        active = {one: list(batches) for one, batches in self.cache.active.batches.items()}
        block = self.cache.seal(stream_ids)
        wanted = {
            one: batches
            for one, batches in active.items()
            if stream_ids is None or one in stream_ids
        }
        assert block.batches == wanted
        kept = {one: batches for one, batches in active.items() if one not in wanted}
        assert self.cache.active.batches == kept
        self.sealed.append(block)

    @rule()
    def commit(self) -> None:
        if self.sealed:
            block = self.sealed.pop(0)
            self.waiting -= block.size
            for stream_id, batches in block.batches.items():
                self.committed[stream_id] = batches[-1].end_offset
            self.cache.committed(block)

    @rule(stream_id=STREAMS, below=st.integers(0, 60))
    def replaced(self, stream_id: int, below: int) -> None:
        """Compaction: what is committed below an offset is not read from memory any more."""
        self.cache.replaced(stream_id, below)
        end = min(below, self.committed[stream_id])
        assert all(self.cache.fetch(stream_id, offset, 1) is None for offset in range(end))

    @rule(stream_id=STREAMS)
    def hand_over(self, stream_id: int) -> None:
        """A stream that leaves is sealed, committed with all before it, and forgotten."""
        self.seal(frozenset({stream_id}))
        while self.sealed:
            self.commit()
        self.cache.forget(stream_id)
        assert self.cache.size == self.held(), "it is charged no more"
        self.first[stream_id] = self.ends[stream_id]

    def held(self) -> int:
        """Bytes that are charged for what can be read."""
        batches = [batch for one in range(4) for batch in self.cache.batches_from(one, 0)]
        return sum(len(batch.payload) + BATCH_OVERHEAD for batch in batches)

    @invariant()
    def what_waits_is_what_was_not_committed(self) -> None:
        cache = self.cache
        assert cache.uncommitted == self.waiting
        assert cache.active.size + sum(block.size for block in self.sealed) == self.waiting
        assert cache.size >= cache.uncommitted
        assert cache.size <= max(CAPACITY, cache.uncommitted) or cache._committed

    @invariant()
    def what_is_not_committed_is_there(self) -> None:
        for stream_id, end in self.ends.items():
            for offset in range(max(self.committed[stream_id], self.first[stream_id]), end):
                assert self.cache.fetch(stream_id, offset, 1) is not None

    def teardown(self) -> None:
        self.seal(None)
        while self.sealed:
            self.commit()
        assert self.cache.uncommitted == 0
        for stream_id in range(4):
            self.cache.forget(stream_id)
        assert self.cache.size == 0
        assert not self.cache._committed


CacheMachine.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
TestLogCache = CacheMachine.TestCase


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=300),
    st.integers(0, 299),
    st.integers(-1, 9000),
)
def test_a_read_has_as_many_whole_batches_as_fit_and_one_at_least(
    sizes: list[int], offset: int, max_bytes: int
) -> None:
    cache, offset = LogCache(1 << 30), offset % len(sizes)
    for number, size in enumerate(sizes):
        payload = memoryview(bytes([number % 256]) * size)
        cache.add(0, CachedBatch(number, number + 1, 0, 0, payload))
    found = cache.fetch(0, offset, max_bytes)
    assert found is not None
    end = offset + len(found)
    assert [bytes(one) for one in found] == [
        bytes([number % 256]) * sizes[number] for number in range(offset, end)
    ]
    size = sum(map(len, found))
    assert end == offset + 1 or size <= max_bytes
    assert end == len(sizes) or size + sizes[end] > max_bytes


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=6),
    st.integers(1, 4),
)
def test_a_request_over_many_streams_leaves_memory_once_its_turn_has_come(
    weights: list[int], blocks: int
) -> None:
    """Each request is one buffer with a batch of several streams, as a producer of many partitions
    sends them. The cache pins a buffer until the last of its batches has left.
    """
    size, ends = 1000, [0] * len(weights)
    cache = LogCache(len(weights) * 60 * (size + BATCH_OVERHEAD))
    for _ in range(blocks * 2):
        for number in range(120):
            # A stream of weight 40 has a batch in each request, one of weight 10 in each fourth.
            here = [one for one, weight in enumerate(weights) if number * weight % 40 < weight]
            frame = memoryview(bytearray(size * len(here)))
            for place, one in enumerate(here):
                payload = frame[place * size : (place + 1) * size]
                cache.add(one, CachedBatch(ends[one], ends[one] + 1, 0, 0, payload))
                ends[one] += 1
        cache.committed(cache.seal())
        pinned = {
            id(batch.payload.obj): memoryview(batch.payload.obj).nbytes
            for one in range(len(weights))
            for batch in cache.batches_from(one, 0)
        }
        held = sum(len(cache.batches_from(one, 0)) for one in range(len(weights))) * size
        newest = 120 * len(weights) * size
        assert sum(pinned.values()) <= held + newest // 4


def test_tiny_batches_take_no_more_memory_than_they_are_charged() -> None:
    request = bytes(240)  # a record of 100 bytes, and what its batch and its request have beside it
    cache = LogCache(1 << 30)
    tracemalloc.start()
    try:
        for offset in range(20_000):
            payload = memoryview(bytearray(request))[60:230]
            cache.add(offset % 4, CachedBatch(offset, offset + 1, 1000, 1 << 40, payload))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.size / 2 < taken <= cache.size
