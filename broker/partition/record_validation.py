"""The check of every record of a batch that is produced, for topics that want it
(`lakehead.record.validation`): Kafka's brokers always make it.

It is written apart from the kernel that reads records for the lake; a test holds the two together.
Batches of very many records are checked by a kernel as well (`record_kernels`).
"""

from typing import NamedTuple

import numpy as np

from lakehead.storage.format.record_batch import NO_TIMESTAMP, BatchHeader
from lakehead.storage.format.records import TIME_MAX, read_varint

_INT_SIZE_MAX = 5
_PLACES_MAX = 1000
_HALF_MAX = (1 << 63) - 1
KERNEL_RECORDS_MIN = 20_000
KERNEL_SIZE_MIN = 1 << 20
"""Batches of more records, or more bytes of them, are checked by a kernel. Others take Python less
than a fifth of a second, and most nodes see no other batches: they never load the kernel.
"""


class TimeRange(NamedTuple):
    """The earliest and the latest time (inclusive) that records may have, in milliseconds."""

    earliest: int
    latest: int


EVERY_TIME = TimeRange(-TIME_MAX, TIME_MAX)
"""All that a TIMESTAMP of microseconds holds."""


class MalformedRecord(ValueError):
    """A record, at `place` in its batch, that cannot be read; nor can those behind it."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


def needs_kernel(records: memoryview, count: int) -> bool:
    """Whether Python would take too long to look at `count` decompressed records."""
    return count > KERNEL_RECORDS_MIN or len(records) > KERNEL_SIZE_MIN


def places_out_of_time(
    records: memoryview, header: BatchHeader, times: TimeRange
) -> list[tuple[int, int]]:
    """Check all records of a batch, decompressed; return the places and times of the first of those
    out of `times`, `_PLACES_MAX` at most. Raises MalformedRecord.
    """
    if needs_kernel(records, header.record_count):
        return _by_kernel(records, header, times)
    data = bytes(records)
    found: list[tuple[int, int]] = []
    position = place = 0
    try:
        for place in range(header.record_count):
            delta, position = _checked(data, position, place)
            time = _as_long(header.base_timestamp + delta)
            is_in_time = times.earliest <= time <= times.latest or time == NO_TIMESTAMP
            if not is_in_time and len(found) < _PLACES_MAX:
                found.append((place, time))
        if position != len(data):
            raise ValueError(f"{len(data) - position} bytes after the last record of the batch")
    except IndexError:
        raise MalformedRecord(place, "the record is cut short") from None
    except ValueError as error:
        raise MalformedRecord(place, str(error)) from None
    return found


def _checked(data: bytes, position: int, place: int) -> tuple[int, int]:
    """Return a record's timestamp delta and where it ends. Raises ValueError, IndexError."""
    length, position = _read_int(data, position)
    end = position + length
    if length < 1 or end > len(data):
        raise ValueError("the record reaches beyond its batch")
    time_delta, position = _read_long(data, position + 1)
    offset_delta, position = _read_int(data, position)
    if offset_delta != place:
        raise ValueError(f"the record's offset delta is {offset_delta}, not {place}")
    position = _field_end(data, position, end, "key")
    position = _field_end(data, position, end, "value")
    count, position = _read_int(data, position)
    if not 0 <= count <= end - position:
        raise ValueError(f"the record has {count} headers")
    for _ in range(count):
        position = _field_end(data, position, end, "header's key", least=0)
        position = _field_end(data, position, end, "header's value")
    if position != end:
        raise ValueError("the record's fields do not end where its length says")
    return time_delta, end


def _field_end(data: bytes, position: int, end: int, name: str, *, least: int = -1) -> int:
    """Return where a field ends, null if its length is -1. Raises ValueError, IndexError."""
    length, position = _read_int(data, position)
    if length < least or position + length > end:
        raise ValueError(f"the record's {name} has a length of {length}")
    return position + length if length > 0 else position


def _read_int(data: bytes, position: int) -> tuple[int, int]:
    value, after = read_varint(data, position)
    if after - position > _INT_SIZE_MAX:
        raise ValueError("a varint is longer than 5 bytes")
    return value, after


def _read_long(data: bytes, position: int) -> tuple[int, int]:
    """Read a varint whose bits beyond 64 are cut, as Kafka cuts them."""
    value, after = read_varint(data, position)
    return (~(~value & _HALF_MAX) if value < 0 else value & _HALF_MAX), after


def _as_long(value: int) -> int:
    """A sum as 64 bits hold it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _by_kernel(records: memoryview, header: BatchHeader, times: TimeRange) -> list[tuple[int, int]]:
    """Do as `places_out_of_time` for very many records."""
    from lakehead.broker.partition import record_kernels as kernel

    strange = np.empty((_PLACES_MAX, 2), np.int64)
    fault, place, number, found = kernel.check_all(
        np.frombuffer(records, np.uint8),
        header.record_count,
        header.base_timestamp,
        *times,
        NO_TIMESTAMP,
        strange,
    )
    if fault == kernel.FINE:
        return [(at, time) for at, time in strange[:found].tolist()]
    reasons = {
        kernel.CUT_SHORT: "the record is cut short",
        kernel.LONGER_THAN_10: "a varint is longer than 10 bytes",
        kernel.LONGER_THAN_5: "a varint is longer than 5 bytes",
        kernel.BEYOND_BATCH: "the record reaches beyond its batch",
        kernel.OFFSET_DELTA: f"the record's offset delta is {number}, not {place}",
        kernel.KEY: f"the record's key has a length of {number}",
        kernel.VALUE: f"the record's value has a length of {number}",
        kernel.HEADERS: f"the record has {number} headers",
        kernel.HEADER_KEY: f"the record's header's key has a length of {number}",
        kernel.HEADER_VALUE: f"the record's header's value has a length of {number}",
        kernel.FIELDS_END: "the record's fields do not end where its length says",
        kernel.BYTES_LEFT: f"{number} bytes after the last record of the batch",
    }
    raise MalformedRecord(place, reasons[fault])
