"""Rows of Arrow tables: joined into larger pieces, numbered by values; a column as one array."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

LOOK_BYTES = 8 << 20
"""Size of a piece of rows in which many keys are searched together: each search costs by the number
of keys.
"""


def gathered(pieces: Iterable[Any], size_bytes: int = LOOK_BYTES) -> Iterator[Any]:
    """Yield Arrow tables one after the other as tables of at least `size_bytes`, but for the last
    one; no empty one.
    """
    held: list[Any] = []
    size = 0
    for rows in pieces:
        if not rows.num_rows:
            continue
        held.append(rows)
        size += rows.nbytes
        if size >= size_bytes:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)


def one_array(column: Any) -> Any:
    """Return a column, chunked or not, as one Arrow array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def row_codes(rows: Any, names: Sequence[str]) -> Any:
    """Return the numbers, as int64 of numpy: nulls are a value too."""
    codes = np.zeros(rows.num_rows, np.int64)
    for name in names:
        encoded = rows.column(name).combine_chunks().dictionary_encode("encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        codes = codes * (len(encoded.dictionary) + 1) + np.asarray(encoded.indices, np.int64)
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return codes
