"""Batches of records as a decoder of values is given them."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lakehead.lake.decode.columns import arrow_schema
from lakehead.lake.tables.layout import DECODED


def batch_of(values: Sequence[bytes | None]) -> pa.RecordBatch:
    """Return records with these values, of one partition from offset 0 on."""
    schema = arrow_schema(DECODED)
    count = len(values)
    columns: dict[str, Sequence[Any]] = dict.fromkeys(schema.names, [None] * count) | {
        "value": values,
        "topic": ["orders"] * count,
        "partition": [0] * count,
        "offset": list(range(count)),
        "timestamp": [0] * count,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
