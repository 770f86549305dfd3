"""Rows of a Parquet file as JSON objects, by row groups, never a whole one in memory at a time."""

from collections.abc import Iterator
from typing import Any

from connectors.runtime.errors import BadInput
from connectors.sources.arrow_rows import python_rows
from connectors.sources.files.rows import Row
from connectors.sources.values import encoded
from storage.errors import SettingsError

_ROWS_AT_ONCE = 2_000


def parquet_rows(file: Any, uri: str, *, at: int) -> Iterator[Row]:
    """Yield the rows from number `at` on. Raises BadInput for what is no Parquet file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise SettingsError(
            "pyarrow is not installed; get it with: pip install 'lakehead[lake]'"
        ) from None
    try:
        opened = pq.ParquetFile(pa.PythonFile(file, mode="r"), pre_buffer=False)
        first = 0
        for group in range(opened.num_row_groups):
            meta = opened.metadata.row_group(group)
            if first + meta.num_rows > at:
                size = max(1, meta.total_byte_size // max(1, meta.num_rows))
                yield from _group(opened, group, first, at, size)
            first += meta.num_rows
    except (pa.ArrowException, ValueError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"{uri} cannot be read as Parquet: {reason}") from None


def _group(opened: Any, group: int, first: int, at: int, size: int) -> Iterator[Row]:
    number = first
    batches = opened.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=[group], use_threads=False)
    for batch in batches:
        skipped = min(max(0, at - number), batch.num_rows)
        for row, found in enumerate(python_rows(batch.slice(skipped)), number + skipped):
            value = encoded(found.columns)
            yield Row(row + 1, row + 1, row + 2, value, found.columns, found.reason, size)
        number += batch.num_rows
