"""A stream open on this node, the storage of one partition, and its search by timestamp. Offsets
are Kafka offsets.

The search (KIP-79, KIP-734) goes from metadata, indexes and batch headers down to single records.
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
from typing import NamedTuple, Protocol

from lakehead.storage.errors import CorruptObject, OffsetOutOfRange, StreamClosed
from lakehead.storage.format.partition_state import StateSnapshot
from lakehead.storage.format.producer_headers import StateBatch, parse_producer_headers, state_batch
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.format.records import RecordTime, iter_record_times
from lakehead.storage.format.stream_object import AbortedTransaction, IndexItem, StreamInfo
from lakehead.storage.metadata.extents import Extent, Extents
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import Record, TrimStream
from lakehead.storage.metadata.state import MetadataImage, ObjectState, StreamState
from lakehead.storage.metadata.table import Table
from lakehead.storage.stream.inflating import InflatedBatches
from lakehead.storage.stream.log_cache import CachedBatch
from lakehead.storage.stream.reader import INDEXES_AHEAD, ColdReader
from lakehead.storage.tasks import task_group

INFLATED_SIZE_MAX = 64 * 1024 * 1024
_EXTENTS_AT_ONCE = 1000
_RECORDS_AT_ONCE = 250
_QUICK_TURNS, _PAUSE = 100, 3
"""After so many turns a search of a batch pauses for so many times as long as it works: millions of
records take the longer, and do not use up the processor.
"""
_REPLAY_BYTES = 1024 * 1024
_YIELD_HEADERS = 500
_STATES_AT_ONCE = 16

OnDone = Callable[[Exception | None], None]


class StoredState(NamedTuple):
    """A partition's state in objects: of those that reach beyond `since`, the oldest first; true up
    to `end_offset`, which is below the start offset where it outlived the records. Without any
    `end_offset` is where to begin.
    """

    states: list[bytes]
    since: int
    end_offset: int


class BatchCache(Protocol):
    """The newest batches of streams, in memory: `LogCache`."""

    def fetch(self, stream_id: int, offset: int, max_bytes: int) -> list[memoryview] | None:
        """See `LogCache.fetch`."""

    def batches_from(self, stream_id: int, offset: int) -> list[CachedBatch]:
        """See `LogCache.batches_from`."""


class StreamServices(Protocol):
    """The services of its node's engine that a stream uses."""

    reader: ColdReader
    metadata: MetadataLog

    @property
    def cache(self) -> BatchCache:
        """The newest batches."""

    def append(
        self,
        stream: Stream,
        payload: memoryview,
        count: int,
        max_timestamp: int,
        on_done: OnDone | None,
    ) -> int:
        """Append a batch to the write-ahead log; return the offset at which it ends."""

    async def upload_now(self) -> None:
        """Upload and commit everything that is confirmed."""


