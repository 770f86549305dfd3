"""Write the new objects that replace a group of old ones: the remaining batches at their offsets,
and the partition state that the old objects carry.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lakehead.storage.backoff import Backoff
from lakehead.storage.compaction.batch_merging import Span
from lakehead.storage.compaction.batches import (
    GAP_MAX,
    BatchRows,
    Scratch,
    StoredBatch,
    filler,
    stored_items,
)
from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.object_names import JobName
from lakehead.storage.format.object_writer import ObjectWriter, WrittenObject
from lakehead.storage.format.partition_state import StateSnapshot, put_together
from lakehead.storage.format.producer_headers import producer_headers
from lakehead.storage.format.record_batch import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
)
from lakehead.storage.format.stream_object import AbortedTransaction, StreamInfo, read_index
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.records import COMPACTED, CommittedObject, CommittedRange, state_kind
from lakehead.storage.object_store.protocol import Buffer, ObjectStore
from lakehead.storage.object_store.put import put_if_absent

if TYPE_CHECKING:
    from lakehead.storage.compaction.log_cleaner import Cleaner

_RETRY_S = 0.1
_RETRY_MAX_S = 10.0
_TRIES = 10


async def put_object(
    store: ObjectStore, key: str, written: WrittenObject, rng: random.Random
) -> None:
    """Write an object under a name of a job. Raises StoreUnavailable, OutcomeUnknown."""
    backoff = Backoff(rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)
    await put_if_absent(store, key, written.pieces, backoff, tries=_TRIES)


STATES_BYTES = 4 * 1024 * 1024
"""As much of incremental states is put together: it goes with the index of the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The identity of a writing job, for its objects and their names."""

    cluster_id: str
    job_id: str
    entry: int
    """The metadata log's next entry when the writing began."""
    now_ms: int
    rng: random.Random


class _Piece(NamedTuple):
    """Stored records in which these producers have some; or, with a `header`, one batch alone."""

    span: Span
    sent: frozenset[int]
    header: BatchHeader | None = None

    @classmethod
    def of(cls, stored: StoredBatch) -> "_Piece":
        """Return one batch."""
        header = read_header(stored.payload)
        newest = header.max_timestamp if header.record_count else NO_TIMESTAMP
        epoch, end_offset, payload = stored
        span = Span(epoch, header.base_offset, end_offset, 1, newest, payload)
        has_sent = header.producer_id != NO_PRODUCER_ID and not header.is_control
        return cls(span, frozenset((header.producer_id,) if has_sent else ()), header)


@dataclass(slots=True)
class _Part:
    """One object to be: offsets from `start_offset`, up to `end_offset` so far."""

    kind: str
    start_offset: int
    end_offset: int
    until: int
    """The offset at which it is to end: a gap before it is filled with an empty batch."""
    epoch: int = 0
    pieces: list[_Piece] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    states: list[StateSnapshot] = field(default_factory=list)
    info: StreamInfo | None = None
    aborted: tuple[AbortedTransaction, ...] = ()

    def close(self) -> None:
        """Bridge gaps that are too long, and go on to its end, if no batch ends there."""
        pieces, self.pieces = self.pieces, []
        for piece in pieces:
            while piece.span.start_offset - self.end_offset > GAP_MAX:
                self._fill(self.end_offset + GAP_MAX)
            self.pieces.append(piece)
            self.end_offset = piece.span.end_offset
        while self.end_offset < self.until:
            self._fill(min(self.until, self.end_offset + GAP_MAX))

    def _fill(self, end_offset: int) -> None:
        empty = memoryview(filler(self.end_offset, end_offset, self.epoch))
        self.pieces.append(_Piece.of(StoredBatch(self.epoch, end_offset, empty)))
        self.end_offset = end_offset


