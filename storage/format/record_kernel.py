"""Kernel: parses the records of many batches into columns of positions.

Record (KIP-98, zigzag varints): length, attributes i8, timestamp delta, offset delta, key length
and key (-1: null), value length and value, header count and headers. Every length is checked
against the record and the batch, every record must end where its length says, and the last one
where the batch ends. A batch with one record that fails is invalid as a whole, as for Kafka's
clients; the other batches do not depend on it.
"""

from typing import Any

import numpy as np

from lakehead.storage.format.records import TIME_MAX
from lakehead.storage.kernel_compiler import (
    BYTES,
    INTS,
    LONG,
    LONGS,
    TABLE,
    compiled,
    inlined,
    results,
)
from lakehead.storage.kernel_memory import prefetch
from lakehead.storage.kernel_varint import INT_BITS, LONG_BITS, varint

RECORD_SIZE_MIN = 7
"""A record of nothing: seven varints of one byte."""

NO_TIME = -(2**63)
"""In the column of timestamps: none that the column's type holds."""
NO_TYPE = -1
"""In the column of timestamp types: a row that stands for an invalid batch."""

KEEPS_BATCHES = 1
"""Flag: an invalid batch has a row of nulls, at its first offset in the range."""
DROPS_TIMES = 2
"""Flag: a record has no row if its time is beyond the type, else `NO_TIME`."""
ONE_ROW = 4
"""Flag: all records are put in the first row, for a look at whether they can be read."""

FAULTS = {
    1: "a record's length is not a varint",
    2: "a record overruns its batch",
    3: "a record's timestamp delta is not a varint",
    4: "a record's offset delta is not a varint",
    5: "a record's offset is not above the one before it or is outside its batch",
    6: "a record's key overruns it",
    7: "a record's value overruns it",
    8: "a record's headers overrun it",
    9: "bytes after the last field of a record",
    10: "bytes after the last record of a batch",
    11: "a header's key overruns its record",
    12: "a header's value overruns its record",
    13: "bytes after the last header of a record",
}

_AHEAD = 4
"""Records. The processor itself fetches no memory ahead where records are a kilobyte apart, and
each would be waited for: a read of inflated records, mostly, and a third of what it costs."""


@inlined
def _skip_field(data: Any, at: Any, end: Any) -> Any:
    """Return (start, length or -1 for null, position after it), or position -1."""
    length, at = varint(data, at, end, INT_BITS)
    if at < 0 or length < -1 or length > end - at:
        return np.int64(0), np.int64(0), np.int64(-1)
    return at, length, at + max(length, np.int64(0))


@inlined
def _header_fault(data: Any, at: Any, end: Any, count: Any) -> Any:
    """Return the fault of `count` headers from `at` on, or 0."""
    for _ in range(count):
        _, length, at = _skip_field(data, at, end)
        if at < 0 or length < 0:
            return 11
        _, _, at = _skip_field(data, at, end)
        if at < 0:
            return 12
    return 0 if at == end else 13


@inlined
def _put_nulls(
    row: Any,
    timestamps: Any,
    timestamp_types: Any,
    key_size: Any,
    value_size: Any,
    headers_size: Any,
) -> Any:
    if timestamps.shape[0] > 0:
        timestamps[row] = NO_TIME
    if timestamp_types.shape[0] > 0:
        timestamp_types[row] = NO_TYPE
    if key_size.shape[0] > 0:
        key_size[row] = -1
    if value_size.shape[0] > 0:
        value_size[row] = -1
    if headers_size.shape[0] > 0:
        headers_size[row] = 0


@compiled(
    results(3)(
        BYTES, BYTES, TABLE, LONG, LONG, LONG, TABLE, TABLE,
        LONGS, LONGS, INTS, INTS, INTS, INTS, INTS, INTS, INTS,
    )
)  # fmt: skip
def parse_records(  # noqa: C901 - one pass, every check in its place
    data: Any,
    inflated: Any,
    batches: Any,
    first_offset: Any,
    end_offset: Any,
    flags: Any,
    faults: Any,
    times: Any,
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

    A column of length 0 is not wanted. Positions are >= 0 in `data`, else `~position` in
    `inflated`; a size of -1 is a null; timestamps are microseconds. `headers_*` span the header
    count and the headers. `faults` takes of each batch its fault or 0, and the number of the record
    that has it; `times` as many as there is room for of (offset, milliseconds) beyond `TIME_MAX`.
    Returns (invalid batches, times beyond the type, rows filled).
    """
    row = invalid = strange = 0
    for b in range(batches.shape[0]):
        batch = batches[b]
        is_inflated = batch[10] < 0
        source = inflated if is_inflated else data
        flip = np.int64(-1) if is_inflated else np.int64(0)
        at = batch[10] ^ flip
        end = at + batch[11]
        stamped = (batch[3] & 0x08) != 0
        last = np.int64(-1)
        rows_before, strange_before, fault, record = row, strange, 0, np.int64(0)
        while record < batch[9]:
            length, at = varint(source, at, end, INT_BITS)
            if at < 0 or length < 1 or length > end - at:
                fault = 1 if at < 0 else 2
                break
            stop = at + length
            prefetch(source, stop + _AHEAD * length)  # records are mostly alike
            stamp_delta, at = varint(source, at + 1, stop, LONG_BITS)
            if at < 0:
                fault = 3
                break
            delta, at = varint(source, at, stop, INT_BITS)
            if at < 0 or delta <= last or delta > batch[5]:
                fault = 4 if at < 0 else 5
                break
            last = delta
            key_start, key_length, at = _skip_field(source, at, stop)
            if at < 0:
                fault = 6
                break
            value_start, value_length, at = _skip_field(source, at, stop)
            if at < 0:
                fault = 7
                break
            headers_start = at
            count, at = varint(source, at, stop, INT_BITS)
            if at < 0 or count < 0 or count > stop - at:
                fault = 8
                break
            if count == 0 and at != stop:
                fault = 9
                break
            if count > 0 and headers_at.shape[0] > 0:
                fault = _header_fault(source, at, stop, count)
                if fault != 0:
                    break
            at = stop
            record += 1
            offset = batch[4] + delta
            if offset < first_offset or offset >= end_offset:
                continue
            if timestamps.shape[0] > 0:
                stamp = batch[7] if stamped else batch[6] + stamp_delta
                if stamp > TIME_MAX or stamp < -TIME_MAX:
                    if strange < times.shape[0]:
                        times[strange, 0] = offset
                        times[strange, 1] = stamp
                    strange += 1
                    if flags & DROPS_TIMES:
                        continue
                    timestamps[row] = NO_TIME
                else:
                    timestamps[row] = stamp * 1000
            offsets[row] = offset
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
            row += 0 if flags & ONE_ROW else 1
        if fault == 0 and at != end:
            fault = 10
        faults[b, 0] = fault
        faults[b, 1] = record
        if fault == 0:
            continue
        invalid += 1
        row, strange = rows_before, strange_before
        if flags & KEEPS_BATCHES:
            offsets[row] = max(batch[4], first_offset)
            _put_nulls(row, timestamps, timestamp_types, key_size, value_size, headers_size)
            row += 1
    return invalid, strange, row
