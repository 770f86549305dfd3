"""Confluent's wire format: a zero byte, the schema's id in four bytes (big-endian), the value.

(Protobuf puts the place of its message between the two: see `protobuf_values`.)
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FRAME_BYTES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The values of a batch as places in one buffer. A null starts at -1."""

    data: Any  # uint8
    starts: Any  # int64
    ends: Any  # int64

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nulls(self) -> Any:
        """The rows without a value."""
        return np.flatnonzero(self.starts < 0)


def places(values: Any) -> Values:
    """Return where the values of an Arrow array of bytes (or text) lie."""
    if values.type != pa.binary():
        values = values.cast(pa.binary())
    _, offsets, data = values.buffers()
    count = len(values)
    empty = data is None or data.size == 0
    content = np.zeros(1, np.uint8) if empty else np.frombuffer(data, np.uint8)
    if not count:
        return Values(data=content, starts=np.zeros(0, np.int64), ends=np.zeros(0, np.int64))
    given = np.frombuffer(offsets, np.int32)[values.offset : values.offset + count + 1]
    bounds = given.astype(np.int64)
    starts = bounds[:-1].copy()
    if values.null_count:
        starts[np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False))] = -1
    return Values(data=content, starts=starts, ends=bounds[1:])


def schema_ids(values: Values) -> Any:
    """Return the schema id of each value, -1 for one that is not framed (a null is not)."""
    ids = np.full(len(values), -1, np.int64)
    long_enough = (values.starts >= 0) & (values.ends - values.starts >= FRAME_BYTES)
    rows = np.flatnonzero(long_enough)
    rows = rows[values.data[values.starts[rows]] == 0]
    head = values.data[values.starts[rows][:, None] + np.arange(1, FRAME_BYTES)].astype(np.int64)
    found = head[:, 0] << 24 | head[:, 1] << 16 | head[:, 2] << 8 | head[:, 3]
    # Ids are Java's ints: the highest bit is never set.
    ids[rows] = np.where(found <= 0x7FFFFFFF, found, -1)
    return ids
