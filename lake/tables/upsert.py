"""Changes to the source and the clauses of a MERGE: one row for each key, with its operation.

Change rows are rows of the table with what happened beside them (`change_schema`). They are in one
order for each key: that of their partition; where a key is in several partitions (there are more
of them than there were), by time as well, as far as each partition's own order lets. The last
change of a key decides (`scd=1`), or every one becomes a row with the time it held (`scd=2`).

The result is the same for every engine: a source of rows, and the clauses of one MERGE in SQL,
over `t` (the table) and `s` (the source). A row is changed by what came after it alone, so that a
change that is offered twice does nothing the second time.
"""

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.declaration.table_declaration import METADATA_COLUMNS
from lakehead.lake.tables.arrow_rows import row_codes
from lakehead.lake.tables.ddl import TIMESTAMP, VARIANT, type_name
from lakehead.lake.tables.unavailable_values import (
    KEPT,
    KEPT_FIELD,
    Lookup,
    Place,
    filled,
    folded,
    has_kept,
    kept_columns,
    unavailable,
)
from lakehead.lake.tables.values.changes import OP, SEQ
from lakehead.lake.tables.values.decoder import Fault
from lakehead.storage.errors import SettingsError

_RANGES_MAX = 16
_GAP_MIN = 1 / 64
"""Least share of the range that a gap must leave out, to be worth a condition."""
_TEXT_MAX = 200
_FIRST_DAY, _LAST_DAY = (
    int(np.datetime64(day).astype(int)) for day in ("0001-01-01", "9999-12-31")
)


def within_ranges(source: Any, names: Sequence[str], columns: Sequence[str]) -> str:
    """Return a condition that all rows of `source` meet, about its columns `names`, each called as
    in `columns`; empty if there is nothing to say.
    """
    conditions = []
    for name, column in zip(names, columns, strict=True):
        ranges = _ranges(source.column(name))
        if ranges:
            given = " OR ".join(f"{column} BETWEEN {low} AND {high}" for low, high in ranges)
            conditions.append(f"({given})")
    return " AND ".join(conditions)


def _ranges(values: Any) -> list[tuple[str, str]]:
    values = values.drop_null()
    if not len(values):
        return []
    kind = values.type
    if pa.types.is_integer(kind):
        runs = key_runs(values)
        if runs[0][0] == np.iinfo(np.int64).min:  # no literal: it is minus a number too large
            return []
        return [(str(low), str(high)) for low, high in runs]
    if pa.types.is_date32(kind):
        return _days(key_runs(values.cast(pa.int32())))
    if pa.types.is_string(kind):
        ends = pc.min_max(values)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        return [(f"'{low}'", f"'{high}'")] if _is_plain(low) and _is_plain(high) else []
    return []


def key_runs(values: Any) -> list[tuple[int, int]]:
    """Return the smallest and largest of each run of whole numbers, an Arrow array with some, where
    wide gaps are between runs.
    """
    distinct = np.unique(np.asarray(values))
    steps = np.diff(distinct.astype(np.float64))  # of 64 bits, the difference may have more
    widest = np.argsort(steps)[len(steps) - min(len(steps), _RANGES_MAX - 1) :]
    ends = np.sort(widest[steps[widest] >= max(steps.sum() * _GAP_MIN, 2)])
    lows = distinct[np.concatenate([[0], ends + 1])]
    highs = distinct[np.concatenate([ends, [len(distinct) - 1]])]
    return [(int(low), int(high)) for low, high in zip(lows, highs, strict=True)]


def _days(runs: list[tuple[int, int]]) -> list[tuple[str, str]]:
    if runs and not _FIRST_DAY <= runs[0][0] <= runs[-1][1] <= _LAST_DAY:
        return []
    days = [np.array(run, "M8[D]") for run in runs]
    return [(f"DATE '{low}'", f"DATE '{high}'") for low, high in days]


def _is_plain(text: str) -> bool:
    """Return whether a literal means the same to all engines."""
    return len(text) <= _TEXT_MAX and text.isprintable() and not {"'", "\\"} & set(text)


