"""Decodes a range of data blocks to Arrow record batches. Shared by the Spark source,
`lakehead.scan` and the jobs.

Four steps, each one call for the whole range: find the batches, check and inflate them, parse their
records to positions, and build the requested columns from the positions. Compressed batches are
taken in groups that inflate to at most `inflated_bytes_max`, so memory stays bounded whatever they
inflate to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehead.lake.decode import batches as scan
from lakehead.lake.decode import checksums
from lakehead.lake.decode.column_builder import ColumnBuilder, RecordColumns
from lakehead.lake.decode.columns import HEADERS, arrow_schema
from lakehead.lake.decode.invalid import ByMode, InvalidBatch, InvalidPolicy, InvalidTimes
from lakehead.lake.decode.memory import empty
from lakehead.storage.errors import CorruptObject
from lakehead.storage.format import record_kernel as parse
from lakehead.storage.format.compression import BufferTooSmall
from lakehead.storage.format.inflater import Inflater
from lakehead.storage.format.record_batch import CODEC_MASK, CONTROL, TRANSACTIONAL
from lakehead.storage.format.record_check import INFLATED_BATCH_SIZE_MAX
from lakehead.storage.object_store.protocol import Buffer

_INT = np.int32
_LONG = np.int64
_RANGE_SIZE_MAX = 2**31 - 1
_FIRST_TIMES = 16
"""Room for times that cannot be read. With more, the kernel runs again with room for all."""
_BATCH_SIZE_USUAL = 2048
"""A table for the smallest batches that there can be would be as large as what they lie in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """An aborted transaction: its producer's batches from `first_offset` to `last_offset`
    (inclusive) do not count.
    """

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRange:
    """The source of bytes, and the records in them that count: [first_offset, end_offset) of one
    stream.

    `position` is where the bytes begin in object `key`, for error messages. `items` are the
    (size, CRC-32C) of the index items that the bytes are; none are checked if there are none.
    """

    key: str
    position: int
    stream_id: int
    topic: str
    partition: int
    first_offset: int
    end_offset: int
    aborted: tuple[Abort, ...] = ()
    items: tuple[tuple[int, int], ...] = ()


class BatchGroup(NamedTuple):
    """Whole record batches of a partition that follow each other: their records, to be taken before
    the next group is, and the offset after the last of them.
    """

    partition: int
    end_offset: int
    records: Iterator[pa.RecordBatch]


