"""A record batch in another codec: the same records, offsets, times and producer."""

import struct

from crc32c import crc32c

from storage.format.compression import deflate
from storage.format.record_batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CRC_POSITION,
    HEADER_SIZE,
    LENGTH_END,
    read_header,
)
from storage.format.records import inflate

_LENGTH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_CRC = struct.Struct(">I")


def recompressed(
    batch: memoryview, codec: int, level: int | None, *, inflated_size_max: int
) -> bytearray:
    """Return one whole batch with its records in `codec`, at a `level` as `deflate` takes it.

    Raises ValueError: the records are not what the batch says, or more than `inflated_size_max`.
    """
    header = read_header(batch)
    plain = inflate(header, batch[HEADER_SIZE : header.size], inflated_size_max)
    body = deflate(codec, plain, level)
    found = bytearray(HEADER_SIZE + len(body))
    found[:HEADER_SIZE] = batch[:HEADER_SIZE]
    found[HEADER_SIZE:] = body
    _LENGTH.pack_into(found, LENGTH_END - _LENGTH.size, len(found) - LENGTH_END)
    attributes = header.attributes & ~CODEC_MASK | codec
    _ATTRIBUTES.pack_into(found, ATTRIBUTES_POSITION, attributes)
    _CRC.pack_into(found, CRC_POSITION, crc32c(memoryview(found)[ATTRIBUTES_POSITION:]))
    return found
