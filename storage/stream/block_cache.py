"""Caches of data read from objects: blocks, and indexes.

The block cache holds slices of the bytes of GETs. One GET brings a *segment*: a buffer with one or
several blocks. Slices pin the whole buffer, so segments are charged and evicted. When all blocks of
a segment have been read to their end, it is the next to be evicted.

The index cache fetches the index of an object by one GET for all concurrent requests, and by none
while it is cached. It is bounded in bytes and evicts the least recently used first; an index that
is being read is not charged yet.
"""

import asyncio
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from itertools import accumulate
from operator import add

from lakehead.storage.errors import CorruptObject
from lakehead.storage.event_logger import event_logger
from lakehead.storage.format.object_writer import BLOCK_SIZE
from lakehead.storage.format.stream_object import (
    SUFFIX_GUESS,
    IndexItem,
    ObjectIndex,
    check_item,
    read_index,
    record_headers,
)
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import Buffer, ObjectStore
from lakehead.storage.tasks import TaskScope

_BLOCK_MEMORY = 1000
"""About what a block takes beside its bytes and `_BATCH_MEMORY` a batch."""
_BATCH_MEMORY = 20

BlockName = tuple[str, int]
"""An object's key and a position in it."""


class Block:
    """The batches of one index item: the place of each in the bytes that were read."""

    __slots__ = ("_data", "_end_offsets", "_ends", "_sizes", "_starts", "end_offset")

    def __init__(self, key: str, item: IndexItem, data: memoryview) -> None:
        """Check `data` and find its batches. Raises CorruptObject."""
        check_item(key, item, data)
        self.end_offset = item.end_offset
        self._data = data
        try:
            headers, starts = record_headers(data)
        except ValueError as error:
            raise CorruptObject(key, item.position, str(error)) from error
        _, _, _, bases, counts, lengths = zip(*headers, strict=True) if headers else ((),) * 6
        self._end_offsets = array("q", map(add, bases, counts))
        self._starts = array("I", starts)
        self._ends = array("I", map(add, starts, lengths))
        self._sizes = array("I", accumulate(lengths, initial=0))
        """Bytes of all batches before each."""

    def __len__(self) -> int:
        return len(self._end_offsets)

    def fetch(self, offset: int, max_bytes: int) -> tuple[list[memoryview], int]:
        """Return whole batches from the one that contains `offset`, or where compaction removed
        that from the next one: at least one, else up to `max_bytes`; and the offset after the last
        of them.
        """
        sizes = self._sizes
        first = bisect_right(self._end_offsets, offset)
        last = bisect_right(sizes, sizes[first] + max(max_bytes, 0), lo=first) - 1
        last = max(last, first + 1)
        places = map(slice, self._starts[first:last], self._ends[first:last])
        found = list(map(self._data.__getitem__, places))
        return found, self.end_offset if last >= len(self) else self._end_offsets[last - 1]


class Segment:
    """The blocks that one GET brought. `on_wasted` is called if it goes while some are unread."""

    __slots__ = ("charge", "names", "on_wasted", "unread")

    def __init__(
        self,
        blocks: Iterable[tuple[BlockName, Block]],
        size: int,
        on_wasted: Callable[[], None] | None,
    ) -> None:
        batches = 0
        self.names = []
        for name, block in blocks:
            self.names.append(name)
            batches += len(block)
        self.unread = set(self.names)
        self.charge = size + _BATCH_MEMORY * batches + _BLOCK_MEMORY * len(self.names)
        self.on_wasted = on_wasted