AT = "_at"
HISTORY_FIELDS = (
    pa.field("_valid_from", TIMESTAMP),
    pa.field("_valid_to", TIMESTAMP),
    pa.field("_is_current", pa.bool_()),
)
"""Columns of a table that keeps every value of a key: when it began to hold, when it ended (null
while it holds), and whether it holds.
"""

PUT = "u"
_DELETE, _TRUNCATE = "d", "t"
_CLOSES = "_closes"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_CHANGE_FIELDS = (
    *(pa.field(OP, pa.string()), pa.field(SEQ, pa.int32()), pa.field(AT, TIMESTAMP)),
    KEPT_FIELD,
)


def change_schema(table_schema: Any) -> Any:
    """Return the schema of change rows: the table's columns, `_op` (`u` put, `d` delete, `t`
    truncate), `_seq` among the changes of one record, when it happened (`_at`), and the columns
    that it leaves as they are (`_kept`).
    """
    made = {field.name for field in HISTORY_FIELDS}
    return pa.schema([*(f for f in table_schema if f.name not in made), *_CHANGE_FIELDS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A clause of a MERGE: what it does to which rows. `condition` is SQL, empty for all."""

    verb: Literal["update", "delete", "insert", "update_missing", "delete_missing"]
    condition: str = ""
    values: tuple[tuple[str, str], ...] = ()  # (column, SQL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A MERGE into a table. At most one row of `source` meets a row of the table. With `names`, the
    columns that identify rows, it is the newest change of each key and nothing else: rows are
    deleted, and put in place of others or in addition.
    """

    source: Any  # pa.Table
    on: str
    clauses: tuple[Clause, ...]
    names: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The column that alone identifies rows, if there is one: a table that has none of the
        source's keys has its put rows after the MERGE and is else as it was.
        """
        return self.names[0] if len(self.names) == 1 else ""


def identity(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that identify a row: those declared, else the record's key."""
    return tuple(keys) or ("_key",)


def quoted(name: str) -> str:
    """Return a column's name in SQL, for every engine."""
    return "`" + name.replace("`", "``") + "`"


def unresolved_keys(changes: Any, keys: Sequence[str]) -> Any:
    """Return the record keys (binary) whose rows are to be removed by changes without the identity
    columns: null values, where `keys` are declared.
    """
    if not keys:
        return pa.array([], pa.binary())
    return pc.unique(changes.filter(is_named_by_key(changes, keys)).column("_key"))


def resolved(changes: Any, keys: Sequence[str], held: Any) -> Any:
    """Return the changes with a delete of each row that a null value means, in place of the null
    value: rows that other changes put under the same record key, and those that the table has
    (`held`: `keys` and `_key`).
    """
    if not keys:
        return changes
    nameless = is_named_by_key(changes, keys)
    if not pc.any(nameless).as_py():
        return changes
    names = [*keys, "_key"]
    puts = changes.filter(pc.and_(pc.equal(changes.column(OP), PUT), pc.is_valid(changes["_key"])))
    known = pa.concat_tables([puts.select(names), held.select(names).cast(_part(changes, names))])
    known = known.group_by(names).aggregate([])
    voids = changes.filter(nameless)
    voids = voids.drop_columns(list(keys)).append_column(
        "_void", pa.array(np.arange(voids.num_rows), pa.int64())
    )
    pairs = voids.select(["_key", "_void"]).join(known, "_key", join_type="inner")
    deletes = voids.take(pairs.column("_void")).drop_columns(["_void"])
    for name in keys:
        deletes = deletes.append_column(changes.schema.field(name), pairs.column(name))
    rest = changes.filter(pc.invert(nameless))
    return pa.concat_tables([rest, deletes.select(rest.column_names).cast(rest.schema)])


def _part(changes: Any, names: Sequence[str]) -> Any:
    return pa.schema([changes.schema.field(name) for name in names])


def is_named_by_key(changes: Any, keys: Sequence[str]) -> Any:
    """Return which changes name their rows by the record's key alone: null values, where `keys` are
    declared.
    """
    nameless = pc.equal(changes.column(OP), _DELETE)
    for name in keys:
        nameless = pc.and_(nameless, pc.is_null(changes.column(name)))
    return nameless


def merge_of(
    changes: Any,
    table_schema: Any,
    keys: Sequence[str],
    *,
    is_history: bool,
    lookup: Lookup | None = None,
) -> Merge:
    """Return the MERGE that these changes (`change_schema`) are to a table. `lookup` returns the
    table's rows (with history, its current ones) for columns that changes leave as they are.
    """
    names = identity(keys)
    truncates = _truncates_of(changes)
    if truncates is not None:
        changes = _each_ended(changes, names) if is_history else truncates.later(changes)
    if is_history:
        codes = row_codes(changes, names)
        order = _order(changes, codes)
        changes, codes = changes.take(order), codes[order]
        changes = _whole(folded(changes, codes, _is_delete(changes)), names, lookup)
        lateness = None if lookup is None else _late_changes(changes, names, lookup)
        return _history_merge(changes, codes, table_schema, names, truncates, lateness)
    if truncates is not None and lookup is not None:
        lookup = truncates.left(lookup)
    source = _whole(_last_of_each(changes, names), names, lookup)
    put, delete = f"s.{OP} = '{PUT}'", f"s.{OP} = '{_DELETE}'"
    columns = tuple((f.name, f"s.{quoted(f.name)}") for f in table_schema)
    clauses = [
        Clause(verb="delete", condition=f"{delete} AND {_IS_LATER}"),
        Clause(verb="update", condition=f"{put} AND {_IS_LATER}", values=columns),
        Clause(verb="insert", condition=put, values=columns),
    ]
    if truncates is not None:
        clauses.append(Clause(verb="delete_missing", condition=truncates.condition()))
        return Merge(source=source, on=_same(names), clauses=tuple(clauses))
    on = _same_in_ranges(source, names)
    return Merge(source=source, on=on, clauses=tuple(clauses), names=names)


def new_rows(merge: Merge) -> Any:
    """Return the rows that the MERGE adds to a table that has none of its keys."""
    is_put = pc.equal(merge.source.column(OP), PUT)
    return merge.source if pc.all(is_put).as_py() else merge.source.filter(is_put)


def _last_of_each(changes: Any, names: Sequence[str]) -> Any:
    """The changes that are the last ones of their keys, with what the ones before them made of the
    columns that they leave as they are.
    """
    codes = row_codes(changes, names)
    order = _order(changes, codes)
    sorted_codes = codes[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = sorted_codes[1:] != sorted_codes[:-1]
    if not has_kept(changes):
        return changes.take(order[is_last])
    changes = changes.take(order)
    changes = folded(changes, sorted_codes, _is_delete(changes))
    return changes.filter(pa.array(is_last))


def _is_delete(changes: Any) -> Any:
    return np.asarray(pc.equal(changes.column(OP), _DELETE))


def _whole(changes: Any, names: Sequence[str], lookup: Lookup | None) -> Any:
    """Changes whose columns all have values, as sources of a MERGE."""
    if lookup is not None:
        changes = filled(changes, names, lookup)
    return changes.drop_columns([KEPT])


def newest(changes: Any, keys: Sequence[str]) -> Any:
    """Return changes without those that others of the same key have overtaken, where that is sure:
    truncates, and what names its row by the record's key alone, all stay.
    """
    stays = np.asarray(is_named_by_key(changes, keys)) if keys else False
    stays = stays | _is_truncate(changes)
    rest = changes.filter(pa.array(~stays))
    names = dict.fromkeys((*identity(keys), "_key"))
    last = _last_of_each(rest, tuple(names))
    return pa.concat_tables([changes.filter(pa.array(stays)), last])


_IS_LATER = (
    "((s.`_partition` = t.`_partition` AND s.`_offset` > t.`_offset`) OR "
    "(s.`_partition` <> t.`_partition` AND s.`_timestamp` >= t.`_timestamp`))"
)


def _same(names: Sequence[str]) -> str:
    return " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in names)


def _same_in_ranges(source: Any, names: Sequence[str]) -> str:
    """The same, said so that files without any of these keys are not read. Not for clauses about
    what the source has no row for.
    """
    ranges = within_ranges(source, names, [f"t.{quoted(name)}" for name in names])
    return f"{_same(names)} AND {ranges}" if ranges else _same(names)


class _Lateness(NamedTuple):
    """The changes that come before the current row that the table has of their key, as masks: those
    of another partition, which are history still, and those of its own, which the table has had;
    and for each change when the current row began (null without one).
    """

    is_late: Any
    is_known: Any
    began: Any


_PLACE_AND_TIME = ("_partition", "_offset", "_timestamp", "_valid_from")


def _late_changes(changes: Any, names: Sequence[str], lookup: Lookup) -> _Lateness:
    """Find out which changes are late, see `_IS_LATER`."""
    keys = changes.select(list(names))
    # Mostly all changes are later than what the table has, and nothing of it needs to be read.
    held = lookup(keys, _PLACE_AND_TIME, beyond=_first_place(changes))
    pairs = keys.append_column("_change", pa.array(np.arange(keys.num_rows), pa.int64())).join(
        held.select(list(names))
        .cast(keys.schema)
        .append_column("_held", pa.array(np.arange(held.num_rows), pa.int64())),
        list(names),
        join_type="inner",
    )
    place = np.full(changes.num_rows, -1)
    place[np.asarray(pairs.column("_change"))] = np.asarray(pairs.column("_held"))
    has_row = place >= 0
    at = pa.array(place, pa.int64(), mask=~has_row)
    current = {name: held.column(name).combine_chunks().take(at) for name in _PLACE_AND_TIME}
    is_same = _numbers(changes, "_partition") == _as_numbers(current["_partition"])
    is_before = _numbers(changes, "_offset") <= _as_numbers(current["_offset"])
    is_earlier = _numbers(changes, "_timestamp") < _as_numbers(current["_timestamp"])
    return _Lateness(
        is_late=has_row & ~is_same & is_earlier,
        is_known=has_row & is_same & is_before,
        began=current["_valid_from"].cast(TIMESTAMP),
    )


def _first_place(changes: Any) -> Place | None:
    if not changes.num_rows:
        return None
    first = (int(_numbers(changes, name).min()) for name in ("_offset", "_timestamp"))
    return Place(*first)


def _history_merge(
    changes: Any,
    codes: Any,
    table_schema: Any,
    names: Sequence[str],
    truncates: "_Truncates | None",
    lateness: _Lateness | None,
) -> Merge:
    """`changes` in order of keys: each put is a new row, and the first of a key ends the row that
    the table has as current. Late ones end nothing: their rows have ended when the next one of them
    or the current row began.
    """
    late: list[Any] = []
    if lateness is not None and (is_past := lateness.is_late | lateness.is_known).any():
        held = changes.filter(pa.array(lateness.is_late))
        following = _following(held, codes[lateness.is_late])
        began = lateness.began.filter(pa.array(lateness.is_late))
        late = [_puts(held, pc.coalesce(following, began), np.zeros(held.num_rows, np.bool_))]
        changes, codes = changes.filter(pa.array(~is_past)), codes[~is_past]
    ends = _following(changes, codes)
    is_first = np.ones(len(codes), np.bool_)
    is_first[1:] = codes[1:] != codes[:-1]
    is_last = np.ones(len(codes), np.bool_)
    is_last[:-1] = is_first[1:]
    closers = _with_times(changes, ends, is_last).filter(pa.array(is_first))
    # They end rows and are none, so their values, which may be large, are not copied.
    closers = _nulled(closers, keeping={*names, *_PLACE_AND_TIME})
    source = pa.concat_tables(
        [
            *(_flagged(rows, is_closing=False) for rows in (_puts(changes, ends, is_last), *late)),
            _flagged(closers, is_closing=True),
        ]
    )
    columns = tuple((f.name, f"s.{quoted(f.name)}") for f in table_schema)
    ended = (("_valid_to", "s.`_valid_from`"), ("_is_current", "false"))
    clauses = [
        Clause(verb="update", condition=_IS_LATER, values=ended),
        Clause(verb="insert", condition=f"NOT s.{_CLOSES}", values=columns),
    ]
    if truncates is not None:
        ended = (("_valid_to", _moment(truncates.first_us)), ("_is_current", "false"))
        condition = f"t.`_is_current` AND {truncates.condition()}"
        clauses.append(Clause(verb="update_missing", condition=condition, values=ended))
    same = _same(names) if truncates is not None else _same_in_ranges(source, names)
    on = f"{same} AND t.`_is_current` AND s.{_CLOSES}"
    return Merge(source=source, on=on, clauses=tuple(clauses))


def _following(changes: Any, codes: Any) -> Any:
    """Return when the next change of the same key happened; null for the last one."""
    at = changes.column(AT).combine_chunks()
    is_last = np.ones(len(codes), np.bool_)
    is_last[:-1] = codes[1:] != codes[:-1]
    return at.take(pa.array(np.arange(1, len(codes) + 1), pa.int64(), mask=is_last))


def _with_times(changes: Any, ends: Any, is_current: Any) -> Any:
    for field, column in zip(
        HISTORY_FIELDS, (changes.column(AT), ends, pa.array(is_current)), strict=True
    ):
        changes = changes.append_column(field, column)
    return changes


def _puts(changes: Any, ends: Any, is_current: Any) -> Any:
    """Return the rows of changes that put values, with the times of their history."""
    return _with_times(changes, ends, is_current).filter(pc.equal(changes.column(OP), PUT))


def _nulled(rows: Any, *, keeping: Collection[str]) -> Any:
    for number, field in enumerate(rows.schema):
        if field.name not in keeping and field.type != VARIANT:  # its fields are never null
            rows = rows.set_column(number, field, pa.nulls(rows.num_rows, field.type))
    return rows


def _flagged(rows: Any, *, is_closing: bool) -> Any:
    return rows.append_column(_CLOSES, pa.array(np.full(rows.num_rows, is_closing)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Truncates:
    """The truncates among changes: for each partition that has some, the last offset and the newest
    timestamp (microseconds) of them; and when the first one was at the source. A row is ended by
    one that comes after it: by offset in its partition, by time in others, of which an equal one is
    not after it (as in `_IS_LATER`).
    """

    places: tuple[tuple[int, int, int], ...]
    first_us: int

    def are_after(self, rows: Any) -> npt.NDArray[np.bool_]:
        """Return which rows, or changes, one of these comes after."""
        partition, offset, timestamp = (_numbers(rows, name) for name in _ORDER_COLUMNS)
        ended = np.zeros(len(partition), np.bool_)
        for of, last, newest_us in self.places:
            ended |= np.where(partition == of, offset < last, timestamp < newest_us)
        return ended

    def later(self, changes: Any) -> Any:
        """Return the changes, without these, that none of these comes after."""
        return changes.filter(pa.array(~_is_truncate(changes) & ~self.are_after(changes)))

    def condition(self) -> str:
        """Return the same in SQL, for rows of the table."""
        parts = []
        for partition, last, _ in self.places:
            before = f"t.`_offset` < {last}"
            others = [time_us for of, _, time_us in self.places if of != partition]
            if others:
                before = f"({before} OR {_before(max(others))})"
            parts.append(f"(t.`_partition` = {partition} AND {before})")
        known = ", ".join(str(of) for of, _, _ in self.places)
        newest = max(time_us for _, _, time_us in self.places)
        parts.append(f"(t.`_partition` NOT IN ({known}) AND {_before(newest)})")
        return f"({' OR '.join(parts)})"

    def left(self, lookup: Lookup) -> Lookup:
        """Return a lookup of rows that these do not end."""

        def look(keys: Any, columns: Sequence[str], *, beyond: Place | None = None) -> Any:
            names = list(dict.fromkeys((*columns, *_ORDER_COLUMNS)))
            found = lookup(keys, names, beyond=beyond)
            return found.filter(pa.array(~self.are_after(found)))

        return look


_ORDER_COLUMNS = ("_partition", "_offset", "_timestamp")
_MOMENTS = range(-(1 << 63) // 1000 + 1, (1 << 63) // 1000)
"""The times, in microseconds, that each engine has a literal for: DataFusion's are nanoseconds."""


def _before(time_us: int) -> str:
    """Return a condition for rows of the table that are older than a time."""
    if time_us not in _MOMENTS:
        return "true" if time_us > 0 else "false"
    return f"t.`_timestamp` < {_moment(time_us)}"


def _moment(time_us: int) -> str:
    text = (_EPOCH + dt.timedelta(microseconds=time_us)).isoformat()
    return f"CAST('{text}' AS TIMESTAMP)"


def _truncates_of(changes: Any) -> _Truncates | None:
    truncates = changes.filter(pa.array(_is_truncate(changes)))
    if not truncates.num_rows:
        return None
    partition, offset, timestamp = (_numbers(truncates, name) for name in _ORDER_COLUMNS)
    places = tuple(
        (of, int(offset[partition == of].max()), int(timestamp[partition == of].max()))
        for of in np.unique(partition).tolist()
    )
    return _Truncates(places=places, first_us=int(_numbers(truncates, AT).min()))


def _each_ended(changes: Any, names: Sequence[str]) -> Any:
    """Changes with a delete of every key that they name in place of each truncate."""
    is_truncate = _is_truncate(changes)
    rest, truncates = changes.filter(pa.array(~is_truncate)), changes.filter(pa.array(is_truncate))
    named = rest.group_by(list(names)).aggregate([])
    ended = [rest]
    for row in range(truncates.num_rows):
        rows = truncates.take(pa.array(np.full(named.num_rows, row, np.int64)))
        for name in (*names, OP):
            column = pa.array([_DELETE] * named.num_rows) if name == OP else named.column(name)
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
        ended.append(rows.cast(rest.schema))
    return pa.concat_tables(ended)


def _is_truncate(changes: Any) -> Any:
    return np.asarray(pc.equal(changes.column(OP), _TRUNCATE))


def _numbers(changes: Any, name: str) -> Any:
    return _as_numbers(changes.column(name))


def _as_numbers(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return np.asarray(pc.fill_null(column, 0), np.int64)


def _order(changes: Any, codes: Any) -> Any:
    """Rows by key, and those of a key in the order they are to be applied."""
    count = len(codes)
    partition = _numbers(changes, "_partition")
    places = (_numbers(changes, SEQ), _numbers(changes, "_offset"), partition)
    order = np.lexsort((*places, codes))
    if count == 0 or (partition == partition[0]).all():
        return order
    # A change is not before those that its partition has before it: times never go back.
    ranks = np.unique(_numbers(changes, "_timestamp"), return_inverse=True)[1].astype(np.int64)
    begins = np.ones(count, np.bool_)
    begins[1:] = (codes[order][1:] != codes[order][:-1]) | (
        partition[order][1:] != partition[order][:-1]
    )
    group = np.cumsum(begins)
    times = np.maximum.accumulate(group * (count + 1) + ranks[order])
    reached = np.empty(count, np.int64)
    reached[order] = times - group * (count + 1)
    return np.lexsort((*places, reached, codes))


_PUTS = pa.array(["c", "r", "u"])


class Changes(NamedTuple):
    """Change rows (`upsert.change_schema`), and the records that name no row of the table."""

    rows: Any  # pa.Table
    faults: tuple[Fault, ...]


def check_keys(value_schema: Any, keys: Sequence[str], *, is_nested: bool) -> None:
    """Raise SettingsError unless these columns can identify a table's rows."""
    if keys and is_nested:
        raise SettingsError(
            "lakehead.table.keys names columns, and values lie in one: set "
            "lakehead.table.layout=flat, or leave the keys out"
        )
    for name in keys:
        if name not in value_schema.names:
            raise SettingsError(
                f"lakehead.table.keys: values have no field {name!r}; they have "
                f"{', '.join(value_schema.names)}"
            )
        kind = value_schema.field(name).type
        if pa.types.is_nested(kind):
            raise SettingsError(
                f"lakehead.table.keys: {name} is {type_name(kind)}, which cannot be a key"
            )


def as_changes(
    columns: Mapping[str, Any],
    records: Any,
    origins: Any,
    table_schema: Any,
    keys: Sequence[str],
) -> Changes:
    """Return what records do to a table.

    `columns` are those of their rows, with `_op`, `_seq` and `_source_ts` where the values are
    change events; else a null value is a delete. `origins` are the rows of the batch they are from.
    """
    kept = pa.nulls(records.num_rows, KEPT_FIELD.type)
    nested: tuple[Fault, ...] = ()
    if OP in columns:
        given = columns[OP]
        ops = pc.if_else(pc.is_in(given, _PUTS), "u", given)
        sequence = columns[SEQ]
        at = pc.coalesce(columns["_source_ts"], columns["_timestamp"])
        is_put = np.asarray(pc.equal(ops, PUT))
        made = {*METADATA_COLUMNS, *(field.name for field in HISTORY_FIELDS)}
        names = [name for name in table_schema.names if name not in made]
        nested = _unavailable_fields(columns, origins, is_put)
        columns, kept = kept_columns(columns, names, is_put)
    else:
        ops = pc.if_else(pc.is_null(records.column("value")), "d", "u")
        zeros = np.zeros(records.num_rows, np.int32)
        sequence = pa.Array.from_buffers(pa.int32(), len(zeros), [None, pa.py_buffer(zeros)])
        at = columns["_timestamp"]
    schema = change_schema(table_schema)
    whole = {**columns, OP: ops, SEQ: sequence, AT: at, KEPT: kept}
    rows = pa.Table.from_arrays([whole[name] for name in schema.names], schema=schema)
    named = _named(rows, ops, keys)
    if nested:
        odd = np.isin(np.asarray(origins), [fault.row for fault in nested])
        lacking = np.asarray(pc.fill_null(pc.invert(named), fill_value=False))
        return Changes(
            rows.filter(pa.array(~odd & ~lacking)),
            tuple(sorted((*nested, *_nameless(lacking & ~odd, origins, keys)), key=_row)),
        )
    if pc.all(named).as_py() in (True, None):
        return Changes(rows, ())
    faults = _nameless(~np.asarray(named), origins, keys)
    return Changes(rows.filter(named), faults)


def _row(fault: Fault) -> int:
    return fault.row


def _unavailable_fields(columns: Mapping[str, Any], origins: Any, is_put: Any) -> tuple[Fault, ...]:
    """The changes whose values are in one column, and lack some of its fields."""
    value = columns.get("value")
    if value is None or not pa.types.is_struct(value.type):
        return ()
    faults: dict[int, Fault] = {}
    for number in range(value.type.num_fields):
        mask = unavailable(pc.struct_field(value, number))
        for row in () if mask is None else np.flatnonzero(mask & is_put):
            origin = origins[int(row)].as_py()
            reason = (
                f"field {value.type.field(number).name}: the value is not in the change, and "
                "lakehead.table.layout=nested cannot keep it: set flat"
            )
            faults[origin] = Fault(row=origin, reason=reason, error="misfit")
    return tuple(faults.values())


def _nameless(lacks: Any, origins: Any, keys: Sequence[str]) -> tuple[Fault, ...]:
    """The faults of the changes that name no row."""
    what = f"no {', '.join(keys)}" if keys else "no key"
    return tuple(
        Fault(row=origins[int(row)].as_py(), reason=f"{what}: it names no row", error="misfit")
        for row in np.flatnonzero(lacks)
    )


def _named(rows: Any, ops: Any, keys: Sequence[str]) -> Any:
    """The changes that name their row: by columns, or by the record's key; a delete by either; a
    truncate need not.
    """
    has_key = pc.is_valid(rows.column("_key"))
    by_columns = pa.scalar(bool(keys))
    is_void = pa.scalar(True)
    for name in keys:
        has = pc.is_valid(rows.column(name))
        by_columns = pc.and_(by_columns, has)
        is_void = pc.and_(is_void, pc.invert(has))
    named = pc.or_(by_columns, pc.equal(ops, "t"))
    by_key = pc.and_(has_key, pc.and_(pc.equal(ops, "d"), is_void)) if keys else has_key
    named = pc.or_(named, by_key)
    if isinstance(named, pa.ChunkedArray):
        return named.combine_chunks()
    return named
