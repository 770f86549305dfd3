"""Kernels: which batches fail their checksums, and the checksums of new ones. A call for each from
Python would cost more than a small one's checksum.
"""

from typing import Any

import numpy as np

from lakehead.storage.compaction.merge_kernels import (
    BODY_SIZE,
    CRC,
    CRC_FROM,
    END,
    FAILED,
    NOWHERE,
    RECORD_HEADER,
    RUN,
    START,
)
from lakehead.storage.kernel_checksum import BYTE_STEPS, crc32c_step
from lakehead.storage.kernel_compiler import BYTES, LONG, OUT, TABLE, compiled, inlined
from lakehead.storage.kernel_memory import word_at


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
