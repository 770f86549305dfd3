"""The batches of a partition of the source, as they are: fetched, checked, without what consumers
of committed records never see.

A response to a fetch names the aborted transactions that reach into it, so each is looked at on its
own (KIP-98, as `CompletedFetch` of Kafka's consumer does it).
"""

import asyncio
import struct
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from lakehead.broker.cli.migration.source_brokers import (
    SourceBrokers,
    SourceChannel,
    check_partition,
)
from lakehead.broker.protocol.decode import Cursor
from lakehead.broker.protocol.messages import entity
from lakehead.storage.errors import RequestRefused
from lakehead.storage.format.record_batch import (
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    crc_ok,
    read_header,
    size_at,
)

_FETCH, _FETCH_NEWEST = 1, 12
_LIST_OFFSETS, _LIST_OFFSETS_NEWEST = 2, 6
_EARLIEST, _LATEST = -2, -1
_COMMITTED = 1
_FETCH_BYTES = 16 * 1024 * 1024
_WAIT_MS = 500
_EMPTY_MAX = 3
"""Responses without a batch, below the end, until it counts as sure that none is there: compaction
may have removed the last ones, and a read of tiered storage may be late.
"""
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_LONG = struct.Struct(">q")


class OldFormat(Exception):
    """A partition has messages in a format from before Kafka 0.11, from an offset on."""


class SourceBatch(NamedTuple):
    """One batch: its header and all of its bytes."""

    header: BatchHeader
    data: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatches:
    """The batches of one response that have committed records, and the offset up to which it has
    all.
    """

    batches: Sequence[SourceBatch]
    end: int


async def partition_bounds(
    brokers: SourceBrokers, topic: str, partitions: int
) -> list[tuple[int, int]]:
    """Return the first offset, and the end of what is committed, of each partition. Raises as
    `SourceBrokers`.
    """
    found = []
    for partition in range(partitions):
        low = await _offset(brokers, topic, partition, _EARLIEST)
        found.append((low, await _offset(brokers, topic, partition, _LATEST)))
    return found


async def _offset(brokers: SourceBrokers, topic: str, partition: int, which: int) -> int:
    def fields(module: Any) -> dict[str, Any]:
        one = entity(
            module,
            "ListOffsetsPartition",
            partition_index=partition,
            timestamp=which,
            max_num_offsets=1,
        )
        return {
            "replica_id": -1,
            "isolation_level": _COMMITTED,
            "topics": [entity(module, "ListOffsetsTopic", name=topic, partitions=[one])],
        }

    async def send(channel: SourceChannel) -> int:
        response = await channel.send(
            _LIST_OFFSETS, _LIST_OFFSETS_NEWEST, "ListOffsetsRequest", fields
        )
        found = response.topics[0].partitions[0]
        check_partition(found.error_code, f"{topic}-{partition}")
        return int(found.offset)

    return await brokers.at_leader((topic, partition), send)


async def fetched_batches(
    brokers: SourceBrokers, topic: str, partition: int, start: int, end: int
) -> AsyncGenerator[FetchedBatches, None]:
    """Yield what a partition has from `start` to what was its committed end, `end`, or a little
    beyond; the next response is on its way meanwhile. The first batch may begin below `start`.

    Raises OldFormat, and as `SourceBrokers`.
    """
    place = f"{topic}-{partition}"
    position, empty = start, 0

    def fetch() -> asyncio.Task[_Response | None]:
        return asyncio.ensure_future(_fetch(brokers, topic, partition, position))

    coming = fetch() if position < end else None
    try:
        while coming is not None:
            response = await coming
            if response is None:  # deleted meanwhile
                low = await _offset(brokers, topic, partition, _EARLIEST)
                if low <= position:
                    raise RequestRefused(f"{place} has no offset {position} at the source any more")
                position = low
                coming = fetch() if position < end else None
                continue
            batches = list(_batches(response.records, place))
            if batches:
                position, empty = batches[-1].header.end_offset, 0
            else:
                empty += 1
                position = end if empty == _EMPTY_MAX else position
            coming = fetch() if position < end else None
            yield FetchedBatches(
                batches=list(committed_batches(batches, response.aborted)), end=position
            )
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            brokers.close()  # its response would be taken for that to the next request


