"""Kernels of log compaction: the records of a batch, the table of newest offsets, the rewritten
batch, and both passes over many batches.

Record (KIP-98, zigzag varints): length, attributes i8, timestamp delta, offset delta, key length
and key (-1: null), value length and value, headers. A row per record: offset, flags, 128 bits that
stand for its key, timestamp, where it starts (its length), where it goes on behind its timestamp
delta, where it ends. A slot of the table: the 128 bits, and the newest offset plus one; 0 is empty.

Batches are rows of the table of `kernels`. Those that are not plain are left to Python, one
by one: compressed ones, those of transactions, and whatever cannot be parsed.
"""

from typing import Any

import numpy as np

from lakehead.storage.compaction import kernels as of
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
from lakehead.storage.kernel_memory import copy_bytes, prefetch, word_at
from lakehead.storage.kernel_varint import LONG_BITS, put_varint, varint


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
def digest128(data: Any, at: Any, size: Any, low: Any, high: Any) -> Any:
    """Return the 128 bits that stand for a key, as two numbers, under a secret of two words."""
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


@compiled(results(2)(BYTES, LONG, LONG, LONG, LONG))
def digest(data: Any, at: Any, size: Any, low: Any, high: Any) -> Any:
    """Return what `digest128` does, to Python."""
    return digest128(data, at, size, low, high)


COLUMNS = 8
KEY_COLUMNS = 4
"""The columns of a row that `put` needs: the first ones."""
OFFSET, FLAGS = 0, 1
HAS_KEY, IS_TOMBSTONE, STAYS = 1, 2, 4
SIZE_MIN = 6
"""Bytes of an empty record whose headers are not looked for."""
_AHEAD = 8
"""Rows."""
_SLOT_SIZE = 24
GROWTH_MAX = 16
"""By how many bytes a record may grow that gets another timestamp delta."""


@inlined
def _home(low: Any, slots: Any) -> Any:
    """Return where a key belongs: by its upper half, since a division takes as long as ten steps of
    its hash.
    """
    return np.int64(((np.uint64(low) >> np.uint64(32)) * np.uint64(slots)) >> np.uint64(32))


@inlined
def _prefetch(rows: Any, r: Any, count: Any, table: Any) -> Any:
    """Prefetch the slot of a row that is looked for soon: each lies somewhere else in memory."""
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


@compiled(LONG(BYTES, LONG, LONG, LONG, LONG, LONG, LONG, LONG, LONG, TABLE))
def parse(  # noqa: C901 - one pass, every check in its place
    data: Any,
    at: Any,
    size: Any,
    count: Any,
    base_offset: Any,
    last_delta: Any,
    base_timestamp: Any,
    low: Any,
    high: Any,
    rows: Any,
) -> Any:
    """Fill a row for each of `count` records, which lie from `at` to `size`. Returns a fault, or
    0.
    """
    for r in range(count):
        start = at
        length, at = varint(data, at, size, LONG_BITS)
        if at < 0:
            return 1
        if length < 0 or length > size - at:
            return 2
        end = at + length
        time_delta, body = varint(data, at + 1, size, LONG_BITS)
        if body < 0:
            return 3
        offset_delta, at = varint(data, body, size, LONG_BITS)
        if at < 0:
            return 3
        if offset_delta < 0 or offset_delta > last_delta:
            return 4
        timestamp = base_timestamp + time_delta
        if (time_delta > 0) != (timestamp > base_timestamp) and time_delta != 0:
            return 5
        key_size, at = varint(data, at, size, LONG_BITS)
        if at < 0:
            return 3
        flags = np.int64(0)
        if key_size >= 0:
            if key_size >= end - at:
                return 6
            flags = np.int64(HAS_KEY)
            rows[r, 2], rows[r, 3] = digest128(data, at, key_size, low, high)
            at += key_size
        if at >= end:
            return 6
        value_size, at = varint(data, at, size, LONG_BITS)
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
        _prefetch(rows, r + _AHEAD, count, table)
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
        _prefetch(rows, r + _AHEAD, count, table)
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


