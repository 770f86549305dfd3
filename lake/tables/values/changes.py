"""Change events to change rows: the input of a MERGE, in the order of application.

Each row is the image of a table's row with what happened to it beside it (`CHANGE_FIELDS`): for a
create, a read of a snapshot or an update the row after it, for a delete the row before it, or as
much as the record's key says. An update that changes the row's key is a delete of the old one and a
create of the new one. Changes are ordered by partition, offset and `_seq`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.tables.ddl import TIMESTAMP
from lakehead.lake.tables.values.groups import int64_array

OP = "_op"
SEQ = "_seq"
CHANGE_FIELDS = (
    pa.field(OP, pa.string()),
    pa.field(SEQ, pa.int32()),
    pa.field("_source_ts", TIMESTAMP),
    pa.field("_source_position", pa.string()),
)
"""Beside the image: `c` create, `r` read, `u` update, `d` delete, `t` truncate (an image of nulls);
the place among the changes of one record; when the source did it; where in the source's log.
"""

_OPS = pa.array(["c", "r", "u", "d", "t", "m"])
_NEEDS_AFTER = 2  # c, r, u
_UPDATE, _DELETE, _TRUNCATE, _MESSAGE = 2, 3, 4, 5

POSITIONS = (
    ("file", pa.string()),
    ("pos", pa.int64()),
    ("row", pa.int64()),
    ("lsn", pa.int64()),
    ("commit_lsn", pa.string()),
    ("change_lsn", pa.string()),
    ("event_serial_no", pa.int64()),
    ("scn", pa.string()),
    ("ord", pa.int64()),
)
"""Fields of the position in the source's log: MySQL, PostgreSQL, SQL Server, Oracle, MongoDB."""

_TIMES = range(-62_135_596_800_000, 253_402_300_800_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Change events side by side: `before` and `after` are structs of the table's columns."""

    before: Any
    after: Any
    op: Any  # string
    ts_ms: Any  # int64
    source: Any  # struct of some of POSITIONS and ts_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Change rows, the event of each (ascending), and (event, reason) of events without one."""

    columns: Any  # pa.Table
    events: Any  # int64
    faults: tuple[tuple[int, str], ...]


def envelope(row: Any, source: Any = None) -> Any:
    """Return the schema of events over rows of the struct type `row`."""
    places = [("ts_ms", pa.int64()), *POSITIONS] if source is None else source
    fields = [
        ("before", row),
        ("after", row),
        ("op", pa.string()),
        ("ts_ms", pa.int64()),
        ("source", pa.struct(places)),
    ]
    return pa.schema(fields)


def change_rows(events: Events, keys: tuple[str, ...], key_images: Any) -> Changes:
    """Return the changes of events. `keys` are the columns that identify a row, `key_images` a
    struct for each event with the row's columns in its record's key.
    """
    count = len(events.op)
    ops = np.asarray(pc.fill_null(pc.index_in(events.op, _OPS), -1), np.int64)
    has_before, has_after = _is_set(events.before), _is_set(events.after)
    no_op = ops < 0
    no_after = (ops >= 0) & (ops <= _NEEDS_AFTER) & ~has_after
    nameless = (ops == _DELETE) & ~has_before & ~_is_set(key_images)
    faults = [
        *((int(i), _no_op_text(events.op[int(i)].as_py())) for i in np.flatnonzero(no_op)),
        *((int(i), "a change without the row after it") for i in np.flatnonzero(no_after)),
        *((int(i), "a delete with neither row nor key") for i in np.flatnonzero(nameless)),
    ]
    kept = ~(no_op | no_after | nameless | (ops == _MESSAGE))
    split = kept & (ops == _UPDATE) & has_before & _key_changed(events, keys)
    # Images lie one after the other: those after, those before, those of keys.
    image = np.where(ops == _DELETE, np.where(has_before, count, 2 * count), 0) + np.arange(count)
    image = np.where(ops == _TRUNCATE, -1, image)
    event = np.concatenate([np.flatnonzero(kept), np.flatnonzero(split)])
    order = np.argsort(event, kind="stable")
    is_second = np.zeros(len(event), np.bool_)
    is_second[1:] = event[order][1:] == event[order][:-1]
    event = event[order]
    is_first = split[event] & ~is_second
    chosen = np.where(is_first, event + count, image[event])
    verbs = np.where(is_first, _DELETE, np.where(is_second, 0, ops[event]))
    images = pa.chunked_array([events.after, events.before, key_images]).combine_chunks()
    rows = images.take(_nullable(chosen))
    taken = int64_array(event)
    beside = [
        _OPS.take(int64_array(verbs)),
        int64_array(is_second.astype(np.int64)).cast(pa.int32()),
        _source_times(events).take(taken),
        _positions(events.source).take(taken),
    ]
    fields = [rows.type.field(i) for i in range(rows.type.num_fields)]
    columns = pa.Table.from_arrays(
        [*rows.flatten(), *beside], schema=pa.schema([*fields, *CHANGE_FIELDS])
    )
    return Changes(columns=columns, events=event, faults=tuple(sorted(faults)))


def _no_op_text(op: str | None) -> str:
    what = "no op" if op is None else f"op {op[:20]!r}"
    return f"{what}: not a change event of Debezium"


def _is_set(array: Any) -> Any:
    return np.asarray(pc.is_valid(array).to_numpy(zero_copy_only=False), np.bool_)


def _key_changed(events: Events, keys: tuple[str, ...]) -> Any:
    """The rows whose images both name a key and differ in it."""
    changed = np.zeros(len(events.op), np.bool_)
    for name in keys:
        before = pc.struct_field(events.before, name)
        differs = pc.not_equal(before, pc.struct_field(events.after, name))
        changed |= np.asarray(pc.fill_null(differs, fill_value=False), np.bool_)
    return changed


def _nullable(positions: Any) -> Any:
    array = int64_array(positions)
    return pc.if_else(pc.less(array, 0), pa.scalar(None, pa.int64()), array)


def _source_times(events: Events) -> Any:
    """Time of the change at the source; else, the time when the connector saw it."""
    names = [field.name for field in events.source.type]
    times = events.ts_ms
    if "ts_ms" in names:
        times = pc.coalesce(pc.struct_field(events.source, "ts_ms"), times)
    inside = pc.and_(pc.greater_equal(times, _TIMES.start), pc.less(times, _TIMES.stop))
    times = pc.if_else(inside, times, pa.scalar(None, pa.int64()))
    return times.cast(pa.timestamp("ms", tz="UTC")).cast(TIMESTAMP)


def _positions(source: Any) -> Any:
    names = [field.name for field in source.type]
    texts = [
        pc.struct_field(source, name).cast(pa.string()) for name, _ in POSITIONS if name in names
    ]
    if not texts:
        return pa.nulls(len(source), pa.string())
    # Arrow leaves out rows of which every part is null: so one part never is.
    joined = pc.binary_join_element_wise(*texts, "", ":", null_handling="skip")
    joined = pc.utf8_rtrim(joined, ":")
    return pc.if_else(pc.equal(joined, ""), pa.scalar(None, pa.string()), joined)
