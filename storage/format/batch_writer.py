"""Writes record batches: magic 2, uncompressed, without sequence numbers. For topics that Lakehead
itself writes, and for programs that use the stream engine without Kafka.

The batch layout is in `lakehead.storage.format.record_batch`. A record is: length varint,
attributes i8 = 0, timestamp delta varint, offset delta varint, key and value each as varint length
(-1: null) and bytes, header count varint, each header's name and value as varint length and bytes.
Varints are zigzag (KIP-98).
"""

import struct
from collections.abc import Sequence
from typing import TypeAlias

from crc32c import crc32c

from lakehead.storage.format.record_batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
)
from lakehead.storage.format.varint import encode_varint

KeyValue: TypeAlias = tuple[bytes, bytes | None]
"""Key and value of a record; no value means that the key is deleted."""
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
"""Names and values of the headers of a record; None: a null value."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_NO_LEADER_EPOCH = -1
_NO_PRODUCER_EPOCH = -1


def encode_batch(
    records: Sequence[tuple[bytes | None, bytes | None]],
    timestamp_ms: int,
    *,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = _NO_PRODUCER_EPOCH,
    attributes: int = 0,
    headers: Headers = (),
) -> bytearray:
    """Return one batch with base offset 0 for the log to patch. All records bear one timestamp and
    the same headers.

    `attributes` are of the batch: those of a producer's transaction are `TRANSACTIONAL`.
    """
    encoded = encode_headers(headers)
    return encode_batch_of(
        [encode_record(delta, key, value, encoded) for delta, (key, value) in enumerate(records)],
        timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=attributes,
    )


def encode_record(
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    encoded_headers: bytes,
    timestamp_delta: int = 0,
) -> bytes:
    """Return one record, length included. Deltas are from the base offset and the base timestamp
    (ms) of its batch.
    """
    record = b"".join(
        (
            b"\0",  # attributes
            encode_varint(timestamp_delta),
            encode_varint(offset_delta),
            _encode_bytes(key),
            _encode_bytes(value),
            encoded_headers,
        )
    )
    return encode_varint(len(record)) + record


def encode_batch_of(
    records: Sequence[bytes],
    timestamp_ms: int,
    *,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = _NO_PRODUCER_EPOCH,
    attributes: int = 0,
) -> bytearray:
    """Return one batch of encoded records, whose offset deltas go up from 0; see `encode_batch`."""
    assert records
    batch = bytearray(
        _HEADER.pack(
            0,
            HEADER_SIZE - LENGTH_END + sum(map(len, records)),
            _NO_LEADER_EPOCH,
            MAGIC,
            0,
            attributes,
            len(records) - 1,
            timestamp_ms,
            timestamp_ms,
            producer_id,
            producer_epoch,
            NO_SEQUENCE,
            len(records),
        )
    )
    for record in records:
        batch += record
    crc = crc32c(memoryview(batch)[ATTRIBUTES_POSITION:])
    batch[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
    return batch


def encode_headers(headers: Headers) -> bytes:
    """Return the headers of a record."""
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        parts += (_encode_bytes(name.encode()), _encode_bytes(value))
    return b"".join(parts)


def _encode_bytes(data: bytes | None) -> bytes:
    return _NULL if data is None else encode_varint(len(data)) + data


_NULL = encode_varint(-1)
