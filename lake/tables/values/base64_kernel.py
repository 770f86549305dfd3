# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Kernel: base64 (RFC 4648, with its padding and nothing else) to bytes, a column at a time."""

from typing import Any

import numpy as np

from lakehead.lake.tables.values.cells import SIDE, SIZE_BITS, SIZE_MASK
from lakehead.storage.kernel_compiler import BYTES, LONG, LONGS, OUT, compiled

_PADDING = 64
_NO_DIGIT = 65
_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_DIGITS[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64)
_DIGITS[ord("=")] = _PADDING


@compiled(LONG(BYTES, BYTES, LONGS, BYTES, OUT, LONGS, OUT))
def _decode(data, side, cells, valid, out, places, bad):
    to = np.int64(0)
    for i in range(cells.shape[0]):
        places[i] = to << SIZE_BITS
        if not valid[i]:
            continue
        size = cells[i] & SIZE_MASK
        first = cells[i] >> SIZE_BITS & SIZE_MASK
        beside = cells[i] >= SIDE
        start = to
        good = size % 4 == 0
        at = first
        while good and at < first + size:
            word = np.int64(0)
            padding = 0
            for j in range(4):
                digit = _DIGITS[side[at + j] if beside else data[at + j]]
                if digit == _PADDING:
                    padding += 1
                    digit = np.uint8(0)
                    good = good and j > 1 and at + 4 == first + size
                else:
                    good = good and digit < _PADDING and padding == 0
                word = word << 6 | np.int64(digit & 63)
            at += 4
            for j in range(3 - padding):
                out[to] = word >> (16 - 8 * j) & 0xFF
                to += 1
        if good:
            places[i] |= to - start
        else:
            bad[i] = 1
            to = start
    return to


def decode_base64(data: Any, side: Any, cells: Any, valid: Any) -> tuple[Any, Any, Any]:
    """Return the bytes of texts one after the other, the place of each, and 1 for each that is no
    base64. `cells` are places of texts (see `cells`).
    """
    room = int((cells & SIZE_MASK).sum()) // 4 * 3
    out = np.empty(max(room, 1), np.uint8)
    places = np.empty(len(cells), np.int64)
    bad = np.zeros(len(cells), np.uint8)
    _decode(data, side, cells, np.ascontiguousarray(valid), out, places, bad)
    return out, places, bad
