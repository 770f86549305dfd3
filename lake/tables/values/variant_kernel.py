"""Kernel: JSON text to Variant, the binary form of a VARIANT column.

Source: "Variant Binary Encoding" of Apache Parquet (VariantEncoding.md), version 1. The bytes are
those of Spark's `parse_json` (`VariantBuilder`): names are in the dictionary in the order in which
they appear, an integer has the least width that holds it, a number without an exponent and with at
most 38 digits, and as many after the point, is a decimal of the least width, any other a double.
One form of each value, so that a value that is encoded again has the same bytes.

Fields of an object are sorted by the UTF-8 bytes of their names, as the specification has it.
(Spark sorts by UTF-16, which differs for names beyond the Basic Multilingual Plane.)

The text is well-formed (`json_kernel.check_values`), and a number is followed by another byte.
"""

from typing import Any

import numpy as np

from lakehead.lake.tables.values.cells import SIZE_BITS, SIZE_MASK
from lakehead.lake.tables.values.text_kernels import read_doubles
from lakehead.storage.kernel_compiler import BYTES, INTS, LONG, LONGS, OUT, compiled, inlined
from lakehead.storage.kernel_memory import copy_bytes, word_at
from lakehead.storage.kernel_text import after_text, is_blank, unescape

# mypy: disable-error-code="no-untyped-def, no-untyped-call"


SIZE_MAX = (1 << 24) - 1
"""Bytes of a text, of its value and of its dictionary. Spark 4.0 reads no more than 16 MiB."""

TWICE, TOO_LARGE, BEYOND = 1, 2, 3
FAULTS = {
    TWICE: "an object that has a name twice, for VARIANT",
    TOO_LARGE: "a value of more than 16 MiB, for VARIANT",
    BEYOND: "a number beyond DOUBLE",
}
"""Reasons why a text is not a Variant, by fault code."""

_DEPTH_MAX = 101
_SHORT_MAX = 63
_NULL, _TRUE, _FALSE = 0, 1, 2
_INT8, _INT16, _INT32, _INT64 = 3, 4, 5, 6
_DOUBLE = 7
_DECIMAL4, _DECIMAL8, _DECIMAL16 = 8, 9, 10
_STRING = 16
_DIGITS_MAX = 38
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_TEN = np.uint64(10)
_SIGN = np.uint64(1 << 63)
_8, _16 = np.uint64(8), np.uint64(16)
_BYTES = np.uint64(0x00FF00FF00FF00FF)
_PAIRS = np.uint64(0x0000FFFF0000FFFF)

_OUT, _META, _DOUBLES = 0, 1, 2
"""Places in `ends`: bytes of values and of dictionaries, and doubles, so far."""


@inlined
def _width(number):
    """Bytes of an unsigned integer."""
    if number <= 0xFF:
        return 1
    if number <= 0xFFFF:
        return 2
    return 3 if number <= 0xFFFFFF else 4


@inlined
def _put(out, at, number, width):
    """Write an integer, the lowest byte first; return the position after it."""
    for i in range(width):
        out[at + i] = (number >> (8 * i)) & 0xFF
    return at + width


@inlined
def _digits(data, at):
    """(position after the digits and the point at `at`, high and low 64 bits of the digits, their
    count without zeros in front, how many follow the point or -1 without a point).
    """
    high = np.uint64(0)
    low = np.uint64(0)
    count = 0
    scale = -1
    while True:
        byte = data[at]
        if 0x30 <= byte <= 0x39:
            count += count > 0 or byte != 0x30
            scale += scale >= 0
            digit = np.uint64(byte - 0x30)
            if count < 20:
                low = low * _TEN + digit
            elif count <= _DIGITS_MAX:
                first = (low & _LOW) * _TEN + digit
                second = (low >> _HALF) * _TEN + (first >> _HALF)
                low = (second << _HALF) | (first & _LOW)
                high = high * _TEN + (second >> _HALF)
        elif byte == 0x2E:
            scale = 0
        else:
            return at, high, low, count, scale
        at += 1


@inlined
def _integer(number, out, to):
    """Write an integer in the least width; return the position after it."""
    kind = _INT64
    if -0x80 <= number <= 0x7F:
        kind = _INT8
    elif -0x8000 <= number <= 0x7FFF:
        kind = _INT16
    elif -0x80000000 <= number <= 0x7FFFFFFF:
        kind = _INT32
    out[to] = kind << 2
    return _put(out, to + 1, number, 1 << (kind - _INT8))


@inlined
def _decimal(high, low, digits, scale, out, to):
    """Write a decimal in the least width; return the position after it."""
    kind = _DECIMAL16
    if digits <= 9:
        kind = _DECIMAL4
    elif digits <= 18:
        kind = _DECIMAL8
    out[to] = kind << 2
    out[to + 1] = scale
    after = _put(out, to + 2, np.int64(low), 4 if kind == _DECIMAL4 else 8)
    return _put(out, after, np.int64(high), 8) if kind == _DECIMAL16 else after


