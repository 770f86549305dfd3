"""Kernel: parses the records of many batches into columns of positions.

Record (KIP-98, zigzag varints): length, attributes i8, timestamp delta, offset delta, key length
and key (-1: null), value length and value, header count and headers. Every length is checked
against the record and the batch, every record must end where its length says, and the last one
where the batch ends.
"""

from typing import Any

import numpy as np

from storage.kernel_compiler import BYTES, INTS, LONG, LONGS, TABLE, compiled, inlined, results
from storage.kernel_memory import prefetch

RECORD_SIZE_MIN = 7
"""A record of nothing: seven varints of one byte."""

FAULTS = {
    1: "a record's length is no varint",
    2: "a record overruns its batch",
    3: "a record's timestamp delta is no varint",
    4: "a record's offset delta is no varint",
    5: "a record's offset is not above the one before it or lies outside its batch",
    6: "a record's key overruns it",
    7: "a record's value overruns it",
    8: "a record's headers overrun it",
    9: "bytes after the last field of a record",
    10: "bytes after the last record of a batch",
    11: "a timestamp that no calendar holds",
}

_AHEAD = 4
"""Records. The processor itself fetches no memory ahead where records are a kilobyte apart, and
each would be waited for: a read of inflated records, mostly, and a third of what it costs."""

_TIMESTAMP_MAX = 9_223_372_036_854_775


@inlined
def _varint(data: Any, at: Any, end: Any, bits: Any) -> Any:
    """Return (value, position after it), or position -1 if it does not end before `end` or is
    longer than `bits`.
    """
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < bits:
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 128:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@inlined
def _skip_field(data: Any, at: Any, end: Any) -> Any:
    """Return (start, length or -1 for null, position after it), or position -1."""
    length, at = _varint(data, at, end, np.uint64(35))
    if at < 0 or length < -1 or length > end - at:
        return np.int64(0), np.int64(0), np.int64(-1)
    return at, length, at + max(length, np.int64(0))


@compiled(
    results(4)(
        BYTES, BYTES, TABLE, LONG, LONG, LONGS, LONGS, INTS, INTS, INTS, INTS, INTS, INTS, INTS
    )
)
def parse_records(  # noqa: C901 - one pass, every check in its place
    data: Any,
    inflated: Any,
    batches: Any,
    first_offset: Any,
    end_offset: Any,
    offsets: Any,
    timestamps: Any,
    timestamp_types: Any,
    key_at: Any,
    key_size: Any,
    value_at: Any,
    value_size: Any,
    headers_at: Any,
    headers_size: Any,
) -> Any:
    """Fill the columns with the records of `batches` in [first_offset, end_offset).

    A column of length 0 is not asked for. Positions are >= 0 in `data`, else `~position` in
    `inflated`; a size of -1 is a null; timestamps are microseconds. `headers_*` span the header
    count and the headers.
    Returns (fault or 0, row of the batch, number of the record in it, rows filled).
    """
    row = 0
    for b in range(batches.shape[0]):
        batch = batches[b]
        is_inflated = batch[10] < 0
        source = inflated if is_inflated else data
        flip = np.int64(-1) if is_inflated else np.int64(0)
        at = batch[10] ^ flip
        end = at + batch[11]
        stamped = (batch[3] & 0x08) != 0
        last = np.int64(-1)
        for r in range(batch[9]):
            length, at = _varint(source, at, end, np.uint64(35))
            if at < 0:
                return 1, b, r, row
            if length < 1 or length > end - at:
                return 2, b, r, row
            stop = at + length
            prefetch(source, stop + _AHEAD * length)  # records are mostly alike
            stamp_delta, at = _varint(source, at + 1, stop, np.uint64(70))
            if at < 0:
                return 3, b, r, row
            delta, at = _varint(source, at, stop, np.uint64(35))
            if at < 0:
                return 4, b, r, row
            if delta <= last or delta > batch[5]:
                return 5, b, r, row
            last = delta
            key_start, key_length, at = _skip_field(source, at, stop)
            if at < 0:
                return 6, b, r, row
            value_start, value_length, at = _skip_field(source, at, stop)
            if at < 0:
                return 7, b, r, row
            headers_start = at
            count, at = _varint(source, at, stop, np.uint64(35))
            if at < 0 or count < 0 or count > stop - at:
                return 8, b, r, row
            if count == 0 and at != stop:
                return 9, b, r, row
            at = stop
            offset = batch[4] + delta
            if offset < first_offset or offset >= end_offset:
                continue
            offsets[row] = offset
            if timestamps.shape[0] > 0:
                stamp = batch[7] if stamped else batch[6] + stamp_delta
                if stamp > _TIMESTAMP_MAX or stamp < -_TIMESTAMP_MAX:
                    return 11, b, r, row
                timestamps[row] = stamp * 1000
            if timestamp_types.shape[0] > 0:
                timestamp_types[row] = 1 if stamped else 0
            if key_at.shape[0] > 0:
                key_at[row] = key_start ^ flip
                key_size[row] = key_length
            if value_at.shape[0] > 0:
                value_at[row] = value_start ^ flip
                value_size[row] = value_length
            if headers_at.shape[0] > 0:
                headers_at[row] = headers_start ^ flip
                headers_size[row] = stop - headers_start
            row += 1
        if at != end:
            return 10, b, np.int64(batch[9]), row
    return 0, 0, 0, row