@compiled(LONG(BYTES, TABLE, LONG, LONG, LONG, OUT, LONG))
def copy_kept(
    data: Any, rows: Any, count: Any, is_timed: Any, base_timestamp: Any, out: Any, to: Any
) -> Any:
    """Copy the records that stay to `out` from `to` on; return where they end. `is_timed`: with
    timestamp deltas from another base.
    """
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
            _, attributes_at = varint(data, start, end, LONG_BITS)
            body = rows[r, 6]
            delta = rows[r, 4] - base_timestamp
            head = put_varint(out, to, delta) - to  # how long it is: written over at once
            to = put_varint(out, to, 1 + head + end - body)
            out[to] = data[attributes_at]
            to = put_varint(out, to + 1, delta)
            start = body
        copy_bytes(out, to, data, start, end - start)
        to += end - start
        r += 1
    return to


# The arguments of a pass over batches: the secret (LOW, HIGH); batches that end above END_OFFSET
# are left. The first pass: keys count below KEYS_UNTIL, in no more than MOST slots. The second:
# records below START_OFFSET are gone, tombstones that are met first go at HORIZON, no empty batch
# stays of a producer that was last heard of before EXPIRED.
LOW, HIGH, END_OFFSET, KEYS_UNTIL, START_OFFSET, NOW, HORIZON, EXPIRED = 0, 1, 2, 3, 4, 5, 6, 7
MOST = 8
RULES_SIZE = 9
# Its progress: slots used; bytes of output, spans, whether something was removed or marked, the
# room that it lacks.
USED, OUT_AT, SPANS, CHANGED, LACKS = 0, 1, 2, 3, 4
STATE_SIZE = 5
# Of a span: whether it lies in the output (1) or the source, its start and end; epoch of the last
# batch, first offset, the one after the last, batches, newest timestamp.
SPAN_COLUMNS = 8
_SPAN_BYTES, _SPAN_OFFSETS = 256 * 1024, 1 << 30
_MARKED = 0x40
"""The attribute that says that the base timestamp is a horizon."""


@inlined
def _is_plain(batch: Any, most: Any) -> Any:
    return (
        batch[of.MAGIC] == 2
        and batch[of.ATTRIBUTES] & ~np.int64(0x48) == 0
        and 0 < batch[of.COUNT] <= most
        and batch[of.COUNT] * SIZE_MIN <= batch[of.BODY_SIZE]
        and batch[of.LENGTH] == batch[of.END] - batch[of.START] - of.RECORD_HEADER - 12
    )


@inlined
def _parse(data: Any, batch: Any, rules: Any, rows: Any) -> Any:
    at, count, base, delta = batch[of.BODY], batch[of.COUNT], batch[of.BASE], batch[of.LAST_DELTA]
    end, time, low, high = at + batch[of.BODY_SIZE], batch[of.BASE_TIME], rules[LOW], rules[HIGH]
    return parse(data, at, end, count, base, delta, time, low, high, rows)


@compiled(LONG(BYTES, TABLE, LONG, LONG, LONGS, TABLE, TABLE, LONGS))
def note_batches(
    data: Any, batches: Any, first: Any, count: Any, rules: Any, rows: Any, table: Any, state: Any
) -> Any:
    """Note the keys of plain batches from row `first` on; return the first row that is not done."""
    for b in range(first, count):
        batch = batches[b]
        has_room = _is_plain(batch, min(rows.shape[0], rules[MOST] - state[USED]))
        if not has_room or batch[of.NEXT] > rules[END_OFFSET]:
            return np.int64(b)
        if _parse(data, batch, rules, rows) != 0:
            return np.int64(b)
        state[USED] = put(rows, batch[of.COUNT], rules[KEYS_UNTIL], table, state[USED])
    return np.int64(count)


@inlined
def _is_gone(batch: Any, expired: Any, producers: Any) -> Any:
    """Return true if nothing of a batch without records is needed: it has no producer, or one that
    was silent for long or has written another batch since. `producers`: (id, end of the last
    batch), by id.
    """
    producer = batch[of.PRODUCER]
    if producer == -1 or batch[of.MAX_TIME] < expired:
        return True
    low, high = 0, producers.shape[0]
    while low < high:
        middle = (low + high) // 2
        if producers[middle, 0] < producer:
            low = middle + 1
        else:
            high = middle
    found = low < producers.shape[0] and producers[low, 0] == producer
    return found and producers[low, 1] != batch[of.NEXT]


