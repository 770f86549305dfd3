"""Attests some offsets of a table: its rows are those of the topic's records, one for each.

A work item reads the records of an offset range from objects, checks Kafka's checksums, compares
the digest of each range that a commit noted, decodes the records as the table has them, and
compares the result with the rows in data files and with dead letters. It writes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.decode.decoder import RecordDecoder
from lakehead.lake.decode.invalid import InvalidBatch, InvalidTimes
from lakehead.lake.decode.record_digest import RecordDigest
from lakehead.lake.errors import DataLoss
from lakehead.lake.jobs.attest_result import AttestResult, Difference
from lakehead.lake.moved_ranges import find_indexes, read_moved
from lakehead.lake.planner import ByteRange, OffsetRange, plan_splits
from lakehead.lake.record_reader import decode_all
from lakehead.lake.store_reader import StoreReader, store_reader
from lakehead.lake.tables.data_file import as_written
from lakehead.lake.tables.delta_table import Table, TableUnavailable, open_table
from lakehead.lake.tables.layout import DECODED, TableLayout
from lakehead.lake.tables.range_digests import RangeDigest
from lakehead.lake.tables.table_file import RowGroup
from lakehead.lake.tables.unavailable_values import unavailable
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.storage.certificates import key_hash
from lakehead.storage.errors import CorruptObject, ObjectNotFound, StorageError

_DIFFERENCES_MAX = 100
"""Differences of an item that are named; all are counted."""
_ROW_GROUP_BYTES_MAX = 128 << 20
"""Row groups of more than that are not held whole: theirs are of other writers."""
_FILE = "__file"
_PLACE = ("_partition", "_offset")
_LETTER_COLUMNS = ("_offset", "_key", "value", "error_class")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Offsets [first, end) of a partition, and the digest that a commit has of exactly these."""

    first: int
    end: int
    digest: RangeDigest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenKeys:
    """Keys that were forgotten by a certificate after the version of the table that is attested:
    their hashes, by a salt.
    """

    certificate: int
    salt: bytes
    hashes: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestItem:
    """Offsets that one worker attests: parts of a partition, in order and without a gap, and the
    extents of these offsets; all items of a `run` are of one version of the table. The layout is
    that of rows by append. In a table by upsert a record without a row was overtaken, and in a
    topic that is compacted a row without a record lost it to compaction.
    """

    store_uri: str
    table_uri: str
    version: int
    run: int
    letters_uri: str
    log: PartitionLog
    layout: TableLayout
    parts: tuple[Part, ...]
    is_upsert: bool
    is_compacted: bool
    may_lack_fields: bool
    size: int
    forgotten: tuple[ForgottenKeys, ...] = ()

    @property
    def first(self) -> int:
        """The first offset."""
        return self.parts[0].first

    @property
    def end(self) -> int:
        """The offset after the last."""
        return self.parts[-1].end


def attest_item(item: AttestItem) -> AttestResult:
    """Do a work item. Raises StoreUnavailable, SettingsError, RegistryUnavailable,
    TableUnavailable.
    """
    return _Work(item).run()


