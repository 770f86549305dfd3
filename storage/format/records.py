"""Records of one Kafka record batch, for the rare path that must look inside (Kafka's "Record"
format, KIP-98).

The hot paths never do: this is for finding an offset by timestamp, for a coordinator's own topics
and for debugging. Bulk decoding is the lake's compiled kernel.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from lakehead.storage.format.compression import BufferTooSmall, inflate_into
from lakehead.storage.format.record_batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    read_header,
)
from lakehead.storage.format.varint import read_varint

INFLATED_SIZE_MAX = 512 * 1024 * 1024
_INFLATED_SIZE_MIN = 64 * 1024
TIME_MAX = 9_223_372_036_854_775
"""Milliseconds before and after 1970 that a TIMESTAMP of microseconds in 64 bits holds."""
_TIME_END = 1 << 63


class KafkaRecord(NamedTuple):
    """One record. `timestamp` in milliseconds; `headers` are (key, value) pairs, in order."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class RecordTime(NamedTuple):
    """The offset and the timestamp, in milliseconds, of one record."""

    offset: int
    timestamp: int


def iter_kafka_records(batch: memoryview) -> Iterator[KafkaRecord]:
    """Yield the records of one batch. Raises ValueError when the batch is malformed or inflates too
    far.
    """
    try:
        header = read_header(batch)
    except struct.error as error:
        raise ValueError(f"malformed record batch: {error}") from error
    yield from iter_inflated_records(header, inflate(header, batch[HEADER_SIZE : header.size]))


def iter_inflated_records(header: BatchHeader, records: memoryview) -> Iterator[KafkaRecord]:
    """Yield the records of one batch, which are decompressed. Raises ValueError when they are
    malformed.
    """
    try:
        for data in _bodies(header, records):
            yield _record(header, data)
    except (struct.error, IndexError) as error:
        raise ValueError(f"malformed record batch: {error}") from error


def iter_record_times(header: BatchHeader, records: memoryview) -> Iterator[RecordTime]:
    """Yield where and when the records of one batch are, and nothing else of them. `records` are
    decompressed. Raises as `iter_kafka_records`.
    """
    try:
        for data in _bodies(header, records):
            time, _ = _time(header, data)
            yield time
    except IndexError as error:
        raise ValueError(f"malformed record batch: {error}") from error


def iter_record_contents(
    header: BatchHeader, records: memoryview
) -> Iterator[tuple[RecordTime, memoryview]]:
    """Yield where and when the records of one batch are, and their keys, values and headers as they
    are encoded. `records` are decompressed. Raises as `iter_kafka_records`.
    """
    try:
        for data in _bodies(header, records):
            time, position = _time(header, data)
            yield time, data[position:]
    except IndexError as error:
        raise ValueError(f"malformed record batch: {error}") from error


def _bodies(header: BatchHeader, data: memoryview) -> Iterator[memoryview]:
    position = 0
    for _ in range(header.record_count):
        length, position = read_varint(data, position)
        if length < 0 or position + length > len(data):
            raise ValueError("a record reaches beyond its batch")
        yield data[position : position + length]
        position += length


def inflate(header: BatchHeader, data: memoryview, size_max: int = INFLATED_SIZE_MAX) -> memoryview:
    """Return the records, decompressed. Raises ValueError: unknown codec, bad data, a bomb."""
    if header.codec == 0:
        return data
    size = min(size_max, max(_INFLATED_SIZE_MIN, 4 * len(data)))
    while True:
        target = memoryview(bytearray(size))
        try:
            return target[: inflate_into(header.codec, data, target)]
        except BufferTooSmall:
            if size == size_max:
                raise ValueError(f"a batch inflates beyond {size_max} bytes") from None
            size = min(size_max, size * 4)


def _time(header: BatchHeader, data: memoryview) -> tuple[RecordTime, int]:
    """Return when a record is, and the position behind that."""
    timestamp_delta, position = read_varint(data, 1)
    offset_delta, position = read_varint(data, position)
    timestamp = (
        header.max_timestamp
        if header.attributes & LOG_APPEND_TIME
        else header.base_timestamp + timestamp_delta
    )
    if not (0 <= offset_delta <= header.last_offset_delta and -_TIME_END <= timestamp < _TIME_END):
        raise ValueError("a record is outside its batch, or its time is out of range")
    return RecordTime(header.base_offset + offset_delta, timestamp), position


def _record(header: BatchHeader, data: memoryview) -> KafkaRecord:
    (offset, timestamp), position = _time(header, data)
    key, position = _bytes(data, position)
    value, position = _bytes(data, position)
    count, position = read_varint(data, position)
    headers = []
    for _ in range(count):
        name, position = _bytes(data, position)
        content, position = _bytes(data, position)
        headers.append(((name or b"").decode(errors="replace"), content))
    return KafkaRecord(offset, timestamp, key, value, tuple(headers))


def _bytes(data: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    if position + length > len(data):
        raise ValueError("a field reaches beyond its record")
    return bytes(data[position : position + length]), position + length