class RecordDecoder:
    """Decodes ranges to batches of one schema. Re-uses its buffers, so it belongs to one thread.

    `views`: key and value as `binary_view` into the range's bytes (no copy), else `binary`. A batch
    has at most `rows_max` rows and `bytes_max` bytes of key, value and headers (more only if one
    record has). Transaction markers are not records for readers; with `markers` they count, as in a
    search of offsets by time. `invalid` handles unreadable records; without it they are an error.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        views: bool = False,
        rows_max: int = 10_000,
        bytes_max: int = 8 * 1024 * 1024,
        inflated_bytes_max: int = 16 * 1024 * 1024,
        inflated_batch_bytes_max: int = INFLATED_BATCH_SIZE_MAX,
        markers: bool = False,
        invalid: InvalidPolicy | None = None,
    ) -> None:
        self.schema = arrow_schema(columns, views=views)
        self._columns = tuple(columns)
        self._views = views
        self._builder = ColumnBuilder(self.schema, rows_max=rows_max, bytes_max=bytes_max)
        self._inflated_bytes_max = inflated_bytes_max
        self._inflated_batch_bytes_max = inflated_batch_bytes_max
        self._markers = markers
        self._invalid: InvalidPolicy = invalid or ByMode()
        self._inflater = Inflater()
        self._use(0)

    def decode(self, data: Buffer | pa.Buffer, source: BlockRange) -> Iterator[pa.RecordBatch]:
        """Yield the records of `data`, whole data blocks, in offset order.

        Raises CorruptObject, naming object and position, for bytes that are not what was stored;
        and what `invalid` raises, InvalidRecord without one, for batches and times that cannot be
        read as they were produced.
        """
        for group in self.groups(data, source):
            yield from group.records

    def groups(self, data: Buffer | pa.Buffer, source: BlockRange) -> Iterator[BatchGroup]:
        """Yield what `decode` does by groups of record batches, each of which inflates to about
        `inflated_bytes_max` at most, or is a single larger batch. Raises as `decode`, while the
        records are taken too.
        """
        buffer, table = self._batches(data, source)
        yield from self._groups(buffer, table, source)

    def count(self, data: Buffer | pa.Buffer, source: BlockRange) -> int:
        """Return the number of records that `decode` has for the same, by the headers of batches.
        Only batches that reach beyond the source's offsets are inflated and parsed: a batch that
        cannot be read counts as its header says. Raises as `decode`.
        """
        buffer, table = self._batches(data, source)
        first = table[:, scan.BASE_OFFSET]
        is_whole = (first >= source.first_offset) & (
            first + table[:, scan.LAST_OFFSET_DELTA] < source.end_offset
        )
        counted = int(table[is_whole, scan.RECORD_COUNT].sum())
        for group in self._groups(buffer, table[~is_whole], source):
            counted += sum(int(batch.num_rows) for batch in group.records)
        return counted

    def _batches(
        self, data: Buffer | pa.Buffer, source: BlockRange
    ) -> tuple[pa.Buffer, npt.NDArray[_LONG]]:
        """Return the batches that count, checked, and the bytes that they are in."""
        if len(data) > _RANGE_SIZE_MAX:
            raise ValueError(f"a range of {len(data)} bytes: at most {_RANGE_SIZE_MAX} at once")
        buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
        view = memoryview(buffer).cast("B")  # Arrow's bytes have a sign
        table = self._scan(view, source)
        self._check(view, table, source)
        return buffer, _without_aborted(table, source.aborted)

    def _groups(
        self, buffer: pa.Buffer, table: npt.NDArray[_LONG], source: BlockRange
    ) -> Iterator[BatchGroup]:
        view, first = memoryview(buffer).cast("B"), 0
        while first < len(table):
            group, reasons = self._inflate(view, table, first)
            records = self._parse(buffer, group, table[first:], reasons, source)
            first += len(group)
            last = table[first - 1]
            end = int(last[scan.BASE_OFFSET] + last[scan.LAST_OFFSET_DELTA]) + 1
            yield BatchGroup(source.partition, min(end, source.end_offset), records)

    def _scan(self, data: memoryview, source: BlockRange) -> npt.NDArray[_LONG]:
        table, fault, position, rows = _batch_table(data, source, _BATCH_SIZE_USUAL)
        if fault == scan.TOO_MANY:
            table, fault, position, rows = _batch_table(data, source, scan.BATCH_SIZE_MIN)
        if fault:
            self._check(data, table[:0], source)  # says more than what damage looks like
            raise CorruptObject(source.key, source.position + position, scan.FAULTS[fault])
        table = table[:rows]
        if self._markers:
            return table
        control = table[:, scan.ATTRIBUTES] & CONTROL != 0
        return table[~control] if control.any() else table

    def _inflate(
        self, data: memoryview, table: npt.NDArray[_LONG], first: int
    ) -> tuple[npt.NDArray[_LONG], dict[int, str]]:
        """Inflate batches from row `first` on until the buffer is full; return their rows with
        bodies located, and by row the reason of those that cannot be inflated. These have no body.
        """
        codecs = table[first:, scan.ATTRIBUTES] & CODEC_MASK
        if not codecs.any():
            return table[first:], {}
        if self._views or not len(self._inflated):  # views keep the old buffer alive
            self._use(self._inflated_bytes_max)
        # Flat lists: the collector would look through pairs.
        starts = table[first:, scan.BODY_POSITION].tolist()
        sizes = table[first:, scan.BODY_SIZE].tolist()
        reasons: dict[int, str] = {}
        taken = filled = largest = 0
        for codec in codecs.tolist():
            if codec:
                if filled and len(self._inflated) - filled <= largest:
                    break  # batches are mostly alike: to try would be to inflate one twice
                start = starts[taken]
                body = data[start : start + sizes[taken]]
                try:
                    size = self._inflate_batch(codec, body, filled)
                except BufferTooSmall:
                    break
                except ValueError as error:
                    reasons[taken] = str(error)
                    size = 0
                starts[taken], sizes[taken] = ~filled, size
                filled += size
                largest = max(largest, size)
            taken += 1
        group = table[first : first + taken].copy()
        group[:, scan.BODY_POSITION] = starts[:taken]
        group[:, scan.BODY_SIZE] = sizes[:taken]
        return group, reasons

    def _inflate_batch(self, codec: int, body: memoryview, filled: int) -> int:
        """Return the size of a body, inflated behind the `filled` bytes. Alone, it may have a
        larger buffer than a group.

        Raises BufferTooSmall (unless nothing is filled), ValueError.
        """
        while True:
            try:
                return self._inflater.inflate_into(codec, body, self._target[filled:])
            except BufferTooSmall:
                capacity = len(self._inflated)
                if filled:
                    raise
                if capacity >= self._inflated_batch_bytes_max:
                    raise ValueError(f"its records inflate to more than {capacity} bytes") from None
                self._use(min(2 * capacity, self._inflated_batch_bytes_max))

    def _use(self, capacity: int) -> None:
        """Inflate to a new buffer. Its view is made once: each batch takes a part of it."""
        self._inflated = empty(capacity, np.uint8)
        self._target = self._inflated.data

    def _parse(
        self,
        data: pa.Buffer,
        group: npt.NDArray[_LONG],
        stored: npt.NDArray[_LONG],
        reasons: dict[int, str],
        source: BlockRange,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a group. Its batches are the first of `stored`, as they are there;
        those in `reasons` have no body.
        """
        group = np.ascontiguousarray(_without_crowds(group, reasons))
        columns = self._empty_columns(data, int(group[:, scan.RECORD_COUNT].sum()))
        faults = np.empty((len(group), 2), _LONG)
        times = np.empty((_FIRST_TIMES, 2), _LONG)
        while True:
            invalid, strange, rows = self._call_kernel(columns, group, faults, times, source)
            if strange <= len(times):
                break
            times = np.empty((strange, 2), _LONG)
        for row in np.flatnonzero(faults[:, 0]).tolist() if invalid else ():
            fault, record = faults[row].tolist()
            reason = reasons.get(row, f"record {record}: {parse.FAULTS[fault]}")
            self._invalid.take_batch(_invalid_batch(data, stored[row], reason, source))
        if strange:
            offsets, stamps = np.ascontiguousarray(times[:strange].T)
            self._invalid.take_times(
                InvalidTimes(
                    topic=source.topic, partition=source.partition, offsets=offsets, times=stamps
                )
            )
        yield from self._builder.build(columns, rows, source, has_gaps=bool(invalid or strange))

    def _call_kernel(
        self,
        columns: RecordColumns,
        group: npt.NDArray[_LONG],
        faults: npt.NDArray[_LONG],
        times: npt.NDArray[_LONG],
        source: BlockRange,
    ) -> tuple[int, int, int]:
        flags = parse.KEEPS_BATCHES if self._invalid.keeps_batches else 0
        flags |= 0 if self._invalid.keeps_times else parse.DROPS_TIMES
        found: tuple[int, int, int] = parse.parse_records(
            columns.data,
            columns.inflated,
            group,
            source.first_offset,
            source.end_offset,
            flags,
            faults,
            times,
            columns.offsets,
            columns.timestamps,
            columns.timestamp_types,
            columns.key_at,
            columns.key_size,
            columns.value_at,
            columns.value_size,
            columns.headers_at,
            columns.headers_size,
        )
        return found

    def _empty_columns(self, data: pa.Buffer, rows: int) -> RecordColumns:
        def column(name: str) -> npt.NDArray[_INT]:
            return empty(rows if name in self._columns else 0, _INT)

        return RecordColumns(
            buffer=data,
            data=np.frombuffer(data, np.uint8),
            inflated=self._inflated,
            offsets=empty(rows, _LONG),
            timestamps=empty(rows if "timestamp" in self._columns else 0, _LONG),
            timestamp_types=column("timestampType"),
            key_at=column("key"),
            key_size=column("key"),
            value_at=column("value"),
            value_size=column("value"),
            headers_at=column(HEADERS),
            headers_size=column(HEADERS),
        )

    @staticmethod
    def _check(data: memoryview, table: npt.NDArray[_LONG], source: BlockRange) -> None:
        """Raise CorruptObject unless items and batches are what was stored and sent."""
        try:
            checksums.check(data, table, source.items)
        except checksums.ChecksumFault as fault:
            what = "data"
            if fault.batch >= 0:
                what = f"batch at offset {table[fault.batch, scan.BASE_OFFSET]}"
            raise CorruptObject(
                source.key,
                source.position + fault.position,
                f"{what} of {source.topic}-{source.partition} fails its checksum",
            ) from None


