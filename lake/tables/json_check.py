# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Kernel: is each value exactly one well-formed JSON object (RFC 8259), in UTF-8?

Arrow's JSON reader parses a stream of objects and is lenient where a table must not be: it takes
two objects in one value for two rows, half an object for the beginning of the next one, and bytes
that are not UTF-8 for text. What passed this check is one object per value, so that a block of
values has one row per value; what failed is known by row, without parsing anything twice.
"""

from typing import Any

import numpy as np

from lakehead.storage.kernel_compiler import BYTES, LONG, LONGS, compiled, inlined
from lakehead.storage.kernel_memory import word_at

DEPTH_MAX = 100
"""Objects and arrays inside each other; deeper values are refused."""

FAULTS = {
    1: "not a JSON object",
    2: "malformed JSON",
    3: "text that is not UTF-8",
    4: f"JSON nested more than {DEPTH_MAX} deep",
}
"""Why a value was refused, by fault code."""

_VALUE = 0
_VALUE_OR_END = 1
_KEY = 2
_KEY_OR_END = 3
_COLON = 4
_NEXT = 5

_IS_BLANK = np.zeros(256, np.uint8)
_IS_BLANK[[0x20, 0x09, 0x0A, 0x0D]] = 1
_IS_PLAIN = np.ones(256, np.uint8)  # needs no look inside a string
_IS_PLAIN[:0x20] = 0
_IS_PLAIN[0x80:] = 0
_IS_PLAIN[[0x22, 0x5C]] = 0

_ONES = np.uint64(0x0101010101010101)
_BLANKS = np.uint64(0x2020202020202020)
_QUOTES = np.uint64(0x2222222222222222)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_HIGH = np.uint64(0x8080808080808080)
_PLACES = np.uint64(0x0001020304050607)  # times 1 << 8 * n: n in the highest byte


@inlined
def _hex4(data, at, end):
    """Value of four hex digits, or -1."""
    if at + 4 > end:
        return -1
    value = 0
    for i in range(at, at + 4):
        digit = int(data[i])
        if 0x30 <= digit <= 0x39:
            digit -= 0x30
        elif 0x41 <= digit <= 0x46 or 0x61 <= digit <= 0x66:
            digit = (digit & 0xDF) - 0x37
        else:
            return -1
        value = value * 16 + digit
    return value


@inlined
def _escape(data, at, end):
    """Position after the escape whose backslash is at `at`, or -1. Surrogates must be in pairs."""
    if at + 1 >= end:
        return -1
    kind = data[at + 1]
    if kind != 0x75:
        for known in (0x22, 0x5C, 0x2F, 0x62, 0x66, 0x6E, 0x72, 0x74):
            if kind == known:
                return at + 2
        return -1
    unit = _hex4(data, at + 2, end)
    if unit < 0 or 0xDC00 <= unit <= 0xDFFF:
        return -1
    if unit < 0xD800 or unit > 0xDBFF:
        return at + 6
    if at + 7 >= end or data[at + 6] != 0x5C or data[at + 7] != 0x75:
        return -1
    low = _hex4(data, at + 8, end)
    return at + 12 if 0xDC00 <= low <= 0xDFFF else -1


@inlined
def _character(data, at, end):
    """Position after the multi-byte UTF-8 character at `at`, or -1 (RFC 3629, table 3-7)."""
    first = data[at]
    low = 0x80
    high = 0xBF
    if 0xC2 <= first <= 0xDF:
        size = 2
    elif 0xE0 <= first <= 0xEF:
        size = 3
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
    elif 0xF0 <= first <= 0xF4:
        size = 4
        if first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
    else:
        return -1
    if at + size > end or data[at + 1] < low or data[at + 1] > high:
        return -1
    for i in range(at + 2, at + size):
        if data[i] < 0x80 or data[i] > 0xBF:
            return -1
    return at + size


@inlined
def _plain_bytes(word):
    """How many bytes of a word of eight, from its first, need no look inside a string."""
    quote = word ^ _QUOTES
    slash = word ^ _SLASHES
    # The high bit of each byte that is below 0x20, a quote, a backslash or beyond ASCII; above the
    # first such byte there may be others set, by its borrow.
    found = (word - _BLANKS) & ~word | (quote - _ONES) & ~quote | (slash - _ONES) & ~slash | word
    found &= _HIGH
    if found == 0:
        return np.int64(8)
    first = (found & (~found + np.uint64(1))) >> np.uint64(7)
    return np.int64(first * _PLACES >> np.uint64(56))


@inlined
def _string(data, at, end):
    """Position after the string whose opening quote is before `at`; ~position of a fault.

    The second answer is the fault code.
    """
    while at < end:
        if at + 8 <= end:
            plain = _plain_bytes(word_at(data, at))
            at += plain
            if plain == 8:
                continue
        if _IS_PLAIN[data[at]]:
            at += 1
            continue
        byte = data[at]
        if byte == 0x22:
            return at + 1, 0
        if byte == 0x5C:
            after = _escape(data, at, end)
            fault = 2
        elif byte >= 0x80:
            after = _character(data, at, end)
            fault = 3
        else:
            after = -1
            fault = 2
        if after < 0:
            return ~at, fault
        at = after
    return ~at, 2


@inlined
def _digits(data, at, end):
    while at < end and 0x30 <= data[at] <= 0x39:
        at += 1
    return at


@inlined
def _number(data, at, end):
    """Position after the number at `at`, or ~position of a fault."""
    if data[at] == 0x2D:
        at += 1
    if at >= end or data[at] < 0x30 or data[at] > 0x39:
        return ~at
    at = at + 1 if data[at] == 0x30 else _digits(data, at, end)
    if at < end and data[at] == 0x2E:
        after = _digits(data, at + 1, end)
        if after == at + 1:
            return ~after
        at = after
    if at < end and (data[at] | 0x20) == 0x65:
        at += 1
        if at < end and (data[at] == 0x2B or data[at] == 0x2D):
            at += 1
        after = _digits(data, at, end)
        if after == at:
            return ~after
        at = after
    return at


@inlined
def _word(data, at, end):
    """Position after `true`, `false` or `null`, or ~position of a fault."""
    first = data[at]
    if (
        first == 0x74
        and at + 4 <= end
        and (data[at + 1] == 0x72 and data[at + 2] == 0x75 and data[at + 3] == 0x65)
    ):
        return at + 4
    if (
        first == 0x6E
        and at + 4 <= end
        and (data[at + 1] == 0x75 and data[at + 2] == 0x6C and data[at + 3] == 0x6C)
    ):
        return at + 4
    if (
        first == 0x66
        and at + 5 <= end
        and (data[at + 1] == 0x61 and data[at + 2] == 0x6C)
        and (data[at + 3] == 0x73 and data[at + 4] == 0x65)
    ):
        return at + 5
    return ~at


@inlined
def _check(data, at, end, is_object):  # noqa: C901 - one loop is the whole state machine
    """(0, end) if bytes at..end are one JSON object, else (fault code, position of the fault).

    `is_object[d]` says what container `d` deep is; state is what may come next.
    """
    while at < end and _IS_BLANK[data[at]]:
        at += 1
    if at >= end or data[at] != 0x7B:
        return 1, at
    is_object[0] = 1
    depth = 1
    at += 1
    state = _KEY_OR_END
    while at < end:
        byte = data[at]
        if _IS_BLANK[byte]:
            at += 1
        elif depth == 0:
            return 2, at
        elif state == _COLON:
            if byte != 0x3A:
                return 2, at
            at += 1
            state = _VALUE
        elif byte in (0x7D, 0x5D) and state in (_NEXT, _KEY_OR_END, _VALUE_OR_END):
            if (byte == 0x7D) != (is_object[depth - 1] == 1):
                return 2, at
            at += 1
            depth -= 1
            state = _NEXT
        elif state == _NEXT:
            if byte != 0x2C:
                return 2, at
            at += 1
            state = _KEY if is_object[depth - 1] == 1 else _VALUE
        elif byte == 0x22:
            at, fault = _string(data, at + 1, end)
            if at < 0:
                return fault, ~at
            state = _COLON if state in (_KEY, _KEY_OR_END) else _NEXT
        elif state in (_KEY, _KEY_OR_END):
            return 2, at
        elif byte in (0x7B, 0x5B):
            if depth == DEPTH_MAX:
                return 4, at
            is_object[depth] = 1 if byte == 0x7B else 0
            state = _KEY_OR_END if byte == 0x7B else _VALUE_OR_END
            depth += 1
            at += 1
        else:
            at = _number(data, at, end) if byte < 0x3A else _word(data, at, end)
            if at < 0:
                return 2, ~at
            state = _NEXT
    return (0, end) if depth == 0 else (2, end)


@compiled(LONG(BYTES, LONGS, LONGS, LONGS))
def _check_values(data, starts, ends, faults):
    is_object = np.empty(DEPTH_MAX, np.uint8)
    bad = 0
    for row in range(starts.shape[0]):
        start = starts[row]
        fault, at = _check(data, start, ends[row], is_object)
        faults[row] = fault | ((at - start) << 3) if fault else 0
        bad += fault != 0
    return bad


def check_values(data: Any, starts: Any, ends: Any) -> Any:
    """Return a fault for each value data[starts[i]:ends[i]] (0 = good).

    A fault is its code in the low three bits and its byte position above them: see `fault_text`.
    """
    faults = np.empty(len(starts), np.int64)
    _check_values(data, starts, ends, faults)
    return faults


def fault_text(fault: int) -> str:
    """Return a fault in words, with its position."""
    return f"{FAULTS[fault & 7]} (byte {fault >> 3})"
