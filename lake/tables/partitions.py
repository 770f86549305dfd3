"""Partition columns of a table: what they hold, and which rows go into which partition.

Data files of a partitioned table hold its other columns; Delta has the partition's values in the
log, as text ("Partition Value Serialization"), where an empty text is null.
"""

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.declaration.table_declaration import DATE, HOUR, PartitionPart
from lakehead.lake.tables.arrow_rows import row_codes
from lakehead.lake.tables.ddl import type_name
from lakehead.storage.errors import SettingsError

FOLDER_BYTES_MAX = 255
"""Of a partition column's folder, `name=value` with escapes: what file systems take as a name."""
FOLDERS_BYTES_MAX = 700
"""Of all folders of a partition: S3 takes keys of 1,024 bytes, the table's place among them."""
_ESCAPED_MAX = 3
"""Bytes of an escaped one."""

_GATHERED_PARTS = 16
"""In how many pieces, about, rows of small partitions are gathered: one is in memory."""

_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_GENERATED = {DATE: pa.date32(), HOUR: pa.int32()}


class PartitionRows(NamedTuple):
    """Rows of one partition, without its columns. `values` are (column, text) in table order."""

    values: tuple[tuple[str, str | None], ...]
    rows: Any  # pa.Table


def generated_fields(parts: Sequence[PartitionPart]) -> list[Any]:
    """Return the fields that `day()` and `hour()` add to a table."""
    names = [name for part in parts if part.unit for name in part.columns]
    return [pa.field(name, _GENERATED[name]) for name in names]


def check_parts(schema: Any, parts: Sequence[PartitionPart]) -> None:
    """Raise SettingsError unless a table of this schema can be partitioned so."""
    for part in parts:
        if part.column not in schema.names:
            raise SettingsError(
                f"the table has no column {part.column!r} to be partitioned by: it has "
                f"{', '.join(schema.names)}"
            )
        kind = schema.field(part.column).type
        is_time = pa.types.is_timestamp(kind) or (part.unit == "day" and pa.types.is_date(kind))
        if part.unit and not is_time:
            raise SettingsError(
                f"{part.unit}({part.column}) needs a timestamp, and {part.column} is "
                f"{type_name(kind)}"
            )
        if not part.unit and not _has_text(kind):
            raise SettingsError(
                f"a table cannot be partitioned by {part.column}, which is {type_name(kind)}"
            )


def _has_text(kind: Any) -> bool:
    tests = ("string", "integer", "boolean", "date", "timestamp")
    return any(getattr(pa.types, f"is_{test}")(kind) for test in tests)


def generated_columns(held: Mapping[str, Any], parts: Sequence[PartitionPart]) -> dict[str, Any]:
    """Return the columns of `generated_fields` for rows that have those. Days and hours are UTC."""
    columns = {}
    for part in parts:
        if not part.unit:
            continue
        source = held[part.column]
        columns[DATE] = source.cast(pa.date32(), safe=False)
        if part.unit == "hour":
            columns[HOUR] = pc.hour(source).cast(pa.int32())
    return columns


def partition_nulls(held: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the partition columns `names` of rows in which empty texts are null, as every reader
    of the table has them; those without an empty text are left out.
    """
    columns = {}
    for name in names:
        column = held[name]
        if pa.types.is_string(column.type) and pc.any(is_empty := pc.equal(column, "")).as_py():
            columns[name] = pc.if_else(is_empty, pa.scalar(None, column.type), column)
    return columns


def rows_of_long_values(columns: Any, parts: Sequence[PartitionPart]) -> tuple[str, Any] | None:
    """Return which rows of a table of values cannot be in a partition, as a mask, and a column that
    is to blame; None if all can.

    A commit names the values and needs no folders, but engines that OPTIMIZE or MERGE make them.
    """
    names = [part.column for part in parts if part.column in columns.column_names]
    names = [name for name in names if pa.types.is_string(columns.schema.field(name).type)]
    total, beyond, to_blame = np.zeros(columns.num_rows, np.int64), None, ""
    for name in names:
        column = columns.column(name)
        head = len(quote(name, safe="")) + 2  # with = and /
        longest = head + (pc.max(pc.binary_length(column)).as_py() or 0) * _ESCAPED_MAX
        if longest <= min(FOLDER_BYTES_MAX, FOLDERS_BYTES_MAX // len(names)):
            continue
        sizes = head + _escaped_sizes(column)
        total += sizes
        here = (sizes - 1 > FOLDER_BYTES_MAX) | (total > FOLDERS_BYTES_MAX)
        if here.any():
            to_blame = to_blame or name
            beyond = here if beyond is None else beyond | here
    return None if beyond is None else (to_blame, beyond)


def _escaped_sizes(column: Any) -> Any:
    """The bytes of each text as the name of a folder."""
    coded = pc.dictionary_encode(pc.fill_null(column, ""))
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.chunk(0)
    sizes = [len(quote(text, safe="")) for text in coded.dictionary.to_pylist()]
    return np.array(sizes, np.int64)[coded.indices.to_numpy()]


def split_rows(rows: Any, columns: Sequence[str]) -> Iterator[PartitionRows]:
    """Yield the rows of each partition; without partition columns, all of them; none if empty.

    Rows of small partitions are gathered together: each look at all rows costs by these.
    """
    if not rows.num_rows:
        return
    if not columns:
        yield PartitionRows((), rows)
        return
    rest = rows.drop_columns(list(columns))
    codes = row_codes(rows, columns)
    _, firsts, counts = np.unique(codes, return_index=True, return_counts=True)
    values = rows.select(columns).take(pa.array(firsts)).to_pylist()
    texts = [tuple((name, partition_text(one[name])) for name in columns) for one in values]
    if len(texts) == 1:
        yield PartitionRows(texts[0], rest)
        return
    ends = np.cumsum(counts)
    at_once = len(codes) // _GATHERED_PARTS
    first = 0
    while first < len(texts):
        reached = int(np.searchsorted(ends, ends[first] - counts[first] + at_once, side="right"))
        after = max(reached, first + 1)
        is_here = (codes >= first) & (codes < after)
        some = rest.filter(pa.array(is_here))
        if after - first > 1:
            some = some.take(pa.array(np.argsort(codes[is_here], kind="stable")))
        start = 0
        for part in range(first, after):
            yield PartitionRows(texts[part], some.slice(start, counts[part]))
            start += counts[part]
        first = after


def partition_text(value: Any) -> str | None:
    """Return the text that Delta's log has for the value of a partition column; None for null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        # Spark takes a time without a zone for one of its session's.
        sign = "" if value.tzinfo is None else "Z"
        return value.replace(tzinfo=None).isoformat("T", "microseconds") + sign
    return str(value)


def partition_folder(values: Sequence[tuple[str, str | None]]) -> str:
    """Return the folder of a partition's files, for people; empty where a name would need escapes,
    which readers of paths do not agree about.
    """
    steps = []
    for name, text in values:
        if _PLAIN.fullmatch(name) is None or text is None or _PLAIN.fullmatch(text) is None:
            return ""
        steps.append(f"{name}={quote(text)}/")
    return "".join(steps)
