"""JSON values to columns of a given schema, with bad values set aside one by one.

A block of values is checked by a compiled kernel (`json_check`), joined by newlines and parsed by
Arrow in one go. A value that is well-formed but does not fit the schema fails the whole block in
Arrow; it is found by halving.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from lake.tables.json_check import check_values, fault_text

_BLOCK_BYTES = 4 << 20
_BLANKS = bytes.maketrans(b"\r\n", b"  ")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonColumns:
    """Values as columns.

    `columns` has one row per good value, in order; `rows` says which values they were; a null value
    is a row of nulls. `faults` are (value index, why) of the bad ones, in order; `misfits` are
    those of them that are well-formed.
    """

    columns: Any  # pa.Table
    rows: Any  # pa.Array of int64
    faults: tuple[tuple[int, str], ...]
    misfits: frozenset[int] = frozenset()


def json_columns(values: Any, schema: Any, *, fault_count_max: int | None = None) -> JsonColumns:
    """Parse `values` (Arrow binary) as objects with the fields of `schema`.

    Fields that the schema does not have are left out, missing ones are null; types are not bent (a
    number is no string, 1.5 is no integer). Stops looking for bad values after `fault_count_max`:
    then `faults` holds at least that many and the columns are of no use.
    """
    values = values.cast(pa.binary()) if values.type != pa.binary() else values
    count = len(values)
    faults = _syntax_faults(values)
    usable = np.ones(count, np.bool_)
    if values.null_count:
        usable &= _is_valid(values)
    if faults:
        usable[[row for row, _ in faults]] = False
    candidates = np.flatnonzero(usable)
    everything = len(candidates) == count
    chosen = values if everything else values.take(_int64(candidates))
    limit = None if fault_count_max is None else max(0, fault_count_max - len(faults))
    block = _Block(chosen, schema, limit)
    table, misfits = block.parse()
    if not everything or misfits:
        faults += [(int(candidates[row]), reason) for row, reason in misfits]
        faults.sort()
    return _assemble(values, candidates, table, misfits, faults)


def _assemble(
    values: Any,
    candidates: Any,
    table: Any,
    misfits: list[tuple[int, str]],
    faults: list[tuple[int, str]],
) -> JsonColumns:
    """Put rows of nulls where the values are null, and say which values the rows are."""
    unfit = frozenset(int(candidates[row]) for row, _ in misfits)
    parsed = np.delete(candidates, [row for row, _ in misfits]) if misfits else candidates
    if not values.null_count:
        return JsonColumns(columns=table, rows=_int64(parsed), faults=tuple(faults), misfits=unfit)
    nulls = np.flatnonzero(~_is_valid(values))
    rows = np.sort(np.concatenate([parsed, nulls]))
    # Position of each row in `table`; null where the value is.
    position = np.searchsorted(parsed, rows)
    position[np.isin(rows, nulls)] = -1
    columns = table.take(_int64(position, null=-1))
    return JsonColumns(columns=columns, rows=_int64(rows), faults=tuple(faults), misfits=unfit)


def _syntax_faults(values: Any) -> list[tuple[int, str]]:
    _, offsets, data = values.buffers()
    count = len(values)
    if not count:
        return []
    positions = np.frombuffer(offsets, np.int32)
    empty = data is None or data.size == 0
    content = np.zeros(1, np.uint8) if empty else np.frombuffer(data, np.uint8)
    bad, faults = check_values(content, positions, values.offset, count)
    if not bad:
        return []
    if values.null_count:
        faults[~_is_valid(values)] = 0
    return [(int(row), fault_text(int(faults[row]))) for row in np.flatnonzero(faults)]


def _is_valid(values: Any) -> Any:
    return np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), np.bool_)


def _int64(numbers: Any, *, null: int | None = None) -> Any:
    """An Arrow array over numpy's memory (`pa.array` would import pandas)."""
    numbers = np.ascontiguousarray(numbers, np.int64)
    array = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
    if null is None:
        return array
    return pc.if_else(pc.equal(array, null), pa.scalar(None, pa.int64()), array)


class _Block:
    """Well-formed values joined into lines, parsed as a whole or, to find misfits, by halves."""

    def __init__(self, values: Any, schema: Any, fault_count_max: int | None) -> None:
        self._schema = schema
        self._count = len(values)
        self._limit = fault_count_max
        parse_schema = pa.schema([_parsed_as(field) for field in schema])
        self._options = pj.ParseOptions(
            explicit_schema=parse_schema, unexpected_field_behavior="ignore"
        )
        self._misfits: list[tuple[int, str]] = []
        if not self._count:
            return
        bounds = np.frombuffer(values.buffers()[1], np.int32)
        bounds = bounds[values.offset : values.offset + self._count + 1].astype(np.int64)
        # Line i begins after i newlines.
        self._starts = bounds - bounds[0] + np.arange(self._count + 1)
        self._lines = _joined(values, int(self._starts[-1]) - 1)

    def parse(self) -> tuple[Any, list[tuple[int, str]]]:
        """Return the rows that fit, and the positions of those that do not, with the reason."""
        pieces: list[Any] = []
        if self._count:
            self._parse(0, self._count, pieces)
        if not pieces:
            return self._schema.empty_table(), self._misfits
        return pa.concat_tables(pieces), self._misfits

    def _parse(self, first: int, last: int, pieces: list[Any]) -> None:
        if self._limit is not None and self._misfits and len(self._misfits) >= self._limit:
            return
        try:
            pieces.append(self._read(first, last))
        except pa.ArrowInvalid as error:
            if last - first == 1:
                self._misfits.append((first, _reason(error)))
                return
            middle = (first + last) // 2
            self._parse(first, middle, pieces)
            self._parse(middle, last, pieces)

    def _read(self, first: int, last: int) -> Any:
        start, end = int(self._starts[first]), int(self._starts[last])
        longest = int(np.max(np.diff(self._starts[first : last + 1])))
        options = pj.ReadOptions(use_threads=False, block_size=max(_BLOCK_BYTES, 2 * longest))
        table = pj.read_json(
            pa.BufferReader(self._lines.slice(start, min(end, self._lines.size) - start)),
            read_options=options,
            parse_options=self._options,
        )
        assert table.num_rows == last - first, "a checked value is one row"
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(table.columns, self._schema, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)


def _joined(values: Any, size: int) -> Any:
    """The values with newlines between them, and none inside them.

    In a well-formed value a raw line break stands between tokens, so it may become a space.
    """
    one_list = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    lines = pc.binary_join(one_list, b"\n")[0].as_buffer()
    assert lines.size == size
    breaks = np.frombuffer(lines, np.uint8)
    newlines = int(np.count_nonzero(breaks == 0x0A))
    if newlines == len(values) - 1 and not np.any(breaks == 0x0D):
        return lines
    cleaned = np.frombuffer(bytes(lines).translate(_BLANKS), np.uint8).copy()
    lengths = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
    cleaned[np.cumsum(lengths[:-1]) + np.arange(len(values) - 1)] = 0x0A
    return pa.py_buffer(cleaned)


def _parsed_as(field: Any) -> Any:
    """The field as Arrow's JSON reader can read it: a date is read as text and cast."""
    return field.with_type(_parsed_type(field.type))


def _parsed_type(kind: Any) -> Any:
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_parsed_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([_parsed_as(kind.field(i)) for i in range(kind.num_fields)])
    return kind


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()).removeprefix("JSON parse error: ")
    return text.removesuffix(" in row 0")
