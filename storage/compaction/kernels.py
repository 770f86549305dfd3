"""Kernels: list the record batches in data blocks, find the runs that can be merged, merge them,
and verify and compute checksums.

A table has a row for each batch, and positions in the bytes of its source (one data block each). No
length is trusted: a part that does not lie inside its parent is a fault, or stays as it is. A
record is: length, attributes i8, timestamp delta, offset delta, then the rest; numbers are zigzag
varints (KIP-98). Merging changes both deltas, and with them perhaps the length; the rest is copied.
Checksums are computed for many batches in one call, since a call from Python costs more than the
checksum of a small batch.
"""

from typing import Any

import numpy as np

from lakehead.storage.kernel_checksum import BYTE_STEPS, crc32c_step
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
from lakehead.storage.kernel_memory import copy_bytes, word_at
from lakehead.storage.kernel_varint import LONG_BITS, put_varint, varint, varint_size

SOURCE, START, END = 0, 1, 2
"""The source; from the stored record's header to the end of its batch."""
BODY, BODY_SIZE = 3, 4
"""The place of its records, uncompressed; none: it stays as it is."""
NOWHERE = -1
EPOCH, BASE, NEXT = 5, 6, 7
"""By the stored record: its stream epoch, its first offset, the one after its last."""
LENGTH, LEADER_EPOCH, MAGIC, CRC, ATTRIBUTES, LAST_DELTA = 8, 9, 10, 11, 12, 13
BASE_TIME, MAX_TIME, PRODUCER, PRODUCER_EPOCH, SEQUENCE, COUNT = 14, 15, 16, 17, 18, 19
FAILED = -1  # in place of a checksum, which is never negative
RUN = 20
"""The first row of those that it may become one with; -1: it stays as it is."""
COLUMNS = 21

RECORD_HEADER, BATCH_HEADER = 33, 61
HEADERS = RECORD_HEADER + BATCH_HEADER
CRC_FROM = RECORD_HEADER + 21  # what a batch's checksum covers, from its stored record's start
RECORD_MIN, GROWTH_MAX = 4, 18
"""Bytes of a record whose key is not looked for; the bytes by which it may grow: two deltas of 10
and 5, and a longer length.
"""

FAULTS = {
    1: "no data block begins here",
    2: "a data block overruns the item",
    3: "no record begins here",
    4: "a record of another stream",
    5: "a record is too short for a batch, or overruns its data block",
    6: "a record and its batch begin at different offsets",
    7: "a record begins before the end of the one before it, or has no offsets",
}

# The state of a merge: the first row of the batch that is being made (-1: none), where it begins in
# the output, where it ends, the row after its last one, how many are made.
OPEN_ROW, OPEN_AT, AT, OPEN_END, MADE = 0, 1, 2, 3, 4
STATE_SIZE = 5
# Of a made batch: its first row, the row after its last one, where it begins and ends.
MADE_COLUMNS = 4
# Of a span: its source (-1: made, and its start is the made batch's number), start, end; epoch of
# the last batch, first offset, the one after the last, batches, newest timestamp.
SPAN_COLUMNS = 8
_SPAN_OFFSETS_MAX = 1 << 30


@inlined
def _long(data: Any, at: Any) -> Any:
    value = np.uint64(0)
    for i in range(8):
        value = (value << np.uint64(8)) | np.uint64(data[at + i])
    return np.int64(value)


@inlined
def _int(data: Any, at: Any) -> Any:
    value = np.uint32(0)
    for i in range(4):
        value = np.uint32(value << np.uint32(8)) | np.uint32(data[at + i])
    return np.int64(np.int32(value))


@inlined
def _short(data: Any, at: Any) -> Any:
    return np.int64(np.int16(np.int64(data[at]) << 8 | np.int64(data[at + 1])))


@inlined
def _put(out: Any, at: Any, value: Any, size: Any) -> Any:
    """Write a number of so many bytes, the highest first; return the position after it."""
    for i in range(size):
        out[at + i] = np.uint8((value >> np.int64(8 * (size - 1 - i))) & np.int64(0xFF))
    return at + size


