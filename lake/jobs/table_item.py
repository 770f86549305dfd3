"""One work item of `materialize`: byte ranges of a topic to data files of its table.

Runs in any thread or process: it reads objects, writes files that no commit names yet, and returns
what the commit must know. Doing it twice, or half, changes nothing that anyone can see.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lakehead.lake.declaration.table_declaration import OnError
from lakehead.lake.decode.decoder import BatchGroup, RecordDecoder
from lakehead.lake.decode.invalid import InvalidBatch, InvalidTimes, place, time_reason
from lakehead.lake.errors import as_error
from lakehead.lake.jobs.local_pool import giving_turn
from lakehead.lake.moved_ranges import read_moved
from lakehead.lake.planner import ByteRange, Split
from lakehead.lake.record_reader import decode_groups
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.data_file import DataFile, DataFileWriter
from lakehead.lake.tables.layout import (
    DECODED,
    TableLayout,
    TableRows,
    batch_dead_letter,
    dead_letters,
)
from lakehead.lake.tables.partitions import split_rows
from lakehead.lake.tables.range_digests import RangeDigest, RangeDigester
from lakehead.lake.tables.unavailable_values import kept_count
from lakehead.lake.tables.values.decoder import Fault, ValueDecoder
from lakehead.lake.tables.values.evolution import merged
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.storage.failpoints import failpoint

FILE_BYTES = 128 << 20
_GATHERED_BYTES = 1 << 20
_TIMES_NAMED = 1000
"""Of times that no column holds: of more than that it is only said that they are."""
_ROW_GROUP_BYTES = 32 << 20
"""Of rows in memory: enough for a reader to fetch at once, and little enough for each worker."""
_MEMORY_RATIO = 2
"""Bytes of rows in memory for one byte of a file, by rule of thumb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableItem:
    """The work of one worker for a table: byte ranges to make data files from. Values with more
    fields than the table, which it can follow, are reported to the job, and nothing is written;
    with `stops_at_new_schema` also those that it cannot follow. With `new_schema_is_fault` they are
    faults. With `part_bytes` the result is in parts of about that many bytes of rows in memory; a
    change that leaves columns as they are counts for `kept_row_bytes` besides, as the MERGE reads
    them.
    """

    store_uri: str
    split: Split
    layout: TableLayout
    table_uri: str
    dead_letters_uri: str
    on_error: OnError
    stops_at_new_schema: bool = False
    new_schema_is_fault: bool = False
    file_bytes: int = FILE_BYTES
    part_bytes: int | None = None
    kept_row_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A record whose value is not what the table wants; or, from `offset` to `last_offset`
    (inclusive), a batch that cannot be read.
    """

    topic: str
    partition: int
    offset: int
    last_offset: int
    reason: str

    def __str__(self) -> str:
        where = place(self.topic, self.partition, self.offset, self.last_offset)
        return f"{where}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableItemPart:
    """The files of a part of an item's records: whole record batches. `ends` are the offsets after
    the part by topic id and partition, of those that it, or one before it, has come to. `left_out`
    counts the rows without some of their fields, `rows_bytes` those of the rows in memory.
    `digests` are of the records that were read.
    """

    ends: Mapping[tuple[str, int], int]
    files: tuple[DataFile, ...] = ()
    dead_letters: tuple[DataFile, ...] = ()
    dropped: int = 0
    left_out: int = 0
    rows_bytes: int = 0
    digests: tuple[RangeDigest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableItemResult:
    """The parts of an item, in order: a single one without `part_bytes`. With `pause` and an
    unreadable record there are none; nor if the job has to decide on a schema (`found`).
    """

    parts: tuple[TableItemPart, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()  # the first of each partition, if it pauses the job
    found: Any = None  # pa.Schema | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedItem:
    """The work of several tables of a topic at the same byte ranges: they are read and their
    records decoded once. The first of `items` is of the run that plans it.
    """

    items: tuple[TableItem, ...]

    @property
    def split(self) -> Split:
        """The byte ranges."""
        return self.items[0].split


def make_table_files(item: TableItem) -> TableItemResult:
    """Do the work of one table. Raises what reading and writing objects raises, SettingsError,
    RegistryUnavailable.
    """
    [result] = make_shared_files(SharedItem(items=(item,)))
    assert result is not None, "it is of the first table"
    return result


def make_shared_files(shared: SharedItem) -> tuple[TableItemResult | None, ...]:
    """Do a work item, and return the result of each of its tables. None is of a table other than
    the first, which failed: its own run finds out why.

    Raises what reading objects raises, and for the first table what writing files raises,
    SettingsError, RegistryUnavailable.
    """
    return _SharedWork(shared).run()


class _SharedWork:
    """A work item in progress. It meets what cannot be read (`InvalidPolicy`) for every table."""

    keeps_batches = False
    keeps_times = True

    def __init__(self, shared: SharedItem) -> None:
        self._first = shared.items[0]
        self._works: list[_Work | None] = [_Work(self._first)]
        for item in shared.items[1:]:
            self._works.append(None)
            try:
                self._works[-1] = _Work(item)
            except BaseException as caught:  # noqa: BLE001 - one table never stops the others
                as_error(caught, f"table {item.table_uri}")
        self._digester = RangeDigester(self._first.split.ranges)
        self._held_bytes_max = max(item.file_bytes for item in shared.items) * _MEMORY_RATIO
        self._gathered: list[Any] = []
        self._gathered_bytes = 0

    def take_batch(self, found: InvalidBatch) -> None:
        """Meet a batch that cannot be read."""
        self._digester.add_batch(found)
        self._each(lambda work: work.take_batch(found))

    def take_times(self, found: InvalidTimes) -> None:
        """Meet records whose times the column does not hold."""
        self._each(lambda work: work.take_times(found))

    def run(self) -> tuple[TableItemResult | None, ...]:
        decoder = RecordDecoder(DECODED, invalid=self)
        pieces = read_moved(store_reader(self._first.store_uri), self._first.split.ranges)
        partition = -1
        for group in decode_groups(pieces, decoder):
            if group.partition != partition:
                self._take_gathered()
                partition = group.partition
            for batch in group.records:
                self._gather(batch)
            waiting = self._gathered_bytes
            if any(work.is_full(waiting) for work in self._works if work is not None):
                self._take_gathered()
                self._end_part(group)
        self._take_gathered()
        ends = _ends(self._first.split.ranges)
        digests = self._digester.digests()
        results: list[TableItemResult | None] = [None] * len(self._works)

        def finish(work: _Work) -> None:
            results[self._works.index(work)] = work.finish(ends, digests)

        self._each(finish)
        return tuple(results)

    def _gather(self, batch: Any) -> None:
        """Take records together with those before them: the tail in a write-ahead log has a batch
        for each of its objects, and each costs as much as hundreds of records.
        """
        if self._gathered_bytes + batch.nbytes > _GATHERED_BYTES:
            self._take_gathered()
        if batch.num_rows:
            self._gathered.append(batch)
            self._gathered_bytes += batch.nbytes

    def _take_gathered(self) -> None:
        if not self._gathered:
            return
        held = self._gathered
        batch = held[0] if len(held) == 1 else pa.concat_batches(held)
        self._gathered, self._gathered_bytes = [], 0
        self._digester.add(batch)
        self._each(lambda work: work.take(batch))
        while self._held_bytes() > self._held_bytes_max:
            self._write_largest()

    def _held_bytes(self) -> int:
        return sum(work.held_bytes for work in self._works if work is not None)

    def _write_largest(self) -> None:
        """Have the table of which most waits in memory write some of it."""
        works = (work for work in self._works if work is not None)
        largest = max(works, key=lambda work: work.held_bytes)
        self._each(lambda work: work.write_some() if work is largest else None)

    def _end_part(self, group: BatchGroup) -> None:
        ends = _ends(self._first.split.ranges, group)
        digests = self._digester.cut({partition: end for (_, partition), end in ends.items()})
        self._each(lambda work: work.end_part(ends, digests))

    def _each(self, do: Callable[["_Work"], None]) -> None:
        """Do it for each table that has not failed."""
        for number, work in enumerate(self._works):
            if work is None:
                continue
            try:
                do(work)
            except BaseException as caught:
                if number == 0:
                    raise
                as_error(caught, f"table {work.uri}")
                self._works[number] = None


def _ends(
    ranges: Sequence[ByteRange], last: BatchGroup | None = None
) -> dict[tuple[str, int], int]:
    """Return the offset after what is done of each partition: all, or up to the group `last`."""
    ends = {}
    for range_ in ranges:
        key = range_.topic_id, range_.partition
        ends[key] = range_.end_offset
        if last is None or last.partition != range_.partition:
            continue
        # Records of two ranges may have been read as one, if objects have moved.
        if last.end_offset <= range_.end_offset:
            ends[key] = last.end_offset
            break
    return ends


class _Work:
    """The work of one table. A batch that cannot be read is a dead letter, whole; a record whose
    time the column cannot hold has none, which is a fault of it.
    """

    def __init__(self, item: TableItem) -> None:
        self._item = item
        self._values: ValueDecoder = open_decoder(item.layout.spec)
        # Changes are read whole by the MERGE, which puts rows where they belong.
        partition_columns = () if item.layout.is_upsert else item.layout.partition_columns
        self._rows = TableFiles(item.table_uri, partition_columns, file_bytes=item.file_bytes)
        self._letters = TableFiles(item.dead_letters_uri, (), file_bytes=item.file_bytes)
        self._unreadable: dict[int, Unreadable] = {}
        self._part = _Part()
        self._parts: list[TableItemPart] = []
        self._found: Any = None
        self._times: dict[tuple[int, int], int] = {}

    @property
    def uri(self) -> str:
        """URI of the table."""
        return self._item.table_uri

    def is_full(self, waiting_bytes: int) -> bool:
        """Return whether a part is to end, with records that it is to take still."""
        part_bytes = self._item.part_bytes
        return part_bytes is not None and self._part.rows_bytes + waiting_bytes >= part_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of rows and dead letters in memory, encoded ones too."""
        return self._rows.held_bytes + self._letters.held_bytes

    def take_batch(self, found: InvalidBatch) -> None:
        """Meet a batch that cannot be read."""
        match self._item.on_error:
            case "pause":
                self._pause(
                    Unreadable(
                        topic=found.topic,
                        partition=found.partition,
                        offset=found.first_offset,
                        last_offset=found.last_offset,
                        reason=f"a batch of {found.record_count} records: {found.reason}",
                    )
                )
            case "dead_letter":
                self._letters.add(batch_dead_letter(found))
            case "drop":
                self._part.dropped += found.record_count

    def take_times(self, found: InvalidTimes) -> None:
        """Keep the first times that the column does not hold, for what is said of them."""
        room = max(_TIMES_NAMED - len(self._times), 0)
        for offset, time in zip(found.offsets[:room].tolist(), found.times.tolist(), strict=False):
            self._times[found.partition, offset] = time

    def take(self, batch: Any) -> None:
        """Take decoded records."""
        made = self._item.layout.table_rows(
            batch,
            self._values,
            fault_count_max=1 if self._item.on_error == "pause" else None,
            new_schema_is_fault=self._item.new_schema_is_fault,
        )
        self._take(batch, made)

    def write_some(self) -> None:
        """Encode or write some of the rows or dead letters that wait in memory."""
        max(self._rows, self._letters, key=lambda files: files.held_bytes).write_some()

    def end_part(
        self, ends: Mapping[tuple[str, int], int], digests: tuple[RangeDigest, ...]
    ) -> None:
        """End a part of the result at these offsets, if it has parts; `digests` are of the records
        since this was called last.
        """
        self._part.digests += digests
        if self._item.part_bytes is not None:
            self._write_part(ends)

    def finish(
        self, ends: Mapping[tuple[str, int], int], digests: tuple[RangeDigest, ...]
    ) -> TableItemResult:
        """Write what is left, and return the result; `digests` as for `end_part`."""
        self._part.digests += digests
        self._write_part(ends)
        if self._is_stopped:
            # The job plans again, up to these records or with another schema: files are of no use.
            return TableItemResult(unreadable=tuple(self._unreadable.values()), found=self._found)
        return TableItemResult(parts=tuple(self._parts))

    @property
    def _is_stopped(self) -> bool:
        return bool(self._unreadable) or self._found is not None

    def _write_part(self, ends: Mapping[tuple[str, int], int]) -> None:
        if self._is_stopped:
            return
        part, self._part = self._part, _Part()
        self._parts.append(
            TableItemPart(
                ends=ends,
                files=self._rows.finish(),
                dead_letters=self._letters.finish(),
                dropped=part.dropped,
                left_out=part.left_out,
                rows_bytes=part.rows_bytes,
                digests=tuple(part.digests),
            )
        )

    def _take(self, batch: Any, made: TableRows) -> None:
        item = self._item
        if made.found is not None and (
            item.stops_at_new_schema or item.layout.can_follow(made.found)
        ):
            found = self._found
            self._found = made.found if found is None else merged(found, made.found)
        if made.faults:
            self._take_faults(batch, made.faults)
        if not self._is_stopped:
            self._rows.add(made.rows)
            self._part.left_out += made.left_out
            self._part.rows_bytes += made.rows.nbytes
            if item.kept_row_bytes:
                self._part.rows_bytes += kept_count(made.rows) * item.kept_row_bytes

    def _take_faults(self, batch: Any, faults: tuple[Fault, ...]) -> None:
        if self._times:
            faults = self._with_times(batch, faults)
        if self._item.on_error == "pause":
            self._pause(_unreadable(batch, faults[0]))
        elif self._item.on_error == "dead_letter":
            self._letters.add(dead_letters(batch, faults))
        else:
            self._part.dropped += len(faults)

    def _pause(self, found: Unreadable) -> None:
        """Have the job pause there, unless it does before: a batch is met earlier than the records
        that lie before it.
        """
        known = self._unreadable.get(found.partition)
        if known is None or found.offset < known.offset:
            self._unreadable[found.partition] = found

    def _with_times(self, batch: Any, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        """Faults that name the times which their records have no column for."""
        places = zip(
            batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True
        )
        times = dict(enumerate(self._times.get(place) for place in places))
        return tuple(
            fault
            if (time := times[fault.row]) is None
            else replace(fault, reason=time_reason(time))
            for fault in faults
        )


@dataclass(slots=True)
class _Part:
    """Counts of the part that a work item is at, see `TableItemPart`."""

    dropped: int = 0
    left_out: int = 0
    rows_bytes: int = 0
    digests: list[RangeDigest] = field(default_factory=list)


def _unreadable(batch: Any, fault: Fault) -> Unreadable:
    return Unreadable(
        topic=batch.column("topic")[fault.row].as_py(),
        partition=batch.column("partition")[fault.row].as_py(),
        offset=(offset := batch.column("offset")[fault.row].as_py()),
        last_offset=offset,
        reason=fault.reason,
    )


class TableFiles:
    """Gathers rows and writes them as files of a bounded size, each of one partition.

    Rows become a row group as soon as they are enough for one. Those of a partitioned table wait
    until they are enough for a file, or each partition would have row groups of nothing; unless all
    are `of_one_partition`.
    """

    def __init__(
        self,
        root: str,
        partition_columns: tuple[str, ...],
        *,
        file_bytes: int = FILE_BYTES,
        of_one_partition: bool = False,
    ) -> None:
        self._root = root
        self._partition_columns = partition_columns
        self._file_bytes = file_bytes
        self._waits = bool(partition_columns) and not of_one_partition
        of_file = file_bytes * _MEMORY_RATIO
        self._held_max = of_file if self._waits else min(of_file, _ROW_GROUP_BYTES)
        self._held: list[Any] = []
        self._held_bytes = 0
        self._writer: DataFileWriter | None = None
        self._files: list[DataFile] = []

    def add(self, rows: Any) -> None:
        """Take rows, and encode or write what is enough."""
        if not rows.num_rows:
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= self._held_max:
            self._encode()

    @property
    def held_bytes(self) -> int:
        """Bytes of rows in memory, encoded ones too."""
        return self._held_bytes + (0 if self._writer is None else self._writer.size_bytes)

    def write_some(self) -> None:
        """Encode the rows that wait, or write what is encoded, whatever is more."""
        if self._writer is not None and self._writer.size_bytes > self._held_bytes:
            self._write(self._writer)
        elif self._held:
            self._encode()

    def finish(self) -> tuple[DataFile, ...]:
        """Write what is left, and return the files since this was called last."""
        if self._held:
            self._encode()
        if self._writer is not None:
            self._write(self._writer)
        files, self._files = tuple(self._files), []
        return files

    def _encode(self) -> None:
        rows = pa.concat_tables(self._held)
        self._held = []
        self._held_bytes = 0
        for part in split_rows(rows, self._partition_columns):
            writer = self._writer or DataFileWriter(self._root, part.rows.schema, part.values)
            writer.add(part.rows)
            if self._waits or writer.size_bytes >= self._file_bytes:
                self._write(writer)
            else:
                self._writer = writer

    def _write(self, writer: DataFileWriter) -> None:
        self._writer = None
        with giving_turn():
            self._files.append(writer.finish())
        failpoint("materialize_file_written")
