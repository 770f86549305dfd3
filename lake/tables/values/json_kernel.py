"""Kernels: check that values are JSON objects, and read their fields into cells.

The check: each value is exactly one well-formed JSON object (RFC 8259), in UTF-8. Arrow's JSON
reader parses a stream of objects and is lenient where a table must not be: it takes two objects in
one value for two rows, half an object for the beginning of the next one, and bytes that are not
UTF-8 for text. After this check a block of values has one row per value; faults are known by row,
without parsing anything twice.

The reader gets checked values, so it does not check syntax again, only the type of each value
against its column. `nodes` has a row for each place in the tree of columns: (kind, slot, domain, a,
b, 1 if fields without a column are noted there); `fields` one for each field of an object: (start
of its name in `names`, length, node). Text with escapes is written out to a side buffer; a double
is left as the place of its text (`text_kernels` reads them).
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
from lakehead.storage.kernel_text import (
    HIGH_BITS,
    after_text,
    first_of,
    is_blank,
    quotes_and_slashes,
    unescape,
)

# mypy: disable-error-code="no-untyped-def, no-untyped-call"


DEPTH_MAX = 100
"""Objects and arrays inside each other; deeper values are refused."""

FAULTS = {
    1: "not a JSON object",
    2: "malformed JSON",
    3: "text that is not UTF-8",
    4: f"JSON nested more than {DEPTH_MAX} deep",
}
"""Reasons why a value was refused, by fault code."""

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

_BLANKS = np.uint64(0x2020202020202020)


@inlined
def _checked_hex4(data, at, end):
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
    unit = _checked_hex4(data, at + 2, end)
    if unit < 0 or 0xDC00 <= unit <= 0xDFFF:
        return -1
    if unit < 0xD800 or unit > 0xDBFF:
        return at + 6
    if at + 7 >= end or data[at + 6] != 0x5C or data[at + 7] != 0x75:
        return -1
    low = _checked_hex4(data, at + 8, end)
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
    """Number of bytes, from the first of a word of eight, that are plain inside a string."""
    # The high bit of each byte that is below 0x20, a quote, a backslash or beyond ASCII; above the
    # first such byte there may be others set, by its borrow.
    found = ((word - _BLANKS) & ~word | quotes_and_slashes(word) | word) & HIGH_BITS
    if found == 0:
        return np.int64(8)
    return first_of(found)


@inlined
def _string(data, at, end):
    """Position after the string whose opening quote is before `at`; ~position of a fault.

    The second result is the fault code.
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


# mypy: disable-error-code="no-untyped-def, no-untyped-call, assignment, call-arg"


OBJECT_KIND = 0  # a: its first field, b: how many
ARRAY_KIND = 1  # a: domain of its items, b: node of an item
INTEGER_KIND = 2  # a: smallest, b: largest
DOUBLE_KIND = 3  # its text
BOOLEAN_KIND = 4
TEXT_KIND = 5
NUMERAL_KIND = 6  # a number or a text of one, as text
VARIANT_KIND = 7  # any value, null too, as it is written

MISFIT, TWICE = 1, 2
_DEPTH_MAX = 101


@inlined
def _after_value(data, at):
    """Position after the value at `at`."""
    depth = 0
    while True:
        byte = data[at]
        if byte == 0x22:
            at, _ = after_text(data, at + 1)
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
    after = unescape(data, at, end, side, side_at)
    return SIDE | side_at << 31 | (after - side_at), after


@inlined
def _scalar(data, at, kind, low, high, side, side_at):
    """(fits, cell, position after it, position in the side buffer after it)."""
    byte = data[at]
    if kind == VARIANT_KIND:
        after = _after_value(data, at)
        return True, at << 31 | (after - at), after, side_at
    if byte == 0x22:
        if kind < TEXT_KIND:
            return False, np.int64(0), at, side_at
        after, escaped = after_text(data, at + 1)
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
            while is_blank(data[at]):
                at += 1
            kind = nodes[node, 0]
            slot = nodes[node, 1]
            byte = data[at]
            cell = base[slot] + held[nodes[node, 2]] if slot >= 0 else np.int64(-1)
            opened = False
            if byte == 0x6E and kind != VARIANT_KIND:
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
                while is_blank(data[at]):
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
                    while is_blank(data[at]):
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
                    while is_blank(data[at]):
                        at += 1
                    key = at + 1
                    at, escaped = after_text(data, key)
                    hint = frames[depth - 1, 1]
                    if escaped:
                        size = unescape(data, key, at - 1, side, side_at) - side_at
                        found = _find(fields, top, nodes, hint, names, side, side_at, size)
                    else:
                        found = _find(fields, top, nodes, hint, names, data, key, at - 1 - key)
                    while data[at] != 0x3A:
                        at += 1
                    at += 1
                    if found >= 0:
                        break
                    unknown[row] |= nodes[top, 5]
                    while is_blank(data[at]):
                        at += 1
                    at = _after_value(data, at)
                    while is_blank(data[at]):
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


