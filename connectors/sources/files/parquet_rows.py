"""Rows of a Parquet file as JSON objects, by row groups, never a whole one in memory at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lakehead.connectors.runtime.errors import BadInput
from lakehead.connectors.sources.files.rows import Row
from lakehead.connectors.sources.values import encoded, python_rows
from lakehead.storage.errors import SettingsError

_ROWS_AT_ONCE = 2_000
_ROWS_LOOKED_AT = 64 * 1024


def parquet_looked_at(file: Any, uri: str) -> Iterator[None]:
    """Decode a file to its end, so that nothing is read of one with a damaged page; it may take
    long, hence a step of the iterator now and then. Raises BadInput.
    """
    opened = _opened(file, uri)
    for group in range(opened.num_row_groups):
        with _explained(opened, uri, group):
            batches = opened.iter_batches(
                batch_size=_ROWS_LOOKED_AT, row_groups=[group], use_threads=False
            )
            for _ in batches:
                yield


def parquet_rows(file: Any, uri: str, *, at: int) -> Iterator[Row]:
    """Yield the rows from number `at` on. Raises BadInput for what is not a Parquet file."""
    opened, first = _opened(file, uri), 0
    for group in range(opened.num_row_groups):
        meta = opened.metadata.row_group(group)
        if first + meta.num_rows > at:
            size = max(1, meta.total_byte_size // max(1, meta.num_rows))
            with _explained(opened, uri, group):
                yield from _group(opened, group, first, at, size)
        first += meta.num_rows


def _opened(file: Any, uri: str) -> Any:
    """Return the file, of which pages with checksums are compared with them."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise SettingsError(
            "pyarrow is not installed; get it with: pip install 'lakehead[lake]'"
        ) from None
    with _explained(None, uri, 0):
        return pq.ParquetFile(
            pa.PythonFile(file, mode="r"), pre_buffer=False, page_checksum_verification=True
        )


@contextmanager
def _explained(opened: Any, uri: str, group: int) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        place = ""
        if opened is not None:
            columns = opened.metadata.row_group(group)
            starts = [
                columns.column(n).dictionary_page_offset or columns.column(n).data_page_offset
                for n in range(columns.num_columns)
            ]
            place = f", row group {group} from byte {min(starts, default=0)}"
        reason = " ".join(str(error).split())
        raise BadInput(f"{uri} cannot be read as Parquet{place}: {reason}") from None


def _group(opened: Any, group: int, first: int, at: int, size: int) -> Iterator[Row]:
    number = first
    batches = opened.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=[group], use_threads=False)
    for batch in batches:
        skipped = min(max(0, at - number), batch.num_rows)
        for row, found in enumerate(python_rows(batch.slice(skipped)), number + skipped):
            value = encoded(found.columns)
            yield Row(row + 1, row + 1, row + 2, value, found.columns, found.reason, size)
        number += batch.num_rows
