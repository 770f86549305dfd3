"""Rows of forgotten keys in a data file of a table."""

from collections.abc import Callable, Iterator
from typing import Any

from lakehead.storage.certificates import ForgetRequest

IsForgotten = Callable[[bytes], bool]


def rows_of(
    body: bytes, request: ForgetRequest, is_forgotten: IsForgotten
) -> tuple[int, list[str]]:
    """Return how many rows of the keys a Parquet file has, and the places of whole batches in it.
    Raises pyarrow.ArrowException for other bytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(body))
    names = [
        one
        for one in ("_partition", "_offset", "_key", "error_class")
        if one in file.schema_arrow.names
    ]
    if "_key" not in names:
        return 0, []
    ends = {one.partition: one.end for one in request.ranges}
    rows, batches = 0, []
    for partition, offset, key, error_class in _cells(file, names):
        if offset is not None and offset >= ends.get(partition, 1 << 62):
            continue
        if error_class == "batch":
            batches.append(f"partition {partition}, offset {offset}")
        rows += key is not None and is_forgotten(key)
    return rows, batches


def _cells(file: Any, names: list[str]) -> Iterator[tuple[Any, Any, Any, Any]]:
    order = ("_partition", "_offset", "_key", "error_class")
    for batch in file.iter_batches(columns=names):
        columns = [
            batch.column(one).to_pylist() if one in names else [None] * batch.num_rows
            for one in order
        ]
        yield from zip(*columns, strict=True)
