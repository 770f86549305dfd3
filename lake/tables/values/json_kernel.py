# mypy: disable-error-code="no-untyped-def, no-untyped-call, assignment, call-arg"
"""Kernel: JSON objects, checked before by `json_check`, to cells.

What comes here is well-formed, so syntax is not looked at again: only whether each value is of its
column's type. `nodes` has a row for each place in the tree of columns: (kind, slot, domain, a, b,
1 if fields that no column is for are noted there); `fields` one for each field of an object: (start
of its name in `names`, length, node). Text with
escapes is written out to a side buffer; a double is left as the place of its text (`json_numbers`
reads them).
"""

from typing import Any

import numpy as np

from lakehead.lake.tables.values.cells import SIDE
from lakehead.storage.kernel_compiler import (
    BYTES,
    LONG,
    LONGS,
    OUT,
    TABLE,
    compiled,
    inlined,
    results,
)
from lakehead.storage.kernel_memory import word_at

OBJECT_KIND = 0  # a: its first field, b: how many
ARRAY_KIND = 1  # a: domain of its items, b: node of an item
INTEGER_KIND = 2  # a: smallest, b: largest
DOUBLE_KIND = 3  # its text
BOOLEAN_KIND = 4
TEXT_KIND = 5
NUMERAL_KIND = 6  # a number or a text of one, as text

MISFIT, TWICE = 1, 2
_DEPTH_MAX = 101
_ESCAPED = np.arange(256, dtype=np.uint8)  # what the letter behind a backslash stands for
_ESCAPED[[0x6E, 0x74, 0x72, 0x62, 0x66]] = [0x0A, 0x09, 0x0D, 0x08, 0x0C]

_ONES = np.uint64(0x0101010101010101)
_QUOTES = np.uint64(0x2222222222222222)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_HIGH = np.uint64(0x8080808080808080)
_PLACES = np.uint64(0x0001020304050607)  # times 1 << 8 * n: n in the highest byte


@inlined
def _is_blank(byte):
    return byte <= 0x20


@inlined
def _after_text(data, at):
    """Position after the text whose opening quote is before `at`, and whether it has escapes."""
    escaped = False
    while True:
        if at + 8 <= data.shape[0]:  # eight bytes at once: the first quote or backslash of them
            quote = word_at(data, at) ^ _QUOTES
            slash = word_at(data, at) ^ _SLASHES
            found = ((quote - _ONES) & ~quote | (slash - _ONES) & ~slash) & _HIGH
            if found == 0:
                at += 8
                continue
            first = (found & (~found + np.uint64(1))) >> np.uint64(7)
            at += np.int64(first * _PLACES >> np.uint64(56))
        if data[at] == 0x22:
            return at + 1, escaped
        if data[at] == 0x5C:
            escaped = True
            at += 1
        at += 1


@inlined
def _after_value(data, at):
    """Position after the value at `at`."""
    depth = 0
    while True:
        byte = data[at]
        if byte == 0x22:
            at, _ = _after_text(data, at + 1)
        elif byte in (0x7B, 0x5B):
            depth += 1
            at += 1
        elif byte in (0x7D, 0x5D):
            depth -= 1
            at += 1
        elif depth == 0:
            # Up to a comma, a bracket or a blank; only `+` lies below the comma.
            while (data[at] > 0x2C and data[at] != 0x5D and data[at] != 0x7D) or data[at] == 0x2B:
                at += 1
        else:
            at += 1
        if depth == 0:
            return at


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
def _unescape(data, at, end, side, to):
    """Write out data[at:end] without its escapes; returns the position after it."""
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


@inlined
def _is_name(text, at, size, names, start, length):
    if length != size:
        return False
    same = 0
    while same < size and at + same + 8 <= text.shape[0]:  # `names` has eight bytes more
        different = word_at(text, at + same) ^ word_at(names, start + same)
        if size - same < 8:
            different &= (np.uint64(1) << np.uint64(8 * (size - same))) - np.uint64(1)
        if different:
            return False
        same += 8
    while same < size and text[at + same] == names[start + same]:
        same += 1
    return same >= size


