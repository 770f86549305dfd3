"""Kernels: the checks of `record_validation` and `record_keys` for batches of very many records.

They judge byte by byte as those do, error for error; a property test holds them together. Python
needs microseconds for each record, and one legal request may have millions, which held the memory
for large batches for ten seconds. To load these takes half a second of processor time (two where
they have to be compiled first) and 100 MB, so a node does that at its first such batch.

A varint that reaches beyond 64 bits is cut, as Kafka's clients and brokers do, or taken for a
number that is too large, where a length is meant.
"""

from typing import Any

import numpy as np

from lakehead.storage.kernel_compiler import BYTES, LONG, LONGS, TABLE, compiled, inlined, results
from lakehead.storage.kernel_varint import INT_BITS, LONG_BITS, varint

FINE = 0
CUT_SHORT = 1
LONGER_THAN_10 = 2
LONGER_THAN_5 = 3
BEYOND_BATCH = 4
OFFSET_DELTA = 5
KEY = 6
VALUE = 7
HEADERS = 8
HEADER_KEY = 9
HEADER_VALUE = 10
FIELDS_END = 11
BYTES_LEFT = 12
KEY_BEYOND_RECORD = 13

_MOST, _LEAST = (1 << 63) - 1, -(1 << 63)


@inlined
def _varint_fault(data: Any, at: Any) -> Any:
    """Return the fault of a varint at a position, which is invalid or longer than five bytes."""
    for each in range(10):
        if at + each >= data.shape[0]:
            return CUT_SHORT
        if data[at + each] < 128:
            return LONGER_THAN_5
    return LONGER_THAN_10


@inlined
def _headers(data: Any, at: Any, end: Any, count: Any) -> Any:
    """Return (position after `count` headers, fault, number that the fault is about)."""
    fault, length = 0, np.int64(0)
    for _ in range(count):
        start = at
        length, at = varint(data, start, data.shape[0], INT_BITS)
        if at < 0 or length < 0 or at + length > end:
            fault = _varint_fault(data, start) if at < 0 else HEADER_KEY
            break
        start = at + length
        length, at = varint(data, start, data.shape[0], INT_BITS)
        if at < 0 or length < -1 or at + length > end:
            fault = _varint_fault(data, start) if at < 0 else HEADER_VALUE
            break
        at += max(length, np.int64(0))
    return at, fault, length


@compiled(results(4)(BYTES, LONG, LONG, LONG, LONG, LONG, TABLE))
def check_all(  # noqa: C901 - one pass, every check in its place
    data: Any,
    count: Any,
    base: Any,
    earliest: Any,
    latest: Any,
    no_timestamp: Any,
    strange: Any,
) -> Any:
    """Check `count` records. `strange` takes the place and time of the first that are not within
    [earliest, latest]. Returns (fault, its place, the number it is about, rows of `strange`).
    """
    at = place = number = np.int64(0)
    fault = found = 0
    for each in range(count):
        place = np.int64(each)
        start = at
        length, at = varint(data, start, data.shape[0], INT_BITS)
        end = at + length
        if at < 0 or length < 1 or end > data.shape[0]:
            fault = _varint_fault(data, start) if at < 0 else BEYOND_BATCH
            break
        start = at + 1
        delta, at = varint(data, start, data.shape[0], LONG_BITS)
        if at < 0:
            fault = _varint_fault(data, start)
            break
        start = at
        number, at = varint(data, start, data.shape[0], INT_BITS)
        if at < 0 or number != place:
            fault = _varint_fault(data, start) if at < 0 else OFFSET_DELTA
            break
        start = at
        number, at = varint(data, start, data.shape[0], INT_BITS)
        if at < 0 or number < -1 or at + number > end:
            fault = _varint_fault(data, start) if at < 0 else KEY
            break
        start = at + max(number, np.int64(0))
        number, at = varint(data, start, data.shape[0], INT_BITS)
        if at < 0 or number < -1 or at + number > end:
            fault = _varint_fault(data, start) if at < 0 else VALUE
            break
        start = at + max(number, np.int64(0))
        number, at = varint(data, start, data.shape[0], INT_BITS)
        if at < 0 or number < 0 or number > end - at:
            fault = _varint_fault(data, start) if at < 0 else HEADERS
            break
        if number > 0:
            at, fault, number = _headers(data, at, end, number)
            if fault != FINE:
                break
        if at != end:
            fault = FIELDS_END
            break
        time = base + delta
        if earliest <= time <= latest or time == no_timestamp or found == strange.shape[0]:
            continue
        strange[found, 0] = place
        strange[found, 1] = time
        found += 1
    if fault == FINE and at != data.shape[0]:
        fault, number = BYTES_LEFT, data.shape[0] - at
    return fault, place, number, found


@inlined
def _length(data: Any, start: Any) -> Any:
    """Return (a length, position after it): one that is beyond 64 bits is the largest there is."""
    length, at = varint(data, start, data.shape[0], LONG_BITS)
    if at - start == 10 and data[at - 1] > 1:
        length = np.int64(_LEAST) if length < 0 else np.int64(_MOST)
    return length, at


@compiled(results(2)(BYTES, LONG, LONGS))
def find_keyless(data: Any, count: Any, missing: Any) -> Any:
    """Fill `missing` with the places of the first of `count` records that have no key.

    Returns (fault, how many were found); it looks no further once `missing` is full.
    """
    at = np.int64(0)
    fault = found = 0
    for place in range(count):
        start = at
        length, at = _length(data, start)
        if at < 0 or length < 0 or length > data.shape[0] - at:
            fault = _varint_fault(data, start) if at < 0 else BEYOND_BATCH
            break
        end = at + length
        start = at + 1
        _, at = varint(data, start, data.shape[0], LONG_BITS)
        if at >= 0:
            start = at
            _, at = varint(data, start, data.shape[0], LONG_BITS)
        if at >= 0:
            start = at
            length, at = _length(data, start)
        if at < 0:
            fault = _varint_fault(data, start)
            break
        if length < 0:
            missing[found] = place
            found += 1
            if found == missing.shape[0]:
                break
        elif length > end - at:
            fault = KEY_BEYOND_RECORD
            break
        if at > end:
            fault = KEY_BEYOND_RECORD
            break
        at = end
    return fault, found