def decode_objects(
    data: Any, starts: Any, tables: Any, cells: Any, side_at: int
) -> tuple[Any, Any, int]:
    """Fill `cells` with the well-formed objects at data[starts[i]], and their buffer beside the
    values from `side_at` on. Returns a fault for each (0 = good, else MISFIT | first byte of what
    does not fit << 4 | node << 12, or TWICE | node << 12), 1 for each that has fields which no
    column is for, and the position in the buffer after them.
    """
    faults = np.zeros(len(starts), np.int64)
    unknown = np.zeros(len(starts), np.uint8)
    row, full = 0, 0
    while full >= 0:
        places = (cells.domains, cells.base, cells.capacity, cells.held)
        buffers = (*tables, cells.side, side_at)
        arrays = (*places, faults, cells.values, cells.valid, unknown)
        row, full, side_at = _decode(data, starts, row, *buffers, *arrays)
        if full >= 0:
            cells.grow(int(full))
    return faults, unknown, int(side_at)


@inlined
def _plain_text(data, at, end):
    """Position of the quote at the end of a text in UTF-8 without escapes, or -1."""
    while at < end:
        if at + 8 <= end:
            plain = _plain_bytes(word_at(data, at))
            at += plain
            if plain == 8:
                continue
        byte = data[at]
        if byte == 0x22:
            return at
        if byte >= 0x80:
            at = _character(data, at, end)
            if at < 0:
                return -1
        elif _IS_PLAIN[byte]:
            at += 1
        else:
            return -1
    return -1


@inlined
def _plain_scalar(data, at, end, kind, low, high):
    """(cell, position after it), the position -1 if the bytes are not a value of the kind. Looks at
    data[end - 1], a brace, at most.
    """
    byte = data[at]
    if byte == 0x22:
        after = _plain_text(data, at + 1, end) if kind >= TEXT_KIND else -1
        return (at + 1) << 31 | (after - at - 1), after + 1 if after >= 0 else -1
    if kind == BOOLEAN_KIND:
        after = _word(data, at, end) if byte in (0x74, 0x66) else -1
        return np.int64(byte == 0x74), max(after, -1)
    if kind == TEXT_KIND or not (byte == 0x2D or 0x30 <= byte <= 0x39):
        return np.int64(0), -1
    after = _number(data, at, end)
    if after < 0 or kind != INTEGER_KIND:
        return at << 31 | (after - at), max(after, -1)
    fits, cell, _ = _integer(data, at, low, high)
    return cell, after if fits else -1


@inlined
def _named_field(data, at, end, field, last, fields, names):
    """The first field, from `field` on, with the name and the quote at `at`; `last` if none has."""
    while field < last:
        size = fields[field, 1]
        is_long = at + size < end and data[at + size] == 0x22
        if is_long and _is_name(data, at, size, names, fields[field, 0], size):
            return field
        field += 1
    return last


@inlined
def _plain_row(data, at, end, row, nodes, fields, names, base, cells, valid):
    """Fill the cells of a row. False if data[at:end] is not a well-formed object, of which each
    field is a column of scalars, in their order, with at most one blank after a colon or comma.
    """
    if end - at < 2 or data[at] != 0x7B or data[end - 1] != 0x7D:
        return False
    field = nodes[0, 3]
    last = field + nodes[0, 4]
    while True:  # at an opening brace or a comma, which are not the last byte
        at += 1
        if data[at] == 0x20:
            at += 1
        if data[at] != 0x22:
            return False
        at += 1
        field = _named_field(data, at, end, field, last, fields, names)
        if field == last:
            return False
        at += fields[field, 1] + 1
        if at >= end or data[at] != 0x3A:
            return False
        at += 1
        if data[at] == 0x20:
            at += 1
        node = fields[field, 2]
        if data[at] == 0x6E:
            at = _word(data, at, end)
        else:
            cell = base[nodes[node, 1]] + row
            value, at = _plain_scalar(data, at, end, nodes[node, 0], nodes[node, 3], nodes[node, 4])
            cells[cell] = value
            valid[cell] = 1
        field += 1
        if at < 0 or at >= end:
            return False
        if data[at] == 0x7D:
            return at + 1 == end
        if data[at] != 0x2C:
            return False


@compiled(LONG(BYTES, LONGS, LONGS, LONG, TABLE, TABLE, BYTES, LONGS, LONGS, LONGS, OUT))
def _read_plain(data, starts, ends, first, nodes, fields, names, base, held, cells, valid):
    for row in range(first, starts.shape[0]):
        place = held[0]
        if not _plain_row(
            data, starts[row], ends[row], place, nodes, fields, names, base, cells, valid
        ):
            for slot in range(base.shape[0]):
                cells[base[slot] + place] = 0
                valid[base[slot] + place] = 0
            return row
        held[0] += 1
    return np.int64(starts.shape[0])


def read_plain(data: Any, starts: Any, ends: Any, first: int, tables: Any, cells: Any) -> int:
    """Fill `cells` with values of scalars, from the row `first` on, as far as they are written as
    encoders mostly do, which is checked on the way. Returns the row that is not: any other value,
    whether well-formed or not.
    """
    places = (cells.base, cells.held, cells.values, cells.valid)
    return int(_read_plain(data, starts, ends, first, *tables, *places))