class Rewrite:
    """The rewriting of one stream, group after group. `clean_end` is where cleaning ends; what the
    last group holds beyond it is copied. `state_from` is the stream's.
    """

    def __init__(
        self,
        store: ObjectStore,
        cleaner: "Cleaner",
        job: Job,
        *,
        stream_id: int,
        clean_end: int,
        state_from: int,
    ) -> None:
        self._store = store
        self._cleaner = cleaner
        self._job = job
        self._stream_id = stream_id
        self._clean_end = clean_end
        self._state_from = state_from
        self._parts: list[_Part] = []
        self._batches, self._scratch = BatchRows(), Scratch()
        self.is_changed = False
        """True if something was removed, or marked, in the group that was rewritten last."""

    async def group(self, extents: Sequence[Extent]) -> list[tuple[CommittedObject, WrittenObject]]:
        """Return the objects that stand for these extents, not written yet.

        Raises ObjectNotFound, StoreUnavailable, CorruptObject, UnsupportedFormat.
        """
        self._parts, self.is_changed = [], False
        for extent in extents:
            await self._add_extent(extent)
        for part in self._parts:
            if part.kind == COMPACTED:
                needed = _needed(part.pieces)
                self.is_changed |= len(needed) < len(part.pieces)
                part.pieces = needed
        return [self._finish(part) for part in self._parts]

    async def _add_extent(self, extent: Extent) -> None:
        index = await read_index(self._store, extent.object_key)
        info = index.streams[self._stream_id]
        is_state = extent.end_offset > self._state_from
        part = self._part(extent.start_offset, info, goes_on=is_state and info.state is not None)
        has_none = info.state is None and info.headers is None
        sources: list[Buffer] = []
        items = stored_items(self._store, index, self._stream_id, extent, self._scratch)
        async for item, data in items:
            try:
                self._batches.read(self._stream_id, data)
            except ValueError as error:
                raise CorruptObject(extent.object_key, item.position, str(error)) from error
            if is_state and has_none:
                self._scratch.keep(data)
                sources += [one.payload for one in map(self._batches.stored, self._batches.rows)]
            part = self._add_item(part, info)
        part.until = extent.end_offset
        if part.kind != COMPACTED:
            here = (one for one in info.aborted if one.last_offset >= self._clean_end)
            part.aborted = (*part.aborted, *here)
        if is_state:
            self._carry_state(part, info, sources)

    def _part(self, start_offset: int, info: StreamInfo, *, goes_on: bool) -> _Part:
        """Return the part that goes on at an offset: a new one where cleaning ends, and behind a
        state, which is true at the end of a part; unless it `goes_on` with another state, and both
        are not too large to be put together.
        """
        kind = COMPACTED if start_offset < self._clean_end else "so"
        last = self._parts[-1] if self._parts else None
        size = 0 if last is None else sum(len(one.data) for one in last.states)
        goes_on &= size + len(info.state or b"") <= STATES_BYTES
        if last is None or (last.states and not goes_on) or last.kind != kind:
            last = _Part(kind, start_offset, start_offset, start_offset)
            self._parts.append(last)
        last.info = info
        return last

    def _add_item(self, part: _Part, info: StreamInfo) -> _Part:
        """Add what is left of the batches of an item; return the part that goes on."""
        batches, row = self._batches, 0
        while row < batches.count:
            if part.kind == COMPACTED:
                row = self._add_cleaned(part, row)
                if row == batches.count:
                    break
            stored = batches.stored(row)
            if part.kind == COMPACTED and stored.end_offset > self._clean_end:
                part.until = self._clean_end
                part = self._part(self._clean_end, info, goes_on=False)
            self._add_batch(part, stored)
            row += 1
        return part

    def _add_cleaned(self, part: _Part, first: int) -> int:
        """Add what is left of as many batches as can be cleaned at once; return the row after."""
        cleaned, batches = self._cleaner.clean_all(self._batches, first), self._batches
        if cleaned.row > first:
            part.epoch = batches.epoch(cleaned.row - 1)
            senders = batches.senders(first, cleaned.row)
            for span in cleaned.left:
                self._add_piece(part, _Piece(span, senders))
            self.is_changed |= cleaned.is_changed
        return cleaned.row

    def _add_batch(self, part: _Part, stored: StoredBatch) -> None:
        part.epoch = stored.epoch
        if part.kind != COMPACTED:
            self._add_piece(part, _Piece.of(stored))
            return
        header = read_header(stored.payload)
        left = self._cleaner.clean(header, stored)
        if left is stored.payload:
            self._add_piece(part, _Piece.of(stored))
            return
        # An empty batch without a producer, which only filled a gap, is put there again if need be.
        is_filler = header.record_count == 0 and header.producer_id == NO_PRODUCER_ID
        self.is_changed |= not is_filler
        if left is not None:
            kept = StoredBatch(stored.epoch, stored.end_offset, left)
            self._add_piece(part, _Piece.of(kept))

    def _add_piece(self, part: _Part, piece: _Piece) -> None:
        self._scratch.keep(piece.span.data)
        part.pieces.append(piece)

    @staticmethod
    def _carry_state(part: _Part, info: StreamInfo, sources: Sequence[Buffer]) -> None:
        if info.state is not None:
            part.states.append(StateSnapshot(info.state, info.state_since))
            part.headers = []
            return
        part.headers.append(producer_headers(sources) if info.headers is None else info.headers)

    def _finish(self, part: _Part) -> tuple[CommittedObject, WrittenObject]:
        job, stream_id = self._job, self._stream_id
        assert part.info is not None
        part.close()
        headers = None if part.states else b"".join(part.headers)
        state = put_together(part.states) if part.states else None
        info = msgspec.structs.replace(
            part.info,
            state=None if state is None else state.data,
            state_since=-1 if state is None else state.since,
            headers=headers,
            aborted=part.aborted,
            epoch=-1,
        )
        writer = ObjectWriter(
            kind=part.kind,
            cluster_id=job.cluster_id,
            node_id=-1,
            node_epoch=-1,
            writer_id=job.job_id,
            created_ms=job.now_ms,
        )
        writer.begin_stream(info)
        end = part.start_offset
        for span, _, header in part.pieces:
            first = span.start_offset
            if first > end:
                writer.skip(end, first)
            end = span.end_offset
            if header is None:
                writer.add_stored(*span[1:])
            else:
                writer.add(span.epoch, first, end - first, span.data, span.max_timestamp)
        written = writer.finish()
        (held,) = written.ranges
        committed_range = CommittedRange(
            stream_id=stream_id,
            epoch=part.epoch,
            start_offset=part.start_offset,
            end_offset=part.end_offset,
            max_timestamp=held.max_timestamp,
            size=held.size,
            state=state_kind(info),
            state_since=info.state_since,
        )
        committed = CommittedObject(
            key=JobName(job.entry, job.rng.getrandbits(64)).key,
            kind=part.kind,
            size=written.size,
            created_ms=job.now_ms,
            ranges=(committed_range,),
        )
        return committed, written


def _needed(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Leave out empty batches after which more of their producer comes: another batch for one that
    had records, anything for a marker. Only now is it known that they are not the last.
    """
    kept: list[_Piece] = []
    heard: set[int] = set()
    sent: set[int] = set()
    for piece in reversed(pieces):
        header = piece.header
        if header is not None and header.producer_id != NO_PRODUCER_ID:
            later = heard if header.is_control else sent
            if header.record_count == 0 and header.producer_id in later:
                continue
            heard.add(header.producer_id)
        heard |= piece.sent
        sent |= piece.sent
        kept.append(piece)
    kept.reverse()
    return kept
