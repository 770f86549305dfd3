"""Looks for rows of a table by their keys, and reads as little of it as is needed.

Files and row groups are passed over whose bounds have none of the keys: those of the log for whole
numbers and dates, those of Parquet's footers for text and bytes too. Of the others the key columns
are read, and further columns only of row groups with such rows. Keys all over a table are in each
of its row groups: then its key columns are read.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakehead.lake.tables.arrow_rows import LOOK_BYTES, one_array, row_codes
from lakehead.lake.tables.ddl import TIMESTAMP
from lakehead.lake.tables.delta_table import Table, TableUnavailable, one_line
from lakehead.lake.tables.table_file import RowGroup, TableFile, without
from lakehead.lake.tables.unavailable_values import Place
from lakehead.lake.tables.upsert import key_runs

_IS_CURRENT = "_is_current"


class KeySearch:
    """The keys to look for: an Arrow table of key columns, each row a key."""

    def __init__(self, keys: Any) -> None:
        self.names = tuple(keys.column_names)
        self._count = keys.num_rows
        self._keys = {name: one_array(keys.column(name)) for name in self.names}
        self._numbers = {
            name: np.sort(values.to_numpy())
            for name, values in self._keys.items()
            if pa.types.is_integer(values.type) and not values.null_count and len(values)
        }
        self._ends = {
            name: (ends["min"], ends["max"])
            for name, values in self._keys.items()
            if _has_ends(values.type) and not values.null_count and len(values)
            for ends in [pc.min_max(values)]
        }

    def condition(self) -> Any:
        """Return what the bounds of files are compared with: it holds for rows with a key."""
        found = ds.scalar(True)
        for name, values in self._keys.items():
            at = ds.field(name)
            if name in self._numbers:
                within = ds.scalar(False)
                for low, high in key_runs(values):
                    within |= (at >= low) & (at <= high)
                found &= within
            elif pa.types.is_date(values.type) and name in self._ends:
                low, high = self._ends[name]
                found &= (at >= low) & (at <= high)
        return found

    def may_be_in(self, group: RowGroup) -> bool:
        """Return whether a row group may have rows with one of the keys, by its bounds."""
        for name in self.names:
            if (bounds := group.bounds(name)) is None:
                continue
            low, high = bounds
            if (numbers := self._numbers.get(name)) is not None:
                start, end = np.searchsorted(numbers, low), np.searchsorted(numbers, high, "right")
                if start == end:
                    return False
            elif (ends := self._ends.get(name)) is not None:
                first, last = map(_raw, ends)
                if first > high or last < low:
                    return False
        return True

    def among(self, rows: Any) -> npt.NDArray[np.bool_]:
        """Return which rows may have one of the keys: each key column has a value of some key."""
        found: Any = None
        for name, keys in self._keys.items():
            some = pc.is_in(rows.column(name).cast(keys.type), value_set=keys)
            found = some if found is None else pc.and_(found, some)
        return np.array(found, np.bool_)

    def key_of(self, rows: Any) -> npt.NDArray[np.int64]:
        """Return the key that each row has, by its number; -1 for none."""
        if len(self.names) == 1:
            keys = self._keys[self.names[0]]
            at = pc.index_in(one_array(rows.column(self.names[0])).cast(keys.type), keys)
            return np.asarray(pc.fill_null(at, -1), np.int64)
        names = list(self.names)
        keys = pa.table(self._keys)
        codes = row_codes(pa.concat_tables([keys, rows.select(names).cast(keys.schema)]), names)
        ours, theirs = codes[: self._count], codes[self._count :]
        number: npt.NDArray[np.int64] = np.full(int(codes.max(initial=0)) + 1, -1, np.int64)
        number[ours] = np.arange(len(ours))
        found: npt.NDArray[np.int64] = number[theirs]
        return found


def _raw(value: Any) -> Any:
    """Return a key as bounds of row groups are."""
    if pa.types.is_date32(value.type):
        return value.cast(pa.int32()).as_py()
    return value.as_py().encode() if pa.types.is_string(value.type) else value.as_py()


def _has_ends(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_date32(kind))


class _Piece(NamedTuple):
    """The key columns of a row group, and which rows of it are left (None: all)."""

    group: RowGroup
    keys: Any
    is_kept: npt.NDArray[np.bool_] | None


def rows_with_keys(
    table: Table,
    keys: Any,
    columns: Sequence[str] = (),
    *,
    is_current: bool = False,
    beyond: Place | None = None,
) -> Any:
    """Return the rows of a table that have one of these keys, an Arrow table of key columns: the
    key columns, and `columns`. With `is_current` those rows alone, of a table with history.
    `beyond` as for `Lookup`.

    Raises TableUnavailable.
    """
    names = list(dict.fromkeys((*keys.column_names, *columns)))
    schema = pa.schema([table.schema.field(name) for name in names])
    pieces = _found(table, keys, names, is_current=is_current, beyond=beyond)
    found = (some.cast(schema) for some in pieces)
    return pa.concat_tables([schema.empty_table(), *found])


def has_keys(table: Table, keys: Any) -> bool:
    """Return whether a table has a row with one of these keys. Raises as `rows_with_keys`."""
    return any(some.num_rows for some in _found(table, keys, keys.column_names))


def _found(
    table: Table,
    keys: Any,
    names: Sequence[str],
    *,
    is_current: bool = False,
    beyond: Place | None = None,
) -> Iterator[Any]:
    search = KeySearch(keys)
    held: list[_Piece] = []
    size = 0
    try:
        condition = search.condition()
        for file in table.data_files(condition if beyond is None else condition & _after(beyond)):
            for piece in _pieces(file, search, is_current=is_current, beyond=beyond):
                held.append(piece)
                size += piece.keys.nbytes
                if size >= LOOK_BYTES:  # each look costs by the number of keys
                    yield from _look(search, held, names)
                    held, size = [], 0
        yield from _look(search, held, names)
    except (OSError, pa.ArrowException) as error:
        raise TableUnavailable(f"cannot read rows of {table.uri}: {one_line(error)}") from error


def _pieces(
    file: TableFile, search: KeySearch, *, is_current: bool, beyond: Place | None
) -> Iterator[_Piece]:
    deleted = file.deleted()
    for group in file.row_groups():
        if not search.may_be_in(group) or (beyond is not None and _is_before(group, beyond)):
            continue
        if is_current and group.bounds(_IS_CURRENT) == (False, False):
            continue
        keys = group.rows([*search.names, *([_IS_CURRENT] if is_current else [])])
        is_kept = without(deleted, group.first, keys.num_rows)
        if is_current:
            current = np.array(pc.fill_null(keys.column(_IS_CURRENT), False), np.bool_)
            is_kept = current if is_kept is None else is_kept & current
        yield _Piece(group, keys.select(list(search.names)), is_kept)


def _after(place: Place) -> Any:
    after = pa.scalar(place.timestamp_us, TIMESTAMP)
    return (ds.field("_offset") >= place.offset) | (ds.field("_timestamp") > after)


def _is_before(group: RowGroup, place: Place) -> bool:
    """Return whether all rows of a group have lower offsets and no later timestamps."""
    offsets, times = group.bounds("_offset"), group.bounds("_timestamp")
    if offsets is None or times is None:
        return False
    return bool(offsets[1] < place.offset and times[1] <= place.timestamp_us)


def _look(search: KeySearch, held: Sequence[_Piece], names: Sequence[str]) -> Iterator[Any]:
    if not held:
        return
    is_found = search.among(pa.concat_tables([piece.keys for piece in held]))
    first = 0
    for piece in held:
        some = is_found[first : first + piece.keys.num_rows]
        first += piece.keys.num_rows
        if piece.is_kept is not None:
            some = some & piece.is_kept
        if not some.any():
            continue
        places = pa.array(np.flatnonzero(some))
        rows = piece.keys.take(places)
        if len(search.names) > 1:
            is_key = pa.array(search.key_of(rows) >= 0)
            rows, places = rows.filter(is_key), places.filter(is_key)
        if not len(places):
            continue
        if more := [name for name in names if name not in search.names]:
            others = piece.group.rows(more).take(places)
            for name in more:
                rows = rows.append_column(others.schema.field(name), others.column(name))
        yield rows.select(list(names))