@inlined
def _fill_row(data: Any, at: Any, size: Any, source: Any, row: Any) -> Any:
    """Take down a stored record of `size` bytes of batch."""
    batch = at + RECORD_HEADER
    row[SOURCE], row[START], row[END] = source, at, batch + size
    row[EPOCH] = _long(data, at + 9)
    row[BASE] = _long(data, batch)
    row[NEXT] = row[BASE] + _int(data, at + 25)
    row[LENGTH] = _int(data, batch + 8)
    row[LEADER_EPOCH] = _int(data, batch + 12)
    row[MAGIC] = data[batch + 16]
    row[CRC] = _int(data, batch + 17) & np.int64(0xFFFFFFFF)
    row[ATTRIBUTES] = _short(data, batch + 21)
    row[LAST_DELTA] = _int(data, batch + 23)
    row[BASE_TIME] = _long(data, batch + 27)
    row[MAX_TIME] = _long(data, batch + 35)
    row[PRODUCER] = _long(data, batch + 43)
    row[PRODUCER_EPOCH] = _short(data, batch + 51)
    row[SEQUENCE] = _int(data, batch + 53)
    row[COUNT] = _int(data, batch + 57)
    row[BODY] = batch + BATCH_HEADER
    row[BODY_SIZE] = np.int64(NOWHERE) if row[ATTRIBUTES] & 7 else size - BATCH_HEADER


@compiled(results(4)(BYTES, LONG, LONG, LONG, TABLE, LONG))
def scan_blocks(
    data: Any, stream_id: Any, next_offset: Any, source: Any, table: Any, row: Any
) -> Any:
    """Fill the table from `row` on with the batches of data blocks, the sources from `source` on.
    There is room for one each `HEADERS` bytes. Returns (fault or 0, its position, the row after
    the last, the source after the last).
    """
    position, size = np.int64(0), np.int64(data.shape[0])
    while position < size:
        if size - position < 10 or data[position] != 0x5A:
            return 1, position, row, source
        length = _int(data, position + 6)
        position += 10
        if length < 0 or length > size - position:
            return 2, position, row, source
        end = position + length
        while position < end:
            if end - position < HEADERS or data[position] != 0x22:
                return 3, position, row, source
            if _long(data, position + 1) != stream_id:
                return 4, position, row, source
            payload = _int(data, position + 29)
            if payload < BATCH_HEADER or payload > end - position - RECORD_HEADER:
                return 5, position, row, source
            base = _long(data, position + 17)
            if base != _long(data, position + RECORD_HEADER):
                return 6, position, row, source
            count = _int(data, position + 25)
            if base < next_offset or count < 1 or base > np.int64(1 << 62):
                return 7, position, row, source
            _fill_row(data, position, payload, source, table[row])
            next_offset = base + count
            row += 1
            position += RECORD_HEADER + payload
        source += 1
    return 0, position, row, source


@inlined
def _is_plain(row: Any) -> Any:
    """Return true if a batch may be merged at all: it has all its records, and nothing special."""
    return (
        row[MAGIC] == 2
        and row[ATTRIBUTES] & ~np.int64(0x1F) == 0
        and row[COUNT] == row[LAST_DELTA] + 1
        and row[COUNT] == row[NEXT] - row[BASE]
        and row[LENGTH] == row[END] - row[START] - RECORD_HEADER - 12
        and (row[PRODUCER] == -1) == (row[SEQUENCE] == -1)
    )


@inlined
def _is_next(last: Any, row: Any) -> Any:
    """Return true if a plain batch goes on where a plain one ends, as if both had been one."""
    if row[PRODUCER] != -1:
        sequence = last[SEQUENCE] + last[COUNT]
        if row[SEQUENCE] != sequence or sequence + row[COUNT] >= np.int64(1 << 31):
            return False
    return (
        row[BASE] == last[NEXT]
        and row[EPOCH] == last[EPOCH]
        and row[ATTRIBUTES] == last[ATTRIBUTES]
        and row[LEADER_EPOCH] == last[LEADER_EPOCH]
        and row[PRODUCER] == last[PRODUCER]
        and row[PRODUCER_EPOCH] == last[PRODUCER_EPOCH]
        and (row[ATTRIBUTES] & 8 == 0 or row[MAX_TIME] == last[MAX_TIME])
    )


@compiled(LONG(TABLE, LONG, LONG, LONG, LONG))
def mark_runs(table: Any, rows: Any, small: Any, small_compressed: Any, target: Any) -> Any:
    """Say of each row which run it belongs to: neighbours below `small` bytes (compressed ones
    below `small_compressed`) that may become one, at most `target` bytes as they are. Returns where
    the last run begins, which may go on.
    """
    first, size = np.int64(0), np.int64(0)
    is_open = False
    for r in range(rows):
        row = table[r]
        length = row[END] - row[START] - RECORD_HEADER
        limit = small_compressed if row[ATTRIBUTES] & 7 else small
        is_small = length < limit and _is_plain(row)
        if is_open and is_small and size + length <= target and _is_next(table[r - 1], row):
            size += length
            table[first, RUN] = first
            row[RUN] = first
            continue
        first, size, is_open = np.int64(r), length, is_small
        row[RUN] = np.int64(-1)
    return first if is_open else np.int64(rows)


