"""A number for each row, the same for rows that have the same values in some columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


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
