"""Kernels: list the headers of records, which `record_kernel` has checked. In a module of their
own, because most reads do not need them.

Header count (varint), then per header: key length and UTF-8 key, value length and value (-1: null).
"""

from typing import Any

import numpy as np

from lakehead.storage.kernel_compiler import BYTES, INTS, LONG, OUT, compiled
from lakehead.storage.kernel_varint import INT_BITS, varint


@compiled(LONG(BYTES, BYTES, INTS, INTS, LONG, LONG))
def count_headers(data: Any, inflated: Any, at: Any, size: Any, start: Any, count: Any) -> Any:
    """Return how many headers the rows [start, start + count) have, which `parse_records` checked.
    A row without bytes has none.
    """
    total = np.int64(0)
    for row in range(start, start + count):
        position = np.int64(at[row])
        source = inflated if position < 0 else data
        position = ~position if position < 0 else position
        headers, position = varint(source, position, position + size[row], INT_BITS)
        total += headers
    return total


@compiled(LONG(BYTES, BYTES, INTS, INTS, LONG, LONG, INTS, OUT, INTS, INTS, INTS, INTS))
def list_headers(
    data: Any,
    inflated: Any,
    at: Any,
    size: Any,
    start: Any,
    count: Any,
    offsets: Any,
    validity: Any,
    key_at: Any,
    key_size: Any,
    value_at: Any,
    value_size: Any,
) -> Any:
    """List the headers that `count_headers` has counted. `validity` is zeroed.

    A record without headers is null, as in Spark's Kafka source. Returns how many are null.
    """
    nulls = 0
    filled = 0
    offsets[0] = 0
    for i in range(count):
        position = np.int64(at[start + i])
        flip = np.int64(-1) if position < 0 else np.int64(0)
        source = inflated if position < 0 else data
        position ^= flip
        end = position + size[start + i]
        headers, position = varint(source, position, end, INT_BITS)
        if headers > 0:
            validity[i >> 3] |= np.uint8(1 << (i & 7))
        else:
            nulls += 1
        for _ in range(headers):
            length, position = varint(source, position, end, INT_BITS)
            key_at[filled] = position ^ flip
            key_size[filled] = length
            position += length
            length, position = varint(source, position, end, INT_BITS)
            value_at[filled] = position ^ flip
            value_size[filled] = length
            position += max(length, np.int64(0))
            filled += 1
        offsets[i + 1] = filled
    return nulls
