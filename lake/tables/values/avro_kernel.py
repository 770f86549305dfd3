# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Kernel: runs an Avro schema's program over many datums (Avro 1.12, binary encoding).

A program is a table of operations, one row each: (operation, slot, domain, a, b, c). It is what is
left of a schema when every decision that does not depend on the bytes has been made. A slot of -1
reads and forgets. Every read is checked against the end of its value, so garbage is a fault of its
row: what the row had written until then is undone.
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
from lakehead.storage.kernel_varint import EXACT_BITS, varint

# Scalars: read one thing and keep it.
LONG_OP = 0
INT_OP = 1
FLOAT_OP = 2
DOUBLE_OP = 3
BOOLEAN_OP = 4
BYTES_OP = 5
FIXED_OP = 6  # a: size
ENUM_OP = 7  # a: how many symbols
PRESENT_OP = 8  # nothing to read: the record is there
# Control.
UNION_OP = 9  # a: first of its jumps, b: how many branches
JUMP_OP = 10  # a: where to
LIST_OP = 11  # a: domain of the items, b: level, c: where to after the last item
NEXT_OP = 12  # a: domain of the items, b: level, c: its LIST_OP
END_OP = 13

FAULTS = {
    1: "the value ends too early",
    2: "a number is not a varint",
    3: "an int beyond 32 bits",
    4: "a boolean that is neither 0 nor 1",
    5: "a length that overruns the value",
    6: "a symbol that its enum does not have",
    7: "a branch that its union does not have",
    8: "bytes after the last field",
}
"""Reasons why a value was refused, by fault code."""


@inlined
def _little_endian(data, at, size):
    value = np.uint64(0)
    for i in range(size):
        value |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return np.int64(value)


@inlined
def _block(data, at, end):
    """(items of the next block, 0 after the last one, position after it), or position -1."""
    count, at = varint(data, at, end, EXACT_BITS)
    if at < 0:
        return np.int64(0), at
    if count < 0:
        count = -count
        size, at = varint(data, at, end, EXACT_BITS)
        if at < 0 or size < 0:
            return np.int64(0), np.int64(-1)
    # An item is at least a byte (`avro_schema` sees to it): no count makes work beyond the value.
    if count < 0 or count > end - at:
        return np.int64(0), np.int64(-1)
    return count, at


@inlined
def _scalar(data, at, end, op, a):  # noqa: C901 - a branch for each type
    """(fault or 0, cell, position after it)."""
    if op <= INT_OP:
        value, after = varint(data, at, end, EXACT_BITS)
        if after < 0:
            return 2, value, at
        if op == INT_OP and (value < -0x80000000 or value > 0x7FFFFFFF):
            return 3, value, at
        return 0, value, after
    if op == FLOAT_OP:
        if end - at < 4:
            return 1, np.int64(0), at
        return 0, _little_endian(data, at, 4), at + 4
    if op == DOUBLE_OP:
        if end - at < 8:
            return 1, np.int64(0), at
        return 0, _little_endian(data, at, 8), at + 8
    if op == BYTES_OP:
        size, after = varint(data, at, end, EXACT_BITS)
        if after < 0:
            return 2, size, at
        if size < 0 or size > end - after:
            return 5, size, at
        return 0, after << 31 | size, after + size
    if op == FIXED_OP:
        if end - at < a:
            return 1, np.int64(0), at
        return 0, at << 31 | a, at + a
    if op == BOOLEAN_OP:
        if at >= end:
            return 1, np.int64(0), at
        if data[at] > 1:
            return 4, np.int64(0), at
        return 0, np.int64(data[at]), at + 1
    if op == ENUM_OP:
        value, after = varint(data, at, end, EXACT_BITS)
        if after < 0:
            return 2, value, at
        if value < 0 or value >= a:
            return 6, value, at
        return 0, value, after
    return 0, np.int64(1), at


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
    results(2)(
        BYTES, LONGS, LONGS, LONG, TABLE, LONGS, LONGS, LONGS, LONGS, LONGS, LONGS, LONGS, OUT
    )
)
def _decode(  # noqa: C901 - one loop is the whole interpreter
    data, starts, ends, first, program, jumps, domains, base, capacity, held, faults, cells, valid
):
    before = np.empty(held.shape[0], np.int64)
    left = np.zeros(program.shape[0], np.int64)  # items to come, by level of lists
    for row in range(first, starts.shape[0]):
        start = starts[row]
        if start < 0:
            held[0] += 1
            continue
        at = start
        end = ends[row]
        before[:] = held
        fault = 0
        pc = np.int64(0)
        while True:
            op = program[pc, 0]
            slot = program[pc, 1]
            if op <= PRESENT_OP:
                fault, value, at = _scalar(data, at, end, op, program[pc, 3])
                if fault:
                    break
                if slot >= 0:
                    cell = base[slot] + held[program[pc, 2]]
                    cells[cell] = value
                    valid[cell] = 1
                pc += 1
            elif op == UNION_OP:
                value, after = varint(data, at, end, EXACT_BITS)
                if after < 0 or value < 0 or value >= program[pc, 4]:
                    fault = 2 if after < 0 else 7
                    break
                at = after
                pc = jumps[program[pc, 3] + value]
            elif op == JUMP_OP:
                pc = program[pc, 3]
            elif op <= NEXT_OP:
                items = program[pc, 3]
                level = program[pc, 4]
                if op == LIST_OP:
                    if slot >= 0:
                        valid[base[slot] + held[program[pc, 2]]] = 1
                    body = pc + 1
                    behind = program[pc, 5]
                    left[level] = 0
                else:
                    if slot >= 0:
                        cells[base[slot] + held[program[pc, 2]]] += 1
                        held[items] += 1
                    body = program[pc, 5] + 1
                    behind = pc + 1
                    left[level] -= 1
                if left[level] == 0:
                    count, after = _block(data, at, end)
                    if after < 0:
                        fault = 5
                        break
                    at = after
                    left[level] = count
                    if count == 0:
                        pc = behind
                        continue
                if slot >= 0 and held[items] >= capacity[items]:
                    _undo(base, domains, held, before, cells, valid)
                    return row, items
                pc = body
            else:
                fault = 0 if at == end else 8
                break
        if fault:
            faults[row] = fault | (at - start) << 4
            _undo(base, domains, held, before, cells, valid)
        else:
            held[0] += 1
    return starts.shape[0], -1


def decode_datums(data: Any, starts: Any, ends: Any, program: Any, jumps: Any, cells: Any) -> Any:
    """Fill `cells` with the datums data[starts[i]:ends[i]] (a start below 0: null) and return a
    fault for each (0 = good, else see `fault_text`). Only good ones and nulls have a row of cells.
    """
    faults = np.zeros(len(starts), np.int64)
    row, full = 0, 0
    while full >= 0:
        row, full = _decode(
            data,
            starts,
            ends,
            row,
            program,
            jumps,
            cells.domains,
            cells.base,
            cells.capacity,
            cells.held,
            faults,
            cells.values,
            cells.valid,
        )
        if full >= 0:
            cells.grow(int(full))
    return faults


def fault_text(fault: int) -> str:
    """Return a fault in words, with its position in the datum."""
    return f"{FAULTS[fault & 15]} (byte {fault >> 4})"
