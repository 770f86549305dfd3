"""Inherited tails: streams of a fenced node open before its log is uploaded.

The node that takes a log over reads which offsets of which streams it holds. One entry
(`InheritTail`) makes them part of the streams, which may then be opened: a *tail object* has the
ranges and the headers for the partitions' states, and the records lie in that log yet. They are
uploaded next, by the node that took the log over, by another one, or by the node itself when it is
back. A second entry (`CommitTail`) puts their objects in the place of the tail object. Until then
the log is neither trimmed nor forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from lakehead.storage.errors import WalCorrupted
from lakehead.storage.event_logger import event_logger
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.producer_headers import GatheredHeaders
from lakehead.storage.format.record_batch import max_timestamp
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.metadata.records import (
    HEADERS,
    CommitTail,
    CommittedObject,
    CommittedRange,
    InheritTail,
    Record,
)
from lakehead.storage.metadata.state import MetadataImage, StreamState
from lakehead.storage.stream.recovery import (
    BLOCK_SIZE,
    Uncommitted,
    chosen_blocks,
    written_blocks,
)
from lakehead.storage.stream.upload import Uploader
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal.protocol import WalRange, WalRecord, WriteAheadLog

TAILS_LEVEL = 2
"""From this feature level on the metadata know tails."""

_log = event_logger("storage.tail")


@dataclass(slots=True, kw_only=True)
class _Found:
    """The records of one stream that count, of one epoch: offsets [start, end)."""

    epoch: int
    start: int
    end: int
    max_timestamp: int = -1
    size: int = 0
    headers: GatheredHeaders = field(default_factory=GatheredHeaders)

    def add(self, record: WalRecord) -> None:
        self.end = record.base_offset + record.count
        self.max_timestamp = max(self.max_timestamp, max_timestamp(record.payload))
        self.size += len(record.payload)
        self.headers.add(record.payload)

    def add_range(self, span: WalRange) -> None:
        self.end = span.end_offset
        self.max_timestamp = max(self.max_timestamp, span.max_timestamp)
        self.size += span.size
        self.headers.add_encoded(span.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTail:
    """The part of a log that counts and is not in objects: `ranges` of streams, their descriptions
    for a tail object, and the position at which the log ends (None: it is empty).
    """

    ranges: tuple[CommittedRange, ...]
    infos: dict[int, StreamInfo]
    position: int | None


async def find_tail(wal: WriteAheadLog, state: MetadataImage, node_id: int) -> FoundTail:
    """Survey a fenced node's log for what counts in it, and keep no record. Raises WalCorrupted and
    what `survey()` raises.
    """
    choice = Uncommitted(state, node_id)
    found: dict[int, _Found] = {}
    position = None
    async with aclosing(wal.survey()) as parts:
        async for part in parts:
            position, record = part.end_position, part.record
            if record is not None and choice.takes(record):
                _of(found, record.stream_id, record.epoch, record.base_offset).add(record)
            for span in part.ranges:
                start = choice.takes_from(span)
                if start is not None:
                    _of(found, span.stream_id, span.epoch, start).add_range(span)
    headers = {stream_id: one.headers.encoded() for stream_id, one in sorted(found.items())}
    return FoundTail(
        ranges=tuple(
            CommittedRange(
                stream_id=stream_id,
                epoch=found[stream_id].epoch,
                start_offset=found[stream_id].start,
                end_offset=found[stream_id].end,
                max_timestamp=found[stream_id].max_timestamp,
                size=found[stream_id].size,
                state=HEADERS if data else "",
            )
            for stream_id, data in headers.items()
        ),
        infos={
            stream_id: msgspec.structs.replace(state.stream_info(stream_id, None), headers=data)
            for stream_id, data in headers.items()
        },
        position=position,
    )


def _of(found: dict[int, _Found], stream_id: int, epoch: int, start: int) -> _Found:
    one = found.get(stream_id)
    if one is None:
        one = found[stream_id] = _Found(epoch=epoch, start=start, end=start)
    return one


def inheritance(
    node_id: int, node_epoch: int, taker: tuple[int, int], objects: Sequence[CommittedObject]
) -> InheritTail:
    """Return the record that makes a tail part of its streams."""
    return InheritTail(
        node_id=node_id,
        node_epoch=node_epoch,
        taker_id=taker[0],
        taker_epoch=taker[1],
        objects=tuple(objects),
    )


class InTails:
    """Chooses the records of the tails that lie in a node's log."""

    def __init__(self, state: MetadataImage, node_id: int) -> None:
        self._node_id = node_id
        self._streams: dict[int, StreamState] = {}
        self._next: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        for stream_id, places in state.places_in(state.tails_of(node_id)).items():
            stream = self._streams[stream_id] = state.stream(stream_id)
            self._next[stream_id] = stream.extents[places[0]].start_offset
            self._ends[stream_id] = stream.extents[places[-1]].end_offset

    def takes(self, record: WalRecord) -> bool:
        """See `Choice`. Records of another epoch at the same offsets are of an earlier life of the
        log, trimmed long ago.
        """
        stream_id, start = record.stream_id, record.base_offset
        at, end = self._next.get(stream_id, -1), self._ends.get(stream_id, -1)
        if at < 0 or start + record.count <= at or start >= end:
            return False
        if record.epoch != epoch_at(self._streams[stream_id], start):
            return False
        if start != at:
            raise self._missing(stream_id)
        self._next[stream_id] = start + record.count
        return True

    def require_all(self) -> None:
        """Raise WalCorrupted unless all records of the tails have come."""
        for stream_id, end in self._ends.items():
            if self._next[stream_id] != end:
                raise self._missing(stream_id)

    def _missing(self, stream_id: int) -> WalCorrupted:
        return WalCorrupted(
            f"the write-ahead log of node {self._node_id} lacks offset {self._next[stream_id]} of "
            f"stream {stream_id}, of which it held the offsets up to {self._ends[stream_id]} when "
            "the node was fenced"
        )


