"""A stream open on this node, the storage of one partition. Offsets are Kafka offsets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from lakehead.storage.errors import OffsetOutOfRange, StreamClosed
from lakehead.storage.format.partition_state import StateSnapshot
from lakehead.storage.format.producer_headers import StateBatch
from lakehead.storage.format.records import RecordTime
from lakehead.storage.format.stream_object import AbortedTransaction
from lakehead.storage.metadata.extents import Extents
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import Record, TrimStream
from lakehead.storage.metadata.state import MetadataImage, StreamState
from lakehead.storage.stream.reader import ColdReader
from lakehead.storage.stream.stored_state import BatchCache, StoredState, StoredStateReader
from lakehead.storage.stream.timestamp_search import BatchTime, TimestampSearch

OnDone = Callable[[Exception | None], None]


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

    def broke_off(self, error: BaseException) -> None:
        """Commit and acknowledge nothing any more: an append has left something half done."""

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
        self._start_offset = state.start_offset
        self._start_as_of = -1
        """The entry of the metadata log as of which that was read."""

    @property
    def start_offset(self) -> int:
        """The first offset that can be read. Each produced batch and each read needs it."""
        as_of = self._engine.metadata.state.next_entry
        if as_of != self._start_as_of:
            self._start_offset, self._start_as_of = self._state().start_offset, as_of
        return self._start_offset

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

    def broke_off(self, error: BaseException) -> None:
        """End the engine, since what follows from a batch that was appended was left half done: a
        state without it must not be uploaded. The next start finds the batch in the log.
        """
        self._engine.broke_off(error)

    def confirm(self, offset: int) -> None:
        """Move the end of what is durable: to an offset after this one, and appended before."""
        assert self.confirmed_offset <= offset <= self.next_offset
        self.confirmed_offset = offset

    def follow(self, end_offset: int) -> None:
        """Move to the end of what another node has committed, and to the epoch of its owner: of a
        stream that is only read here.
        """
        self.epoch = self._state().epoch
        self.next_offset = end_offset
        self.confirm(end_offset)

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

    def fetch_read(self, offset: int, max_bytes: int) -> list[memoryview] | None:
        """Return whole batches that are not in the log cache, and in memory because they were read
        or read ahead; None: use `fetch`. Raises StreamClosed.
        """
        return self._engine.reader.fetch_cached(self.stream_id, self._extents, offset, max_bytes)

    def stored_size(self, offset: int, most: int) -> int:
        """Return a bound of the bytes in objects from an offset on, `most` at most."""
        return self._extents().size_from(offset, most)

    async def fetch(self, offset: int, max_bytes: int) -> list[memoryview]:
        """Like `fetch_cached`, from objects where the batches are not in memory. Waits for those in
        an inherited tail.

        Raises OffsetOutOfRange, StreamClosed, StoreUnavailable, CorruptObject.
        """
        cached = self.fetch_cached(offset, max_bytes)
        if cached is not None:
            return cached
        await self.wait_uploaded(offset)
        found = await self._engine.reader.fetch(self.stream_id, self._extents, offset, max_bytes)
        if not found:  # trimmed meanwhile
            raise OffsetOutOfRange(f"stream {self.stream_id}: offset {offset} is gone")
        return found

    def tail_start(self, offset: int) -> int | None:
        """Return where the inherited tail begins that the record at an offset lies in: none of it
        is in an object yet, and `fetch` waits until it is uploaded. None: it lies in none. Raises
        StreamClosed.
        """
        return self._engine.reader.tail_start(self._extents(), offset)

    async def wait_uploaded(self, offset: int) -> None:
        """Wait until the record at an offset lies in no inherited tail. Raises StreamClosed, also
        when the stream is handed over meanwhile: a reader would wait for another node's sake.
        """
        if self.tail_start(offset) is not None:
            await self._engine.reader.wait_uploaded(self._open_extents, offset)

    async def wait_all_uploaded(self) -> None:
        """Wait until no record of the stream lies in an inherited tail. Raises as
        `wait_uploaded`.
        """
        await self._engine.reader.wait_all_uploaded(self._open_extents)

    async def load_state(self) -> StoredState:
        """Return the newest partition state in objects: a whole one, or the incremental ones that
        make one up. `state_batches` gives the batches after it.
        """
        return await self._stored().load()

    def state_batches(self, offset: int) -> AsyncGenerator[StateBatch, None]:
        """Yield what counts of the batches that end above `offset`, in offset order, trimmed or
        not: of all that a partition's state is made of (see `producer_headers`), and maybe of
        others.

        Reads data only of objects that carry no headers. Raises as `fetch`.
        """
        return self._stored().batches(offset)

    async def offset_for_timestamp(self, timestamp: int) -> RecordTime | None:
        """Return the first record whose timestamp is `timestamp` or later, if there is one. Raises
        as `fetch`.
        """
        await self.wait_all_uploaded()
        return await self._timestamps().first_since(timestamp)

    async def offset_of_max_timestamp(self) -> RecordTime | None:
        """Return the record with the greatest timestamp, the first of them; None for an empty
        stream. Raises as `fetch`.
        """
        await self.wait_all_uploaded()
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

    def _extents(self) -> Extents:
        return self._state().extents

    def _open_extents(self) -> Extents:
        if not self.is_open:
            raise StreamClosed(f"stream {self.stream_id} is not open here any more")
        return self._extents()

    def _state(self) -> StreamState:
        state = self._engine.metadata.state.streams.get(self.stream_id)
        if state is None:
            raise StreamClosed(f"stream {self.stream_id} was deleted")
        return state

    def _stored(self) -> StoredStateReader:
        return StoredStateReader(self._engine, self.stream_id, self._state)

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
