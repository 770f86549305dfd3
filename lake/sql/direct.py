"""Statements of `lakehead sql` that need no Spark: counts and rows of one view.

Spark takes seconds to start. `SELECT count(*) FROM orders` and `SELECT a, b FROM orders LIMIT 10`
are read here by the data source that Spark would use, in this process: columns, rows, their order
and what is refused are the same. Anything else is Spark's.
"""

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from lakehead.lake.sql.views import TopicViews

if TYPE_CHECKING:
    import pyarrow as pa


_NAME = r"(?:`(?:[^`]|``)+`|[A-Za-z_]\w*)"
_STATEMENT = re.compile(
    rf"\s*SELECT\s+(?P<what>count\s*\(\s*(?:\*|1)\s*\)|\*|{_NAME}(?:\s*,\s*{_NAME})*)"
    rf"\s+FROM\s+(?P<view>{_NAME}(?:\s*\.\s*{_NAME})?)(?:\s+LIMIT\s+(?P<limit>\d{{1,9}}))?\s*",
    re.IGNORECASE,
)
_COUNT_COLUMN = "count(1)"
"""Spark's name for the column of `count(*)`."""

Rows = tuple[Sequence[str], Iterator[Sequence[Any]]]
"""Names of columns, and the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectStatement:
    """A statement of the form that is read here; `columns` None: all of them."""

    view: str
    columns: tuple[str, ...] | None
    is_count: bool
    limit: int | None


def parse_direct(statement: str) -> DirectStatement | None:
    """Return the statement; None for any that is Spark's."""
    found = _STATEMENT.fullmatch(statement)
    if found is None:
        return None
    what, limit = found["what"], found["limit"]
    is_count = re.match(r"count\s*\(", what, re.IGNORECASE) is not None
    is_all = is_count or what == "*"
    return DirectStatement(
        view=".".join(map(_unquoted, re.findall(_NAME, found["view"]))),
        columns=None if is_all else tuple(map(_unquoted, re.findall(_NAME, what))),
        is_count=is_count,
        limit=None if limit is None else int(limit),
    )


def run_direct(views: TopicViews, statement: str) -> Rows | None:
    """Return the rows of a statement; None where Spark has to run it.

    Raises what reading raises: SettingsError, UnreadableValue, CorruptObject, StoreUnavailable.
    """
    parsed = parse_direct(statement)
    source = views.source(parsed.view) if parsed is not None else None
    if parsed is None or source is None:
        return None
    schema = source.schema()
    names = parsed.columns or tuple(schema.fieldNames())
    if not set(names) <= set(schema.fieldNames()):
        return None  # Spark knows columns in any case, and what to say of others
    needed = source.read_with(names[:1] if parsed.is_count else names, schema)
    requested = StructType([schema[name] for name in needed])
    if parsed.is_count:
        counted = [(source.count(requested),)]
        return (_COUNT_COLUMN,), islice(counted, parsed.limit)
    if parsed.limit is not None:
        source = source.beginning(parsed.limit)
    batches = source.read(requested)
    assert batches is not None, "without a limit"
    values = _Values([requested[name].dataType for name in names])
    rows = (row for batch in batches for row in values.rows(batch.select(list(names))))
    return names, islice(rows, parsed.limit)


class _Values:
    """Values of Arrow columns as Spark gives them to Python: times without a zone, in UTC."""

    def __init__(self, types: Sequence[DataType]) -> None:
        self._converters = [_converter(kind) for kind in types]

    def rows(self, batch: "pa.RecordBatch") -> Iterator[tuple[Any, ...]]:
        columns = [
            column.to_pylist() if convert is None else map(convert, column.to_pylist())
            for column, convert in zip(batch.columns, self._converters, strict=True)
        ]
        return zip(*columns, strict=True)


Converter = Callable[[Any], Any]


def _converter(kind: DataType) -> Converter | None:
    """Return what turns a value of Arrow into Spark's; None where they are the same."""
    found: Converter | None = None
    if isinstance(kind, TimestampType):
        return _without_zone
    if isinstance(kind, ArrayType) and (inner := _converter(kind.elementType)):
        found = partial(_of_items, inner)
    elif isinstance(kind, MapType):
        found = partial(_of_map, _converter(kind.keyType), _converter(kind.valueType))
    elif isinstance(kind, StructType):
        fields = {field.name: _converter(field.dataType) for field in kind}
        found = partial(_of_fields, {name: one for name, one in fields.items() if one})
    return None if found is None else partial(_of_value, found)


def _of_value(convert: Converter, value: Any) -> Any:
    return None if value is None else convert(value)


def _without_zone(value: dt.datetime | None) -> dt.datetime | None:
    return None if value is None else value.astimezone(dt.UTC).replace(tzinfo=None)


def _of_items(convert: Converter, values: list[Any]) -> list[Any]:
    return [convert(value) for value in values]


def _of_map(
    key: Converter | None, value: Converter | None, pairs: list[tuple[Any, Any]]
) -> dict[Any, Any]:
    return {(key(k) if key else k): (value(v) if value else v) for k, v in pairs}


def _of_fields(converters: Mapping[str, Converter], fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {name: convert(fields[name]) for name, convert in converters.items()}


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
