# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Kernel: payloads out of the objects that Kafka Connect puts around them."""

from typing import Any

import numpy as np

from lakehead.storage.kernel_compiler import BYTES, LONG, LONGS, OUT, compiled, inlined

_SCHEMA = np.frombuffer(b'"schema"', np.uint8)
_PAYLOAD = np.frombuffer(b'"payload"', np.uint8)
_BLOCK = np.uint64(64)
_IS_BLANK = np.zeros(256, np.uint8)
_IS_BLANK[[0x20, 0x09, 0x0A, 0x0D]] = 1


@inlined
def _begins(data, at, end, word):
    if end - at < word.shape[0]:
        return False
    # An index without a sign needs no look at what lies before the array: so this is one load each
    # for many bytes.
    different = np.uint8(0)
    first = np.uint64(at)
    size = np.uint64(word.shape[0])
    i = np.uint64(0)
    while i + _BLOCK <= size:
        for j in range(_BLOCK):
            different |= np.uint8(data[first + i + j] ^ word[i + j])
        if different:
            return False
        i += _BLOCK
    while i < size:
        different |= np.uint8(data[first + i] ^ word[i])
        i += np.uint64(1)
    return different == 0


@compiled(LONG(BYTES, LONGS, LONGS, OUT))
def _wrapped(data, starts, ends, found):
    count = 0
    for row in range(starts.shape[0]):
        at = starts[row]
        end = ends[row]
        while at < end and _IS_BLANK[data[at]]:
            at += 1
        if at >= end or data[at] != 0x7B:
            continue
        at += 1
        while at < end and _IS_BLANK[data[at]]:
            at += 1
        if _begins(data, at, end, _SCHEMA) or _begins(data, at, end, _PAYLOAD):
            found[row] = 1
            count += 1
    return count


@compiled(LONG(BYTES, LONGS, LONGS, BYTES, LONGS, LONGS))
def _behind(data, starts, ends, head, payload_starts, payload_ends):
    count = 0
    for row in range(starts.shape[0]):
        at = starts[row]
        end = ends[row]
        if not _begins(data, at, end, head):
            continue
        at += head.shape[0]
        while end > at and _IS_BLANK[data[end - 1]]:
            end -= 1
        if end > at and data[end - 1] == 0x7D:
            payload_starts[row] = at
            payload_ends[row] = end - 1
            count += 1
    return count


def wrapped(data: Any, starts: Any, ends: Any) -> Any:
    """Return 1 for each value data[starts[i]:ends[i]] that begins as an object around a payload."""
    found = np.zeros(len(starts), np.uint8)
    _wrapped(data, starts, ends, found)
    return found


def payloads_behind(data: Any, starts: Any, ends: Any, head: bytes) -> tuple[Any, Any]:
    """Return where what follows `head` begins and ends, up to the closing brace of the value; it
    begins at -1 in values that do not begin with `head` or have no brace at their end.
    """
    payload_starts = np.full(len(starts), -1, np.int64)
    payload_ends = np.zeros(len(starts), np.int64)
    _behind(data, starts, ends, np.frombuffer(head, np.uint8), payload_starts, payload_ends)
    return payload_starts, payload_ends
