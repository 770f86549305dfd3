"""The search of a stream by timestamp (KIP-79, KIP-734): from metadata, indexes and batch headers
down to single records.

Records are examined one by one, which takes long: searches take turns, and yield to other tasks of
the loop. A waiting search holds offsets and no data; data is read again at its turn. Offsets that
are trimmed meanwhile are skipped. A batch that cannot be decompressed counts as one record at its
first offset with its greatest timestamp, so the rest of the stream is still searched.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import count, islice
from typing import NamedTuple

from lakehead.storage.errors import OffsetOutOfRange
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.format.records import RecordTime, iter_record_times
from lakehead.storage.format.stream_object import IndexItem
from lakehead.storage.metadata.extents import Extent, Extents
from lakehead.storage.stream.inflating import InflatedBatches
from lakehead.storage.stream.reader import ColdReader

INFLATED_SIZE_MAX = 64 * 1024 * 1024
_EXTENTS_AT_ONCE = 1000
_RECORDS_AT_ONCE = 250
_QUICK_TURNS, _PAUSE = 100, 3
"""After so many turns a search of a batch pauses for so many times as long as it works: millions of
records take the longer, and do not use up the processor.
"""


class BatchTime(NamedTuple):
    """The first offset of a batch, and the greatest timestamp in its header."""

    base_offset: int
    max_timestamp: int


_Piece = Extent | IndexItem | BatchTime | RecordTime


class TimestampSearch:
    """A search in one stream: over its `extents`, and over the `cached` batches behind them.

    `start` returns the stream's start offset; `read` returns the batch that contains an offset, and
    raises OffsetOutOfRange when it is trimmed; `inflating` lends the memory to look into it. Both
    methods raise StoreUnavailable, CorruptObject, and what `extents` and `start` raise when the
    stream is gone.
    """

    def __init__(
        self,
        reader: ColdReader,
        stream_id: int,
        *,
        extents: Callable[[], Extents],
        cached: Sequence[BatchTime],
        start: Callable[[], int],
        read: Callable[[int], Awaitable[memoryview]],
        inflating: InflatedBatches,
    ) -> None:
        self._reader = reader
        self._stream_id = stream_id
        self._extents = extents
        self._cached = cached
        self._start = start
        self._read = read
        self._inflating = inflating

    async def first_since(self, timestamp: int) -> RecordTime | None:
        """Return the first record whose timestamp is `timestamp` or later, if there is one."""
        for number, extent in enumerate(self._extents(), 1):
            if not number % _EXTENTS_AT_ONCE:
                await asyncio.sleep(0)  # a stream may have a million
            if extent.max_timestamp < timestamp:
                continue
            index = await self._reader.index(extent.object_key)
            for item in index.items_of(self._stream_id):
                if item.max_timestamp < timestamp:
                    continue
                async with aclosing(self._batches(item)) as batches:
                    async for batch in batches:
                        found = await self._first_in(batch, timestamp)
                        if found is not None:
                            return found
        for cached in self._cached:
            found = await self._first_in(cached, timestamp)
            if found is not None:
                return found
        return None

    async def latest(self) -> RecordTime | None:
        """Return the record with the greatest timestamp, the first of them; None without any.

        Candidates are opened by descending greatest timestamp, until that is a record's.
        """
        numbers = count()
        heap: list[tuple[int, int, int, _Piece]] = []

        def add(timestamp: int, offset: int, piece: _Piece) -> None:
            heapq.heappush(heap, (-timestamp, offset, next(numbers), piece))

        for extent in await self._candidates():
            add(extent.max_timestamp, extent.start_offset, extent)
        for cached in self._cached:
            add(cached.max_timestamp, cached.base_offset, cached)
        while heap:
            *_, piece = heapq.heappop(heap)
            match piece:
                case RecordTime():
                    return piece
                case Extent():
                    index = await self._reader.index(piece.object_key)
                    for item in index.items_of(self._stream_id):
                        add(item.max_timestamp, item.start_offset, item)
                case IndexItem():
                    async for batch in self._batches(piece):
                        add(batch.max_timestamp, batch.base_offset, batch)
                case BatchTime():
                    found = await self._latest_in(piece)
                    if found is not None:
                        add(found.timestamp, found.offset, found)
        return None

    async def _candidates(self) -> list[Extent]:
        """Return the extent with the greatest timestamp; and the first one, of which the record
        that gave it its timestamp may be trimmed.
        """
        first: Extent | None = None
        best: Extent | None = None
        for number, extent in enumerate(self._extents(), 1):
            if not number % _EXTENTS_AT_ONCE:
                await asyncio.sleep(0)
            if first is None:
                first = extent
            elif best is None or extent.max_timestamp > best.max_timestamp:
                best = extent
        return [extent for extent in (first, best) if extent is not None]

    async def _batches(self, item: IndexItem) -> AsyncGenerator[BatchTime, None]:
        """Yield the batches of an item that are not trimmed, in the order of their offsets."""
        offset = max(item.start_offset, self._start())
        while offset < item.end_offset:
            try:
                header = read_header(await self._read(offset))
            except OffsetOutOfRange:  # trimmed meanwhile
                offset = max(offset + 1, self._start())
            else:
                offset = header.end_offset
                yield BatchTime(header.base_offset, header.max_timestamp)
            await asyncio.sleep(0)

    async def _first_in(self, batch: BatchTime, timestamp: int) -> RecordTime | None:
        if batch.max_timestamp < timestamp:
            return None
        async with aclosing(self._times(batch)) as times:
            async for part in times:
                for time in part:
                    if time.timestamp >= timestamp and time.offset >= self._start():
                        return time
        return None

    async def _latest_in(self, batch: BatchTime) -> RecordTime | None:
        best: RecordTime | None = None
        async with aclosing(self._times(batch)) as times:
            async for part in times:
                for time in part:
                    if time.offset >= self._start() and (
                        best is None or time.timestamp > best.timestamp
                    ):
                        best = time
        return best

    async def _times(self, batch: BatchTime) -> AsyncGenerator[list[RecordTime], None]:
        """Yield the times of a batch's records, some at a time; of one that cannot be read, what it
        says itself. Nothing of one that is trimmed meanwhile.
        """
        read = partial(self._read, max(batch.base_offset, self._start()))
        try:
            async with self._inflating.inflated(read, INFLATED_SIZE_MAX) as inflated:
                records = iter_record_times(*inflated)
                loop = asyncio.get_running_loop()
                for turn in count():
                    # Held over the pause: one search looks at its records, then all else goes on.
                    async with self._inflating.turns:
                        began = loop.time()
                        part = list(islice(records, _RECORDS_AT_ONCE))
                        is_long = turn >= _QUICK_TURNS
                        await asyncio.sleep((loop.time() - began) * _PAUSE if is_long else 0)
                    if not part:
                        return
                    yield part
        except OffsetOutOfRange:
            return
        except ValueError:
            yield [RecordTime(max(batch.base_offset, self._start()), batch.max_timestamp)]