def _without_crowds(group: npt.NDArray[_LONG], reasons: dict[int, str]) -> npt.NDArray[_LONG]:
    """Return the group so that memory for all its records may be taken: batches that cannot hold
    as many as they say, which are added to `reasons`, are to have one record and no body.
    """
    counts = group[:, scan.RECORD_COUNT]
    crowded = np.flatnonzero(counts * parse.RECORD_SIZE_MIN > group[:, scan.BODY_SIZE]).tolist()
    if not crowded:
        return group
    for row in crowded:
        reasons.setdefault(row, f"{counts[row]} records do not fit its size")
    group = group.copy()
    group[crowded, scan.RECORD_COUNT] = 1
    group[crowded, scan.BODY_SIZE] = 0
    return group


def _invalid_batch(
    data: pa.Buffer, batch: npt.NDArray[_LONG], reason: str, source: BlockRange
) -> InvalidBatch:
    position, base = int(batch[scan.BATCH_POSITION]), int(batch[scan.BASE_OFFSET])
    last = base + int(batch[scan.LAST_OFFSET_DELTA])
    return InvalidBatch(
        topic=source.topic,
        partition=source.partition,
        first_offset=max(base, source.first_offset),
        last_offset=min(last, source.end_offset - 1),
        record_count=int(batch[scan.RECORD_COUNT]),
        max_timestamp=int(batch[scan.MAX_TIMESTAMP]),
        reason=reason,
        data=memoryview(data).cast("B")[position : position + int(batch[scan.BATCH_SIZE])],
    )


def _batch_table(
    data: memoryview, source: BlockRange, batch_size: int
) -> tuple[npt.NDArray[_LONG], int, int, int]:
    """Find the batches, with room for so many as there are if none is smaller than `batch_size`:
    the table, and what `scan_batches` returns.
    """
    table = np.empty((len(data) // batch_size + 1, scan.TABLE_WIDTH), _LONG)
    ends = (source.first_offset, source.end_offset)
    found = scan.scan_batches(np.frombuffer(data, np.uint8), source.stream_id, *ends, table)
    return table, *found


def _without_aborted(table: npt.NDArray[_LONG], aborted: Sequence[Abort]) -> npt.NDArray[_LONG]:
    """Drop the batches of aborted transactions."""
    kept = np.ones(len(table), np.bool_)
    transactional = table[:, scan.ATTRIBUTES] & TRANSACTIONAL != 0
    for abort in aborted:
        offsets = table[:, scan.BASE_OFFSET]
        kept &= ~(
            transactional
            & (table[:, scan.PRODUCER_ID] == abort.producer_id)
            & (offsets >= abort.first_offset)
            & (offsets <= abort.last_offset)
        )
    return table if kept.all() else table[kept]
