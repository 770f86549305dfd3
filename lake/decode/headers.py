"""Kernels: parse the headers of records. Apart from `records`, because most reads do not ask for
them.

Header count (varint), then per header: key length and UTF-8 key, value length and value (-1: null).
"""

from typing import Any

import numpy as np

from storage.kernel_compiler import BYTES, INTS, LONG, OUT, compiled, inlined, results

FAULTS = {
    1: "a record's header count is no varint",
    2: "a header's key overruns its record",
    3: "a header's value overruns its record",
    4: "bytes after the last header of a record",
    5: "more headers than an Arrow column holds",
}

_COUNT_MAX = 2**31 - 1


@inlined
def _varint(data: Any, at: Any, end: Any) -> Any:
    """Return (value, position after it), or position -1 if it does not end before `end` or is
    longer than 5 bytes.
    """
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < 35:
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 128:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@compiled(results(3)(BYTES, BYTES, INTS, INTS, LONG, LONG))
def count_headers(data: Any, inflated: Any, at: Any, size: Any, start: Any, count: Any) -> Any:
    """Check the headers of rows [start, start + count). Returns (fault or 0, its row, number of
    headers).
    """
    total = np.int64(0)
    for row in range(start, start + count):
        position = np.int64(at[row])
        source = inflated if position < 0 else data
        position = ~position if position < 0 else position
        end = position + size[row]
        headers, position = _varint(source, position, end)
        if position < 0 or headers < 0:
            return 1, row, total
        for _ in range(headers):
            length, position = _varint(source, position, end)
            if position < 0 or length < 0 or length > end - position:
                return 2, row, total
            position += length
            length, position = _varint(source, position, end)
            if position < 0 or length < -1 or length > end - position:
                return 3, row, total
            position += max(length, np.int64(0))
        if position != end:
            return 4, row, total
        total += headers
    if total > _COUNT_MAX:
        return 5, start, total
    return 0, 0, total


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
    """List the headers that `count_headers` has checked and counted. `validity` is zeroed.

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
        headers, position = _varint(source, position, end)
        if headers > 0:
            validity[i >> 3] |= np.uint8(1 << (i & 7))
        else:
            nulls += 1
        for _ in range(headers):
            length, position = _varint(source, position, end)
            key_at[filled] = position ^ flip
            key_size[filled] = length
            position += length
            length, position = _varint(source, position, end)
            value_at[filled] = position ^ flip
            value_size[filled] = length
            position += max(length, np.int64(0))
            filled += 1
        offsets[i + 1] = filled
    return nulls
