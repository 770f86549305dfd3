"""Cold reads: from a stream's extents through the index cache and the block cache to the object
store.

Readahead grows while a stream is read in sequence, and what several readers want at once is fetched
once.
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from storage.format.stream_object import (
    IndexItem,
    ObjectIndex,
    check_item,
    iter_records,
    read_index,
)
from storage.metadata.state import Extent
from storage.object_store.protocol import ObjectStore
from storage.tasks import TaskScope

READAHEAD_MIN = 512 * 1024
READAHEAD_MAX = 32 * 1024 * 1024
_INDEXES_MAX = 2000
_READERS_MAX = 64


class Block(NamedTuple):
    """The batches of one index item, decoded into slices of the bytes that were read."""

    base_offsets: list[int]
    payloads: list[memoryview]
    size: int


class _Readahead:
    """Where a stream is being read in sequence, and when to read on ahead of it."""

    __slots__ = ("end", "mark", "offset", "size")

    def __init__(self) -> None:
        self.offset = -1
        self.end = -1
        self.size = 0
        self.mark = 0

    def advance(self, offset: int, end: int, most: int) -> int:
        """Note a read of [offset, end) and return how many bytes to read ahead of `end` now.

        The next stretch, twice as long up to `most`, is fetched when the reader has come to the
        middle of the last one: `mark`, which whoever fetches sets.
        """
        is_sequential = self.offset < offset <= self.end
        self.offset, self.end = offset, end
        if not is_sequential:
            self.size = self.mark = 0
            return 0
        if end < self.mark:
            return 0
        self.size = min(max(self.size * 2, READAHEAD_MIN), most)
        return self.size


class ColdReader:
    """Reads batches from committed objects. `cache_size` in bytes bounds the block cache.

    Half of it is for readahead, shared by the streams that were read last. A block that was read to
    its end goes first when room is needed: the one that was fetched ahead has its reader to come.
    """

    def __init__(self, store: ObjectStore, scope: TaskScope, *, cache_size: int) -> None:
        self._store = store
        self._scope = scope
        self._cache_size = cache_size
        self._size = 0
        self._blocks: OrderedDict[tuple[str, int], Block] = OrderedDict()
        self._reading: dict[tuple[str, int], asyncio.Task[Block]] = {}
        self._indexes: OrderedDict[str, ObjectIndex] = OrderedDict()
        self._readahead: OrderedDict[int, _Readahead] = OrderedDict()

    async def fetch(
        self,
        stream_id: int,
        extents: Callable[[], Sequence[Extent]],
        offset: int,
        max_bytes: int,
    ) -> list[memoryview]:
        """Return whole batches from the one that contains `offset`: at least one, else up to
        `max_bytes`.

        `offset` lies within the extents. Raises StoreUnavailable, ObjectNotFound, CorruptObject.
        """
        found: list[memoryview] = []
        position = offset
        while True:
            located = await self._locate(stream_id, extents(), position)
            if located is None:
                break
            key, item = located
            block = await self._block(key, item)
            first = bisect_right(block.base_offsets, position) - 1
            for payload in block.payloads[first:]:
                max_bytes -= len(payload)
                if max_bytes < 0 and found:
                    break
                found.append(payload)
            else:
                self._is_read(key, item)
            position = item.end_offset
            if max_bytes <= 0:
                break
        self._read_ahead(stream_id, extents, offset, position)
        return found

    def forget(self, stream_id: int) -> None:
        """Drop what is kept about the reading of a stream."""
        self._readahead.pop(stream_id, None)

    async def index(self, key: str) -> ObjectIndex:
        """Return an object's index, cached."""
        index = self._indexes.get(key)
        if index is None:
            index = await read_index(self._store, key)
            self._indexes[key] = index
            if len(self._indexes) > _INDEXES_MAX:
                self._indexes.popitem(last=False)
        else:
            self._indexes.move_to_end(key)
        return index

    async def _locate(
        self, stream_id: int, extents: Sequence[Extent], offset: int
    ) -> tuple[str, IndexItem] | None:
        at = bisect_right(extents, offset, key=lambda extent: extent.start_offset) - 1
        if at < 0 or offset >= extents[at].end_offset:
            return None
        key = extents[at].object_key
        items = (await self.index(key)).items_of(stream_id)
        item = items[bisect_right(items, offset, key=lambda item: item.start_offset) - 1]
        return key, item

    async def _block(self, key: str, item: IndexItem) -> Block:
        """Return an item's block: cached, being read by somebody, or read now."""
        block = self._blocks.get((key, item.position))
        if block is not None:
            self._blocks.move_to_end((key, item.position))
            return block
        # Shielded: another reader may wait for the same bytes when this one is cancelled.
        return await asyncio.shield(self._start_reading(key, item))

    def _start_reading(self, key: str, item: IndexItem) -> asyncio.Task[Block]:
        name = (key, item.position)
        task = self._reading.get(name)
        if task is None:
            task = self._scope.spawn(
                self._read(key, item), name=f"read {key}@{item.position}", is_awaited=True
            )
            self._reading[name] = task
        return task

    async def _read(self, key: str, item: IndexItem) -> Block:
        try:
            data = await self._store.get_range(key, item.position, item.size)
            check_item(key, item, data)
            bases, payloads = [], []
            for record in iter_records(data):
                bases.append(record.base_offset)
                payloads.append(record.payload)
            block = Block(bases, payloads, item.size)
            self._blocks[key, item.position] = block
            self._size += item.size
            while self._size > self._cache_size and len(self._blocks) > 1:
                self._size -= self._blocks.popitem(last=False)[1].size
            return block
        finally:
            del self._reading[key, item.position]

    def _is_read(self, key: str, item: IndexItem) -> None:
        if (key, item.position) in self._blocks:
            self._blocks.move_to_end((key, item.position), last=False)

    def _read_ahead(
        self, stream_id: int, extents: Callable[[], Sequence[Extent]], offset: int, end: int
    ) -> None:
        readahead = self._readahead.setdefault(stream_id, _Readahead())
        self._readahead.move_to_end(stream_id)
        if len(self._readahead) > _READERS_MAX:
            self._readahead.popitem(last=False)
        share = self._cache_size // 2 // len(self._readahead)
        wanted = readahead.advance(offset, end, min(READAHEAD_MAX, share))
        if wanted > 0:
            readahead.mark = end
            self._scope.spawn(
                self._prefetch(stream_id, extents(), end, wanted, readahead),
                name=f"readahead {stream_id}",
                is_awaited=True,
            )

    async def _prefetch(
        self,
        stream_id: int,
        extents: Sequence[Extent],
        offset: int,
        wanted: int,
        readahead: _Readahead,
    ) -> None:
        fetched = 0
        while fetched < wanted:
            located = await self._locate(stream_id, extents, offset)
            if located is None:
                return
            key, item = located
            if (key, item.position) not in self._blocks:
                self._start_reading(key, item)
            fetched += item.size
            if fetched <= max(wanted // 2, item.size):
                readahead.mark = item.end_offset
            offset = item.end_offset
