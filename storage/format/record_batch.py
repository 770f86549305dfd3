"""The Kafka record batch, magic 2: its header, looked at and patched in place (KIP-98; Kafka's
"Record Batch").

Layout, big-endian, 61 bytes, then the records (compressed as one block when a codec is set)::

    @0  base offset i64      @8  batch length i32 (of what follows)   @12 leader epoch i32
    @16 magic i8 = 2         @17 CRC-32C u32 of all bytes from @21           @21 attributes i16
    @23 last offset delta i32   @27 base timestamp i64   @35 max timestamp i64   @43 producer id i64
    @51 producer epoch i16      @53 base sequence i32    @57 record count i32

The CRC does not cover base offset and leader epoch, so a broker may set these two without touching
the rest.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from crc32c import crc32c

from lakehead.storage.object_store.protocol import Buffer

HEADER_SIZE = 61
LENGTH_END = 12
"""Bytes up to and including the batch length: the total size is `LENGTH_END + length`."""
MAGIC = 2
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
MAX_TIMESTAMP_POSITION = 35

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LENGTH = struct.Struct(">i")
_LONG = struct.Struct(">q")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER_ID_POSITION = 43
_PRODUCER = struct.Struct(">qhi")


class BatchHeader(NamedTuple):
    """The fields of a batch header, in wire order. Timestamps in milliseconds since the epoch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LENGTH_END + self.length

    @property
    def last_offset(self) -> int:
        """Offset of the last record, inclusive."""
        return self.base_offset + self.last_offset_delta

    @property
    def end_offset(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        """Return true if the batch holds transaction markers, which consumers never see."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Return true if the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def codec(self) -> int:
        """Compression codec: index into `CODECS`, or a number beyond it."""
        return self.attributes & CODEC_MASK


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at `position`. Raises struct.error when fewer than 61 bytes are there."""
    return tuple.__new__(BatchHeader, _HEADER.unpack_from(buffer, position))


def base_offset(batch: Buffer) -> int:
    """Return a batch's first offset."""
    found: int = _BASE_OFFSET.unpack_from(batch)[0]
    return found


def max_timestamp(batch: Buffer) -> int:
    """Return a batch's newest timestamp, in milliseconds."""
    found: int = _LONG.unpack_from(batch, MAX_TIMESTAMP_POSITION)[0]
    return found


def max_timestamps(batches: Sequence[Buffer]) -> list[int]:
    """Return the newest timestamp of each batch, in milliseconds; -1 for one without a header."""
    if len(with_header(batches)) < len(batches):
        return [max_timestamp(one) if len(one) >= HEADER_SIZE else NO_TIMESTAMP for one in batches]
    unpacked = map(_LONG.unpack_from, batches, repeat(MAX_TIMESTAMP_POSITION))
    return [timestamp for (timestamp,) in unpacked]


def with_header(batches: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return what is long enough for the header of a batch: all, as a rule."""
    if min(map(len, batches), default=HEADER_SIZE) >= HEADER_SIZE:
        return batches
    return [batch for batch in batches if len(batch) >= HEADER_SIZE]


def producer_id(batch: Buffer) -> int:
    """Return the producer id of a batch; -1: it has none."""
    found: int = _LONG.unpack_from(batch, _PRODUCER_ID_POSITION)[0]
    return found


def patch(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Set base offset and leader epoch of the batch at `position`, in place."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + LENGTH_END, leader_epoch)


def stamp(batch: bytearray | memoryview, timestamp_ms: int) -> BatchHeader:
    """Give the records of one whole batch one time, that of their appending, in place; return the
    new header. Nothing but header and CRC changes (KIP-32).
    """
    whole = memoryview(batch)
    attributes = read_header(whole).attributes | LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(whole, ATTRIBUTES_POSITION, attributes)
    _LONG.pack_into(whole, MAX_TIMESTAMP_POSITION, timestamp_ms)
    _CRC.pack_into(whole, CRC_POSITION, crc32c(whole[ATTRIBUTES_POSITION:]))
    return read_header(whole)


def without_producer(batch: memoryview) -> None:
    """Make one whole batch one of a producer without id, and of no transaction, in place."""
    attributes = read_header(batch).attributes & ~TRANSACTIONAL
    _ATTRIBUTES.pack_into(batch, ATTRIBUTES_POSITION, attributes)
    _PRODUCER.pack_into(batch, _PRODUCER_ID_POSITION, NO_PRODUCER_ID, -1, NO_SEQUENCE)
    _CRC.pack_into(batch, CRC_POSITION, crc32c(batch[ATTRIBUTES_POSITION:]))


def sealed(header: BatchHeader, body: Buffer) -> bytes:
    """Return a batch of this header and these (compressed) records: length and CRC are set."""
    batch = bytearray(_HEADER.pack(*header._replace(length=HEADER_SIZE - LENGTH_END + len(body))))
    batch += body
    _CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]))
    return bytes(batch)


def crc_ok(batch: memoryview) -> bool:
    """Return whether the CRC-32C of one whole batch is right."""
    expected: int = int.from_bytes(batch[CRC_POSITION:ATTRIBUTES_POSITION], "big")
    return bool(crc32c(batch[ATTRIBUTES_POSITION:]) == expected)


def size_at(buffer: Buffer, position: int) -> int:
    """Return the total size in bytes of the batch at `position`. Raises struct.error when it is cut
    short.
    """
    length: int = _LENGTH.unpack_from(buffer, position + 8)[0]
    return LENGTH_END + length


def iter_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of batches that follow each other; stops before one that is cut
    short.
    """
    position, end = 0, len(buffer)
    while position + HEADER_SIZE <= end:
        header = read_header(buffer, position)
        if header.length < HEADER_SIZE - LENGTH_END or position + header.size > end:
            return
        yield position, header
        position += header.size
