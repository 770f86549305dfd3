"""The look for records without a key, which compacted topics do not take."""

import numpy as np

from lakehead.broker.partition.record_validation import needs_kernel
from lakehead.storage.format.records import read_varint

_REFUSED_MAX = 1000
"""Records without a key that one response names: each is some hundred bytes of it."""


def records_without_key(records: memoryview, count: int) -> list[int]:
    """Return the places of the first records that have no key, `_REFUSED_MAX` at most, of `count`
    decompressed records. Raises ValueError.
    """
    if needs_kernel(records, count):
        return _by_kernel(records, count)
    data = bytes(records)
    position = 0
    missing: list[int] = []
    try:
        for place in range(count):
            length, position = read_varint(data, position)
            end = position + length
            if length < 0 or end > len(data):
                raise ValueError("a record reaches beyond its batch")
            position += 1  # attributes; the deltas of timestamp and offset are passed over
            for _ in range(2):
                _, position = read_varint(data, position)
            key_length, position = read_varint(data, position)
            if key_length < 0:
                missing.append(place)
                if len(missing) == _REFUSED_MAX:
                    break
            if position + max(0, key_length) > end:
                raise ValueError("a key reaches beyond its record")
            position = end
    except IndexError:
        raise ValueError("a record is cut short") from None
    return missing


def _by_kernel(records: memoryview, count: int) -> list[int]:
    """Do the same for very many records."""
    from lakehead.broker.partition import record_kernels as kernel

    missing = np.empty(_REFUSED_MAX, np.int64)
    fault, found = kernel.find_keyless(np.frombuffer(records, np.uint8), count, missing)
    match fault:
        case kernel.FINE:
            return [int(place) for place in missing[:found]]
        case kernel.CUT_SHORT:
            raise ValueError("a record is cut short")
        case kernel.LONGER_THAN_10:
            raise ValueError("a varint is longer than 10 bytes")
        case kernel.BEYOND_BATCH:
            raise ValueError("a record reaches beyond its batch")
    raise ValueError("a key reaches beyond its record")
