"""Checked JSON text in kernels: its end, and its content without escapes.

Nothing is checked here: `json_kernel.check_values` has found the text to be well-formed.
"""

from typing import Any

import numpy as np

from lakehead.storage.kernel_compiler import inlined
from lakehead.storage.kernel_memory import word_at

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

_ONES = np.uint64(0x0101010101010101)
_QUOTES = np.uint64(0x2222222222222222)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
HIGH_BITS = np.uint64(0x8080808080808080)
"""The highest bit of each byte of a word."""
_PLACES = np.uint64(0x0001020304050607)  # times 1 << 8 * n: n in the highest byte
_ESCAPED = np.arange(256, dtype=np.uint8)  # what the letter behind a backslash stands for
_ESCAPED[[0x6E, 0x74, 0x72, 0x62, 0x66]] = [0x0A, 0x09, 0x0D, 0x08, 0x0C]


@inlined
def is_blank(byte: Any) -> Any:
    """Return whether a byte between tokens is blank."""
    return byte <= 0x20


@inlined
def quotes_and_slashes(word: Any) -> Any:
    """Return a word whose first byte with the highest bit set is where `word` has its first quote
    or backslash.
    """
    quote = word ^ _QUOTES
    slash = word ^ _SLASHES
    return (quote - _ONES) & ~quote | (slash - _ONES) & ~slash


@inlined
def first_of(found: Any) -> Any:
    """Return the number of the first byte that is 0x80, of a word of 0x80 and 0."""
    first = (found & (~found + np.uint64(1))) >> np.uint64(7)
    return np.int64(first * _PLACES >> np.uint64(56))


@inlined
def after_text(data: Any, at: Any) -> Any:
    """Return the position after the text whose opening quote is before `at`, and whether it has
    escapes.
    """
    escaped = False
    while True:
        if at + 8 <= data.shape[0]:  # eight bytes at once: the first quote or backslash of them
            found = quotes_and_slashes(word_at(data, at)) & HIGH_BITS
            if found == 0:
                at += 8
                continue
            at += first_of(found)
        if data[at] == 0x22:
            return at + 1, escaped
        if data[at] == 0x5C:
            escaped = True
            at += 1
        at += 1


@inlined
def _hex4(data, at):
    value = 0
    for i in range(at, at + 4):
        value = value * 16 + (data[i] & 0x0F) + (9 if data[i] > 0x39 else 0)
    return value


@inlined
def _put(side, at, point):
    """Write a character as UTF-8; returns the position after it."""
    if point < 0x80:
        side[at] = point
        return at + 1
    if point < 0x800:
        side[at] = 0xC0 | point >> 6
    elif point < 0x10000:
        side[at] = 0xE0 | point >> 12
        at += 1
        side[at] = 0x80 | (point >> 6 & 0x3F)
    else:
        side[at] = 0xF0 | point >> 18
        side[at + 1] = 0x80 | (point >> 12 & 0x3F)
        at += 2
        side[at] = 0x80 | (point >> 6 & 0x3F)
    side[at + 1] = 0x80 | (point & 0x3F)
    return at + 2


@inlined
def unescape(data: Any, at: Any, end: Any, side: Any, to: Any) -> Any:
    """Write out data[at:end] without its escapes; return the position after it."""
    while at < end:
        byte = data[at]
        if byte != 0x5C:
            side[to] = byte
            to += 1
            at += 1
            continue
        kind = data[at + 1]
        at += 2
        if kind == 0x75:
            point = _hex4(data, at)
            at += 4
            if 0xD800 <= point <= 0xDBFF:
                point = 0x10000 + ((point - 0xD800) << 10) + (_hex4(data, at + 2) - 0xDC00)
                at += 6
            to = _put(side, to, point)
            continue
        side[to] = _ESCAPED[kind]
        to += 1
    return to
