"""Kernels: columns of text to bytes (base64), to doubles and to instants, and texts one after the
other as Arrow has them.

Base64 is that of RFC 4648, with its padding and nothing else. Decimal text becomes the nearest
double by Eisel and Lemire's algorithm ("Number Parsing at a Gigabyte per Second", Lemire 2021: one
product with a power of five in 128 bits, or two, decides the rounding). Numbers of more than 19
digits, subnormal ones and those that overflow are left open: Python's own parser reads them, they
are rare.
"""

from typing import Any

import numpy as np
from numba import types

from lakehead.lake.decode.memory import empty
from lakehead.lake.tables.values.cells import SIDE, SIZE_BITS, SIZE_MASK
from lakehead.storage.kernel_compiler import (
    BYTES,
    INTS,
    LONG,
    LONGS,
    OUT,
    TABLE,
    compiled,
    inlined,
    results,
)
from lakehead.storage.kernel_memory import copy_bytes, leading_zeros

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


_OPEN = -(2**63)
"""Of an instant that is left open."""
_SECOND = 1_000_000


@inlined
def _number_of(data, at, count):
    """The number that `count` digits at a place are, or -1."""
    number = np.int64(0)
    for i in range(at, at + count):
        digit = np.int64(data[i]) - 0x30
        if digit < 0 or digit > 9:
            return np.int64(-1)
        number = number * 10 + digit
    return number


@inlined
def _days(year, month, day):
    """Days since 1970-01-01 of a date from the year 1 on, or `_OPEN` if there is no such day."""
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    last = 31 - (month in (4, 6, 9, 11))
    if month == 2:
        last = 28 + is_leap
    if year < 1 or month < 1 or month > 12 or day < 1 or day > last:
        return np.int64(_OPEN)
    shifted = (month + 9) % 12  # from March on, so that a leap day is the last of its year
    years = year - (month <= 2)
    of_year = (153 * shifted + 2) // 5 + day - 1
    return 365 * years + years // 4 - years // 100 + years // 400 + of_year - 719468


@inlined
def _instant(data, at, size):
    """Microseconds of the text at a place, or `_OPEN`."""
    end = at + size
    if size < 19 or data[at + 4] != 0x2D or data[at + 7] != 0x2D:
        return np.int64(_OPEN)
    if data[at + 10] not in (0x54, 0x20) or data[at + 13] != 0x3A or data[at + 16] != 0x3A:
        return np.int64(_OPEN)
    year, month, day = (
        _number_of(data, at, 4),
        _number_of(data, at + 5, 2),
        _number_of(data, at + 8, 2),
    )
    days = _days(year, month, day)
    hour, minute, second = (
        _number_of(data, at + 11, 2),
        _number_of(data, at + 14, 2),
        _number_of(data, at + 17, 2),
    )
    if days == _OPEN or min(hour, minute, second) < 0 or hour > 23 or max(minute, second) > 59:
        return np.int64(_OPEN)
    micros = (((days * 24 + hour) * 60 + minute) * 60 + second) * _SECOND
    if data[end - 1] == 0x5A:
        end -= 1
    at += 19
    if at == end:
        return micros
    if data[at] != 0x2E or not 1 < end - at <= 7:
        return np.int64(_OPEN)
    fraction = _number_of(data, at + 1, end - at - 1)
    if fraction < 0:
        return np.int64(_OPEN)
    for _ in range(7 - (end - at)):
        fraction *= 10
    return micros + fraction


@compiled(LONG(BYTES, BYTES, LONGS, BYTES, LONGS))
def _read_instants(data, side, cells, valid, micros):
    for i in range(cells.shape[0]):
        if valid[i]:
            size = cells[i] & SIZE_MASK
            at = cells[i] >> SIZE_BITS & SIZE_MASK
            micros[i] = _instant(side if cells[i] >= SIDE else data, at, size)
            if micros[i] == _OPEN:
                return i
    return np.int64(-1)


def read_instants(data: Any, side: Any, cells: Any, valid: Any) -> Any:
    """Return the microseconds since 1970 in UTC of texts like 2026-11-28T09:30:00.25Z, with a blank
    or T between, up to six digits of a fraction or none, and with Z or nothing at the end; None if
    a text is another one, also one that is no instant. `cells` are places of texts (see `cells`).
    """
    micros = np.zeros(len(cells), np.int64)
    opened = _read_instants(data, side, cells, np.ascontiguousarray(valid), micros)
    return micros if opened < 0 else None


@compiled(results(2)(LONGS, BYTES))
def _sizes(cells, valid):
    total = nulls = np.int64(0)
    for i in range(cells.shape[0]):
        if valid[i]:
            total += cells[i] & SIZE_MASK
        else:
            nulls += 1
    return total, nulls


@compiled(types.void(BYTES, BYTES, LONGS, BYTES, INTS, OUT, OUT))
def _gather(data, side, cells, valid, offsets, held, validity):
    filled = np.int64(0)
    offsets[0] = 0
    for i in range(cells.shape[0]):
        if valid[i]:
            if validity.shape[0] > 0:
                validity[i >> 3] |= np.uint8(1 << (i & 7))
            size = cells[i] & SIZE_MASK
            at = cells[i] >> SIZE_BITS & SIZE_MASK
            if cells[i] >= SIDE:
                copy_bytes(held, filled, side, at, size)
            else:
                copy_bytes(held, filled, data, at, size)
            filled += size
        offsets[i + 1] = filled


def gather_texts(data: Any, side: Any, cells: Any, valid: Any) -> tuple[Any, Any, Any]:
    """Return texts one after the other, as the buffers of Arrow: the validity (None: all are
    there), the offsets, the bytes. `cells` are places of texts (see `cells`), `valid` None if all
    are there.
    """
    valid = np.ones(len(cells), np.uint8) if valid is None else np.ascontiguousarray(valid)
    total, nulls = _sizes(cells, valid)
    offsets = np.empty(len(cells) + 1, np.int32)
    held = empty(max(total, 1), np.uint8)
    validity = np.zeros((len(cells) + 7) // 8 if nulls else 0, np.uint8)
    _gather(data, side, cells, valid, offsets, held, validity)
    return validity if nulls else None, offsets, held
