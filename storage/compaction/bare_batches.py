"""Batches without records, and the sealing of any batch."""

import struct

from crc32c import crc32c

from lakehead.storage.format.record_batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CRC_POSITION,
    DELETE_HORIZON,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
)

GAP_MAX = 1 << 30
"""Offsets between two batches: beyond it, an empty batch is put there, for the sake of fields of 32
bits.
"""
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_LENGTH_POSITION = 8


def without_records(header: BatchHeader) -> bytes:
    """Return the batch with no record in it: what it says of its producer stays."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    bare = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
    return bytes(sealed(bare, memoryview(bytearray(HEADER_SIZE))))


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
    return bytes(sealed(header, memoryview(bytearray(HEADER_SIZE))))


def sealed(header: BatchHeader, batch: memoryview) -> memoryview:
    """Return a batch of which the records are there: it gets this header, with its length and
    CRC.
    """
    _HEADER.pack_into(batch, 0, *header)
    _LENGTH.pack_into(batch, _LENGTH_POSITION, len(batch) - LENGTH_END)
    crc = crc32c(batch[ATTRIBUTES_POSITION:])
    batch[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
    return batch
