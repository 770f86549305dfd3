"""Kernel: finds the record batches in a range of data blocks.

Walks block headers, record headers and batch headers (`lakehead.storage.format.stream_object`,
`lakehead.storage.format.record_batch`), checks that each lies inside its parent and that they
agree, and lists the batches that hold records of the requested offsets, control batches
(transaction markers) among them.
"""

from typing import Any

import numpy as np

from lakehead.storage.kernel_compiler import BYTES, LONG, TABLE, compiled, inlined, results

# Columns of the batch table: one row per batch, positions in the scanned bytes.
BATCH_POSITION = 0
BATCH_SIZE = 1
CRC = 2
ATTRIBUTES = 3
BASE_OFFSET = 4
LAST_OFFSET_DELTA = 5
BASE_TIMESTAMP = 6
MAX_TIMESTAMP = 7
PRODUCER_ID = 8
RECORD_COUNT = 9
BODY_POSITION = 10
"""Start of the records: >= 0 in the scanned bytes, else at `~position` of the inflated bytes."""
BODY_SIZE = 11
TABLE_WIDTH = 12

BATCH_HEADER_SIZE = 61
BATCH_SIZE_MIN = 10 + 33 + BATCH_HEADER_SIZE
"""No data block with a batch is smaller."""

TOO_MANY = 14
"""The fault of a table that is too short."""

FAULTS = {
    1: "no data block begins here",
    2: "a data block overruns the range",
    3: "no record begins here",
    4: "a record of another stream",
    5: "a record overruns its data block",
    6: "a record is too short for a batch header",
    7: "a batch's length disagrees with its record's",
    8: "a record batch of an unknown magic",
    9: "a batch's base offset disagrees with its record's",
    10: "a batch's last offset delta disagrees with its record's offset count",
    11: "a batch with a negative record count, or more records than offsets",
    12: "a data block holds another number of records than it says",
    13: "a batch begins before the end of the one before it",
    TOO_MANY: "more batches than fit the range",
}


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


@compiled(results(3)(BYTES, LONG, LONG, LONG, TABLE))
def scan_batches(  # noqa: C901 - one pass over three nested layouts
    data: Any, stream_id: Any, first_offset: Any, end_offset: Any, table: Any
) -> Any:
    """Fill `table` with the batches that overlap [first_offset, end_offset).

    Returns (fault or 0, its position, rows filled).
    """
    rows = 0
    position = 0
    size = data.shape[0]
    next_offset = np.int64(0)
    while position < size:
        if size - position < 10 or data[position] != 0x5A:
            return 1, position, rows
        expected = _int(data, position + 2)
        length = _int(data, position + 6)
        block = position
        position += 10
        if length < 0 or length > size - position:
            return 2, block, rows
        end = position + length
        found = 0
        while position < end:
            if end - position < 33 or data[position] != 0x22:
                return 3, position, rows
            record = position
            if _long(data, record + 1) != stream_id:
                return 4, record, rows
            base = _long(data, record + 17)
            count = _int(data, record + 25)
            payload = _int(data, record + 29)
            position += 33
            if payload < 0 or payload > end - position:
                return 5, record, rows
            if payload < 61:
                return 6, record, rows
            if _int(data, position + 8) != payload - 12:
                return 7, position, rows
            if data[position + 16] != 2:
                return 8, position, rows
            if base < 0 or _long(data, position) != base:
                return 9, position, rows
            delta = _int(data, position + 23)
            if delta < 0 or delta + 1 != count:
                return 10, position, rows
            records = _int(data, position + 57)
            if records < 0 or records > delta + 1:
                return 11, position, rows
            if base < next_offset:
                return 13, position, rows
            next_offset = base + count
            attributes = np.int64(data[position + 21]) << 8 | np.int64(data[position + 22])
            if records > 0 and base < end_offset and next_offset > first_offset:
                if rows == table.shape[0]:
                    return 14, position, rows
                row = table[rows]
                row[0] = position
                row[1] = payload
                row[2] = _int(data, position + 17) & 0xFFFFFFFF
                row[3] = attributes
                row[4] = base
                row[5] = delta
                row[6] = _long(data, position + 27)
                row[7] = _long(data, position + 35)
                row[8] = _long(data, position + 43)
                row[9] = records
                row[10] = position + 61
                row[11] = payload - 61
                rows += 1
            position += payload
            found += 1
        if found != expected:
            return 12, block, rows
    return 0, 0, rows