@inlined
def _number(data, at, out, to):
    """(position after the number at `at`, position after its Variant, or ~`to` for a double)."""
    negative = data[at] == 0x2D
    at, high, low, count, scale = _digits(data, at + 1 if negative else at)
    if data[at] in (0x65, 0x45):
        at += 1
        while 0x30 <= data[at] <= 0x39 or data[at] in (0x2B, 0x2D):
            at += 1
        return at, ~to
    if count > _DIGITS_MAX or scale > _DIGITS_MAX:
        return at, ~to
    is_long = scale < 0 and high == 0 and low <= _SIGN - np.uint64(not negative)
    if negative:
        low = ~low + np.uint64(1)
        high = ~high + np.uint64(low == 0)
    if is_long:
        return at, _integer(np.int64(low), out, to)
    return at, _decimal(high, low, max(count, scale), max(scale, 0), out, to)


@inlined
def _text(data, at, out, to):
    """(position after the text whose quote is at `at`, position after its Variant)."""
    after, escaped = after_text(data, at + 1)
    size = after - at - 2
    if not escaped:
        if size <= _SHORT_MAX:
            out[to] = size << 2 | 1
            to += 1
        else:
            out[to] = _STRING << 2
            to = _put(out, to + 1, size, 4)
        copy_bytes(out, to, data, at + 1, size)
        return after, to + size
    size = unescape(data, at + 1, after - 1, out, to + 5) - to - 5
    if size <= _SHORT_MAX:
        out[to] = size << 2 | 1
        for i in range(size):
            out[to + 1 + i] = out[to + 5 + i]
        return after, to + 1 + size
    out[to] = _STRING << 2
    _put(out, to + 1, size, 4)
    return after, to + 5 + size


@inlined
def _name(data, at, names, to):
    """Write the name at `at` to `names`; return the position after its colon, and its size."""
    while is_blank(data[at]):
        at += 1
    after, escaped = after_text(data, at + 1)
    size = after - at - 2
    if escaped:
        size = unescape(data, at + 1, after - 1, names, to) - to
    else:
        copy_bytes(names, to, data, at + 1, size)
    while data[after] != 0x3A:
        after += 1
    return after + 1, size


@inlined
def _is_before(names, name_ends, one, other):
    """Return whether the name of one id is smaller than that of another, with the same first eight
    bytes: zero bytes stand in a prefix where a name ends.
    """
    at, end = name_ends[one] + 8, name_ends[one + 1]
    at_other, end_other = name_ends[other] + 8, name_ends[other + 1]
    while at < end and at_other < end_other:
        if names[at] != names[at_other]:
            return names[at] < names[at_other]
        at += 1
        at_other += 1
    return name_ends[one + 1] - name_ends[one] < name_ends[other + 1] - name_ends[other]


@inlined
def _sort(ids, offsets, first, last, names, name_ends, prefixes):
    """Sort fields by their names (Shell's sort: it needs no memory, and no order is slow)."""
    gap = 1
    while gap < (last - first) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(first + gap, last):
            field = ids[i]
            offset = offsets[i]
            prefix = prefixes[field]
            j = i
            while j >= first + gap:
                other = ids[j - gap]
                if prefix > prefixes[other]:
                    break
                if prefix == prefixes[other] and not _is_before(names, name_ends, field, other):
                    break
                ids[j] = other
                offsets[j] = offsets[j - gap]
                j -= gap
            ids[j] = field
            offsets[j] = offset
        gap //= 3


@inlined
def _name_id(names, name_ends, prefixes, count, size, slots, row):
    """Id of the name that was written behind `count` others; `count` if it is new."""
    start = name_ends[count]
    number = word_at(names, start)
    if size < 8:
        number &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
    number = number >> _HALF | number << _HALF  # the first byte becomes the highest
    number = number >> _16 & _PAIRS | (number & _PAIRS) << _16
    number = number >> _8 & _BYTES | (number & _BYTES) << _8
    prefix = np.int64(number ^ _SIGN)
    digest = number ^ np.uint64(size)
    for i in range(8, size):
        digest = (digest ^ np.uint64(names[start + i])) * np.uint64(0x100000001B3)
    digest *= np.uint64(0x9E3779B97F4A7C15)
    mask = slots.shape[0] - 1
    slot = np.int64(digest >> np.uint64(32)) & mask
    stamp = np.int64(row + 1) << 32
    while slots[slot] >= stamp:
        known = slots[slot] - stamp
        if prefixes[known] == prefix and name_ends[known + 1] - name_ends[known] == size:
            same = 8
            while same < size and names[name_ends[known] + same] == names[start + same]:
                same += 1
            if same >= size:
                return known
        slot = (slot + 1) & mask
    slots[slot] = stamp + count
    prefixes[count] = prefix
    name_ends[count + 1] = start + size
    return count


