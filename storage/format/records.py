"""Records of one Kafka record batch, for the rare path that must look inside (Kafka's "Record"
format, KIP-98).

The hot paths never do: this is for finding an offset by timestamp, for a coordinator's own topics
and for debugging. Bulk decoding is the lake's compiled kernel.
"""

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import cramjam

from storage.format.record_batch import (
    CODECS,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    read_header,
)

INFLATED_SIZE_MAX = 512 * 1024 * 1024
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE = 16


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
        data = memoryview(inflate(header, batch[HEADER_SIZE : header.size]))
        position = 0
        for _ in range(header.record_count):
            length, position = _varint(data, position)
            if length < 0 or position + length > len(data):
                raise ValueError("a record reaches beyond its batch")
            yield _record(header, data[position : position + length])
            position += length
    except (struct.error, IndexError) as error:
        raise ValueError(f"malformed record batch: {error}") from error


def inflate(header: BatchHeader, data: memoryview) -> bytes | memoryview:
    """Return the records' bytes, decompressed. Raises ValueError for an unknown codec, bad data or
    a bomb.
    """
    if header.codec == 0:
        return data
    if header.codec >= len(CODECS):
        raise ValueError(f"unknown compression codec {header.codec}")
    try:
        return _INFLATE[CODECS[header.codec]](data)
    except (cramjam.DecompressionError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"cannot decompress a {CODECS[header.codec]} batch: {error}") from error


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


def _gunzip(data: memoryview) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    body = inflater.decompress(data, INFLATED_SIZE_MAX)
    if inflater.unconsumed_tail:
        raise ValueError("a gzip batch inflates beyond the limit")
    return body


def _unsnappy(data: memoryview) -> bytes:
    """Snappy comes raw, or in the framing of xerial's Java library: blocks with i32 lengths."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return bytes(cramjam.snappy.decompress_raw(data))
    parts, position = [], _XERIAL_HEADER_SIZE
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        parts.append(bytes(cramjam.snappy.decompress_raw(data[position : position + length])))
        position += length
    return b"".join(parts)


_INFLATE: dict[str, Callable[[memoryview], bytes]] = {
    "gzip": _gunzip,
    "snappy": _unsnappy,
    "lz4": lambda data: bytes(cramjam.lz4.decompress(data)),
    "zstd": lambda data: bytes(cramjam.zstd.decompress(data)),
}
