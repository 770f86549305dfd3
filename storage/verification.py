"""Verification: compare the objects of a cluster with its metadata, and describe the damage found.

The metadata and a listing of the bucket are checked first, which needs no reads. Then each object
is read: every byte that streams refer to is compared with the object's own index and with the
metadata. At most some ten megabytes are in memory, plus the inflated size of one batch. Damage is
described by topic, partition, offsets and object.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from crc32c import crc32c

from lakehead.storage.compaction.batches import item_runs
from lakehead.storage.errors import CorruptObject, ObjectNotFound, UnsupportedFormat
from lakehead.storage.format.partition_state import decode_packed
from lakehead.storage.format.producer_headers import parse_producer_headers
from lakehead.storage.format.record_batch import (
    HEADER_SIZE,
    MAGIC,
    NO_PRODUCER_ID,
    BatchHeader,
    crc_ok,
    read_header,
)
from lakehead.storage.format.stream_object import (
    UNKNOWN_COUNT,
    IndexItem,
    ObjectIndex,
    StreamInfo,
    check_item,
    iter_records,
    read_index,
)
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.records import COMPACTED, HEADERS
from lakehead.storage.metadata.state import MetadataImage, StreamState
from lakehead.storage.object_store.protocol import ObjectStore

if TYPE_CHECKING:
    from lakehead.storage.format.record_check import RecordChecker


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Offsets [start_offset, end_offset) of a partition. If no topic is known any more, `topic` is
    empty and only the stream is named.
    """

    stream_id: int
    topic: str
    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something that is not as it should be: records cannot be read, or not be trusted."""

    place: Place
    object_key: str
    what: str
    to_do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidBatch:
    """A batch that is stored as its producer sent it, and that no reader can read, or not the times
    of all its records. It is not damage: there is nothing to put back.
    """

    place: Place
    object_key: str
    reason: str


def lost(place: Place, key: str) -> Damage:
    """An object that is not in the bucket."""
    return Damage(
        place=place,
        object_key=key,
        what="the object is missing",
        to_do="put it back from a copy or an older version of the bucket. Without one its records "
        f"are lost; to let consumers go on, delete up to {place.end_offset} "
        "(kafka-delete-records.sh)",
    )


def corrupt(place: Place, key: str, reason: str) -> Damage:
    """Bytes that are not what was written."""
    return Damage(
        place=place,
        object_key=key,
        what=reason,
        to_do="put the object back from a copy or an older version of the bucket. All other "
        f"offsets are unharmed; to let consumers go on, delete up to {place.end_offset} "
        "(kafka-delete-records.sh)",
    )


def unreadable(place: Place, key: str, reason: str) -> Damage:
    """An object of a newer release."""
    return Damage(place=place, object_key=key, what=reason, to_do="verify with a newer release")


def misplaced(place: Place, key: str, reason: str) -> Damage:
    """Return a contradiction between metadata and objects."""
    return Damage(
        place=place,
        object_key=key,
        what=reason,
        to_do="the metadata log and the objects disagree: keep a copy of meta/, and see what "
        "`lakehead rebuild-catalog --dry-run` finds",
    )


def miscounted(place: Place, key: str, reason: str) -> Damage:
    """Return a wrong number of records in an index: the records themselves are unharmed."""
    return Damage(
        place=place,
        object_key=key,
        what=reason,
        to_do="its records are unharmed; `count(*)` and LIMIT of `lakehead sql` count them wrong. "
        "Put the object back from a copy, or see that `lakehead compact-objects` merges it",
    )


SAMPLE_ALL = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRange:
    """The range of a stream that an object holds according to the metadata. `is_state`: trimmed,
    and kept for the partition's state alone.
    """

    place: Place
    size: int
    max_timestamp: int
    topic_id: str
    is_state: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedObject:
    """An object as the metadata know it."""

    key: str
    kind: str
    size: int
    ranges: tuple[ExpectedRange, ...]


def expected_objects(
    state: MetadataImage, *, topic: str | None, sample_percent: int, seed: int
) -> tuple[ExpectedObject, ...]:
    """Return the objects to look at: those with records that streams (of one topic) refer to, or a
    share of them, the same for the same seed. Tails are not in objects yet.
    """
    ranges: dict[str, list[ExpectedRange]] = {}
    for stream in _streams(state, topic):
        for extents, is_state in ((stream.extents, False), (stream.state_extents, True)):
            for extent in extents:
                known = state.objects.get(extent.object_key)
                if known is not None and (known.is_tail or (is_state and known.kind == HEADERS)):
                    continue
                if _is_sampled(extent.object_key, sample_percent, seed):
                    expected = _range(state, stream, extent, is_state=is_state)
                    ranges.setdefault(extent.object_key, []).append(expected)
    return tuple(
        ExpectedObject(
            key=key,
            kind=state.objects[key].kind,
            size=state.objects[key].size,
            ranges=tuple(held),
        )
        for key, held in sorted(ranges.items())
        if key in state.objects
    )


def _is_sampled(key: str, percent: int, seed: int) -> bool:
    return percent >= SAMPLE_ALL or crc32c(f"{seed}/{key}".encode()) % SAMPLE_ALL < percent


def _streams(state: MetadataImage, topic: str | None) -> Iterator[StreamState]:
    if topic is None:
        yield from state.streams.values()
        return
    for stream_id in state.topics[topic].partitions:
        if stream_id in state.streams:
            yield state.streams[stream_id]


def _range(
    state: MetadataImage, stream: StreamState, extent: Extent, *, is_state: bool
) -> ExpectedRange:
    return ExpectedRange(
        place=place_of(state, stream, extent.start_offset, extent.end_offset),
        size=extent.size,
        max_timestamp=extent.max_timestamp,
        topic_id=stream.topic_id,
        is_state=is_state,
    )


def place_of(state: MetadataImage, stream: StreamState, start: int, end: int) -> Place:
    """Return offsets of a stream, with its topic's name."""
    return Place(
        stream_id=stream.stream_id,
        topic=state.topic_names.get(stream.topic_id, ""),
        partition=stream.partition,
        start_offset=start,
        end_offset=end,
    )