@inlined
def _pairs(ids, first, last):
    """Return how many neighbours are the same."""
    count = 0
    for i in range(first + 1, last):
        count += ids[i] == ids[i - 1]
    return count


@inlined
def _close(out, is_object, start, to, ids, offsets, first, last):
    """Write the header of a container before its values out[start:to]; return its size."""
    count = last - first
    width = _width(to - start)
    is_large = count > 0xFF
    size = 1 + (4 if is_large else 1) + (count + 1) * width
    id_width = 1
    if is_object:
        largest = np.int64(0)
        for i in range(first, last):
            largest = max(largest, ids[i])
        id_width = _width(largest)
        size += count * id_width
    for i in range(to - 1, start - 1, -1):
        out[i + size] = out[i]
    at = start + 1
    if is_object:
        out[start] = 2 | (width - 1) << 2 | (id_width - 1) << 4 | (64 if is_large else 0)
    else:
        out[start] = 3 | (width - 1) << 2 | (16 if is_large else 0)
    at = _put(out, at, count, 4 if is_large else 1)
    if is_object:
        for i in range(first, last):
            at = _put(out, at, ids[i], id_width)
    for i in range(first, last):
        at = _put(out, at, offsets[i], width)
    _put(out, at, to - start, width)
    return size


@inlined
def _dictionary(meta, at, names, name_ends, count):
    """Write the dictionary of a row; return the position after it."""
    size = name_ends[count]
    width = _width(max(size, count))
    meta[at] = 1 | (width - 1) << 6
    at = _put(meta, at + 1, count, width)
    for i in range(count + 1):
        at = _put(meta, at, name_ends[i], width)
    copy_bytes(meta, at, names, 0, size)
    return at + size


@inlined
def _encode_text(  # noqa: C901 - one loop over the bytes of a text
    data, at, row, out, to, doubles, double_places, double, frames, names, name_ends, prefixes,
    slots, ids, offsets,
):  # fmt: skip
    """(position after the Variant of the text at `at`, count of doubles, count of names, fault)."""
    code = 0
    depth = 0
    held = np.int64(0)  # fields and items of the open containers
    name_count = np.int64(0)
    name_ends[0] = 0
    while True:
        # A value is next.
        while is_blank(data[at]):
            at += 1
        opened = False
        if data[at] in (0x7B, 0x5B):
            frames[depth, 0] = data[at] == 0x7B
            frames[depth, 1] = to
            frames[depth, 2] = held
            frames[depth, 3] = double
            depth += 1
            at += 1
            while is_blank(data[at]):
                at += 1
            opened = data[at] != 0x7D and data[at] != 0x5D
        elif data[at] == 0x22:
            at, to = _text(data, at, out, to)
        elif data[at] < 0x3A:
            start = at
            at, to = _number(data, at, out, to)
            if to < 0:  # a double: its text is read with those of all rows
                to = ~to
                out[to] = _DOUBLE << 2
                doubles[double] = to + 1
                double_places[double] = start << SIZE_BITS | (at - start)
                double += 1
                to += 9
        else:
            is_true, is_null = data[at] == 0x74, data[at] == 0x6E
            out[to] = (_TRUE if is_true else _NULL if is_null else _FALSE) << 2
            to += 1
            at += 4 if is_true or is_null else 5
        # Close what ends here, up to where another value begins.
        while depth > 0:
            top = depth - 1
            if not opened:
                while is_blank(data[at]):
                    at += 1
                at += 1
                if data[at - 1] != 0x2C:
                    depth -= 1
                    first = frames[top, 2]
                    if frames[top, 0]:
                        _sort(ids, offsets, first, held, names, name_ends, prefixes)
                        if _pairs(ids, first, held):
                            code = TWICE
                    is_object, start = frames[top, 0], frames[top, 1]
                    added = _close(out, is_object, start, to, ids, offsets, first, held)
                    for i in range(frames[top, 3], double):
                        doubles[i] += added
                    to += added
                    held = first
                    continue
            opened = False
            if frames[top, 0]:
                at, length = _name(data, at, names, name_ends[name_count])
                found = _name_id(names, name_ends, prefixes, name_count, length, slots, row)
                name_count += found == name_count
                ids[held] = found
            offsets[held] = to - frames[top, 1]
            held += 1
            break
        if depth == 0 or code:
            return to, double, name_count, code


