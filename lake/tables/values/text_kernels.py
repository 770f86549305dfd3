"""Kernels: columns of text to bytes (base64) and to doubles.

Base64 is that of RFC 4648, with its padding and nothing else. Decimal text becomes the nearest
double by Eisel and Lemire's algorithm ("Number Parsing at a Gigabyte per Second", Lemire 2021: one
product with a power of five in 128 bits, or two, decides the rounding). Numbers of more than 19
digits, subnormal ones and those that overflow are left open: Python's own parser reads them, they
are rare.
"""

from typing import Any

import numpy as np

from lakehead.lake.tables.values.cells import SIDE, SIZE_BITS, SIZE_MASK
from lakehead.storage.kernel_compiler import BYTES, LONG, LONGS, OUT, TABLE, compiled, inlined
from lakehead.storage.kernel_memory import leading_zeros

# mypy: disable-error-code="no-untyped-def, no-untyped-call"


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


# mypy: disable-error-code="no-untyped-def, no-untyped-call"


_POWERS_MIN = -342
_POWERS_MAX = 308


def _powers() -> Any:
    """The 128 most significant bits of 5**q, (high, low), for q from -342 to 308."""
    rows = []
    for exponent in range(_POWERS_MIN, _POWERS_MAX + 1):
        if exponent < 0:
            power = 5**-exponent
            bits = power.bit_length() + (127 if exponent >= -27 else 0)
            if exponent < -27:
                bits = 2 * power.bit_length() + 128
            number = (1 << bits) // power + 1
        else:
            number = 5**exponent
        shift = number.bit_length() - 128
        number = number >> shift if shift > 0 else number << -shift
        rows.append((number >> 64, number & (1 << 64) - 1))
    return np.array(rows, np.uint64).view(np.int64)


_POWERS = _powers()


@inlined
def _product(left, right):
    """(high, low) of a product of two numbers of 64 bits."""
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    a, b = left >> half, left & mask
    c, d = right >> half, right & mask
    low = b * d
    cross = a * d + (low >> half)
    other = b * c + (cross & mask)
    return a * c + (cross >> half) + (other >> half), (other << half) | (low & mask)


@inlined
def _nearest(digits, exponent, powers):
    """Bits of digits * 10**exponent (digits not 0), or -1 where this algorithm cannot decide."""
    if exponent < _POWERS_MIN or exponent >= _POWERS_MIN + powers.shape[0]:
        return np.int64(-1)
    zeros = leading_zeros(digits)
    digits <<= np.uint64(zeros)
    row = exponent - _POWERS_MIN
    high, low = _product(digits, np.uint64(powers[row, 0]))
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):
        more, _ = _product(digits, np.uint64(powers[row, 1]))
        low += more
        if low < more:
            high += np.uint64(1)
    if low == np.uint64(0xFFFFFFFFFFFFFFFF) and (exponent < -27 or exponent > 55):
        return np.int64(-1)
    upper = np.int64(high >> np.uint64(63))
    shift = np.uint64(upper + 9)
    mantissa = high >> shift
    power = ((np.int64(152170 + 65536) * exponent) >> 16) + 63 + upper - zeros + 1023
    if power <= 0 or power >= 2046:
        return np.int64(-1)
    is_tie = (
        low <= np.uint64(1) and -4 <= exponent <= 23 and mantissa & np.uint64(3) == np.uint64(1)
    )
    if is_tie and mantissa << shift == high:
        mantissa &= ~np.uint64(1)
    mantissa += mantissa & np.uint64(1)
    mantissa >>= np.uint64(1)
    if mantissa >= np.uint64(1 << 53):
        mantissa = np.uint64(1 << 52)
        power += 1
    return np.int64(mantissa & ~np.uint64(1 << 52)) | power << 52


@inlined
def _double(data, at, end, powers):
    """Bits of the number in data[at:end], or -1 where it is left open."""
    negative = data[at] == 0x2D
    if negative:
        at += 1
    digits = np.uint64(0)
    count = 0
    exponent = np.int64(0)
    fraction = np.int64(0)
    while at < end:
        byte = data[at]
        if byte == 0x2E:
            fraction = np.int64(1)
        elif byte in (0x65, 0x45):
            break
        else:
            if count > 0 or byte != 0x30:
                count += 1
            if count <= 19:
                digits = digits * np.uint64(10) + np.uint64(byte - 0x30)
            exponent -= fraction
        at += 1
    if at < end:
        below = data[at + 1] == 0x2D
        at += 2 if data[at + 1] in (0x2B, 0x2D) else 1
        given = np.int64(0)
        while at < end:
            given = min(given * 10 + np.int64(data[at] - 0x30), np.int64(100_000))
            at += 1
        exponent += -given if below else given
    sign = np.int64(-0x8000000000000000) if negative else np.int64(0)
    if count == 0:
        return sign
    bits = np.int64(-1) if count > 19 else _nearest(digits, exponent, powers)
    return bits if bits < 0 else bits | sign


@compiled(LONG(BYTES, LONGS, OUT, TABLE, LONGS))
def _read(data, places, valid, powers, bits):
    opened = 0
    for i in range(places.shape[0]):
        if valid[i]:
            at = places[i] >> SIZE_BITS
            bits[i] = _double(data, at, at + (places[i] & SIZE_MASK), powers)
            opened += bits[i] == -1
    return opened


def read_doubles(data: Any, places: Any, valid: Any) -> Any:
    """Return the doubles whose text lies at `places` (see `cells`); infinite where it is beyond."""
    bits = np.zeros(len(places), np.int64)
    opened = _read(data, places, valid, _POWERS, bits)
    doubles = bits.view(np.float64)
    if opened:
        for i in np.flatnonzero(bits == -1).tolist():
            at, length = int(places[i]) >> SIZE_BITS, int(places[i]) & SIZE_MASK
            doubles[i] = float(data[at : at + length].tobytes())
    return doubles