class BlockCache:
    """Blocks by name, least recently used segments first to go. `capacity` in bytes.

    The newest segment stays, however large it is.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._blocks: dict[BlockName, tuple[Block, Segment]] = {}
        self._segments: OrderedDict[Segment, None] = OrderedDict()

    def __contains__(self, name: BlockName) -> bool:
        return name in self._blocks

    def get(self, name: BlockName) -> Block | None:
        """Return a block if it is here."""
        known = self._blocks.get(name)
        if known is None:
            return None
        self._segments.move_to_end(known[1])
        return known[0]

    def add(
        self,
        blocks: dict[BlockName, Block],
        data: Buffer,
        on_wasted: Callable[[], None] | None,
    ) -> None:
        """Keep the blocks that were cut from `data`, and evict what has no room any more."""
        held = memoryview(memoryview(data).obj).nbytes
        segment = Segment(blocks.items(), held, on_wasted)
        self._blocks.update((name, (block, segment)) for name, block in blocks.items())
        self._segments[segment] = None
        self.size += segment.charge
        while self.size > self.capacity and len(self._segments) > 1:
            self._evict(next(iter(self._segments)))

    def object_keys(self) -> set[str]:
        """Return the objects of which blocks are here."""
        return {key for key, _ in self._blocks}

    def drop(self, keys: Collection[str]) -> None:
        """Forget the blocks of objects, with those that came with them."""
        found = {segment for (key, _), (_, segment) in self._blocks.items() if key in keys}
        for segment in found:
            self._evict(segment)

    def is_read(self, name: BlockName) -> None:
        """Note that a block was read to its end."""
        known = self._blocks.get(name)
        if known is None:
            return
        segment = known[1]
        segment.unread.discard(name)
        if not segment.unread:
            self._segments.move_to_end(segment, last=False)

    def _evict(self, segment: Segment) -> None:
        del self._segments[segment]
        self.size -= segment.charge
        for name in segment.names:
            # The same block may have come again with another GET.
            if self._blocks[name][1] is segment:
                del self._blocks[name]
        if segment.unread and segment.on_wasted is not None:
            segment.on_wasted()


_log = event_logger("storage.reader")

# The most bytes that extension and index of an object take, as a rule, for a guess.
_MARGIN = 8 * 1024
_ITEM_BYTES = 50
_STREAM_BYTES = 300
_SUFFIX_MAX = 4 * 1024 * 1024


def suffix_size(state: MetadataImage, key: str) -> int:
    """Guess how long extension and index of an object are, to get them with one read."""
    known = state.objects.get(key)
    if known is None:
        return SUFFIX_GUESS
    streams = len(known.stream_ids)
    items = known.size // BLOCK_SIZE + streams
    guess = _MARGIN + _ITEM_BYTES * items + _STREAM_BYTES * streams
    return max(SUFFIX_GUESS, min(guess, _SUFFIX_MAX))


class IndexCache:
    """Indexes by object key. `capacity` in bytes; the newest stays, however large it is.

    `suffix_size(key)` guesses how long an object's index is, so that one GET will do.
    """

    def __init__(
        self,
        store: ObjectStore,
        scope: TaskScope,
        *,
        capacity: int,
        suffix_size: Callable[[str], int],
    ) -> None:
        self.capacity = capacity
        self.size = 0
        self.reads = 0
        """Indexes read from the store."""
        self.corrupt = 0
        """Indexes that failed their checksums twice."""
        self._store = store
        self._scope = scope
        self._suffix_size = suffix_size
        self._indexes: OrderedDict[str, ObjectIndex] = OrderedDict()
        self._reading: dict[str, asyncio.Task[ObjectIndex]] = {}
        self._under_way = 0
        """Bytes of the indexes that are being read, by the guess."""

    def get_cached(self, key: str) -> ObjectIndex | None:
        """Return an index if it is here."""
        index = self._indexes.get(key)
        if index is not None:
            self._indexes.move_to_end(key)
        return index

    async def get(self, key: str) -> ObjectIndex:
        """Return an object's index.

        Raises ObjectNotFound, StoreUnavailable, CorruptObject, UnsupportedFormat.
        """
        index = self.get_cached(key)
        if index is not None:
            return index
        # Shielded: another may wait for the same index when this one is cancelled.
        return await asyncio.shield(self._reading.get(key) or self._begin(key))

    def expect(self, key: str) -> None:
        """Begin to read an index that will be needed soon, unless more is on its way already than
        the cache can hold.
        """
        if (
            self._under_way < self.capacity
            and key not in self._indexes
            and key not in self._reading
        ):
            self._begin(key)

    def _begin(self, key: str) -> asyncio.Task[ObjectIndex]:
        size = self._suffix_size(key)
        task = self._scope.spawn(self._read(key, size), name=f"index of {key}", is_awaited=True)
        self._reading[key] = task
        self._under_way += size
        return task

    def drop(self, key: str) -> None:
        """Forget the index of an object that is gone."""
        index = self._indexes.pop(key, None)
        if index is not None:
            self.size -= index.memory

    async def _read(self, key: str, size: int) -> ObjectIndex:
        try:
            index = await self._read_twice(key, size)
        finally:
            del self._reading[key]
            self._under_way -= size
        self._indexes[key] = index
        self.size += index.memory
        while self.size > self.capacity and len(self._indexes) > 1:
            self.size -= self._indexes.popitem(last=False)[1].memory
        return index

    async def _read_twice(self, key: str, suffix_size: int) -> ObjectIndex:
        """Read an index; once more if it seems damaged: it may have been spoilt on its way."""
        self.reads += 1
        try:
            return await read_index(self._store, key, suffix_size)
        except CorruptObject:
            self.reads += 1
        try:
            return await read_index(self._store, key, suffix_size)
        except CorruptObject as error:
            self.corrupt += 1
            _log.error("index_corrupt", key=key, position=error.position)
            raise