def catalog_damages(state: MetadataImage, topic: str | None) -> Iterator[Damage]:
    """Yield where streams are not what their extents make: each offset in one object, without a
    gap, from the start to the end.
    """
    for stream in _streams(state, topic):
        yield from _stream_damages(state, stream)


def _stream_damages(state: MetadataImage, stream: StreamState) -> Iterator[Damage]:
    at = stream.extents[0].start_offset if stream.extents else stream.end_offset
    if at > stream.start_offset:
        place = place_of(state, stream, stream.start_offset, at)
        yield misplaced(place, "", f"no object holds offsets {stream.start_offset} to {at - 1}")
    for extent in stream.extents:
        if extent.start_offset != at or extent.end_offset <= extent.start_offset:
            place = place_of(state, stream, at, extent.start_offset)
            yield misplaced(place, extent.object_key, f"offset {extent.start_offset} follows {at}")
        known = state.objects.get(extent.object_key)
        if known is None or stream.stream_id not in known.stream_ids:
            place = place_of(state, stream, extent.start_offset, extent.end_offset)
            yield misplaced(
                place, extent.object_key, "the metadata do not know that the object is in use"
            )
        at = extent.end_offset
    if at != stream.end_offset:
        place = place_of(state, stream, at, stream.end_offset)
        yield misplaced(place, "", f"objects end at {at}, the stream at {stream.end_offset}")


def missing_objects(objects: Sequence[ExpectedObject], missing: Container[str]) -> Iterator[Damage]:
    """Yield what is lost with objects that no listing shows."""
    for one in objects:
        if one.key in missing:
            yield from (lost(held.place, one.key) for held in one.ranges)


_SEQUENCE_END = 1 << 31
_DAMAGES_MAX = 20
"""Of one range: what comes after that is more of the same."""
_INVALID_SHOWN_MAX = 20
"""Of one range; all are counted."""