@compiled(
    LONG(
        BYTES, LONGS, BYTES, LONG, OUT, OUT, INTS, INTS, OUT, LONGS, LONGS, LONGS, OUT, LONGS,
        LONGS, LONGS, LONGS, LONGS,
    )
)  # fmt: skip
def _encode(
    data, places, valid, first_row, out, meta, out_offsets, meta_offsets, codes, ends, doubles,
    double_places, names, name_ends, prefixes, slots, ids, offsets,
):  # fmt: skip
    frames = np.empty((_DEPTH_MAX, 4), np.int64)  # is an object, start, first field, first double
    for row in range(first_row, places.shape[0]):
        out_offsets[row] = ends[_OUT]
        meta_offsets[row] = ends[_META]
        if not valid[row]:
            continue
        at = places[row] >> SIZE_BITS & SIZE_MASK
        size = places[row] & SIZE_MASK
        if size > SIZE_MAX:
            codes[row] = TOO_LARGE
            continue
        if (
            ends[_OUT] + 4 * size + 16 > out.shape[0]
            or ends[_META] + 2 * size + 16 > meta.shape[0]
            or ends[_DOUBLES] + size // 3 + 1 > doubles.shape[0]
        ):
            return row
        to, double, name_count, code = _encode_text(
            data, at, row, out, ends[_OUT], doubles, double_places, ends[_DOUBLES], frames, names,
            name_ends, prefixes, slots, ids, offsets,
        )  # fmt: skip
        if code == 0 and to - ends[_OUT] > SIZE_MAX:
            code = TOO_LARGE
        if code == 0:
            end = _dictionary(meta, ends[_META], names, name_ends, name_count)
            if end - ends[_META] > SIZE_MAX:
                code = TOO_LARGE
            else:
                ends[_META] = end
                ends[_OUT] = to
                ends[_DOUBLES] = double
        codes[row] = code
    return np.int64(places.shape[0])


@compiled(LONG(OUT, LONGS, LONGS, LONG))
def _put_doubles(out, at, bits, count):
    for i in range(count):
        _put(out, at[i], bits[i], 8)
    return count


def encode_variants(data: Any, places: Any, valid: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Encode the JSON texts at `places` (see `cells`) of `data`, where `valid` is not 0.

    Returns the values and where each begins and ends, their dictionaries and the same of these,
    and a fault for each (0 = good, see `FAULTS`; such a value is empty). All numpy arrays.
    """
    count = len(places)
    sizes = np.where(valid != 0, places & SIZE_MASK, 0)
    sizes[sizes > SIZE_MAX] = 0
    total, longest = int(sizes.sum()), int(sizes.max(initial=0))
    scratch = _Scratch(longest)
    out = np.empty(total + total // 4 + 4 * longest + 16, np.uint8)
    meta = np.empty(total + 2 * longest + 16, np.uint8)
    doubles = np.empty(total // 32 + longest // 3 + 1, np.int64)
    double_places = np.empty_like(doubles)
    offsets, meta_offsets = np.empty(count + 1, np.int32), np.empty(count + 1, np.int32)
    codes, ends = np.zeros(count, np.uint8), np.zeros(3, np.int64)
    row = 0
    while True:
        row = int(
            _encode(
                data, places, valid, row, out, meta, offsets, meta_offsets, codes, ends, doubles,
                double_places, *scratch.arrays,
            )
        )  # fmt: skip
        if row == count:
            break
        out, meta = _grown(out, 4 * longest + 16), _grown(meta, 2 * longest + 16)
        doubles = _grown(doubles, longest // 3 + 1)
        double_places = _grown(double_places, longest // 3 + 1)
    offsets[count], meta_offsets[count] = ends[_OUT], ends[_META]
    if found := int(ends[_DOUBLES]):
        held = read_doubles(data, double_places[:found], np.ones(found, np.uint8))
        _put_doubles(out, doubles, held.view(np.int64), found)
        beyond = np.searchsorted(offsets, doubles[:found][np.isinf(held)], side="right") - 1
        codes[beyond] = BEYOND
    return out[: ends[_OUT]], offsets, meta[: ends[_META]], meta_offsets, codes


class _Scratch:
    """The kernel's memory for one text at a time, of at most `longest` bytes."""

    def __init__(self, longest: int) -> None:
        names = longest // 4 + 2
        slots = 16
        while slots < 2 * names:
            slots *= 2
        self.arrays = (
            np.empty(longest + 16, np.uint8),  # names, one after the other
            np.zeros(names + 1, np.int64),  # where each ends
            np.empty(names, np.int64),  # the first eight bytes of each
            np.zeros(slots, np.int64),  # ids, by a hash of the name
            np.empty(longest // 2 + 2, np.int64),  # ids of fields
            np.empty(longest // 2 + 2, np.int64),  # where fields and items begin
        )


def _grown(array: Any, room: int) -> Any:
    """A copy of an array with as much memory again, and `room` items more."""
    more = np.empty(2 * len(array) + room, array.dtype)
    more[: len(array)] = array
    return more