class _Response(NamedTuple):
    """Batches, and (producer id, first offset) of aborted transactions."""

    records: memoryview
    aborted: list[tuple[int, int]]


async def _fetch(
    brokers: SourceBrokers, topic: str, partition: int, position: int
) -> _Response | None:
    """Return what is at an offset; None if it was deleted."""

    def fields(module: Any) -> dict[str, Any]:
        one = entity(
            module,
            "FetchPartition",
            partition=partition,
            fetch_offset=position,
            partition_max_bytes=_FETCH_BYTES,
        )
        return {
            "max_wait": _WAIT_MS,
            "min_bytes": 1,
            "max_bytes": _FETCH_BYTES,
            "isolation_level": _COMMITTED,
            "topics": [entity(module, "FetchTopic", topic=topic, partitions=[one])],
            "forgotten_topics_data": [],
        }

    async def send(channel: SourceChannel) -> _Response | None:
        version, body = await channel.send_for_body(_FETCH, _FETCH_NEWEST, "FetchRequest", fields)
        code, response = _parsed(body, version)
        if code is ErrorCode.offset_out_of_range:
            return None
        check_partition(code, f"{topic}-{partition}")
        return response

    return await brokers.at_leader((topic, partition), send)


def _parsed(body: memoryview, version: int) -> tuple[ErrorCode, _Response]:
    """Return the one partition of a response to a fetch (versions 4 to 12), whose records are not
    copied. Raises MalformedFrame.
    """
    is_flexible = version >= 12
    cursor = Cursor(body, 4, elements_max=len(body))  # behind the throttle time
    if version >= 7:
        code = ErrorCode(cursor.fixed(_INT16))
        cursor.take(4)  # session
        if code is not ErrorCode.none:
            return code, _Response(body[:0], [])
    cursor.count(compact=is_flexible)
    cursor.text(compact=is_flexible)
    cursor.count(compact=is_flexible)
    cursor.take(4)  # partition
    code = ErrorCode(cursor.fixed(_INT16))
    cursor.take(16)  # high watermark, last stable offset
    if version >= 5:
        cursor.take(8)  # log start offset
    aborted = []
    for _ in range(max(cursor.count(compact=is_flexible), 0)):
        aborted.append((cursor.fixed(_LONG), cursor.fixed(_LONG)))
        if is_flexible:
            cursor.skip_tags()
    if version >= 11:
        cursor.take(4)  # preferred read replica
    size = cursor.uvarint() - 1 if is_flexible else cursor.fixed(_INT32)
    return code, _Response(cursor.take(max(size, 0)), aborted)


def _batches(records: memoryview, place: str) -> Iterator[SourceBatch]:
    """Yield the whole batches of a response. Raises OldFormat, RequestRefused for a wrong CRC."""
    position = 0
    while position + HEADER_SIZE <= len(records):
        if records[position + MAGIC_POSITION] < MAGIC:
            raise OldFormat(place)
        size = size_at(records, position)
        if size < HEADER_SIZE or position + size > len(records):
            return  # cut short: the next response begins with it
        data = records[position : position + size]
        header = read_header(data)
        if header.magic != MAGIC or not crc_ok(data):
            raise RequestRefused(
                f"{place}: the batch at offset {header.base_offset} does not match its checksum at "
                "the source"
            )
        yield SourceBatch(header, data)
        position += size
    if len(records) - position > MAGIC_POSITION and records[position + MAGIC_POSITION] < MAGIC:
        raise OldFormat(place)  # a message may be shorter than the header of a batch


def committed_batches(
    batches: Sequence[SourceBatch], aborted: Sequence[tuple[int, int]]
) -> Iterator[SourceBatch]:
    """Yield the batches with records that are committed: no markers, none of aborted transactions,
    and none that compaction left without a record.

    `aborted` has (producer id, first offset) of the transactions that reach into these batches.
    """
    waiting = sorted(aborted, key=lambda one: one[1], reverse=True)
    producers: set[int] = set()
    for batch in batches:
        header = batch.header
        while waiting and waiting[-1][1] <= header.last_offset:
            producers.add(waiting.pop()[0])
        if header.is_control:
            producers.discard(header.producer_id)
        elif header.record_count and not (
            header.is_transactional and header.producer_id in producers
        ):
            yield batch
