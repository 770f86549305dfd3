"""Records of one Kafka record batch, for the rare path that must look inside (Kafka's "Record"
format, KIP-98).

The hot paths never do: this is for finding an offset by timestamp, for a coordinator's own topics
and for debugging. Bulk decoding is the lake's compiled kernel.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from storage.format.compression import BufferTooSmall, Inflater
from storage.format.record_batch import HEADER_SIZE, LOG_APPEND_TIME, BatchHeader, read_header

INFLATED_SIZE_MAX = 512 * 1024 * 1024
_INFLATED_SIZE_MIN = 64 * 1024


class KafkaRecord(NamedTuple):
    """One record. `timestamp` in milliseconds; `headers` are (key, value) pairs, in order."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def iter_kafka_records(batch: memoryview) -> Iterator[KafkaRecord]:
    """Yield the records of one batch. Raises ValueError when the batch is malformed or inflates too
    far.
    """
    try:
        header = read_header(batch)
        data = inflate(header, batch[HEADER_SIZE : header.size])
        position = 0
        for _ in range(header.record_count):
            length, position = _varint(data, position)
            if length < 0 or position + length > len(data):
                raise ValueError("a record reaches beyond its batch")
            yield _record(header, data[position : position + length])
            position += length
    except (struct.error, IndexError) as error:
        raise ValueError(f"malformed record batch: {error}") from error


def inflate(header: BatchHeader, data: memoryview) -> memoryview:
    """Return the records, decompressed. Raises ValueError: unknown codec, bad data, a bomb."""
    if header.codec == 0:
        return data
    size = max(_INFLATED_SIZE_MIN, 4 * len(data))
    while size <= INFLATED_SIZE_MAX:
        target = memoryview(bytearray(size))
        try:
            return target[: Inflater().inflate(header.codec, data, target)]
        except BufferTooSmall:
            size *= 4
    raise ValueError(f"a batch inflates beyond {INFLATED_SIZE_MAX} bytes")


def _record(header: BatchHeader, data: memoryview) -> KafkaRecord:
    timestamp_delta, position = _varint(data, 1)
    offset_delta, position = _varint(data, position)
    key, position = _bytes(data, position)
    value, position = _bytes(data, position)
    count, position = _varint(data, position)
    headers = []
    for _ in range(count):
        name, position = _bytes(data, position)
        content, position = _bytes(data, position)
        headers.append(((name or b"").decode(errors="replace"), content))
    timestamp = (
        header.max_timestamp
        if header.attributes & LOG_APPEND_TIME
        else header.base_timestamp + timestamp_delta
    )
    return KafkaRecord(header.base_offset + offset_delta, timestamp, key, value, tuple(headers))


def _bytes(data: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length < 0:
        return None, position
    if position + length > len(data):
        raise ValueError("a field reaches beyond its record")
    return bytes(data[position : position + length]), position + length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 10 bytes; return it and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise ValueError("a varint is longer than 10 bytes")