@inlined
def _find(fields, node, nodes, hint, names, text, at, size):
    """Row of the field of a name in an object, or -1; they mostly come in order."""
    first = nodes[node, 3]
    count = nodes[node, 4]
    if hint < first + count and _is_name(text, at, size, names, fields[hint, 0], fields[hint, 1]):
        return hint
    for row in range(first, first + count):
        if _is_name(text, at, size, names, fields[row, 0], fields[row, 1]):
            return np.int64(row)
    return np.int64(-1)


@inlined
def _integer(data, at, low, high):
    """(fits, number, position after it)."""
    negative = data[at] == 0x2D
    if negative:
        at += 1
    start = at
    value = np.uint64(0)
    while 0x30 <= data[at] <= 0x39:
        if at - start == 19:
            return False, np.int64(0), at
        value = value * np.uint64(10) + np.uint64(data[at] - 0x30)
        at += 1
    if data[at] in (0x2E, 0x65, 0x45) or value > np.uint64(1 << 63):
        return False, np.int64(0), at
    if value == np.uint64(1 << 63) and not negative:
        return False, np.int64(0), at
    number = -np.int64(value) if negative else np.int64(value)
    return low <= number <= high, number, at


@inlined
def _text(data, at, end, escaped, side, side_at):
    """(cell of the text in data[at:end], position in the side buffer after it)."""
    if not escaped:
        return at << 31 | (end - at), side_at
    after = _unescape(data, at, end, side, side_at)
    return SIDE | side_at << 31 | (after - side_at), after


@inlined
def _scalar(data, at, kind, low, high, side, side_at):
    """(fits, cell, position after it, position in the side buffer after it)."""
    byte = data[at]
    if byte == 0x22:
        if kind < TEXT_KIND:
            return False, np.int64(0), at, side_at
        after, escaped = _after_text(data, at + 1)
        cell, side_at = _text(data, at + 1, after - 1, escaped, side, side_at)
        return True, cell, after, side_at
    if byte in (0x74, 0x66):
        if kind != BOOLEAN_KIND:
            return False, np.int64(0), at, side_at
        truth = byte == 0x74
        return True, np.int64(truth), at + (4 if truth else 5), side_at
    if byte in (0x7B, 0x5B):
        return False, np.int64(0), at, side_at
    if kind == INTEGER_KIND:
        fits, cell, after = _integer(data, at, low, high)
        return fits, cell, after, side_at
    if kind in (DOUBLE_KIND, NUMERAL_KIND):
        after = _after_value(data, at)
        return True, at << 31 | (after - at), after, side_at
    return False, np.int64(0), at, side_at


@inlined
def _undo(base, domains, held, before, cells, valid):
    """Take back what a row wrote, the item in progress of each list too."""
    for slot in range(base.shape[0]):
        domain = domains[slot]
        for i in range(before[domain], held[domain] + 1):
            cells[base[slot] + i] = 0
            valid[base[slot] + i] = 0
    for domain in range(held.shape[0]):
        held[domain] = before[domain]


