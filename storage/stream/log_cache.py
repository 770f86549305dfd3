"""The log cache: batches that the write-ahead log has released, in memory, first in, first out.

Batches enter in WAL order into the *active* block. Sealing a block makes it part of an upload set.
Once it is committed its batches may be evicted, the oldest block first, when the cache exceeds its
capacity: about as many bytes as enter, so that a large block is evicted without a pause. The
streams of a block take turns, a part of each, since one request may hold batches of all of them:
its memory is free when the last of them has left. Uncommitted batches are never evicted.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import attrgetter

import msgspec

from lakehead.storage.metadata.records import COMPACTED, Entry, ReplaceObjects
from lakehead.storage.metadata.state import MetadataImage

_EVICTED_AT_ONCE = 64
"""Batches of a stream that leave in one turn, if its block has no more than `_TURNS_MAX` turns."""
_TURNS_MIN, _TURNS_MAX = 8, 256
"""Turns in which a block leaves: each takes the same part of every stream. Taking from the front of
a log moves the rest, so of a long log more is taken at once.
"""
_READ_AT_ONCE = 128
BATCH_OVERHEAD = 700
"""Bytes charged per batch beside its payload, so that many tiny batches cannot outgrow the
capacity: the objects of a batch take 640, and its request has a header.
"""


class CachedBatch(msgspec.Struct, frozen=True, gc=False):
    """One RecordBatch: offsets [base_offset, end_offset), and the epoch of its append. Nothing in
    it leads to other objects, so the garbage collector need not look at it.
    """

    base_offset: int
    end_offset: int
    epoch: int
    max_timestamp: int
    payload: memoryview


_PAYLOAD = attrgetter("payload")


class CacheBlock:
    """The batches that entered between two seals, by stream."""

    __slots__ = ("batches", "size")

    def __init__(self) -> None:
        self.batches: dict[int, list[CachedBatch]] = {}
        self.size = 0

    def add(self, stream_id: int, batch: CachedBatch) -> int:
        """Add a batch and return the bytes that it is charged."""
        batches = self.batches.get(stream_id)
        if batches is None:
            batches = self.batches[stream_id] = []
        batches.append(batch)
        charge = len(batch.payload) + BATCH_OVERHEAD
        self.size += charge
        return charge

    def bytes_of(self, stream_ids: Collection[int]) -> int:
        """Return the bytes charged for these streams."""
        return sum(_charge_of(self.batches.get(one, ())) for one in stream_ids)

    def split(self, stream_ids: Collection[int]) -> "CacheBlock":
        """Return a block of what is in this one of these streams, and keep the rest."""
        apart = CacheBlock()
        apart.size = self.bytes_of(stream_ids)
        self.size -= apart.size
        for stream_id in stream_ids:
            batches = self.batches.pop(stream_id, None)
            if batches is not None:
                apart.batches[stream_id] = batches
        return apart


class _CachedLog:
    """The cached batches of one stream over all blocks: contiguous, in offset order. `evictable`
    are those in committed objects, by block, the oldest first.
    """

    __slots__ = ("base_offsets", "batches", "evictable")

    def __init__(self) -> None:
        self.base_offsets: list[int] = []
        self.batches: list[CachedBatch] = []
        self.evictable: deque[_Evictable] = deque()


class _Evictable:
    """The `count` oldest batches of a stream's log, which are in the committed objects of a block.
    `at_once` of them leave in one turn.
    """

    __slots__ = ("at_once", "block", "count", "log", "stream_id")

    def __init__(
        self, stream_id: int, log: _CachedLog, block: "_CommittedBlock", count: int, at_once: int
    ) -> None:
        self.stream_id = stream_id
        self.log = log
        self.block = block
        self.count = count
        self.at_once = at_once


_CommittedBlock = OrderedDict[int, _Evictable]
"""By stream id what is left of a block, in the order of their turns."""


class LogCache:
    """Recent batches of every stream of a node. `capacity` in bytes: `size` is beyond it only by
    what is not committed.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.uncommitted = 0
        """Bytes that are not in committed objects yet."""
        self.active = CacheBlock()
        self._committed: deque[_CommittedBlock] = deque()
        """The oldest first."""
        self._logs: dict[int, _CachedLog] = {}
        self._replaced: dict[int, int] = {}
        """By stream the end of what was replaced while the upload that it is from was not known
        here to be committed.
        """

    def add(self, stream_id: int, batch: CachedBatch) -> None:
        """Add the next batch of a stream. It must continue what is cached of the stream."""
        log = self._logs.get(stream_id)
        if log is None:
            log = self._logs[stream_id] = _CachedLog()
        log.base_offsets.append(batch.base_offset)
        log.batches.append(batch)
        charge = self.active.add(stream_id, batch)
        self.size += charge
        self.uncommitted += charge
        while self.size > self.capacity and self._committed:
            self._evict_some()

    def seal(self, stream_ids: Collection[int] | None = None) -> CacheBlock:
        """Close the active block, begin the next one, and return the closed one; or one of these
        streams alone: the active block goes on without them.
        """
        if stream_ids is not None:
            return self.active.split(stream_ids)
        sealed = self.active
        self.active = CacheBlock()
        return sealed

    def committed(self, block: CacheBlock) -> None:
        """Let the batches of a sealed block go, now that committed objects hold them."""
        self.uncommitted -= block.size
        longest = max(map(len, block.batches.values()), default=0)
        turns = min(max(longest // _EVICTED_AT_ONCE, _TURNS_MIN), _TURNS_MAX)
        committed: _CommittedBlock = OrderedDict()
        for stream_id, batches in block.batches.items():
            log = self._logs.get(stream_id)
            if log is None:  # forgotten meanwhile
                self.size -= _charge_of(batches)
            else:
                count = len(batches)
                one = _Evictable(stream_id, log, committed, count, -(-count // turns))
                log.evictable.append(one)
                committed[stream_id] = one
        if committed:
            self._committed.append(committed)
        for stream_id in self._replaced.keys() & block.batches.keys():
            self.replaced(stream_id, self._replaced.pop(stream_id))
        block.batches = {}
        while self.size > self.capacity and self._committed:
            self._evict_some()

    def forget(self, stream_id: int) -> None:
        """Drop what is cached of a stream that is closed here. Batches that are not in committed
        objects are charged until they are, since their block still uploads them.
        """
        log = self._logs.get(stream_id)
        if log is not None:
            while log.evictable:
                self._evict(log.evictable[0], log.evictable[0].count)
            self._drop_empty_blocks()
        self._logs.pop(stream_id, None)
        self._replaced.pop(stream_id, None)

    def follow(self, state: MetadataImage, entry: Entry | None) -> None:
        """Follow the metadata log: what was compacted, or of which records were forgotten, is to be
        read as it is now. If entries were passed over, that may be anything in objects.
        """
        if entry is None:
            for stream_id in tuple(self._logs):
                if stream_id in state.streams:
                    self.replaced(stream_id, state.streams[stream_id].end_offset)
        for record in () if entry is None else entry.records:
            if isinstance(record, ReplaceObjects):
                for one in record.objects:
                    holds_less = one.kind == COMPACTED or record.forgets >= 0
                    for span in one.ranges if holds_less else ():
                        self.replaced(span.stream_id, span.end_offset)

    def replaced(self, stream_id: int, end_offset: int) -> None:
        """Drop what is cached of a stream below an offset and is in committed objects: compaction
        has put others in their place, which hold less.
        """
        log = self._logs.get(stream_id)
        if log is None:
            return
        is_left = False
        while log.evictable and not is_left:
            one = log.evictable[0]
            old = bisect_right(
                log.batches, end_offset, hi=one.count, key=lambda batch: batch.end_offset
            )
            self._evict(one, old)
            is_left = one.count > 0
        self._drop_empty_blocks()
        if log.batches and log.batches[0].end_offset <= end_offset:
            self._replaced[stream_id] = end_offset

    def fetch(self, stream_id: int, offset: int, max_bytes: int) -> list[memoryview] | None:
        """Return whole batches from the one that contains `offset`: at least one, else up to
        `max_bytes`.

        None when that batch is not cached (any more). `offset` lies below the stream's end.
        """
        log = self._logs.get(stream_id)
        if log is None:
            return None
        first = bisect_right(log.base_offsets, offset) - 1
        if first < 0:
            return None
        found: list[memoryview] = []
        batches, room = log.batches, max_bytes
        while some := list(map(_PAYLOAD, batches[first : first + _READ_AT_ONCE])):
            sizes = list(accumulate(map(len, some)))
            count = bisect_right(sizes, room)
            found += some[:count]
            if count < len(some):
                return found or some[:1]
            room -= sizes[-1]
            first += count
        return found

    def batches_from(self, stream_id: int, offset: int) -> list[CachedBatch]:
        """Return the cached batches of a stream that end above `offset`."""
        log = self._logs.get(stream_id)
        if log is None:
            return []
        return log.batches[max(0, bisect_right(log.base_offsets, offset) - 1) :]

    def _evict_some(self) -> None:
        """Evict the oldest batches of the stream whose turn it is, in the oldest block."""
        block = self._committed[0]
        oldest = next(iter(block.values()))
        self._evict(oldest, min(oldest.count, oldest.at_once))
        if oldest.count:
            block.move_to_end(oldest.stream_id)
        elif not block:
            self._committed.popleft()

    def _evict(self, oldest: _Evictable, count: int) -> None:
        """Evict from the front of a stream's log. Its block may be empty then."""
        log = oldest.log
        self.size -= _charge_of(log.batches[:count])
        del log.base_offsets[:count]
        del log.batches[:count]
        oldest.count -= count
        if not oldest.count:
            log.evictable.popleft()
            del oldest.block[oldest.stream_id]
        if not log.batches and self._logs.get(oldest.stream_id) is log:
            del self._logs[oldest.stream_id]

    def _drop_empty_blocks(self) -> None:
        if not all(self._committed):
            self._committed = deque(block for block in self._committed if block)


def _charge_of(batches: Sequence[CachedBatch]) -> int:
    return sum(map(len, map(_PAYLOAD, batches))) + BATCH_OVERHEAD * len(batches)