@dataclass(slots=True)
class ObjectReport:
    """The findings about one object, or several. Bytes are of batches; `sequence_gaps` are gaps in
    a producer's sequence numbers, which may have a good reason. Of the batches with records that
    cannot be read (`invalid_batches`) and those with times beyond a TIMESTAMP (`invalid_times`),
    `invalid` has the first of each range.
    """

    objects: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    sequence_gaps: int = 0
    invalid_batches: int = 0
    invalid_times: int = 0
    invalid: list[InvalidBatch] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)

    def add(self, more: "ObjectReport") -> None:
        """Count another report in."""
        self.objects += more.objects
        self.batches += more.batches
        self.records += more.records
        self.bytes += more.bytes
        self.sequence_gaps += more.sequence_gaps
        self.invalid_batches += more.invalid_batches
        self.invalid_times += more.invalid_times
        self.invalid += more.invalid
        self.damages += more.damages


async def verify_object(
    store: ObjectStore, expected: ExpectedObject, checker: "RecordChecker"
) -> ObjectReport:
    """Return what an object shows. Raises StoreUnavailable."""
    report, key = ObjectReport(objects=1), expected.key
    try:
        index = await read_index(store, key)
    except ObjectNotFound:
        report.damages += [lost(held.place, key) for held in expected.ranges]
        return report
    except CorruptObject as error:
        report.damages += [corrupt(held.place, key, error.reason) for held in expected.ranges]
        return report
    except UnsupportedFormat as error:
        report.damages += [unreadable(held.place, key, str(error)) for held in expected.ranges]
        return report
    for held in expected.ranges:
        found = list(_against_metadata(index, expected, held))
        if not held.is_state and not found:
            found = await _Reading(store, index, held, report, checker).run()
        report.damages += found
    return report


def _against_metadata(
    index: ObjectIndex, expected: ExpectedObject, held: ExpectedRange
) -> Iterator[Damage]:
    """Yield where index and metadata disagree, and what the object says of a partition and cannot
    be read.
    """
    key, place = index.key, held.place
    info = index.streams.get(place.stream_id)
    items = index.items_of(place.stream_id)
    if index.size != expected.size:
        yield misplaced(place, key, f"it has {index.size} bytes, not {expected.size}")
    if info is None or not items:
        yield misplaced(place, key, f"it does not hold stream {place.stream_id}")
        return
    if info.topic_id and info.topic_id != held.topic_id:
        yield misplaced(place, key, f"it holds topic {info.topic} ({info.topic_id})")
    at = place.start_offset
    for item in items:
        if item.start_offset != at:
            yield misplaced(place, key, f"its index has offset {item.start_offset} after {at}")
        at = item.end_offset
    if at != place.end_offset:
        yield misplaced(place, key, f"its index ends at {at}")
    size = sum(item.size for item in items)
    if size != held.size:
        yield misplaced(place, key, f"its index has {size} bytes of the stream, not {held.size}")
    if max(item.max_timestamp for item in items) != held.max_timestamp:
        yield misplaced(place, key, "its newest timestamp differs from the metadata")
    yield from _partition_state(key, held, info)


def _partition_state(key: str, held: ExpectedRange, info: StreamInfo) -> Iterator[Damage]:
    try:
        if info.state is not None:
            for _ in decode_packed(info.state).records():
                pass
        for _ in parse_producer_headers(info.headers or b""):
            pass
    except UnsupportedFormat as error:
        yield unreadable(held.place, key, str(error))
    except Exception as error:  # noqa: BLE001 - whatever bytes make a decoder raise
        yield corrupt(held.place, key, f"the partition's state cannot be read: {error!r}")