@compiled(
    results(3)(
        BYTES, LONGS, LONG, TABLE, TABLE, BYTES, OUT, LONG, LONGS, LONGS, LONGS, LONGS, LONGS,
        LONGS, OUT, OUT,
    )
)  # fmt: skip
def _decode(  # noqa: C901 - one loop over the bytes of many objects
    data, starts, first, nodes, fields, names, side, side_at, domains, base, capacity, held,
    faults, cells, valid, unknown,
):  # fmt: skip
    before = np.empty(held.shape[0], np.int64)
    widest = 1
    for node in range(nodes.shape[0]):
        if nodes[node, 0] == OBJECT_KIND:
            widest = max(widest, nodes[node, 4])
    seen = np.zeros((_DEPTH_MAX, widest), np.int64)
    frames = np.empty((_DEPTH_MAX, 2), np.int64)  # node, field that is expected next
    for row in range(first, starts.shape[0]):
        before[:] = held
        side_before = side_at
        fault = np.int64(0)
        full = np.int64(-1)
        at = starts[row]
        node = np.int64(0)
        depth = 0
        while True:
            # A value of `node` is next.
            while _is_blank(data[at]):
                at += 1
            kind = nodes[node, 0]
            slot = nodes[node, 1]
            byte = data[at]
            cell = base[slot] + held[nodes[node, 2]] if slot >= 0 else np.int64(-1)
            opened = False
            if byte == 0x6E:
                at += 4
            elif kind <= ARRAY_KIND:
                if byte != (0x7B if kind == OBJECT_KIND else 0x5B):
                    fault = MISFIT | np.int64(byte) << 4 | node << 12
                    break
                if cell >= 0:
                    valid[cell] = 1
                opened = True
            else:
                low = nodes[node, 3]
                high = nodes[node, 4]
                fits, value, after, side_at = _scalar(data, at, kind, low, high, side, side_at)
                if not fits:
                    fault = MISFIT | np.int64(byte) << 4 | node << 12
                    break
                cells[cell] = value
                valid[cell] = 1
                at = after
            if opened:
                at += 1
                while _is_blank(data[at]):
                    at += 1
                frames[depth, 0] = node
                frames[depth, 1] = nodes[node, 3]
                if kind == OBJECT_KIND:
                    for i in range(nodes[node, 4]):
                        seen[depth, i] = 0
                depth += 1
                if data[at] in (0x7D, 0x5D):
                    opened = False
                    depth -= 1
                    at += 1
            # Close what ends here, up to where another value begins.
            while True:
                if depth == 0:
                    node = np.int64(-1)
                    break
                top = frames[depth - 1, 0]
                is_object = nodes[top, 0] == OBJECT_KIND
                if not opened:
                    if not is_object:
                        count = base[nodes[top, 1]] + held[nodes[top, 2]]
                        cells[count] += 1
                        held[nodes[top, 3]] += 1
                    while _is_blank(data[at]):
                        at += 1
                    if data[at] != 0x2C:
                        at += 1
                        depth -= 1
                        continue
                    at += 1
                opened = False
                if not is_object:
                    if held[nodes[top, 3]] >= capacity[nodes[top, 3]]:
                        full = nodes[top, 3]
                    node = nodes[top, 4]
                    break
                node = np.int64(-1)
                while True:
                    while _is_blank(data[at]):
                        at += 1
                    key = at + 1
                    at, escaped = _after_text(data, key)
                    hint = frames[depth - 1, 1]
                    if escaped:
                        size = _unescape(data, key, at - 1, side, side_at) - side_at
                        found = _find(fields, top, nodes, hint, names, side, side_at, size)
                    else:
                        found = _find(fields, top, nodes, hint, names, data, key, at - 1 - key)
                    while data[at] != 0x3A:
                        at += 1
                    at += 1
                    if found >= 0:
                        break
                    unknown[row] |= nodes[top, 5]
                    while _is_blank(data[at]):
                        at += 1
                    at = _after_value(data, at)
                    while _is_blank(data[at]):
                        at += 1
                    if data[at] != 0x2C:
                        break
                    at += 1
                if found < 0:
                    at += 1
                    depth -= 1
                    continue
                place = found - nodes[top, 3]
                node = fields[found, 2]
                if seen[depth - 1, place]:
                    fault = TWICE | node << 12
                seen[depth - 1, place] = 1
                frames[depth - 1, 1] = found + 1
                break
            if node < 0 or fault or full >= 0:
                break
        if fault:
            faults[row] = fault
            _undo(base, domains, held, before, cells, valid)
        elif full >= 0:
            _undo(base, domains, held, before, cells, valid)
            return row, full, side_before
        else:
            held[0] += 1
    return np.int64(starts.shape[0]), np.int64(-1), side_at


def decode_objects(data: Any, starts: Any, tables: Any, side: Any, cells: Any) -> tuple[Any, Any]:
    """Fill `cells` with the well-formed objects at data[starts[i]]. Returns a fault for each (0 =
    good, else MISFIT | first byte of what does not fit << 4 | node << 12, or TWICE | node << 12)
    and 1 for each that has fields which no column is for.
    """
    faults = np.zeros(len(starts), np.int64)
    unknown = np.zeros(len(starts), np.uint8)
    row, full, side_at = 0, 0, 0
    while full >= 0:
        places = (cells.domains, cells.base, cells.capacity, cells.held)
        buffers = (*tables, side, side_at)
        arrays = (*places, faults, cells.values, cells.valid, unknown)
        row, full, side_at = _decode(data, starts, row, *buffers, *arrays)
        if full >= 0:
            cells.grow(int(full))
    return faults, unknown