def epoch_at(stream: StreamState, offset: int) -> int:
    """Return the epoch of a stream under which an offset was written."""
    return max((epoch for epoch, first in stream.epochs if first <= offset), default=-1)


class CommittedTails(NamedTuple):
    """The number of objects that a tail has become, and the position at which its log ends (None:
    there was not a tail).
    """

    objects: int
    position: int | None


async def commit_tails(
    wal: WriteAheadLog, uploader: Uploader, node_id: int, scope: TaskScope
) -> CommittedTails:
    """Upload what lies in a node's log of inherited tails, and commit it in one entry. May be
    repeated, and tried by several, of which one commits.

    Raises WalCorrupted (a record of a tail is missing), EntryRejected (this node was fenced, or
    another has done it), and what `recover()` and the store raise.
    """
    metadata = uploader.metadata
    keys = metadata.state.tails_of(node_id)
    if not keys:
        return CommittedTails(0, None)
    choice = InTails(metadata.state, node_id)
    objects: list[CommittedObject] = []
    position = None
    blocks = chosen_blocks(wal, choice, BLOCK_SIZE)
    async with aclosing(written_blocks(blocks, uploader, scope)) as upload_sets:
        async for upload_set in upload_sets:
            objects += upload_set.objects
            position = upload_set.wal_position
    choice.require_all()
    failpoint("tail_uploaded")
    taker_id, taker_epoch = uploader.taker
    found: list[CommittedObject] = []

    def plan(state: MetadataImage) -> Sequence[Record]:
        left = [key for key in keys if key in state.tails]
        places = state.places_in(left)
        found[:] = [_of_streams(one, places) for one in objects] if left else []
        if not left:
            return ()
        return (
            CommitTail(
                node_id=node_id,
                taker_id=taker_id,
                taker_epoch=taker_epoch,
                sources=tuple(left),
                objects=tuple(found),
                streams=tuple(places),
            ),
        )

    await metadata.commit_with(plan)
    failpoint("tail_committed")
    _log.info("tail_committed", dead_id=node_id, objects=len(found))
    return CommittedTails(len(found), position)


def _of_streams(one: CommittedObject, stream_ids: Collection[int]) -> CommittedObject:
    """Return an object with its ranges of these streams: others were deleted or trimmed."""
    ranges = tuple(span for span in one.ranges if span.stream_id in stream_ids)
    return msgspec.structs.replace(one, ranges=ranges)