@inlined
def _moved(data: Any, row: Any, later: Any, moved: Any, out: Any, at: Any) -> Any:
    """Write the records of a batch to `out` from `at` on, `later` milliseconds and `moved` offsets
    behind where they stood. Returns the position after them, or -1 where they are not what a
    producer writes: so many records, their offsets 0, 1, 2 …, and nothing else.

    `out` has room for the records and `GROWTH_MAX` more for each.
    """
    position = row[BODY]
    end = position + row[BODY_SIZE]
    for place in range(row[COUNT]):
        length, start = varint(data, position, end, LONG_BITS)
        if start < 0 or length < 1 or length > end - start:
            return np.int64(-1)
        stop = start + length
        time_delta, next_at = varint(data, start + 1, stop, LONG_BITS)
        if next_at < 0:
            return np.int64(-1)
        offset_delta, body = varint(data, next_at, stop, LONG_BITS)
        time = time_delta + later
        is_beyond = (later > 0 and time < time_delta) or (later < 0 and time > time_delta)
        if body < 0 or offset_delta != place or is_beyond:
            return np.int64(-1)
        offset = offset_delta + moved
        rest = stop - body
        at = put_varint(out, at, 1 + varint_size(time) + varint_size(offset) + rest)
        out[at] = data[start]
        at = put_varint(out, at + 1, time)
        at = put_varint(out, at, offset)
        copy_bytes(out, at, data, body, rest)
        at += rest
        position = stop
    return at if position == end else np.int64(-1)


@inlined
def _close(stream_id: Any, table: Any, state: Any, out: Any, made: Any) -> Any:
    """End the batch that is being made: its headers are written, all but the checksum. One that
    would hold a single old one is not made.
    """
    first, end = state[OPEN_ROW], state[OPEN_END]
    state[OPEN_ROW] = -1
    if first < 0 or end - first < 2:
        state[AT] = state[OPEN_AT] if first >= 0 else state[AT]
        return
    at, size = state[OPEN_AT], state[AT] - state[OPEN_AT] - RECORD_HEADER
    newest, row = table[first, MAX_TIME], table[first]
    for r in range(first + 1, end):
        newest = max(newest, table[r, MAX_TIME])
    count = table[end - 1, NEXT] - row[BASE]
    out[at] = 0x22
    at = _put(out, at + 1, stream_id, 8)
    at = _put(out, at, row[EPOCH], 8)
    at = _put(out, at, row[BASE], 8)
    at = _put(out, at, count, 4)
    at = _put(out, at, size, 4)
    at = _put(out, at, row[BASE], 8)
    at = _put(out, at, size - 12, 4)
    at = _put(out, at, row[LEADER_EPOCH], 4)
    at = _put(out, at, np.int64(2), 1)
    at = _put(out, at, np.int64(0), 4)
    at = _put(out, at, row[ATTRIBUTES], 2)
    at = _put(out, at, count - 1, 4)
    at = _put(out, at, row[BASE_TIME], 8)
    at = _put(out, at, newest, 8)
    at = _put(out, at, row[PRODUCER], 8)
    at = _put(out, at, row[PRODUCER_EPOCH], 2)
    at = _put(out, at, row[SEQUENCE], 4)
    _put(out, at, count, 4)
    entry = made[state[MADE]]
    entry[0], entry[1], entry[2], entry[3] = first, end, state[OPEN_AT], state[AT]
    state[MADE] += 1


