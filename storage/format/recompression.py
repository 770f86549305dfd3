"""A record batch in another codec: the same records, offsets, times and producer."""

import struct

from crc32c import crc32c

from lakehead.storage.format.compression import deflate
from lakehead.storage.format.record_batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CRC_POSITION,
    HEADER_SIZE,
    LENGTH_END,
    BatchHeader,
)

_LENGTH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_CRC = struct.Struct(">I")


def recompressed(
    batch: memoryview, header: BatchHeader, records: memoryview, codec: int, level: int | None
) -> bytearray:
    """Return one whole batch with its records, given decompressed, in `codec`, at a `level` as
    `deflate` takes it.
    """
    body = deflate(codec, records, level)
    found = bytearray(HEADER_SIZE + len(body))
    found[:HEADER_SIZE] = batch[:HEADER_SIZE]
    found[HEADER_SIZE:] = body
    _LENGTH.pack_into(found, LENGTH_END - _LENGTH.size, len(found) - LENGTH_END)
    attributes = header.attributes & ~CODEC_MASK | codec
    _ATTRIBUTES.pack_into(found, ATTRIBUTES_POSITION, attributes)
    _CRC.pack_into(found, CRC_POSITION, crc32c(memoryview(found)[ATTRIBUTES_POSITION:]))
    return found
