"""Raw values: the bytes as they are, in one column `value`."""

from typing import Any

import numpy as np
import pyarrow as pa

from lakehead.lake.tables.values.decoder import Decoded

RAW_VALUE = "value"
RAW_SCHEMA = pa.schema([pa.field(RAW_VALUE, pa.binary())])


class RawValues:
    """A decoder that never fails: every value is its own column."""

    def schema_of(self, _batch: pa.RecordBatch) -> Any:
        """Return the one column."""
        return RAW_SCHEMA

    def decode(
        self,
        batch: pa.RecordBatch,
        schema: Any,
        *,
        fault_count_max: int | None = None,  # noqa: ARG002 - there is none
    ) -> Decoded:
        """Return the values as they are."""
        assert schema.names == [RAW_VALUE], "a table of raw values has one column"
        return Decoded(
            columns=pa.Table.from_arrays([batch.column("value")], schema=schema),
            rows=all_rows(batch.num_rows),
        )


def all_rows(count: int) -> Any:
    """The rows 0 to `count` - 1, over numpy's memory (`pa.array` would import pandas)."""
    numbers = np.arange(count, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(numbers)])