class Stream:
    """An open stream. Made by `StreamEngine.open_streams`; all calls come from the engine's loop.

    Offsets: `start_offset` is the first that can be read, `confirmed_offset` the end of what is
    durable (the high watermark), `next_offset` the next to assign. start <= confirmed <= next.
    Others read these and `is_open`; the stream alone writes them.
    """

    def __init__(self, engine: StreamServices, state: StreamState) -> None:
        self.stream_id = state.stream_id
        self.epoch = state.epoch
        self.next_offset = state.end_offset
        self.confirmed_offset = state.end_offset
        self.is_open = True
        self.on_advance: Callable[[], None] | None = None
        """Called after `confirmed_offset` moved."""
        self.state_snapshot: Callable[[int, int], StateSnapshot] | None = None
        """Called at each upload, of offsets [start, end), for the partition state as of the end: of
        the batches that end at or below it, and of no others (those above may never become
        durable).
        """
        self.is_state_due: Callable[[int], bool] | None = None
        """Called when batches became durable, up to an offset: returns true if an upload should
        take the partition state now, since more of it has changed than one should have.
        """
        self.old_state_snapshot: Callable[[int], StateSnapshot] | None = None
        """Called instead, for the end, if a release may have to read it that knows whole states of
        the old version only.
        """
        self.aborted_by: Callable[[int, int], Sequence[AbortedTransaction]] | None = None
        """Called at each upload for the aborted transactions whose markers lie in [start, end)."""
        self._engine = engine

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self._state().start_offset

    @property
    def committed_offset(self) -> int:
        """The end of what is in committed objects."""
        return self._state().end_offset

    @property
    def object_count(self) -> int:
        """The committed objects that hold it: to read it takes two GETs of each."""
        return len(self._state().extents)

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset) of each owner so far: the leader-epoch checkpoint."""
        return self._state().epochs

    def append(
        self, batch: memoryview, *, count: int, max_timestamp: int, on_done: OnDone | None = None
    ) -> None:
        """Append one RecordBatch that covers `count` offsets from `next_offset`, to which it is
        patched already.

        Synchronous: the batch is on its way to the WAL when this returns, after everything that was
        appended before. `on_done(None)` is called in append order once it is durable and
        `confirmed_offset` has moved, or `on_done(error)` when the WAL has failed and the outcome is
        unknown. The bytes must not change any more.

        Raises StreamClosed, WalFull, WalFailed, WalClosed, RecordTooLarge: then nothing happened.
        """
        if not self.is_open:
            raise StreamClosed(f"stream {self.stream_id} is not open here")
        self.next_offset = self._engine.append(self, batch, count, max_timestamp, on_done)

    def confirm(self, offset: int) -> None:
        """Move the end of what is durable: to an offset after this one, and appended before."""
        assert self.confirmed_offset <= offset <= self.next_offset
        self.confirmed_offset = offset

    def close(self) -> None:
        """Take no more appends, for good."""
        self.is_open = False

    def fetch_cached(self, offset: int, max_bytes: int) -> list[memoryview] | None:
        """Return whole batches from memory, from the one that contains `offset`: at least one, else
        up to `max_bytes`.

        [] at the end; None when they are not cached: use `fetch`. Raises OffsetOutOfRange.
        """
        if offset == self.confirmed_offset:
            return []
        if not self.start_offset <= offset < self.confirmed_offset:
            raise OffsetOutOfRange(
                f"stream {self.stream_id}: offset {offset} is outside "
                f"[{self.start_offset}, {self.confirmed_offset}]"
            )
        return self._engine.cache.fetch(self.stream_id, offset, max_bytes)

    async def fetch(self, offset: int, max_bytes: int) -> list[memoryview]:
        """Like `fetch_cached`, from objects where the batches are not in memory.

        Raises OffsetOutOfRange, StoreUnavailable, CorruptObject.
        """
        cached = self.fetch_cached(offset, max_bytes)
        if cached is not None:
            return cached
        found = await self._engine.reader.fetch(
            self.stream_id, lambda: self._state().extents, offset, max_bytes
        )
        if not found:  # trimmed meanwhile
            raise OffsetOutOfRange(f"stream {self.stream_id}: offset {offset} is gone")
        return found

    async def load_state(self) -> StoredState:
        """Return the newest partition state in objects: a whole one, or the incremental ones that
        make one up. `state_batches` gives the batches after it.
        """
        objects, state = self._engine.metadata.state.objects, self._state()
        sources = state.state_sources
        # Group commits of a WAL have none, and after a crash they are many.
        newest_first = [
            extent
            for extent in reversed(sources)
            if extent.end_offset > state.state_from and not _is_wal(objects, extent)
        ]
        found: list[bytes] = []
        end_offset = -1
        first, is_whole = 0, False
        while first < len(newest_first) and not is_whole:
            some = newest_first[first : first + (_STATES_AT_ONCE if first else 1)]
            first += len(some)
            for extent, info in zip(some, await self._infos(some), strict=True):
                if info.state is not None and not is_whole:
                    end_offset = max(end_offset, extent.end_offset)
                    found.append(info.state)
                    is_whole = info.state_since < 0
        if not found:
            end_offset = sources[0].start_offset if sources else state.end_offset
        return StoredState(found[::-1], state.state_from, end_offset)

    async def _infos(self, extents: Sequence[Extent]) -> list[StreamInfo]:
        """Return the descriptions of this stream in its objects, read side by side."""
        index = self._engine.reader.index
        async with task_group() as group:
            reads = [group.create_task(index(extent.object_key)) for extent in extents]
        return [read.result().streams[self.stream_id] for read in reads]

    async def state_batches(self, offset: int) -> AsyncGenerator[StateBatch, None]:
        """Yield what counts of the batches that end above `offset`, in offset order, trimmed or
        not: of all that a partition's state is made of (see `producer_headers`), and maybe of
        others.

        Reads data only of objects that carry no headers. Raises as `fetch`.
        """
        reader = self._engine.reader
        sources = self._state().state_sources
        extents = [extent for extent in sources if extent.end_offset > offset]
        for number, extent in enumerate(extents):
            first = number + INDEXES_AHEAD - 1 if number else 0
            for ahead in extents[first : number + INDEXES_AHEAD]:
                reader.indexes.expect(ahead.object_key)
            index = await reader.index(extent.object_key)
            headers = index.streams[self.stream_id].headers
            try:
                if headers is None:
                    start = max(offset, extent.start_offset)
                    found = iter(await self._batches_between(start, extent.end_offset))
                else:
                    found = parse_producer_headers(headers)
                while some := list(islice(found, _YIELD_HEADERS)):
                    for batch in some:
                        if batch.header.end_offset > offset:
                            yield batch
                    await asyncio.sleep(0)
            except ValueError as error:
                raise CorruptObject(extent.object_key, 0, str(error)) from error
        for cached in self._engine.cache.batches_from(self.stream_id, self._state().end_offset):
            if cached.end_offset > offset:
                yield state_batch(cached.payload)

    async def _batches_between(self, offset: int, end: int) -> list[StateBatch]:
        found: list[StateBatch] = []
        while offset < end:
            payloads = await self._engine.reader.fetch(
                self.stream_id, lambda: self._state().state_sources, offset, _REPLAY_BYTES
            )
            if not payloads:
                raise OffsetOutOfRange(f"stream {self.stream_id}: offset {offset} is gone")
            found += map(state_batch, payloads)
            offset = found[-1].header.end_offset
        return found

    async def offset_for_timestamp(self, timestamp: int) -> RecordTime | None:
        """Return the first record whose timestamp is `timestamp` or later, if there is one. Raises
        as `fetch`.
        """
        return await self._timestamps().first_since(timestamp)

    async def offset_of_max_timestamp(self) -> RecordTime | None:
        """Return the record with the greatest timestamp, the first of them; None for an empty
        stream. Raises as `fetch`.
        """
        return await self._timestamps().latest()

    async def trim(self, offset: int) -> None:
        """Make `offset` the start offset. Raises OffsetOutOfRange beyond the confirmed offset."""
        if offset > self.confirmed_offset:
            raise OffsetOutOfRange(f"stream {self.stream_id}: cannot trim to {offset}")
        if offset <= self.start_offset:
            return
        while self.committed_offset < offset:
            await self._engine.upload_now()
        await self._engine.metadata.commit_with(
            lambda state: [
                TrimStream(
                    stream_id=self.stream_id,
                    start_offset=max(offset, state.stream(self.stream_id).start_offset),
                )
            ]
        )

    async def drop_trimmed_state(self) -> None:
        """Let go of objects that trims left for the partition's state alone: nothing of that counts
        any more, as the owner knows.
        """
        if not self.is_open or not self._state().state_extents:
            return
        known = self._state().state_from

        def plan(state: MetadataImage) -> Sequence[Record]:
            if not state.is_open(self.stream_id, self.epoch):
                return ()
            stream = state.stream(self.stream_id)
            if stream.state_from != known:
                return ()  # there is a newer one
            start = stream.start_offset
            return (TrimStream(stream_id=self.stream_id, start_offset=start, drops_state=True),)

        await self._engine.metadata.commit_with(plan)

    def _state(self) -> StreamState:
        state = self._engine.metadata.state.streams.get(self.stream_id)
        if state is None:
            raise StreamClosed(f"stream {self.stream_id} was deleted")
        return state

    def _timestamps(self) -> TimestampSearch:
        engine = self._engine
        cached = engine.cache.batches_from(self.stream_id, self._state().end_offset)
        return TimestampSearch(
            engine.reader,
            self.stream_id,
            extents=lambda: self._state().extents,
            cached=[BatchTime(one.base_offset, one.max_timestamp) for one in cached],
            start=lambda: self.start_offset,
            read=self._batch_at,
            inflating=engine.reader.searched,
        )

    async def _batch_at(self, offset: int) -> memoryview:
        """Return the batch that contains an offset. Raises as `fetch`."""
        found = await self.fetch(offset, 1)
        if not found:
            raise OffsetOutOfRange(f"stream {self.stream_id}: offset {offset} is gone")
        return found[0]


def _is_wal(objects: Table[str, ObjectState], extent: Extent) -> bool:
    known = objects.get(extent.object_key)
    return known is not None and known.kind == "wal"


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