class _Work:
    """A work item in progress. It meets what cannot be read (`InvalidPolicy`) as `materialize`."""

    keeps_batches = False
    keeps_times = True

    def __init__(self, item: AttestItem) -> None:
        self._item = item
        self._reader: StoreReader = store_reader(item.store_uri)
        self._values = open_decoder(item.layout.spec)
        self._counts: dict[str, Any] = dict.fromkeys(_COUNTED, 0)
        self._differences: list[Difference] = []
        self._missing: list[Difference] = []
        self._certificates: set[int] = set()
        self._ranges: Sequence[ByteRange] = ()
        self._invalid: list[tuple[int, int, int, bytes]] = []
        self._digest: RecordDigest | None = None
        self._rows, self._files = self._table_rows()
        self._letters = _Ordered.of(self._dead_letters())

    def take_batch(self, found: InvalidBatch) -> None:
        """Keep a batch that cannot be read."""
        if self._digest is not None:
            self._digest.add_batch(found)
        self._invalid.append(
            (found.first_offset, found.last_offset, found.record_count, bytes(found.data))
        )

    def take_times(self, found: InvalidTimes) -> None:
        """Go on: the record is a fault of its batch."""

    def run(self) -> AttestResult:
        item = self._item
        log = item.log
        requested = [OffsetRange(log=log, start=one.first, end=one.end) for one in item.parts]
        present, indexes = find_indexes(self._reader, requested, fail_on_data_loss=False)
        by_start = {one.start: one for one in present}
        for part in item.parts:
            one = by_start.get(part.first)
            try:
                if one is None or one.end != part.end:
                    raise DataLoss("its records were deleted while it was attested")
                splits = plan_splits([one], indexes, split_bytes=1 << 62)
                self._ranges = [range_ for split in splits for range_ in split.ranges]
                self._attest_part(part)
            except (CorruptObject, ObjectNotFound, DataLoss) as error:
                self._differ(part.first, part.end - 1, f"the topic cannot be read: {error}")
        return AttestResult(
            differences=tuple(self._differences[:_DIFFERENCES_MAX]),
            missing=tuple(self._missing[:_DIFFERENCES_MAX]),
            certificates=tuple(self._certificates),
            **self._counts,
        )

    def _attest_part(self, part: Part) -> None:
        self._digest = RecordDigest(part.digest.form) if part.digest else None
        self._invalid, before = [], len(self._differences)
        decoder = RecordDecoder(DECODED, invalid=self)
        at = part.first
        for batch in decode_all(read_moved(self._reader, self._ranges), decoder):
            if not batch.num_rows:
                continue
            if self._digest is not None:
                self._digest.add(batch)
            self._counts["records"] += batch.num_rows
            self._counts["bytes"] += batch.nbytes
            end = batch.column("offset")[batch.num_rows - 1].as_py() + 1
            self._compare(batch, at, end)
            at = end
        self._compare(None, at, part.end)
        self._counts["ranges"] += 1
        if part.digest is not None and self._digest is not None:
            self._check_digest(part.digest, self._digest, before)

    def _check_digest(self, noted: RangeDigest, made: RecordDigest, before: int) -> None:
        if (noted.records, noted.digest) == (made.records, made.hexdigest()):
            self._counts["digests"] += 1
            if noted.certificate >= 0:
                self._counts["forgotten_ranges"] += 1
                self._certificates.add(noted.certificate)
            return
        if self._item.is_compacted and made.records < noted.records:
            self._counts["compacted_ranges"] += 1
            return
        keys = ", ".join(dict.fromkeys(one.key for one in self._ranges))
        what = (
            f"the topic has other records than the commit was made from ({made.records}, "
            f"then {noted.records}; digest {made.hexdigest()}, then {noted.digest})"
        )
        self._differ(noted.first, noted.end - 1, what, object_key=keys, at=before)

    # ----------------------------------------------------------------------------- table and topic

    def _compare(self, batch: Any, first: int, end: int) -> None:
        """Compare the rows and dead letters of [first, end) with a batch, which has all records
        there are (None: there are none).
        """
        item = self._item
        in_letters = self._letters.between(first, end)
        letters, of_letters = in_letters.rows, in_letters.offsets
        found = self._rows.between(first, end)
        rows, held = found.rows, found.offsets
        self._counts["rows"] += len(held)
        twice = np.flatnonzero(np.diff(held) == 0) + 1
        self._differ_at(held[twice], "the table has its row more than once", rows, twice)
        again = np.flatnonzero(np.diff(of_letters) == 0) + 1
        what = "its dead letter is there more than once"
        self._differ_at(of_letters[again], what, letters, again)
        if batch is None:
            expected, faulty = item.layout.schema.empty_table(), np.empty(0, np.int64)
        else:
            made = item.layout.table_rows(batch, self._values)
            expected = made.rows
            places = _offsets(batch, "offset")
            faulty = places[[fault.row for fault in made.faults]]
        known = _offsets(expected)
        if not np.array_equal(held, known):
            rows, expected = self._without_pairs(rows, expected, faulty, letters)
        self._compare_rows(expected, rows)
        if batch is not None and (letters.num_rows or len(faulty)):
            self._compare_letters(batch, faulty, letters)
        elif letters.num_rows:
            self._odd_letters(letters)

    def _without_pairs(
        self, rows: Any, expected: Any, faulty: npt.NDArray[np.int64], letters: Any
    ) -> tuple[Any, Any]:
        """Report rows without records and records without rows, and return the others of both."""
        held, known = _offsets(rows), _offsets(expected)
        has_record, has_row = np.isin(held, known), np.isin(known, held)
        odd = np.flatnonzero(~has_record)
        cannot = np.isin(held[odd], faulty)
        self._differ_at(
            held[odd[cannot]],
            "the table has a row of a record that cannot be one",
            rows,
            odd[cannot],
        )
        odd = self._not_forgotten(rows, odd[~cannot])
        if self._item.is_compacted:
            self._counts["rows_of_compacted"] += len(odd)
        else:
            self._differ_at(held[odd], "the table has a row, the topic no record", rows, odd)
        lacking = known[~has_row]
        self._lack(lacking[~np.isin(lacking, _offsets(letters))])
        _, once = np.unique(held, return_index=True)
        once = once[has_record[once]]
        return rows.take(pa.array(once)), expected.filter(pa.array(has_row))

    def _not_forgotten(self, rows: Any, odd: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Count rows without records whose keys were forgotten since; return the others."""
        if not self._item.forgotten or not len(odd):
            return odd
        kept = []
        keys = rows.column("_key").take(pa.array(odd)).to_pylist()
        for row, key in zip(odd.tolist(), keys, strict=True):
            numbers = [
                one.certificate
                for one in self._item.forgotten
                if key is not None and key_hash(one.salt, key) in one.hashes
            ]
            self._certificates.update(numbers)
            self._counts["forgotten_rows"] += bool(numbers)
            if not numbers:
                kept.append(row)
        return np.array(kept, np.int64)

    def _compare_rows(self, expected: Any, rows: Any) -> None:
        wrong = np.flatnonzero(differing_rows(expected, rows))
        if not len(wrong):
            return
        offsets = _offsets(rows)
        for row in wrong.tolist():
            names = [
                name
                for name in expected.column_names
                if _text(expected, name, row) != _text(rows, name, row)
                and not (self._item.is_upsert and _is_unavailable(expected, name, row))
            ]
            if not names:
                continue
            lacks = self._item.may_lack_fields and all(
                _is_less(_value(rows.column(name), row), _value(expected.column(name), row))
                for name in names
            )
            if lacks:
                self._counts["rows_lacking_fields"] += 1
                continue
            what = f"the row differs from its record in {', '.join(names)}"
            self._differ_at(offsets[[row]], what, rows, np.array([row]))

    def _compare_letters(self, batch: Any, faulty: npt.NDArray[np.int64], letters: Any) -> None:
        places, held = _offsets(batch, "offset"), _offsets(letters)
        self._lack(faulty[~np.isin(faulty, held)])
        at = np.searchsorted(places, held)
        at_most = np.minimum(at, len(places) - 1)
        is_record = places[at_most] == held
        self._odd_letters(letters.filter(pa.array(~is_record)))
        found = np.flatnonzero(is_record)
        for source, name in (("key", "_key"), ("value", "value")):
            records = pa.table({"a": batch.column(source).take(pa.array(at_most[found]))})
            held_values = pa.table({"a": letters.column(name).take(pa.array(found))})
            wrong = found[differing_rows(records, held_values)]
            what = f"the dead letter differs from its record in {source}"
            self._differ_at(held[wrong], what, letters, wrong)
        self._counts["dead_letters"] += len(found)

    def _odd_letters(self, letters: Any) -> None:
        """Meet dead letters that are of no record: of a batch, or of nothing."""
        batches = {first: data for first, _, _, data in self._invalid}
        for row in range(letters.num_rows):
            offset = letters.column("_offset")[row].as_py()
            if offset in batches and letters.column("value")[row].as_py() == batches[offset]:
                self._counts["dead_letters"] += 1
            elif self._item.is_compacted:
                self._counts["rows_of_compacted"] += 1
            else:
                what = "there is a dead letter, and no record of it in the topic"
                self._differ_at(np.array([offset]), what, letters, np.array([row]))

    # --------------------------------------------------------------------------------- differences

    def _lack(self, offsets: npt.NDArray[np.int64]) -> None:
        """Note records that are neither rows nor dead letters."""
        if self._item.is_upsert:
            self._counts["overtaken"] += len(offsets)
            return
        self._counts["missing_records"] += len(offsets)
        for some in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1):
            if len(some):
                what = "the topic has records, the table neither a row nor a dead letter"
                self._missing.append(self._difference(int(some[0]), int(some[-1]), what))

    def _differ_at(
        self, offsets: npt.NDArray[np.int64], what: str, rows: Any, at: npt.NDArray[Any]
    ) -> None:
        for offset, row in zip(offsets.tolist(), at.tolist(), strict=True):
            file = (
                self._files[rows.column(_FILE)[row].as_py()] if _FILE in rows.schema.names else ""
            )
            self._differ(offset, offset, what, file=file)

    def _differ(
        self,
        first: int,
        last: int,
        what: str,
        *,
        file: str = "",
        object_key: str | None = None,
        at: int | None = None,
    ) -> None:
        self._counts["different"] += 1
        found = self._difference(first, last, what, file=file, object_key=object_key)
        self._differences.insert(len(self._differences) if at is None else at, found)

    def _difference(
        self, first: int, last: int, what: str, *, file: str = "", object_key: str | None = None
    ) -> Difference:
        if object_key is None:
            keys = [
                one.key
                for one in self._ranges
                if one.first_offset <= last and one.end_offset > first
            ]
            object_key = ", ".join(dict.fromkeys(keys))
        part = next(one for one in self._item.parts if one.first <= first < one.end)
        return Difference(
            partition=self._item.log.id.partition,
            first=first,
            last=last,
            range_first=part.first,
            range_last=part.end - 1,
            object_key=object_key,
            file=file,
            what=what,
        )

    # ---------------------------------------------------------------------------------- the tables

    def _table_rows(self) -> "tuple[_Ordered, list[str]]":
        """Return the rows of the item's offsets in their order, and the files that they are in."""
        item = self._item
        files: list[str] = []
        found = [item.layout.schema.append(pa.field(_FILE, pa.int32())).empty_table()]
        schema = item.layout.schema
        for name, rows in self._rows_by_file():
            if isinstance(rows, Exception):
                what = f"the data file cannot be read: {rows}"
                self._differ(item.first, item.end - 1, what, file=name, object_key="")
                continue
            number = pa.array(np.full(rows.num_rows, len(files), np.int32))
            found.append(as_written(rows, schema).append_column(_FILE, number))
            files.append(name)
        return _Ordered.of(pa.concat_tables(found)), files

    def _rows_by_file(self) -> Iterator[tuple[str, Any]]:
        """Yield as `rows_by_file` does for the item's offsets. These are mostly all rows of a row
        group, or neighbours in it, and not copied out of it.
        """
        item = self._item
        names, predicate = item.layout.schema.names, self._predicate()
        table, dataset = _opened(item.table_uri, item.version, item.run)
        if dataset is None:
            yield from rows_by_file(table, names, predicate)
            return
        for known in dataset.get_fragments(filter=predicate):
            # Not that of the dataset: it would keep the footer of its file as long as the dataset.
            fragment = dataset.format.make_fragment(
                known.path, known.filesystem, known.partition_expression
            )
            found = []
            try:
                for group in fragment.split_by_row_group(filter=predicate, schema=dataset.schema):
                    if not self._has_rows(RowGroup(group, dataset.schema, first=0)):
                        continue
                    is_large = group.row_groups[0].total_byte_size > _ROW_GROUP_BYTES_MAX
                    rows = group.to_table(
                        schema=dataset.schema,
                        columns=names,
                        filter=predicate if is_large else None,
                    )
                    found.append(self._of_item(rows))
            except (OSError, pa.ArrowException) as error:
                yield fragment.path, error
                continue
            yield from ((fragment.path, rows) for rows in found if rows.num_rows)

    def _has_rows(self, group: RowGroup) -> bool:
        """Return whether a row group has rows of the item's offsets. Bounds of offsets say nothing
        where rows of several partitions lie together.
        """
        bounds = group.bounds("_partition")
        if bounds is not None and bounds[0] == bounds[1]:
            return True
        return bool(self._is_of_item(group.rows(_PLACE))[1])

    def _is_of_item(self, rows: Any) -> tuple[Any, int]:
        """Return which rows have the item's offsets, and their number."""
        partition, at = (rows.column(name) for name in _PLACE)
        is_of = pc.equal(partition, self._item.log.id.partition)
        is_of = pc.and_(is_of, pc.greater_equal(at, self._item.first))
        is_of = pc.and_(is_of, pc.less(at, self._item.end))
        return is_of, pc.sum(is_of).as_py() or 0

    def _of_item(self, rows: Any) -> Any:
        """Return the rows of the item's offsets."""
        is_of, number = self._is_of_item(rows)
        if number == rows.num_rows:
            return rows
        places = pc.indices_nonzero(is_of).to_numpy()
        if not len(places):
            return rows.slice(0, 0)
        first, last = int(places[0]), int(places[-1])
        is_run = last - first == len(places) - 1
        return rows.slice(first, len(places)) if is_run else rows.filter(is_of)

    def _dead_letters(self) -> Any:
        table, schema = open_table(self._item.letters_uri), _LETTERS
        if table is None:
            return schema.empty_table()
        return table.rows(_LETTER_COLUMNS, self._predicate()).cast(schema)

    def _predicate(self) -> Any:
        at = ds.field("_offset")
        is_of = ds.field("_partition") == self._item.log.id.partition
        return is_of & (at >= self._item.first) & (at < self._item.end)


_LETTERS = pa.schema(
    [
        ("_offset", pa.int64()),
        ("_key", pa.binary()),
        ("value", pa.binary()),
        ("error_class", pa.string()),
    ]
)
_COUNTED = (
    *("records", "bytes", "rows", "ranges", "digests", "dead_letters", "overtaken", "different"),
    *("missing_records", "compacted_ranges", "rows_of_compacted", "rows_lacking_fields"),
    *("forgotten_ranges", "forgotten_rows"),
)


@lru_cache(maxsize=2)
def _opened(uri: str, version: int, _run: int) -> tuple[Table, Any]:
    """Return a version of a table, and its dataset; None for the dataset of a table with deletion
    vectors. It is opened once in a run of this process: that costs as much as megabytes of records,
    and a restored table may have the same version later. Raises TableUnavailable.
    """
    table = open_table(uri, version)
    if table is None:
        raise TableUnavailable(f"table {uri} is gone")
    table.require_own_names()
    return table, None if table.has_vectors else table.plain_dataset(by_bounds=True)


def rows_by_file(table: Table, names: Sequence[str], predicate: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path of each data file with its rows that a predicate selects, or with the error
    of reading it.
    """
    for file in table.data_files(predicate):
        try:
            rows = file.rows(names, predicate)
        except (OSError, pa.ArrowException, StorageError) as error:
            yield file.path, error
            continue
        if rows.num_rows:
            yield file.path, rows


def _offsets(rows: Any, name: str = "_offset") -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = rows.column(name).to_numpy()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ordered:
    """Rows in the order of their offsets, and these offsets."""

    rows: Any  # pa.Table
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Any) -> "_Ordered":
        """Return rows in the order of their column `_offset`."""
        offsets = _offsets(rows)
        if not (np.diff(offsets) >= 0).all():
            rows = rows.sort_by("_offset").combine_chunks()
            offsets = _offsets(rows)
        return cls(rows=rows, offsets=offsets)

    def between(self, first: int, end: int) -> "_Ordered":
        """Return the rows of the offsets [first, end)."""
        start, stop = np.searchsorted(self.offsets, [first, end]).tolist()
        return _Ordered(rows=self.rows.slice(start, stop - start), offsets=self.offsets[start:stop])


def differing_rows(one: Any, other: Any) -> npt.NDArray[np.bool_]:
    """Return which rows of two Arrow tables of the same length differ in a column of the first. A
    NaN equals itself, and 0.0 differs from -0.0.
    """
    found = np.zeros(one.num_rows, np.bool_)
    for name, kind in _comparable_types(one.schema):
        pair = [table.column(name) for table in (one, other)]
        if kind is not None:
            pair = [pa.chunked_array([a.view(kind) for a in one.chunks], kind) for one in pair]
        if not pair[0].equals(pair[1]):
            whole = [column.combine_chunks() for column in pair]
            _mark(whole[0], whole[1], 0, len(found), found)
    return found


@lru_cache(maxsize=16)
def _comparable_types(schema: Any) -> tuple[tuple[str, Any], ...]:
    """Return each column, and the type by which its values are compared: with integers of the same
    bits for floating points, also those inside of values; None for the column's own type.
    """
    types = [(field.name, field.type) for field in schema]
    made = [(name, held, _of_bits(held)) for name, held in types]
    return tuple((name, None if kind is held else kind) for name, held, kind in made)


_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def _of_bits(kind: Any) -> Any:
    """Return a type with integers for its floating points: the same object if it has none."""
    if pa.types.is_floating(kind):
        return _BITS[kind.bit_width]
    if not pa.types.is_nested(kind):
        return kind
    fields = [kind.field(i) for i in range(kind.num_fields)]
    types = [field.type for field in fields]
    made = [_of_bits(one) for one in types]
    if all(one is another for one, another in zip(types, made, strict=True)):
        return kind
    fields = [field.with_type(one) for field, one in zip(fields, made, strict=True)]
    if pa.types.is_map(kind):
        return pa.map_(*made[0])
    return pa.list_(*fields) if pa.types.is_list(kind) else pa.struct(fields)


def _mark(one: Any, other: Any, start: int, end: int, found: npt.NDArray[np.bool_]) -> None:
    if one.slice(start, end - start).equals(other.slice(start, end - start)):
        return
    if end - start == 1:
        found[start] |= repr(_value(one, start)) != repr(_value(other, start))
        return
    middle = (start + end) // 2
    _mark(one, other, start, middle, found)
    _mark(one, other, middle, end, found)


def _is_unavailable(rows: Any, name: str, row: int) -> bool:
    """Return whether a record does not have the value of a column, which a table by upsert keeps
    from the records before.
    """
    return unavailable(rows.column(name).slice(row, 1)) is not None


def _text(rows: Any, name: str, row: int) -> str:
    return repr(_value(rows.column(name), row))


def _value(column: Any, row: int) -> Any:
    """Return a value as Python has it; Arrow's text of one with a time beyond the year 9999."""
    try:
        return column[row].as_py()
    except (OverflowError, ValueError):
        return str(column.slice(row, 1))


def _is_less(held: Any, value: Any) -> bool:
    """Return whether a value of the table is the record's with some of its fields left out."""
    if held is None:
        return True
    if isinstance(held, dict) and isinstance(value, dict):
        return all(_is_less(one, value.get(name)) for name, one in held.items())
    if isinstance(held, list) and isinstance(value, list):
        return len(held) == len(value) and all(map(_is_less, held, value))
    return repr(held) == repr(value)