@compiled(LONG(BYTES, LONG, LONG, LONG, LONG, TABLE, LONGS, OUT, TABLE, LONG))
def merge_rows(
    data: Any,
    first: Any,
    end: Any,
    stream_id: Any,
    target: Any,
    table: Any,
    state: Any,
    out: Any,
    made: Any,
    is_last: Any,
) -> Any:
    """Merge rows, whose records lie in `data`, run by run: to about `target` bytes of records in
    one batch. Returns the row that `out` has no room for, else `end`. `is_last`: no more comes.
    """
    for r in range(first, end):
        row = table[r]
        size, opened = row[BODY_SIZE], state[OPEN_ROW]
        room = size + GROWTH_MAX * row[COUNT]
        is_kept = row[RUN] < 0 or size < RECORD_MIN * row[COUNT] or row[BODY] > len(data) - size
        if opened >= 0:
            has_room = state[AT] - state[OPEN_AT] - HEADERS + room <= target
            if is_kept or table[opened, RUN] != row[RUN] or not has_room:
                _close(stream_id, table, state, out, made)
        if is_kept:
            continue
        opened = state[OPEN_ROW]
        if state[AT] + room + (HEADERS if opened < 0 else 0) > out.shape[0]:
            return np.int64(r)
        if opened < 0:
            opened, state[OPEN_ROW], state[OPEN_AT] = r, r, state[AT]
            state[OPEN_END] = r
            state[AT] += HEADERS
        base_time = table[opened, BASE_TIME]
        later = row[BASE_TIME] - base_time
        after = np.int64(-1)
        if (later < 0) == (row[BASE_TIME] < base_time):
            after = _moved(data, row, later, row[BASE] - table[opened, BASE], out, state[AT])
        if after < 0:
            _close(stream_id, table, state, out, made)
            continue
        state[AT] = after
        state[OPEN_END] = r + 1
    if is_last != 0:
        _close(stream_id, table, state, out, made)
    return np.int64(end)


@compiled(LONG(TABLE, LONG, TABLE, LONG, LONG, TABLE))
def list_spans(table: Any, rows: Any, made: Any, made_count: Any, size_max: Any, spans: Any) -> Any:
    """List what becomes of the rows, in their order: made batches, and spans of neighbours that
    stay as they are, of about `size_max` bytes at most. Returns how many there are.
    """
    count = m = r = np.int64(0)
    while r < rows:
        span, end = spans[count], r + 1
        if m < made_count and made[m, 0] == r:
            end = made[m, 1]
            span[0], span[1], span[2], span[6] = -1, m, 0, 1
            m += 1
        else:
            source, start = table[r, SOURCE], table[r, START]
            while (
                end < rows
                and table[end, SOURCE] == source
                and table[end, END] - start <= size_max
                and table[end, NEXT] - table[r, BASE] <= _SPAN_OFFSETS_MAX
                and not (m < made_count and made[m, 0] == end)
            ):
                end += 1
            span[0], span[1], span[2], span[6] = source, start, table[end - 1, END], end - r
        span[3], span[4], span[5] = table[end - 1, EPOCH], table[r, BASE], table[end - 1, NEXT]
        span[7] = -1
        for k in range(r, end):
            if table[k, COUNT] != 0:
                span[7] = max(span[7], table[k, MAX_TIME])
        count += 1
        r = end
    return count


@inlined
def _crc(data: Any, at: Any, end: Any) -> Any:
    crc = np.uint64(0xFFFFFFFF)
    while end - at >= 8:
        crc = crc32c_step(crc, word_at(data, at))
        at += 8
    while at < end:
        place = (crc ^ np.uint64(data[at])) & np.uint64(0xFF)
        crc = BYTE_STEPS[place] ^ (crc >> np.uint64(8))
        at += 1
    return np.int64(crc ^ np.uint64(0xFFFFFFFF))


@compiled(LONG(BYTES, LONG, LONG, TABLE))
def distrust(data: Any, first: Any, end: Any, table: Any) -> Any:
    """Have those rows of runs stay as they are whose batches in `data` fail their checksums; return
    how many they are.
    """
    count = np.int64(0)
    for r in range(first, end):
        row = table[r]
        if row[RUN] >= 0 and _crc(data, row[START] + CRC_FROM, row[END]) != row[CRC]:
            row[CRC], row[BODY_SIZE] = FAILED, NOWHERE
            count += 1
    return count


@compiled(LONG(OUT, LONG, LONG))
def seal(stored: Any, at: Any, end: Any) -> Any:
    """Give the batches of stored records that follow each other from `at` to `end` their checksums;
    return how many they are.
    """
    count = np.int64(0)
    while at < end:
        size = np.int64(0)
        for i in range(4):
            size = size << np.int64(8) | np.int64(stored[at + RECORD_HEADER - 4 + i])
        after = at + RECORD_HEADER + size
        crc = _crc(stored, at + CRC_FROM, after)
        for i in range(4):
            stored[at + CRC_FROM - 4 + i] = np.uint8(crc >> np.int64(24 - 8 * i) & np.int64(0xFF))
        at = after
        count += 1
    return count
