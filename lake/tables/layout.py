"""What a topic's table looks like, and how a batch of records becomes its rows.

A table has the fields of the value (`json`) or the value's bytes (`raw`), and beside them where
each record came from: `_topic`, `_partition`, `_offset`, `_timestamp`, `_key`, `_headers`.
"""

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from lake.decode.columns import arrow_schema
from lake.tables.ddl import check_names, to_ddl
from storage.errors import SettingsError

ValueFormat = Literal["json", "raw"]

DECODED = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns of a topic read that a table is made from."""

METADATA = {
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_key": "key",
    "_headers": "headers",
}
"""Columns of every table, by the column of a topic read that they hold."""

_RAW_VALUE = "value"
_ERROR = "error"


def _metadata_fields() -> list[Any]:
    decoded = arrow_schema(DECODED)
    return [decoded.field(source).with_name(name) for name, source in METADATA.items()]


DEAD_LETTERS = pa.schema(
    [*_metadata_fields(), pa.field(_RAW_VALUE, pa.binary()), pa.field(_ERROR, pa.string())]
)
"""A record that could not become a row: its bytes, where it lies, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Rows of a batch, and (row of the batch, why) of the records that cannot be rows."""

    rows: Any  # pa.Table
    faults: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """A table's value format and schema."""

    value_format: ValueFormat
    schema: Any  # pa.Schema of the whole table

    def value_schema(self) -> Any:
        """The fields that come from the value."""
        return pa.schema([field for field in self.schema if field.name not in METADATA])

    def table_rows(self, batch: Any, *, fault_count_max: int | None = None) -> TableRows:
        """Return the rows for a batch with the columns `DECODED`.

        With `fault_count_max`, a batch with any fault has no rows.
        """
        if self.value_format == "raw":
            return TableRows(
                rows=self._select(batch, {_RAW_VALUE: batch.column("value")}), faults=()
            )
        from lake.tables.json_columns import json_columns

        parsed = json_columns(
            batch.column("value"), self.value_schema(), fault_count_max=fault_count_max
        )
        if parsed.faults and fault_count_max is not None:
            return TableRows(rows=self.schema.empty_table(), faults=parsed.faults)
        kept = batch if len(parsed.rows) == batch.num_rows else batch.take(parsed.rows)
        values = dict(zip(parsed.columns.column_names, parsed.columns.columns, strict=True))
        return TableRows(rows=self._select(kept, values), faults=parsed.faults)

    def _select(self, batch: Any, values: dict[str, Any]) -> Any:
        columns = [
            batch.column(METADATA[field.name]) if field.name in METADATA else values[field.name]
            for field in self.schema
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)


def new_layout(value_format: ValueFormat, value_schema: Any | None) -> TableLayout:
    """Return the layout of a new table. `value_schema` is what JSON values hold.

    Raises SettingsError for a field that has the name of a metadata column.
    """
    fields = [pa.field(_RAW_VALUE, pa.binary())] if value_schema is None else list(value_schema)
    taken = [field.name for field in fields if field.name.lower() in METADATA]
    if taken:
        raise SettingsError(
            f"field {taken[0]!r} has the name of a metadata column: give a schema without it"
        )
    schema = pa.schema([*fields, *_metadata_fields()])
    check_names(schema)
    return TableLayout(value_format=value_format, schema=schema)


def existing_layout(uri: str, schema: Any, owner: str | None, topic: str) -> TableLayout:
    """Return the layout of a table that is there already; `owner` is the name it was created with.

    Raises SettingsError if it was not made from this topic by this job.
    """
    expected = {field.name: field.type for field in _metadata_fields()}
    found = {field.name: field.type for field in schema if field.name in expected}
    if found != expected:
        raise SettingsError(f"{uri} is a table, but not one that was made from a topic")
    if owner != topic:
        raise SettingsError(f"{uri} is the table of topic {owner!r}, not of {topic!r}")
    values = [(field.name, field.type) for field in schema if field.name not in expected]
    # No JSON value becomes bytes, so bytes say that the value was left as it is.
    is_raw = values == [(_RAW_VALUE, pa.binary())]
    return TableLayout(value_format="raw" if is_raw else "json", schema=schema)


def check_same_schema(uri: str, layout: TableLayout, wanted: Any) -> None:
    """Raise SettingsError if a schema was asked for that the table does not have."""
    held = {field.name: field.type for field in layout.value_schema()}
    asked = {field.name: field.type for field in wanted}
    if layout.value_format == "raw" or held != asked:
        raise SettingsError(
            f"{uri} has the fields {to_ddl(layout.value_schema())}; a schema that differs cannot "
            "be given: leave it out, or name another table"
        )


def dead_letters(batch: Any, faults: tuple[tuple[int, str], ...]) -> Any:
    """Return the dead-letter rows for the faulty records of a batch."""
    chosen = batch.take(pa.array([row for row, _ in faults], pa.int64()))
    columns = [chosen.column(source) for source in METADATA.values()]
    reasons = pa.array([reason for _, reason in faults], pa.string())
    return pa.Table.from_arrays([*columns, chosen.column("value"), reasons], schema=DEAD_LETTERS)
