"""Encoders of Kafka record batches and data blocks for tests, independent of the code under test.

`encode_batch` is our own, with every field free, so that unusual and malformed batches can be made;
`foreign_batch` is kafka-python's. Bodies are compressed by cramjam."""

import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import cramjam
from crc32c import crc32c

from lakehead.storage.format.stream_object import (
    BLOCK_FLAGS,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    RECORD_HEADER,
    RECORD_MAGIC,
)

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas the old way
    from kafka.record.default_records import DefaultRecordBatchBuilder

HEADER = struct.Struct(">qiibIhiqqqhii")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRecord:
    """A record as a producer sees it. `timestamp` in milliseconds."""

    __test__ = False

    offset: int
    timestamp: int = 1_700_000_000_000
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


def varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _field(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def encode_record(record: TestRecord, base_offset: int, base_timestamp: int) -> bytes:
    body = b"\0" + varint(record.timestamp - base_timestamp) + varint(record.offset - base_offset)
    body += _field(record.key) + _field(record.value) + varint(len(record.headers))
    for key, value in record.headers:
        body += _field(key.encode()) + _field(value)
    return varint(len(body)) + body


def compress(codec: str, body: bytes, *, xerial: bool = False) -> bytes:
    match codec:
        case "none":
            return body
        case "gzip":
            return bytes(cramjam.gzip.compress(body))
        case "lz4":
            return bytes(cramjam.lz4.compress(body))
        case "zstd":
            return bytes(cramjam.zstd.compress(body))
    if not xerial:
        return bytes(cramjam.snappy.compress_raw(body))
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for start in range(0, len(body), 32 * 1024):
        block = bytes(cramjam.snappy.compress_raw(body[start : start + 32 * 1024]))
        framed += struct.pack(">i", len(block)) + block
    return framed


def seal_batch(
    body: bytes,
    *,
    base_offset: int,
    last_offset_delta: int,
    record_count: int,
    attributes: int = 0,
    base_timestamp: int = 1_700_000_000_000,
    max_timestamp: int = 1_700_000_000_000,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    magic: int = 2,
    crc: int | None = None,
) -> bytes:
    """Put a batch header with a right checksum before `body`."""
    tail = struct.pack(
        ">hiqqqhii",
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    tail += body
    sum_ = crc32c(tail) if crc is None else crc
    return struct.pack(">qiibI", base_offset, 9 + len(tail), 0, magic, sum_) + tail


def encode_batch(
    records: Sequence[TestRecord],
    *,
    codec: str = "none",
    xerial: bool = False,
    base_offset: int | None = None,
    last_offset: int | None = None,
    log_append_time: int | None = None,
    producer_id: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Encode a batch with our own encoder. `last_offset` above the last record's is a compaction
    gap."""
    base = records[0].offset if base_offset is None else base_offset
    last = records[-1].offset if last_offset is None else last_offset
    base_timestamp = records[0].timestamp
    body = b"".join(encode_record(record, base, base_timestamp) for record in records)
    attributes = CODECS.index(codec) | 0x10 * transactional | 0x20 * control
    max_timestamp = max(record.timestamp for record in records)
    if log_append_time is not None:
        attributes |= 0x08
        max_timestamp = log_append_time
    return seal_batch(
        compress(codec, body, xerial=xerial),
        base_offset=base,
        last_offset_delta=last - base,
        record_count=len(records),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
    )


def foreign_batch(
    records: Sequence[TestRecord], *, codec: str = "none", xerial: bool = False
) -> bytes:
    """Encode a batch of consecutive offsets with kafka-python; compress it afterwards."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    base = records[0].offset
    for record in records:
        appended = builder.append(
            record.offset - base,
            record.timestamp,
            record.key,
            record.value,
            list(record.headers),
        )
        assert appended is not None
    plain = bytes(builder.build())
    fields = HEADER.unpack_from(plain)
    return seal_batch(
        compress(codec, plain[HEADER.size :], xerial=xerial),
        base_offset=base,
        last_offset_delta=fields[6],
        record_count=fields[12],
        attributes=CODECS.index(codec),
        base_timestamp=fields[7],
        max_timestamp=fields[8],
    )


def block(batches: Sequence[bytes], *, stream_id: int = 7, epoch: int = 0) -> bytes:
    """Put batches into one data block of a stream."""
    data = b""
    for batch in batches:
        base, _, _, _, _, _, delta = HEADER.unpack_from(batch)[:7]
        data += RECORD_HEADER.pack(RECORD_MAGIC, stream_id, epoch, base, delta + 1, len(batch))
        data += batch
    return BLOCK_HEADER.pack(BLOCK_MAGIC, BLOCK_FLAGS, len(batches), len(data)) + data