class _Reading:
    """Reads the batches of one range."""

    def __init__(
        self,
        store: ObjectStore,
        index: ObjectIndex,
        held: ExpectedRange,
        report: ObjectReport,
        checker: "RecordChecker",
    ) -> None:
        self._store = store
        self._index = index
        self._held = held
        self._report = report
        self._checker = checker
        self._invalid_shown = 0
        self._damages: list[Damage] = []
        self._end = held.place.start_offset
        self._kafka_records = 0
        self._epoch = -1
        self._sequences: dict[int, tuple[int, int]] = {}

    async def run(self) -> list[Damage]:
        key = self._index.key
        for run in item_runs(self._index.items_of(self._held.place.stream_id)):
            if len(self._damages) >= _DAMAGES_MAX:
                break
            start = run[0].position
            size = run[-1].position + run[-1].size - start
            try:
                data = memoryview(await self._store.get_range(key, start, size))
            except CorruptObject as error:
                self._add(corrupt, run[0].start_offset, run[-1].end_offset, error.reason)
                continue
            except ObjectNotFound:
                return [lost(self._held.place, key)]
            for item in run:
                at = item.position - start
                self._check_item(item, data[at : at + item.size])
        return self._damages

    def _check_item(self, item: IndexItem, data: memoryview) -> None:
        self._report.bytes += len(data)
        self._end = item.start_offset
        try:
            check_item(self._index.key, item, data)
            count, self._kafka_records = 0, 0
            for record in iter_records(data):
                count += 1
                if record.stream_id != item.stream_id:
                    raise ValueError(f"a record of stream {record.stream_id}")
                self._check_batch(
                    record.epoch, record.base_offset, record.offset_count, record.payload, item
                )
            if count != item.record_count:
                raise ValueError(f"{count} batches, not {item.record_count}")
            if self._end != item.end_offset:
                raise ValueError(f"its batches end at {self._end}, not {item.end_offset}")
            if item.kafka_records not in (UNKNOWN_COUNT, self._kafka_records):
                self._add(
                    miscounted,
                    item.start_offset,
                    item.end_offset,
                    f"its index counts {item.kafka_records} records, its batches have "
                    f"{self._kafka_records} (byte {item.position})",
                )
        except CorruptObject as error:
            reason = f"{error.reason} (byte {item.position})"
            self._add(corrupt, item.start_offset, item.end_offset, reason)
        except ValueError as error:
            reason = f"byte {item.position}: {error}"
            self._add(corrupt, item.start_offset, item.end_offset, reason)
        self._end = item.end_offset

    def _check_batch(
        self, epoch: int, base: int, count: int, payload: memoryview, item: IndexItem
    ) -> None:
        """Raises ValueError."""
        if len(payload) < HEADER_SIZE:
            raise ValueError(f"the batch at offset {base} is cut short")
        header = read_header(payload)
        if (header.base_offset, header.end_offset, header.size, header.magic) != (
            base,
            base + count,
            len(payload),
            MAGIC,
        ):
            raise ValueError(f"the batch at offset {base} differs from its record")
        if base != self._end and (self._index.kind != COMPACTED or base < self._end):
            raise ValueError(f"offset {base} after {self._end}")
        if not crc_ok(payload):
            raise ValueError(f"the batch at offset {base} fails its own checksum")
        if epoch < self._epoch:
            raise ValueError(f"stream epoch {epoch} after {self._epoch} at offset {base}")
        if header.record_count and header.max_timestamp > item.max_timestamp:
            raise ValueError(f"offset {base} is newer than its index says")
        self._end, self._epoch = base + count, epoch
        self._report.batches += 1
        self._report.records += header.record_count
        self._kafka_records += 0 if header.is_control else header.record_count
        self._follow_producer(header)
        if header.record_count:
            self._check_records(header, payload)

    def _check_records(self, header: BatchHeader, batch: memoryview) -> None:
        found = self._checker.check(header, batch)
        if found is None:
            return
        self._report.invalid_batches += found.is_whole
        self._report.invalid_times += not found.is_whole
        if self._invalid_shown < _INVALID_SHOWN_MAX:
            self._invalid_shown += 1
            start, end = header.base_offset, header.end_offset
            place = replace(self._held.place, start_offset=start, end_offset=end)
            self._report.invalid.append(
                InvalidBatch(place=place, object_key=self._index.key, reason=found.reason)
            )

    def _follow_producer(self, header: BatchHeader) -> None:
        if header.producer_id == NO_PRODUCER_ID or header.is_control or header.base_sequence < 0:
            return
        known = self._sequences.get(header.producer_id)
        end = (header.base_sequence + header.last_offset_delta + 1) % _SEQUENCE_END
        self._sequences[header.producer_id] = (header.producer_epoch, end)
        is_gap = known is not None and known != (header.producer_epoch, header.base_sequence)
        if is_gap and known is not None and known[0] == header.producer_epoch:
            self._report.sequence_gaps += self._index.kind != COMPACTED

    def _add(
        self, kind: Callable[[Place, str, str], Damage], start: int, end: int, reason: str
    ) -> None:
        if len(self._damages) < _DAMAGES_MAX:
            place = replace(self._held.place, start_offset=start, end_offset=end)
            self._damages.append(kind(place, self._index.key, reason))
