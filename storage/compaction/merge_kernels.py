"""Kernel: the records of a batch, as they stand in a larger one that began earlier.

A record is: length, attributes i8, timestamp delta, offset delta, and what follows; numbers are
zigzag varints (KIP-98). Both deltas change, and with them perhaps the length; the rest is copied.
"""

from typing import Any

import numpy as np

from storage.kernel_compiler import BYTES, LONG, OUT, compiled, inlined
from storage.kernel_memory import copy_bytes

GROWTH_MAX = 18
"""By how many bytes a record may grow: two deltas of 10 and 5 bytes, and a longer length."""


@inlined
def _varint(data: Any, at: Any, end: Any) -> Any:
    """Return (value, position after it), or position -1 if it does not end before `end` or is
    longer than 10 bytes.
    """
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 128:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@inlined
def _put_varint(out: Any, at: Any, value: Any) -> Any:
    """Write a number; return the position after it."""
    rest = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    while rest >= np.uint64(0x80):
        out[at] = np.uint8((rest & np.uint64(0x7F)) | np.uint64(0x80))
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@inlined
def _size(value: Any) -> Any:
    """Return how many bytes a number takes."""
    rest = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    size = np.int64(1)
    while rest >= np.uint64(0x80):
        rest >>= np.uint64(7)
        size += 1
    return size


@compiled(LONG(BYTES, LONG, LONG, LONG, OUT, LONG))
def move_records(data: Any, count: Any, later: Any, moved: Any, out: Any, at: Any) -> Any:
    """Write the `count` records of `data` to `out` from `at` on, `later` milliseconds and `moved`
    offsets behind where they stood. Returns the position after them, or -1 where they are not what
    a producer writes: `count` records, their offsets 0, 1, 2 …, and nothing else.

    `out` has room for the bytes of `data` and `GROWTH_MAX` more for each record.
    """
    end, position = np.int64(data.size), np.int64(0)
    for place in range(count):
        length, start = _varint(data, position, end)
        if start < 0 or length < 1 or length > end - start:
            return np.int64(-1)
        stop = start + length
        time_delta, next_at = _varint(data, start + 1, stop)
        if next_at < 0:
            return np.int64(-1)
        offset_delta, body = _varint(data, next_at, stop)
        time = time_delta + later
        is_beyond = (later > 0 and time < time_delta) or (later < 0 and time > time_delta)
        if body < 0 or offset_delta != place or is_beyond:
            return np.int64(-1)
        offset = offset_delta + moved
        rest = stop - body
        at = _put_varint(out, at, 1 + _size(time) + _size(offset) + rest)
        out[at] = data[start]
        at = _put_varint(out, at + 1, time)
        at = _put_varint(out, at, offset)
        copy_bytes(out, at, data, body, rest)
        at += rest
        position = stop
    return at if position == end else np.int64(-1)
