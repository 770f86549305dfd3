"""Inflates the records of a batch into a given buffer, and compresses them: gzip, snappy (raw and
Xerial's framing), lz4 frames, zstd.

A codec never writes more than the buffer takes, so a small batch that would inflate to gigabytes
costs no more memory than the buffer.
"""

import struct

import cramjam
from crc32c import crc32c

from lakehead.storage.format.record_batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CRC_POSITION,
    HEADER_SIZE,
    LENGTH_END,
    BatchHeader,
)
from lakehead.storage.object_store.protocol import Buffer

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
CODEC_NAMES = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE = 16
_XERIAL_VERSIONS = (1).to_bytes(4, "big") * 2
_XERIAL_BLOCK_SIZE = 32 * 1024

_LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Magic; version 1, independent blocks, no checksums; blocks of 64 KiB; the header's checksum."""
_LZ4_BLOCK_SIZE = 64 * 1024
_LZ4_PLAIN = 1 << 31
"""In a block's length: its bytes are not compressed."""
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3


class BufferTooSmall(Exception):
    """The inflated records need a larger buffer."""


def inflate_into(codec: int, source: memoryview, target: memoryview) -> int:
    """Inflate `source` to the start of `target`; return the number of bytes written.

    Raises BufferTooSmall, ValueError (not the codec's format; unknown codec).
    """
    try:
        match codec:
            case 4:
                return int(cramjam.zstd.decompress_into(source, target))
            case 3:
                return int(cramjam.lz4.decompress_into(source, target))
            case 2:
                return _inflate_snappy(source, target)
            case 1:
                return int(cramjam.gzip.decompress_into(source, target))
            case _:
                raise ValueError(f"unknown codec {codec}")
    except cramjam.DecompressionError as error:
        if "whole buffer" in str(error):
            raise BufferTooSmall from None
        raise ValueError(f"not {CODEC_NAMES[codec]}: {error}") from None


def _inflate_snappy(source: memoryview, target: memoryview) -> int:
    if source[:8] != _XERIAL_MAGIC:
        return _inflate_snappy_block(source, target)
    position = _XERIAL_HEADER_SIZE
    filled = 0
    while position < len(source):
        length = int.from_bytes(source[position : position + 4], "big")
        position += 4
        if length > len(source) - position:
            raise ValueError("not snappy: a framed block overruns the batch")
        filled += _inflate_snappy_block(source[position : position + length], target[filled:])
        position += length
    return filled


def _inflate_snappy_block(source: Buffer, target: memoryview) -> int:
    if cramjam.snappy.decompress_raw_len(source) > len(target):
        raise BufferTooSmall
    return int(cramjam.snappy.decompress_raw_into(source, target))


def deflate(codec: int, source: Buffer, level: int | None = None) -> bytes:
    """Return records compressed, as Kafka's own clients do it: snappy in Xerial's framing, lz4 in
    frames of independent blocks, the only ones that Kafka's Java client reads.

    `level` is that of gzip or zstd; None: its usual one. Raises ValueError for an unknown codec.
    """
    match codec:
        case 0:
            return bytes(source)
        case 4:
            return bytes(cramjam.zstd.compress(source, _ZSTD_LEVEL if level is None else level))
        case 3:
            return _deflate_lz4(memoryview(source))
        case 2:
            return _deflate_snappy(memoryview(source))
        case 1:
            known_level = _GZIP_LEVEL if level is None or level < 0 else level
            return bytes(cramjam.gzip.compress(source, known_level))
        case _:
            raise ValueError(f"unknown codec {codec}")


def _deflate_lz4(source: memoryview) -> bytes:
    parts = [_LZ4_HEADER]
    for start in range(0, len(source), _LZ4_BLOCK_SIZE):
        plain = source[start : start + _LZ4_BLOCK_SIZE]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (len(block).to_bytes(4, "little"), block)
        else:
            parts += ((len(plain) | _LZ4_PLAIN).to_bytes(4, "little"), bytes(plain))
    parts.append(bytes(4))
    return b"".join(parts)


def _deflate_snappy(source: memoryview) -> bytes:
    parts = [_XERIAL_MAGIC, _XERIAL_VERSIONS]
    for start in range(0, len(source), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(source[start : start + _XERIAL_BLOCK_SIZE]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


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
