"""Builds Arrow record batches from parsed records: the last step of a decode."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehead.lake.decode import binary
from lakehead.lake.decode.columns import HEADERS
from lakehead.lake.decode.memory import empty, zeros
from lakehead.storage.format.record_kernel import NO_TIME, NO_TYPE

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_ROWS_MAX = 1 << 22
"""Of a batch: so many topic names lie in one Arrow buffer, whatever their length."""
_ROWS_KEPT = 1 << 16


class Named(Protocol):
    """The topic and partition of the records."""

    @property
    def topic(self) -> str:
        """Topic name."""

    @property
    def partition(self) -> int:
        """Partition index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Parsed records, by column. Arrays of columns that are not requested have length 0.

    A position is >= 0 in `data`, else `~position` in `inflated`; a size of -1 is a null. `buffer`
    is what views into `data` are to keep alive, and begins where it does.
    """

    buffer: pa.Buffer
    data: Bytes
    inflated: Bytes
    offsets: Longs
    timestamps: Longs
    timestamp_types: Ints
    key_at: Ints
    key_size: Ints
    value_at: Ints
    value_size: Ints
    headers_at: Ints
    headers_size: Ints


class ColumnBuilder:
    """Cuts parsed records into batches and builds their columns by `pa.Array.from_buffers`.

    (`pa.array` of a NumPy array and `pa.scalar` import pandas, which costs a fresh worker more than
    the decode.)
    """

    def __init__(self, schema: pa.Schema, *, rows_max: int, bytes_max: int) -> None:
        self._schema = schema
        self._rows_max = min(rows_max, _ROWS_MAX)
        self._bytes_max = bytes_max
        self._constants: dict[tuple[str, object], pa.Array] = {}

    def build(
        self, columns: RecordColumns, rows: int, source: Named, *, has_gaps: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the first `rows` records as batches. With `has_gaps` some may be without a time or
        its type.
        """
        cuts = np.empty(rows, np.int32)
        pieces = binary.cut_rows(
            columns.key_size,
            columns.value_size,
            columns.headers_size,
            rows,
            self._rows_max,
            self._bytes_max,
            cuts,
        )
        start = 0
        for stop in cuts[:pieces].tolist():
            arrays = [
                self._column(field, columns, start, stop - start, source) for field in self._schema
            ]
            if has_gaps:
                arrays = [_with_gaps(array) for array in arrays]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            start = stop

    def _column(
        self, field: pa.Field, columns: RecordColumns, start: int, count: int, source: Named
    ) -> pa.Array:
        stop = start + count
        match field.name:
            case "key":
                return _binary(field.type, columns, columns.key_at, columns.key_size, start, count)
            case "value":
                at, size = columns.value_at, columns.value_size
                return _binary(field.type, columns, at, size, start, count)
            case "offset":
                return _fixed(field.type, columns.offsets[start:stop])
            case "timestamp":
                return _fixed(field.type, columns.timestamps[start:stop])
            case "timestampType":
                return _fixed(field.type, columns.timestamp_types[start:stop])
            case "topic":
                return self._constant(field, source.topic, count)
            case "partition":
                return self._constant(field, source.partition, count)
            case _:
                assert field.name == HEADERS
                return _headers(field.type, columns, start, count)

    def _constant(self, field: pa.Field, value: str | int, count: int) -> pa.Array:
        """A column of one value: made once at the usual length, then cut without a copy."""
        array = self._constants.get((field.name, value))
        if array is None or len(array) < count:
            array = _repeated(field.type, value, max(count, min(self._rows_max, _ROWS_KEPT)))
            self._constants[field.name, value] = array
        return array.slice(0, count)


def _fixed(kind: pa.DataType, values: npt.NDArray[np.generic]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _with_gaps(array: pa.Array) -> pa.Array:
    """Return a column with nulls where `parse_records` has put none of its values."""
    nothing: dict[str, int] = {"timestamp": NO_TIME, "int32": NO_TYPE}
    name = "timestamp" if pa.types.is_timestamp(array.type) else str(array.type)
    if name not in nothing:
        return array
    values = np.frombuffer(array.buffers()[1], np.int64 if name == "timestamp" else np.int32)
    values = values[array.offset : array.offset + len(array)]
    is_held = values != nothing[name]
    if is_held.all():
        return array
    validity = pa.py_buffer(np.packbits(is_held, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [validity, pa.py_buffer(values)])


def _repeated(kind: pa.DataType, value: str | int, count: int) -> pa.Array:
    if isinstance(value, int):
        return _fixed(kind, np.full(count, value, np.int32))
    text = value.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(
        kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(text * count)]
    )


def _binary(
    kind: pa.DataType, columns: RecordColumns, at: Ints, size: Ints, start: int, count: int
) -> pa.Array:
    sizes = size[start : start + count]
    nulls = int(np.count_nonzero(sizes < 0))
    validity = zeros((count + 7) // 8 if nulls else 0, np.uint8)
    buffers = [pa.py_buffer(validity) if nulls else None]
    if kind != pa.binary():  # Arrow before 16 has no views
        views = empty(count * 4, np.int32)
        binary.build_views(columns.data, columns.inflated, at, size, start, count, views, validity)
        buffers += [pa.py_buffer(views), columns.buffer, pa.py_buffer(columns.inflated)]
    else:
        total = int(sizes.sum(dtype=np.int64)) + nulls
        offsets = empty(count + 1, np.int32)
        values = empty(total, np.uint8)
        binary.gather(columns.data, columns.inflated, at, size, start, offsets, values, validity)
        buffers += [pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, count, buffers, nulls)


def _headers(kind: pa.ListType, columns: RecordColumns, start: int, count: int) -> pa.Array:
    from lakehead.lake.decode import headers  # loaded only for reads that request headers

    data, inflated = columns.data, columns.inflated
    at, size = columns.headers_at, columns.headers_size
    if size[start : start + count].max(initial=0) <= 1:  # a count of 0, or an invalid batch
        return pa.nulls(count, kind)
    total = headers.count_headers(data, inflated, at, size, start, count)
    offsets = np.empty(count + 1, np.int32)
    validity = np.zeros((count + 7) // 8, np.uint8)
    key_at, key_size, value_at, value_size = np.empty((4, total), np.int32)
    nulls = headers.list_headers(
        data,
        inflated,
        at,
        size,
        start,
        count,
        offsets,
        validity,
        key_at,
        key_size,
        value_at,
        value_size,
    )
    keys = _binary(pa.binary(), columns, key_at, key_size, 0, total)
    values = _binary(pa.binary(), columns, value_at, value_size, 0, total)
    entries = pa.StructArray.from_arrays(
        [_text(keys), values], fields=[kind.value_type.field(0), kind.value_type.field(1)]
    )
    return pa.Array.from_buffers(
        kind, count, [pa.py_buffer(validity), pa.py_buffer(offsets)], nulls, children=[entries]
    )


def _text(keys: pa.Array) -> pa.Array:
    """Header keys as strings. Malformed UTF-8 is replaced, as Java's clients do, not refused."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
