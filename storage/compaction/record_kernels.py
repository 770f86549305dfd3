"""Kernels: the records of a batch as compaction sees them, the table of newest offsets, and what is
left of a batch.

Record (KIP-98, zigzag varints): length, attributes i8, timestamp delta, offset delta, key length
and key (-1: null), value length and value, headers. A row per record: offset, flags, 128 bits that
stand for its key, timestamp, where it starts (its length), where it goes on behind its timestamp
delta, where it ends. A slot of the table: the 128 bits, and the newest offset plus one; 0 is empty.

Keys are hashed by SipHash-2-4 of 128 bits (Aumasson and Bernstein) under a secret of the run: who
chooses keys cannot make two of them agree.
"""

from typing import Any

import numpy as np

from storage.kernel_compiler import BYTES, LONG, OUT, TABLE, compiled, inlined, results
from storage.kernel_memory import copy_bytes, prefetch, word_at

COLUMNS = 8
KEY_COLUMNS = 4
"""What `put` needs of a row: the first columns."""
OFFSET, FLAGS = 0, 1
HAS_KEY, IS_TOMBSTONE, STAYS = 1, 2, 4
FAULTS = {
    1: "a record's length is no varint",
    2: "a record reaches beyond its batch",
    3: "a record is cut short",
    4: "a record lies outside its batch",
    5: "a record's time lies beyond all time",
    6: "a key reaches beyond its record",
}
SIZE_MIN = 6
"""Bytes of a record of nothing, where nobody looks for its headers."""
_AHEAD = 8
"""Rows."""
_SLOT_SIZE = 24
GROWTH_MAX = 16
"""By how many bytes a record may grow that gets another timestamp delta."""


@inlined
def _varint(data: Any, at: Any, end: Any) -> Any:
    """Return (value, position after it), or position -1 if it does not end before `end` or is
    longer than 10 bytes.
    """
    if at < end and data[at] < 128:  # as most are
        only = np.int64(data[at])
        return (only >> np.int64(1)) ^ -(only & np.int64(1)), at + 1
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 128:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@inlined
def _put_varint(out: Any, at: Any, value: Any) -> Any:
    """Write a number; return the position after it."""
    rest = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    while rest >= np.uint64(0x80):
        out[at] = np.uint8((rest & np.uint64(0x7F)) | np.uint64(0x80))
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@inlined
def _turned(word: Any, bits: Any) -> Any:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@inlined
def _round(a: Any, b: Any, c: Any, d: Any) -> Any:
    a += b
    b = _turned(b, 13) ^ a
    a = _turned(a, 32)
    c += d
    d = _turned(d, 16) ^ c
    a += d
    d = _turned(d, 21) ^ a
    c += b
    b = _turned(b, 17) ^ c
    c = _turned(c, 32)
    return a, b, c, d


@inlined
def _rest(data: Any, at: Any, size: Any) -> Any:
    """Return up to seven bytes as a number, the first the lowest."""
    word = np.uint64(0)
    for n in range(size):
        word |= np.uint64(data[at + n]) << np.uint64(8 * n)
    return word


@inlined
def _digest(data: Any, at: Any, size: Any, low: Any, high: Any) -> Any:
    """Return the 128 bits that stand for a key, under a secret of two words."""
    a = np.uint64(low) ^ np.uint64(0x736F6D6570736575)
    b = np.uint64(high) ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    c = np.uint64(low) ^ np.uint64(0x6C7967656E657261)
    d = np.uint64(high) ^ np.uint64(0x7465646279746573)
    whole = size // 8
    for n in range(whole + 1):
        if n < whole:
            word = word_at(data, at + 8 * n)
        else:
            word = _rest(data, at + 8 * n, size - 8 * n) | (np.uint64(size) << np.uint64(56))
        d ^= word
        for _ in range(2):
            a, b, c, d = _round(a, b, c, d)
        a ^= word
    c ^= np.uint64(0xEE)
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    first = a ^ b ^ c ^ d
    b ^= np.uint64(0xDD)
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return np.int64(first), np.int64(a ^ b ^ c ^ d)


@inlined
def _home(low: Any, slots: Any) -> Any:
    """Return where a key belongs: by its upper half, since a division takes as long as ten steps of
    its hash.
    """
    return np.int64(((np.uint64(low) >> np.uint64(32)) * np.uint64(slots)) >> np.uint64(32))


@inlined
def _ask_for(rows: Any, r: Any, count: Any, table: Any) -> Any:
    """Ask for the slot of a row that is looked for soon: each lies somewhere else in memory."""
    if r < count:
        prefetch(table, _home(rows[r, 2], table.shape[0]) * _SLOT_SIZE)


@inlined
def _slot(table: Any, low: Any, high: Any) -> Any:
    """Return where a key is, or would be."""
    slots = table.shape[0]
    slot = _home(low, slots)
    while table[slot, 2] != 0 and (table[slot, 0] != low or table[slot, 1] != high):
        slot += np.int64(1)
        if slot == slots:
            slot = np.int64(0)
    return slot


