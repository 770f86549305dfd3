"""A table's files written anew in a wider schema, in memory for a row group of each in turn."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from lakehead.lake.jobs.table_item import FILE_BYTES, TableFiles
from lakehead.lake.tables.data_file import DataFile
from lakehead.lake.tables.delta_table import Table
from lakehead.lake.tables.layout import TableLayout
from lakehead.storage.clock import SystemClock

_ROWS_AT_ONCE = 10_000


def rewrite(
    table: Table, layout: TableLayout, marks: Mapping[str, int], *, file_bytes: int = FILE_BYTES
) -> None:
    """Write all files of a table anew in a wider schema, and commit them in place of the old ones,
    with `marks` as they are: so it is refused if rows came meanwhile.

    Each file becomes one, or several of about `file_bytes`. Raises TableMoved, TableUnavailable,
    and what reading and writing files raises.
    """
    files = [
        file
        for batches in table.files(_ROWS_AT_ONCE)
        for file in _rewritten(table, layout, batches, file_bytes)
    ]
    table.commit(
        files,
        marks,
        modified_ms=SystemClock().now_ms(),
        notes={"lakehead.rewritten": "wider columns"},
        replaced_by=layout.schema,
    )


def _rewritten(
    table: Table, layout: TableLayout, batches: Iterator[Any], file_bytes: int
) -> tuple[DataFile, ...]:
    """Write the rows of one file of the table, which are all of one partition."""
    files = TableFiles(
        table.uri, layout.partition_columns, file_bytes=file_bytes, of_one_partition=True
    )
    for rows in batches:
        files.add(_cast(rows, layout.schema))
    return files.finish()


def _cast(rows: Any, schema: Any) -> Any:
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
