# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Kernel: decodes many Protobuf messages by the tables of a compiled schema (wire format of
Protocol Buffers).

`messages` has a row for each place of a message in the tree of columns: (first of its fields, how
many). `fields` has a row for each field, in order of numbers (`FIELD`). Fields that no table names
are skipped, as are those of another wire type than they should have. A second value replaces the
first, messages merge, and a member of a oneof takes the place of the others.
"""

from typing import Any

import numpy as np

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
from lakehead.storage.kernel_varint import EXACT_BITS, uvarint

FIELD = (
    *("number", "kind", "slot", "domain", "list_slot", "list_domain", "message"),
    *("first_rival", "rivals", "first_own", "owned", "first_number", "numbers"),
)
"""The columns of `fields`. `slot` is that of the value, or of a message's presence (-1: none);
`domain` its domain, that of the items of a list, which `list_slot` counts (-1: it is not a list);
`message` a row of `messages`. Rivals are rows of other members of its oneof, `owned` what a member
holds, `numbers` those of a closed enum, each with the first and how many.
"""

INT64_KIND = 0
INT32_KIND = 1
UINT32_KIND = 2
SINT32_KIND = 3
SINT64_KIND = 4
BOOL_KIND = 5
CLOSED_ENUM_KIND = 6
FIXED32_KIND = 7
SFIXED32_KIND = 8
FIXED64_KIND = 9
BYTES_KIND = 10
MESSAGE_KIND = 11
FORGOTTEN_KIND = 12  # has no column, but takes the place of rivals that have
GROUP_KIND = 13  # a message that ends by a tag (proto2's groups, editions' DELIMITED)

FAULTS = {
    1: "a tag or number is not a varint",
    2: "a field of number 0",
    3: "a field that overruns its message",
    4: "a group that does not end as it began",
    5: "messages nested too deep",
    6: "a oneof that is set twice, over a list",
    7: "a wire type that does not exist",
}
"""Reasons why a message was refused, by fault code."""

_DEPTH_MAX = 100


@inlined
def _skip(data, at, end, tag, groups):  # noqa: C901 - a branch for each wire type
    """(fault or 0, position after the field whose tag was read); groups as a whole."""
    depth = 0
    while True:
        wire = tag & 7
        if wire == 0:
            _, after = uvarint(data, at, end, EXACT_BITS)
            if after < 0:
                return 1, at
            at = after
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            if end - at < size:
                return 3, at
            at += size
        elif wire == 2:
            size, after = uvarint(data, at, end, EXACT_BITS)
            if after < 0 or size < 0 or size > end - after:
                return 3, at
            at = after + size
        elif wire == 3:
            if depth == _DEPTH_MAX:
                return 5, at
            groups[depth] = tag >> 3
            depth += 1
        elif wire == 4:
            if depth == 0 or groups[depth - 1] != tag >> 3:
                return 4, at
            depth -= 1
        else:
            return 7, at
        if depth == 0:
            return 0, at
        tag, after = uvarint(data, at, end, EXACT_BITS)
        if after < 0 or tag < 8 or tag > 0xFFFFFFFF:
            return 1, at
        at = after


@inlined
def _find(fields, first, count, number, hint):
    """Row of the field of a number, or -1; they mostly come in order."""
    if hint < first + count and fields[hint, 0] == number:
        return hint
    low = first
    high = first + count
    while low < high:
        middle = (low + high) >> 1
        if fields[middle, 0] < number:
            low = middle + 1
        else:
            high = middle
    if low < first + count and fields[low, 0] == number:
        return low
    return np.int64(-1)


@inlined
def _wire_of(kind):
    """The wire type of a kind."""
    if kind <= CLOSED_ENUM_KIND:
        return 0
    if kind <= SFIXED32_KIND:
        return 5
    if kind == GROUP_KIND:
        return 3
    return 1 if kind == FIXED64_KIND else 2


@inlined
def _little_endian(data, at, size):
    value = np.uint64(0)
    for i in range(size):
        value |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return np.int64(value)


@inlined
def _scalar(data, at, end, kind):
    """(fault or 0, cell, position after it)."""
    if kind <= CLOSED_ENUM_KIND:
        value, after = uvarint(data, at, end, EXACT_BITS)
        if after < 0:
            return 1, value, at
        if kind in (INT32_KIND, CLOSED_ENUM_KIND):
            value = np.int64(np.int32(value & 0xFFFFFFFF))
        elif kind == UINT32_KIND:
            value &= 0xFFFFFFFF
        elif kind == SINT32_KIND:
            value &= 0xFFFFFFFF
            value = (value >> 1) ^ -(value & 1)
        elif kind == SINT64_KIND:
            value = np.int64(np.uint64(value) >> np.uint64(1)) ^ -(value & 1)
        elif kind == BOOL_KIND:
            value = np.int64(value != 0)
        return 0, value, after
    if kind == BYTES_KIND:
        size, after = uvarint(data, at, end, EXACT_BITS)
        if after < 0 or size < 0 or size > end - after:
            return 3, size, at
        return 0, after << 31 | size, after + size
    size = 8 if kind == FIXED64_KIND else 4
    if end - at < size:
        return 3, np.int64(0), at
    value = _little_endian(data, at, size)
    if kind == SFIXED32_KIND:
        value = np.int64(np.int32(value))
    return 0, value, at + size


@inlined
def _is_member(numbers, low, high, value):
    end = high
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low < end and numbers[low] == value


@inlined
def _oust(fields, rivals, owned, found, base, held, cells, valid):
    """Clear the other members of a oneof. False if one of them held a list: its items stay."""
    for i in range(fields[found, 7], fields[found, 7] + fields[found, 8]):
        rival = rivals[i]
        for j in range(fields[rival, 9], fields[rival, 9] + fields[rival, 10]):
            cell = base[owned[j, 0]] + held[owned[j, 1]]
            if valid[cell] and owned[j, 2] and cells[cell] > 0:
                return False
            cells[cell] = 0
            valid[cell] = 0
    return True


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


@inlined
def _values(data, at, end, packed, fields, found, numbers, base, capacity, held, cells, valid):
    """Read a scalar or, up to `end`, packed ones: (fault, position, 1 if the domain is full)."""
    kind = fields[found, 1]
    slot = fields[found, 2]
    domain = fields[found, 3]
    listed = fields[found, 4]
    low = fields[found, 11]
    high = low + fields[found, 12]
    while True:
        if packed and at == end:
            return 0, at, 0
        if listed >= 0 and held[domain] >= capacity[domain]:
            return 0, at, 1
        fault, value, at = _scalar(data, at, end, kind)
        if fault:
            return fault, at, 0
        if kind != CLOSED_ENUM_KIND or _is_member(numbers, low, high, value):
            cell = base[slot] + held[domain]
            cells[cell] = value
            valid[cell] = 1
            if listed >= 0:
                held[domain] += 1
                count = base[listed] + held[fields[found, 5]]
                cells[count] += 1
                valid[count] = 1
        if not packed:
            return 0, at, 0


@compiled(
    results(2)(
        BYTES, LONGS, LONGS, LONG, TABLE, TABLE, LONGS, TABLE, LONGS, LONGS, LONGS, LONGS, LONGS,
        LONGS, LONGS, OUT,
    )
)  # fmt: skip
def _decode(  # noqa: C901 - one loop over the bytes of many messages
    data, starts, ends, first, messages, fields, rivals, owned, numbers, domains, base, capacity,
    held, faults, cells, valid,
):  # fmt: skip
    before = np.empty(held.shape[0], np.int64)
    groups = np.empty(_DEPTH_MAX, np.int64)
    # Of what a message is in: message, end, hint, domain of the item; its own number if a group.
    frames = np.empty((_DEPTH_MAX + 1, 5), np.int64)
    for row in range(first, starts.shape[0]):
        at = starts[row]
        end = ends[row]
        before[:] = held
        fault, full, depth = 0, 0, 0
        message = np.int64(0)
        hint = messages[0, 0]
        domain = np.int64(-1)
        while True:
            tag, after, wire = np.int64(0), at, np.int64(-1)
            if at < end:
                tag, after = uvarint(data, at, end, EXACT_BITS)
                if after < 0 or tag > 0xFFFFFFFF or tag < 8:
                    fault = 2 if after >= 0 and 0 <= tag < 8 else 1
                    break
                wire = tag & 7
            at = after
            if wire < 0 or wire == 4:
                if depth == 0 and wire < 0:
                    break
                # A message ends where its bytes do, a group by its number.
                if depth == 0 or frames[depth - 1, 4] != tag >> 3:
                    fault = 4
                    break
                if domain >= 0:
                    held[domain] += 1
                depth -= 1
                message, end = frames[depth, 0], frames[depth, 1]
                hint, domain = frames[depth, 2], frames[depth, 3]
                continue
            found = _find(fields, messages[message, 0], messages[message, 1], tag >> 3, hint)
            expected = -1 if found < 0 else _wire_of(fields[found, 1])
            packed = wire == 2 and expected not in (-1, 2, 3) and fields[found, 4] >= 0
            if found < 0 or fields[found, 1] == FORGOTTEN_KIND or (wire != expected and not packed):
                fault, at = _skip(data, at, end, tag, groups)
                if fault:
                    break
                if found < 0 or fields[found, 1] != FORGOTTEN_KIND or wire != fields[found, 6]:
                    continue
            kind = fields[found, 1]
            hint = found + 1
            ousts = fields[found, 8] > 0
            if ousts and kind == CLOSED_ENUM_KIND:  # a number it does not have is no value
                _, value, _ = _scalar(data, at, end, CLOSED_ENUM_KIND)
                low = fields[found, 11]
                ousts = _is_member(numbers, low, low + fields[found, 12], value)
            if ousts and not _oust(fields, rivals, owned, found, base, held, cells, valid):
                fault = 6
                break
            if kind == FORGOTTEN_KIND:
                continue
            if fields[found, 4] < 0 and kind <= BYTES_KIND and kind != CLOSED_ENUM_KIND:
                # By far the most, and a call with all these arrays costs more than the value.
                fault, value, at = _scalar(data, at, end, kind)
                if fault:
                    break
                cell = base[fields[found, 2]] + held[fields[found, 3]]
                cells[cell] = value
                valid[cell] = 1
                continue
            if kind <= BYTES_KIND and not packed:
                fault, at, full = _values(
                    data, at, end, False, fields, found, numbers, base, capacity, held, cells, valid
                )
                if fault or full:
                    domain = fields[found, 3]
                    break
                continue
            behind, group = end, tag >> 3
            if kind != GROUP_KIND:
                size, after = uvarint(data, at, end, EXACT_BITS)
                if after < 0 or size < 0 or size > end - after:
                    fault = 3
                    break
                at = after
                behind, group = at + size, np.int64(0)
            if packed:
                fault, at, full = _values(
                    data, at, behind, True, fields, found, numbers, base, capacity, held, cells,
                    valid,
                )  # fmt: skip
                if fault or full:
                    domain = fields[found, 3]
                    break
                continue
            if depth == _DEPTH_MAX:
                fault = 5
                break
            if fields[found, 4] >= 0 and held[fields[found, 3]] >= capacity[fields[found, 3]]:
                full = 1
                domain = fields[found, 3]
                break
            if fields[found, 4] >= 0:
                count = base[fields[found, 4]] + held[fields[found, 5]]
                cells[count] += 1
                valid[count] = 1
            if fields[found, 2] >= 0:
                valid[base[fields[found, 2]] + held[fields[found, 3]]] = 1
            frames[depth, 0], frames[depth, 1] = message, end
            frames[depth, 2], frames[depth, 3], frames[depth, 4] = hint, domain, group
            depth += 1
            message = fields[found, 6]
            end = behind
            hint = messages[message, 0]
            domain = fields[found, 3] if fields[found, 4] >= 0 else np.int64(-1)
        if fault:
            faults[row] = fault | (at - starts[row]) << 4
            _undo(base, domains, held, before, cells, valid)
        elif full:
            _undo(base, domains, held, before, cells, valid)
            return row, domain
        else:
            held[0] += 1
    return starts.shape[0], -1


def decode_messages(data: Any, starts: Any, ends: Any, tables: Any, cells: Any) -> Any:
    """Fill `cells` with the messages data[starts[i]:ends[i]] and return a fault for each (0 = good,
    else see `fault_text`). Only good ones have a row of cells. `tables` are `messages`, `fields`,
    `rivals`, `owned` (slot, domain, 1 if it counts a list's items) and `numbers`.
    """
    faults = np.zeros(len(starts), np.int64)
    row, full = 0, 0
    while full >= 0:
        places = (cells.domains, cells.base, cells.capacity, cells.held)
        arrays = (*tables, *places, faults, cells.values, cells.valid)
        row, full = _decode(data, starts, ends, row, *arrays)
        if full >= 0:
            cells.grow(int(full))
    return faults


def fault_text(fault: int) -> str:
    """Return a fault in words, with its position in the message."""
    return f"{FAULTS[fault & 15]} (byte {fault >> 4})"