@compiled(results(2)(BYTES, LONG, LONG, LONG, LONG))
def digest(data: Any, at: Any, size: Any, low: Any, high: Any) -> Any:
    """Return the 128 bits that stand for a key, as two numbers."""
    return _digest(data, at, size, low, high)


@compiled(LONG(BYTES, LONG, LONG, LONG, LONG, LONG, LONG, TABLE))
def parse(  # noqa: C901 - one pass, every check in its place
    data: Any,
    count: Any,
    base_offset: Any,
    last_delta: Any,
    base_timestamp: Any,
    low: Any,
    high: Any,
    rows: Any,
) -> Any:
    """Fill a row for each of `count` records. Returns a fault, or 0."""
    size = data.shape[0]
    at = np.int64(0)
    for r in range(count):
        start = at
        length, at = _varint(data, at, size)
        if at < 0:
            return 1
        if length < 0 or length > size - at:
            return 2
        end = at + length
        time_delta, body = _varint(data, at + 1, size)
        if body < 0:
            return 3
        offset_delta, at = _varint(data, body, size)
        if at < 0:
            return 3
        if offset_delta < 0 or offset_delta > last_delta:
            return 4
        timestamp = base_timestamp + time_delta
        if (time_delta > 0) != (timestamp > base_timestamp) and time_delta != 0:
            return 5
        key_size, at = _varint(data, at, size)
        if at < 0:
            return 3
        flags = np.int64(0)
        if key_size >= 0:
            if key_size >= end - at:
                return 6
            flags = np.int64(HAS_KEY)
            rows[r, 2], rows[r, 3] = _digest(data, at, key_size, low, high)
            at += key_size
        if at >= end:
            return 6
        value_size, at = _varint(data, at, size)
        if at < 0:
            return 3
        if value_size < 0:
            flags |= np.int64(IS_TOMBSTONE)
        rows[r, 0] = base_offset + offset_delta
        rows[r, 4] = timestamp
        rows[r, 1] = flags
        rows[r, 5] = start
        rows[r, 6] = body
        rows[r, 7] = end
        at = end
    return 0


@compiled(LONG(TABLE, LONG, LONG, TABLE, LONG))
def put(rows: Any, count: Any, keys_until: Any, table: Any, used: Any) -> Any:
    """Note the offsets of rows with keys below `keys_until`, where no newer one is known; return
    how many slots are used. There must be room for all.
    """
    for r in range(count):
        _ask_for(rows, r + _AHEAD, count, table)
        offset = rows[r, 0]
        if rows[r, 1] & HAS_KEY == 0 or offset >= keys_until:
            continue
        slot = _slot(table, rows[r, 2], rows[r, 3])
        if table[slot, 2] == 0:
            used += 1
            table[slot, 0] = rows[r, 2]
            table[slot, 1] = rows[r, 3]
        table[slot, 2] = max(table[slot, 2], offset + 1)
    return used


@compiled(results(4)(TABLE, LONG, LONG, LONG, TABLE))
def mark(rows: Any, count: Any, start_offset: Any, is_over: Any, table: Any) -> Any:
    """Note in the flags of each row whether it stays (bit 2); return how many do, how many
    tombstones among them, the newest timestamp of those that stay, and their bytes.
    """
    kept = tombstones = size = np.int64(0)
    newest = np.int64(-(1 << 62))
    for r in range(count):
        _ask_for(rows, r + _AHEAD, count, table)
        flags = rows[r, 1]
        offset = rows[r, 0]
        is_gone = flags & IS_TOMBSTONE != 0 and is_over != 0
        if flags & HAS_KEY == 0 or offset < start_offset or is_gone:
            continue
        if offset + 1 < table[_slot(table, rows[r, 2], rows[r, 3]), 2]:
            continue
        rows[r, 1] = flags | STAYS
        kept += 1
        size += rows[r, 7] - rows[r, 5]
        if flags & IS_TOMBSTONE != 0:
            tombstones += 1
        newest = max(newest, rows[r, 4])
    return kept, tombstones, newest, size


@compiled(LONG(BYTES, TABLE, LONG, LONG, LONG, OUT))
def copy_kept(
    data: Any, rows: Any, count: Any, is_timed: Any, base_timestamp: Any, out: Any
) -> Any:
    """Copy the records that stay; return their size. `is_timed`: with timestamp deltas from another
    base.
    """
    to = np.int64(0)
    r = np.int64(0)
    while r < count:
        if rows[r, 1] & STAYS == 0:
            r += 1
            continue
        start = rows[r, 5]
        end = rows[r, 7]
        if is_timed == 0:
            while r + 1 < count and rows[r + 1, 1] & STAYS != 0:  # neighbours are copied at once
                r += 1
                end = rows[r, 7]
        else:
            _, attributes_at = _varint(data, start, end)
            body = rows[r, 6]
            delta = rows[r, 4] - base_timestamp
            head = _put_varint(out, to, delta) - to  # how long it is: written over at once
            to = _put_varint(out, to, 1 + head + end - body)
            out[to] = data[attributes_at]
            to = _put_varint(out, to + 1, delta)
            start = body
        copy_bytes(out, to, data, start, end - start)
        to += end - start
        r += 1
    return to
