"""One stream, open on this node: the storage of one partition. Offsets are Kafka offsets."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, NamedTuple

from storage.errors import OffsetOutOfRange, StreamClosed
from storage.format.producer_headers import parse_producer_headers
from storage.format.record_batch import BatchHeader, read_header
from storage.format.records import iter_kafka_records
from storage.metadata.records import TrimStream
from storage.metadata.state import StreamState

if TYPE_CHECKING:
    from storage.stream.engine import StreamEngine

_EXTENTS_AT_ONCE = 1000
_INDEXES_AHEAD = 32
_REPLAY_BYTES = 1024 * 1024

OnDone = Callable[[Exception | None], None]


class TimestampOffset(NamedTuple):
    """A record's offset and its timestamp in milliseconds."""

    offset: int
    timestamp: int


class Stream:
    """An open stream. Made by `StreamEngine.open_streams`; all calls come from the engine's loop.

    Offsets: `start_offset` is the first that can be read, `confirmed_offset` the end of what is
    durable (the high watermark), `next_offset` the next to assign. start <= confirmed <= next.
    """

    def __init__(self, engine: "StreamEngine", state: StreamState) -> None:
        self.stream_id = state.stream_id
        self.epoch = state.epoch
        self.next_offset = state.end_offset
        self.confirmed_offset = state.end_offset
        self.is_open = True
        self.on_advance: Callable[[], None] | None = None
        """Called after `confirmed_offset` moved."""
        self.state_snapshot: Callable[[int], bytes] | None = None
        """Asked at each upload for the partition state as of an end offset: of the batches that end
        at or below it, and of no others (those above may never become durable).
        """
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
        `confirmed_offset` has moved, or `on_done(error)` when the WAL has failed and nobody can
        know. The bytes must not change any more.

        Raises StreamClosed, WalFull, WalFailed, WalClosed, RecordTooLarge: then nothing happened.
        """
        if not self.is_open:
            raise StreamClosed(f"stream {self.stream_id} is not open here")
        self._engine.append(self, batch, count, max_timestamp, on_done)

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

    async def load_state(self) -> tuple[bytes | None, int]:
        """Return the newest partition state in objects and the offset it is valid up to.

        Without any: (None, start offset). Batches from there on are to be replayed with `fetch`.
        """
        objects = self._engine.metadata.state.objects
        for extent in reversed(self._state().extents):
            known = objects.get(extent.object_key)
            if known is not None and known.kind == "wal":
                continue  # these have none, and after a crash they are many
            index = await self._engine.reader.index(extent.object_key)
            blob = index.streams[self.stream_id].state
            if blob is not None:
                return blob, extent.end_offset
        return None, self.start_offset

    async def batch_headers(self, offset: int) -> AsyncGenerator[BatchHeader, None]:
        """Yield the headers of batches that end above `offset`, in offset order: of all that a
        partition's state is made of (see `producer_headers`), and maybe of others.

        Reads data only of objects that carry no headers. Raises StoreUnavailable, CorruptObject.
        """
        reader = self._engine.reader
        extents = [extent for extent in self._state().extents if extent.end_offset > offset]
        for number, extent in enumerate(extents):
            first = number + _INDEXES_AHEAD - 1 if number else 0
            for ahead in extents[first : number + _INDEXES_AHEAD]:
                reader.indexes.expect(ahead.object_key)
            index = await reader.index(extent.object_key)
            headers = index.streams[self.stream_id].headers
            found = (
                await self._headers_between(max(offset, extent.start_offset), extent.end_offset)
                if headers is None
                else parse_producer_headers(headers)
            )
            for header in found:
                if header.end_offset > offset:
                    yield header
        for batch in self._engine.cache.batches_from(self.stream_id, self._state().end_offset):
            if batch.end_offset > offset:
                yield read_header(batch.payload)

    async def _headers_between(self, offset: int, end: int) -> list[BatchHeader]:
        found: list[BatchHeader] = []
        while offset < end:
            for payload in await self._engine.reader.fetch(
                self.stream_id, lambda: self._state().extents, offset, _REPLAY_BYTES
            ):
                header = read_header(payload)
                offset = header.end_offset
                found.append(header)
        return found

    async def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Return the first record whose timestamp is `timestamp` or later, if there is one."""
        start = self.start_offset
        for number, extent in enumerate(self._state().extents):
            if not number % _EXTENTS_AT_ONCE:
                await asyncio.sleep(0)  # a stream may have a million
            if extent.max_timestamp < timestamp:
                continue
            index = await self._engine.reader.index(extent.object_key)
            for item in index.items_of(self.stream_id):
                if item.max_timestamp >= timestamp and item.end_offset > start:
                    found = await self._search(
                        max(start, item.start_offset), item.end_offset, timestamp
                    )
                    if found is not None:
                        return found
        for batch in self._engine.cache.batches_from(self.stream_id, self._state().end_offset):
            if batch.max_timestamp >= timestamp and batch.end_offset > start:
                return _first_record(batch.payload, start, timestamp)
        return None

    async def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """Return the record with the greatest timestamp, the first of them; None for an empty
        stream.
        """
        extents = self._state().extents
        cached = self._engine.cache.batches_from(self.stream_id, self._state().end_offset)
        times = [extent.max_timestamp for extent in extents] + [b.max_timestamp for b in cached]
        return await self.offset_for_timestamp(max(times)) if times else None

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

    def _state(self) -> StreamState:
        state = self._engine.metadata.state.streams.get(self.stream_id)
        if state is None:
            raise StreamClosed(f"stream {self.stream_id} was deleted")
        return state

    async def _search(self, offset: int, end_offset: int, timestamp: int) -> TimestampOffset | None:
        start = self.start_offset
        while offset < end_offset:
            for payload in await self._engine.reader.fetch(
                self.stream_id, lambda: self._state().extents, offset, 1
            ):
                header: BatchHeader = read_header(payload)
                if header.max_timestamp >= timestamp:
                    found = _first_record(payload, start, timestamp)
                    if found is not None:
                        return found
                offset = header.end_offset
        return None


def _first_record(batch: memoryview, start: int, timestamp: int) -> TimestampOffset | None:
    for record in iter_kafka_records(batch):
        if record.timestamp >= timestamp and record.offset >= start:
            return TimestampOffset(record.offset, record.timestamp)
    return None
