"""The batches of a partition of the source, as they are: fetched, checked, without what consumers
of committed records never see.

A response to a fetch names the aborted transactions that reach into it, so each is looked at on its
own (KIP-98, as `CompletedFetch` of Kafka's consumer does it).
"""

import asyncio
import struct
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.cli.migration.source_brokers import (
    Place,
    SourceBrokers,
    SourceChannel,
    SourceMoved,
    TopicChanged,
    TopicGone,
    check_partition,
)
from lakehead.broker.protocol.decode import Cursor
from lakehead.broker.protocol.messages import entity
from lakehead.storage.errors import BrokerUnavailable, RequestRefused
from lakehead.storage.format.record_batch import (
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    crc_ok,
    read_header,
    size_at,
)

_FETCH, _FETCH_NEWEST = 1, 13
_FETCH_BY_NAME = 12
"""The newest version that names topics by their names: later ones do by id (KIP-516)."""
_LIST_OFFSETS, _LIST_OFFSETS_NEWEST = 2, 8
_EARLIEST, _LATEST = -2, -1
_EARLIEST_LOCAL, _KNOWS_LOCAL = -4, 8
"""The first offset that is not in tiered storage alone, and the first version that has it."""
_COMMITTED = 1
_PLACES_AT_ONCE = 5000
_FETCH_BYTES = 16 * 1024 * 1024
_WAIT_MS = 500
_THROTTLED_MIN_S = 0.1
_EMPTY_MAX = 3
"""Responses without a batch, below the end, until it counts as sure that none is there: compaction
may have removed the last ones. A late read of tiered storage has no batch either (KIP-1018).
"""
_LATE_MAX = 60
"""Responses without a batch from tiered storage, until the source counts as unavailable."""
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
    all; and the offset below which the source has deleted what was to come, if it has.
    """

    batches: Sequence[SourceBatch]
    end: int
    lost_before: int | None = None


class Bounds(NamedTuple):
    """The first offset of a partition, and the end of what is committed there."""

    low: int
    high: int


async def partition_bounds(
    brokers: SourceBrokers, places: Collection[Place]
) -> dict[Place, Bounds]:
    """Return the bounds of partitions, by a few requests for all; those of topics that are gone are
    missing. Raises as `SourceBrokers`.
    """
    lows = await _offsets(brokers, places, _EARLIEST)
    highs = await _offsets(brokers, places, _LATEST)
    return {one: Bounds(low, highs[one]) for one, low in lows.items() if one in highs}


async def _offsets(
    brokers: SourceBrokers, places: Collection[Place], which: int
) -> dict[Place, int]:
    found: dict[Place, int] = {}

    async def send() -> None:
        missing = [one for one in places if one not in found]
        moved: SourceMoved | None = None
        for node, led in (await brokers.by_leader(missing)).items():
            for first in range(0, len(led), _PLACES_AT_ONCE):
                channel = await brokers.channel(node)
                some = led[first : first + _PLACES_AT_ONCE]
                for place, code, offset in await _listed_offsets(channel, some, which):
                    try:
                        check_partition(code, place)
                    except SourceMoved as error:
                        moved = error
                    else:
                        found[place] = offset
        if moved is not None:
            raise moved

    await brokers.tried(send)
    return found


async def _listed_offsets(
    channel: SourceChannel, places: Sequence[Place], which: int
) -> Iterator[tuple[Place, ErrorCode, int]]:
    """Return the error or the offset of each partition, all of them led by one node."""
    by_topic: dict[str, dict[int, Place]] = {}
    for place in places:
        by_topic.setdefault(place.topic.name, {})[place.partition] = place

    def fields(module: Any) -> dict[str, Any]:
        topics = [
            entity(
                module,
                "ListOffsetsTopic",
                name=topic,
                partitions=[
                    entity(
                        module,
                        "ListOffsetsPartition",
                        partition_index=partition,
                        timestamp=which,
                        max_num_offsets=1,
                    )
                    for partition in partitions
                ],
            )
            for topic, partitions in by_topic.items()
        ]
        return {"replica_id": -1, "isolation_level": _COMMITTED, "topics": topics}

    response = await channel.send(_LIST_OFFSETS, _LIST_OFFSETS_NEWEST, "ListOffsetsRequest", fields)
    return (
        (by_topic[topic.name][one.partition_index], one.error_code, int(one.offset))
        for topic in response.topics
        for one in topic.partitions
    )


async def fetched_batches(
    brokers: SourceBrokers, place: Place, start: int, end: int
) -> AsyncGenerator[FetchedBatches, None]:
    """Yield what a partition has from `start` to what was its committed end, `end`, or a little
    beyond; the next response is on its way meanwhile. The first batch may begin below `start`.

    Raises OldFormat, TopicGone, and as `SourceBrokers`.
    """
    position, empty = start, 0

    def fetch() -> asyncio.Task[_Response | None]:
        return asyncio.ensure_future(_fetch(brokers, place, position))

    coming = fetch() if position < end else None
    try:
        while coming is not None:
            response = await coming
            if response is None:  # deleted meanwhile
                bounds = (await partition_bounds(brokers, [place])).get(place)
                if bounds is None:
                    raise TopicGone(f"{place} is not at the source any more")
                if bounds.low <= position:
                    raise TopicChanged(
                        f"{place} ends at {bounds.high} at the source, and had offset {position} "
                        "before: the source has lost records, or it is another topic"
                    )
                position = min(bounds.low, end)
                coming = fetch() if position < end else None
                yield FetchedBatches(batches=(), end=position, lost_before=position)
                continue
            batches = list(_batches(response.records, place))
            if batches:
                position, empty = batches[-1].header.end_offset, 0
            else:
                empty += 1
                if empty % _EMPTY_MAX == 0 and not await _is_tiered(brokers, place, position):
                    position = end
                elif empty >= _LATE_MAX:
                    raise BrokerUnavailable(
                        f"{place}: the source reads nothing of its tiered storage at offset "
                        f"{position}: raise remote.fetch.max.wait.ms of its brokers"
                    )
            coming = fetch() if position < end else None
            yield FetchedBatches(
                batches=list(committed_batches(batches, response.aborted)), end=position
            )
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            brokers.close()  # its response would be taken for that to the next request


async def _is_tiered(brokers: SourceBrokers, place: Place, position: int) -> bool:
    """Return whether the source has an offset in tiered storage alone (KIP-405). Raises TopicGone,
    and as `SourceBrokers`.
    """

    async def send(channel: SourceChannel) -> bool:
        if not channel.supports(_LIST_OFFSETS, _KNOWS_LOCAL):
            return False
        found = await _listed_offsets(channel, [place], _EARLIEST_LOCAL)
        return any(code is ErrorCode.none and offset > position for _, code, offset in found)

    return await brokers.at_leader(place, send)


class _Response(NamedTuple):
    """Batches, and (producer id, first offset) of aborted transactions."""

    records: memoryview
    aborted: list[tuple[int, int]]


async def _fetch(brokers: SourceBrokers, place: Place, position: int) -> _Response | None:
    """Return what is at an offset; None if it was deleted."""
    name, topic_id = place.topic

    def fields(module: Any) -> dict[str, Any]:
        one = entity(
            module,
            "FetchPartition",
            partition=place.partition,
            fetch_offset=position,
            partition_max_bytes=_FETCH_BYTES,
        )
        return {
            "max_wait": _WAIT_MS,
            "min_bytes": 1,
            "max_bytes": _FETCH_BYTES,
            "isolation_level": _COMMITTED,
            "topics": [
                entity(
                    module,
                    "FetchTopic",
                    topic=name,
                    topic_id=UUID(topic_id) if topic_id else None,
                    partitions=[one],
                )
            ],
            "forgotten_topics_data": [],
        }

    async def send(channel: SourceChannel) -> _Response | None:
        newest = _FETCH_NEWEST if topic_id else _FETCH_BY_NAME
        while True:
            version, body = await channel.send_for_body(_FETCH, newest, "FetchRequest", fields)
            parsed = parsed_fetch(body, version)
            if not isinstance(parsed, float):
                break
            await asyncio.sleep(max(parsed, _THROTTLED_MIN_S))
        code, response = parsed
        if code is ErrorCode.offset_out_of_range:
            return None
        check_partition(code, place)
        return response

    return await brokers.at_leader(place, send)


def parsed_fetch(body: memoryview, version: int) -> tuple[ErrorCode, _Response] | float:
    """Return the one partition of a response to a fetch (versions 4 to 13), whose records are not
    copied; of one without a partition, by which a broker keeps to a quota (KIP-219), the seconds to
    wait. Raises MalformedFrame.
    """
    is_flexible = version >= 12
    cursor = Cursor(body, 0, elements_max=len(body))
    throttled_ms: int = cursor.fixed(_INT32)
    if version >= 7:
        code = ErrorCode(cursor.fixed(_INT16))
        cursor.take(4)  # session
        if code is not ErrorCode.none:
            return code, _Response(body[:0], [])
    if not cursor.count(compact=is_flexible):
        return throttled_ms / 1000
    if version >= 13:
        cursor.take(16)  # topic id
    else:
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


def _batches(records: memoryview, place: Place) -> Iterator[SourceBatch]:
    """Yield the whole batches of a response. Raises OldFormat, RequestRefused for a wrong CRC."""
    position = 0
    while position + HEADER_SIZE <= len(records):
        if records[position + MAGIC_POSITION] < MAGIC:
            raise OldFormat(str(place))
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
        raise OldFormat(str(place))  # a message may be shorter than the header of a batch


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
