"""One record batch and what is left of it: Kafka's rules, and its bytes.

A batch keeps its base offset, its last offset, its producer fields and its codec; records that stay
keep their bytes. Where a batch holds tombstones, its base timestamp becomes the moment from which
they may go, and an attribute says so (`DELETE_HORIZON`, KIP-534); then the records' timestamp
deltas are written anew. A batch of which nothing changes stays as it is, byte by byte.
"""

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from crc32c import crc32c

from storage.format.batch_writer import varint
from storage.format.compression import deflate
from storage.format.record_batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CRC_POSITION,
    DELETE_HORIZON,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
)
from storage.format.records import INFLATED_SIZE_MAX, inflate, read_varint

_HEADER = struct.Struct(">qiibIhiqqqhii")


class KeyedRecord(NamedTuple):
    """A record as compaction sees it, and where it lies in its batch's records: from `start`, where
    its length is, to `end`; behind its timestamp delta it goes on at `body`.
    """

    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool
    start: int
    body: int
    end: int


class KeyedRecords(NamedTuple):
    """The records of a batch, and their bytes, inflated."""

    data: bytes
    records: list[KeyedRecord]


IsKept = Callable[[KeyedRecord], bool]


def keyed_records(header: BatchHeader, batch: memoryview) -> KeyedRecords:
    """Return the records of a batch. Raises ValueError for a malformed one."""
    data = bytes(inflate(header, batch[HEADER_SIZE : header.size], INFLATED_SIZE_MAX))
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    last_delta, size = header.last_offset_delta, len(data)
    found: list[KeyedRecord] = []
    position = 0
    try:
        for _ in range(header.record_count):
            start = position
            length, position = _varint(data, position)
            end = position + length
            if length < 0 or end > size:
                raise ValueError("a record reaches beyond its batch")
            time_delta, body = _varint(data, position + 1)
            offset_delta, position = _varint(data, body)
            if not 0 <= offset_delta <= last_delta:
                raise ValueError("a record lies outside its batch")
            length, position = _varint(data, position)
            key = None
            if length >= 0:
                key = data[position : position + length]
                position += length
            if position >= end:
                raise ValueError("a key reaches beyond its record")
            length, _ = _varint(data, position)
            found.append(
                KeyedRecord(
                    base_offset + offset_delta,
                    base_timestamp + time_delta,
                    key,
                    length < 0,
                    start,
                    body,
                    end,
                )
            )
            position = end
    except IndexError:
        raise ValueError("a record is cut short") from None
    return KeyedRecords(data, found)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a varint, of which most are one byte long."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return read_varint(data, position)


def delete_horizon(header: BatchHeader) -> int | None:
    """Return from when on a batch's tombstones may go (milliseconds), if that is known."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def with_records(
    header: BatchHeader, data: bytes, records: Sequence[KeyedRecord], horizon_ms: int | None
) -> bytes:
    """Return the batch with these of its records alone. `horizon_ms`: from when on its tombstones
    may go, where that was not known.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon_ms is None:
        body = b"".join([data[record.start : record.end] for record in records])
    else:
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon_ms
        body = b"".join([_timed(data, record, horizon_ms) for record in records])
    newest = header.max_timestamp
    if not header.attributes & LOG_APPEND_TIME:
        newest = max(record.timestamp for record in records)
    return _sealed(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=newest,
            record_count=len(records),
        ),
        deflate(header.codec, body),
    )


def _timed(data: bytes, record: KeyedRecord, base_timestamp: int) -> bytes:
    """Return a record's bytes with another timestamp delta."""
    _, attributes_at = read_varint(data, record.start)
    head = data[attributes_at : attributes_at + 1] + varint(record.timestamp - base_timestamp)
    rest = data[record.body : record.end]
    return varint(len(head) + len(rest)) + head + rest


def without_records(header: BatchHeader) -> bytes:
    """Return the batch with no record in it: what it says of its producer stays."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    bare = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
    return _sealed(bare, b"")


def filler(base_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    """Return a batch of nobody's without records, which has these offsets."""
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=end_offset - base_offset - 1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )
    return _sealed(header, b"")


def _sealed(header: BatchHeader, body: bytes) -> bytes:
    batch = bytearray(_HEADER.pack(*header._replace(length=HEADER_SIZE - LENGTH_END + len(body))))
    batch += body
    crc = crc32c(memoryview(batch)[ATTRIBUTES_POSITION:])
    batch[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
    return bytes(batch)


def filtered(
    batch: memoryview, is_kept: IsKept, *, now_ms: int, retention_ms: int
) -> memoryview | None:
    """Return what is left of a batch with records: itself where nothing changes, None where no
    record stays. Tombstones go at their horizon, which is `retention_ms` after they were first met.

    Raises ValueError for a malformed batch.
    """
    header = read_header(batch)
    horizon = delete_horizon(header)
    is_over = horizon is not None and horizon <= now_ms
    data, records = keyed_records(header, batch)
    kept = [r for r in records if is_kept(r) and not (r.is_tombstone and is_over)]
    if not kept:
        return None
    new_horizon = None
    if horizon is None and any(record.is_tombstone for record in kept):
        new_horizon = now_ms + retention_ms
    if len(kept) == len(records) and new_horizon is None:
        return batch
    return memoryview(with_records(header, data, kept, new_horizon))