@inlined
def _add_span(
    spans: Any, state: Any, is_made: Any, start: Any, end: Any, batch: Any, newest: Any
) -> Any:
    count = state[SPANS]
    last = spans[max(count - 1, 0)]
    if (
        count == 0
        or last[0] != is_made
        or last[2] != start
        or end - last[1] > _SPAN_BYTES
        or batch[of.NEXT] - last[4] > _SPAN_OFFSETS
    ):
        last = spans[count]
        last[0], last[1], last[4], last[6], last[7] = is_made, start, batch[of.BASE], 0, newest
        state[SPANS] = count + 1
    last[2], last[3], last[5] = end, batch[of.EPOCH], batch[of.NEXT]
    last[6] += 1
    last[7] = max(last[7], newest)


@inlined
def _put_number(out: Any, at: Any, value: Any, size: Any) -> Any:
    for i in range(size):
        out[at + i] = np.uint8((value >> np.int64(8 * (size - 1 - i))) & np.int64(0xFF))


@inlined
def _write_headers(
    data: Any, batch: Any, kept: Any, newest: Any, out: Any, at: Any, end: Any
) -> Any:
    """Write the headers of a stored record from `at` to `end`, all but the checksum."""
    copy_bytes(out, at, data, batch[of.START], of.HEADERS)
    header = at + of.RECORD_HEADER
    _put_number(out, header - 4, end - header, 4)
    _put_number(out, header + 8, end - header - 12, 4)
    _put_number(out, header + 35, newest, 8)
    _put_number(out, header + 57, kept, 4)


@compiled(LONG(BYTES, TABLE, LONG, LONG, LONGS, TABLE, TABLE, TABLE, OUT, TABLE, LONGS))
def clean_batches(
    data: Any,
    batches: Any,
    first: Any,
    count: Any,
    rules: Any,
    rows: Any,
    table: Any,
    producers: Any,
    out: Any,
    spans: Any,
    state: Any,
) -> Any:
    """List in `spans` what is left of plain batches from row `first` on, write to `out` what is not
    as it was, without checksums. Returns the first row not done, for which `out` may lack room.
    """
    state[LACKS] = 0
    for b in range(first, count):
        batch = batches[b]
        if not _is_plain(batch, rows.shape[0]) or batch[of.NEXT] > rules[END_OFFSET]:
            return np.int64(b)
        if _parse(data, batch, rules, rows) != 0:
            return np.int64(b)
        is_marked = batch[of.ATTRIBUTES] & _MARKED != 0
        is_over = np.int64(is_marked and batch[of.BASE_TIME] <= rules[NOW])
        records = batch[of.COUNT]
        kept, tombstones, newest, size = mark(rows, records, rules[START_OFFSET], is_over, table)
        if kept == 0:
            if not _is_gone(batch, rules[EXPIRED], producers):
                return np.int64(b)
            state[CHANGED], batch[of.RUN] = 1, -1
            continue
        batch[of.RUN] = b
        is_timed = np.int64(tombstones > 0 and not is_marked)
        if kept == records and is_timed == 0:
            _add_span(spans, state, 0, batch[of.START], batch[of.END], batch, batch[of.MAX_TIME])
            continue
        at = state[OUT_AT]
        room = of.HEADERS + size + GROWTH_MAX * kept * is_timed
        if at + room > out.shape[0]:
            state[LACKS] = room
            return np.int64(b)
        newest = batch[of.MAX_TIME] if batch[of.ATTRIBUTES] & 8 != 0 else newest
        end = copy_kept(data, rows, records, is_timed, rules[HORIZON], out, at + of.HEADERS)
        _write_headers(data, batch, kept, newest, out, at, end)
        if is_timed != 0:
            header = at + of.RECORD_HEADER
            _put_number(out, header + 21, batch[of.ATTRIBUTES] | _MARKED, 2)
            _put_number(out, header + 27, rules[HORIZON], 8)
        _add_span(spans, state, 1, at, end, batch, newest)
        state[OUT_AT] = end
        state[CHANGED] = 1
    return np.int64(count)
