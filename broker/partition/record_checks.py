"""Checks of the records in a batch, which its header cannot show. Compacted topics refuse records
without a key; topics that set `lakehead.record.validation` refuse records that cannot be read or
are too far from the clock (KIP-467 reports the records to the producer).

A few kilobytes may inflate to millions of records, so more than a few are walked off the event
loop, and inflate to a multiple of the topic's `max.message.bytes` at most.
"""

import asyncio
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from lakehead.broker.partition.partition import Topic
from lakehead.broker.partition.record_rules import RecordRules
from lakehead.broker.partition.validation import INFLATED_SIZE_MAX
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.compaction.packages import are_kernels_installed
from lakehead.storage.format.record_batch import NO_TIMESTAMP, BatchHeader, read_header
from lakehead.storage.format.records import TIME_MAX
from lakehead.storage.format.varint import read_varint
from lakehead.storage.stream.inflating import InflatedBatches

INFLATION_MAX = 16
"""Records of a batch may be this many times `max.message.bytes` when they are inflated."""
RECORDS_INLINE_MAX = 500
"""Records of one request that are walked on the event loop."""
_BYTES_A_RECORD = 64
_SHOWN = 3


class RecordsRefused(KafkaError):
    """A batch is refused for some of its records: `record_errors` are their places and why."""

    def __init__(
        self,
        record_errors: tuple[tuple[int, str], ...],
        code: ErrorCode = ErrorCode.invalid_record,
    ) -> None:
        shown = ", ".join(f"record {place}: {reason}" for place, reason in record_errors[:_SHOWN])
        super().__init__(
            code,
            f"One or more records have been rejected due to {len(record_errors)} record errors in "
            f"total, and only showing the first three errors at most: {shown}",
        )
        self.record_errors = record_errors


def walked_inline(header: BatchHeader, rules: RecordRules) -> int:
    """Return how many records of a batch the event loop would walk to check them; more than
    `RECORDS_INLINE_MAX` for a compressed batch, whose header does not bound the work. If each field
    is looked at, some bytes count as a record, since a record may have very many headers.
    """
    if header.codec:
        return RECORDS_INLINE_MAX + 1
    fields = header.size // _BYTES_A_RECORD if rules.validates_records else 0
    return header.record_count + fields


async def check_records_aside(
    batch: memoryview, topic: Topic, index: int, now_ms: int, memory: InflatedBatches
) -> None:
    """Do as `check_records`, off the event loop, as soon as there is memory to decompress a batch.
    KafkaError (INVALID_RECORD) is also for records that inflate too far; at once, if their number
    says so.
    """
    count = read_header(batch).record_count

    async def read() -> memoryview:
        return batch

    size_max = min(INFLATED_SIZE_MAX, INFLATION_MAX * topic.rules.batch_size_max)
    loop = asyncio.get_running_loop()
    try:
        async with memory.inflated(read, size_max, count) as (header, records):
            await loop.run_in_executor(None, check_records, records, header, topic, index, now_ms)
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_record, str(error)) from error


def check_records(
    records: memoryview, header: BatchHeader, topic: Topic, index: int, now_ms: int
) -> None:
    """Check the decompressed `records` of one batch for partition `index` by its topic's rules.

    Raises RecordsRefused: INVALID_RECORD for records that cannot be read or have no key,
    INVALID_TIMESTAMP for those too far from the clock. Raises KafkaError (INVALID_RECORD) when keys
    cannot be looked for.
    """
    if topic.rules.validates_records:
        _validate(records, header, topic.rules, now_ms)
    if topic.rules.needs_keys:
        _check_keys(records, header, topic, index)


def _validate(data: memoryview, header: BatchHeader, rules: RecordRules, now_ms: int) -> None:
    earliest = max(EVERY_TIME.earliest, now_ms - rules.before_ms)
    latest = min(EVERY_TIME.latest, now_ms + rules.after_ms)
    try:
        found = places_out_of_time(data, header, TimeRange(earliest, latest))
    except MalformedRecord as error:
        raise RecordsRefused(((error.place, error.reason),)) from None
    if not found or rules.is_log_append_time:  # then records get the broker's time
        return
    allowed = f"The timestamp should be within [{earliest}, {latest}]"
    errors = [(at, f"Timestamp {time} of message is out of range. {allowed}") for at, time in found]
    raise RecordsRefused(tuple(errors), ErrorCode.invalid_timestamp)


def _check_keys(records: memoryview, header: BatchHeader, topic: Topic, index: int) -> None:
    try:
        missing = records_without_key(records, header.record_count)
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_record, str(error)) from error
    if missing:
        reason = (
            "Compacted topic cannot accept message without key in topic partition "
            f"{topic.name}-{index}."
        )
        raise RecordsRefused(tuple((place, reason) for place in missing))


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
    """Return true if Python would take too long to look at `count` decompressed records, and the
    packages of kernels are installed.
    """
    is_large = count > KERNEL_RECORDS_MIN or len(records) > KERNEL_SIZE_MIN
    return is_large and are_kernels_installed()


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
    import numpy as np

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


_REFUSED_MAX = 1000
"""Records without a key that one response names: each is some hundred bytes of it."""


def records_without_key(records: memoryview, count: int) -> list[int]:
    """Return the places of the first records that have no key, `_REFUSED_MAX` at most, of `count`
    decompressed records. Raises ValueError.
    """
    if needs_kernel(records, count):
        return _keyless_by_kernel(records, count)
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


def _keyless_by_kernel(records: memoryview, count: int) -> list[int]:
    """Do the same for very many records."""
    import numpy as np

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
