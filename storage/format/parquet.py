"""The little of Parquet that a checkpoint needs: pages, and the footer by which any engine reads
them.

Flat optional columns of 64-bit integers, doubles, booleans and strings; data pages of version 1,
each with its CRC; PLAIN values, or a dictionary whose indices are one byte each (bit-packed at
width 8, which is the byte itself); Zstandard. In a row group a column is there for every row or for
none. Only writing is here: Lakehead reads its own files by their directory (`checkpoint.py`).

Layout: https://parquet.apache.org/docs/file-format and its `parquet.thrift`; structures are in
Thrift's compact protocol.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from lakehead.storage.format.varint import encode_uvarint, encode_varint

MAGIC = b"PAR1"

BOOLEAN, INT64, DOUBLE, BYTE_ARRAY = 0, 2, 5, 6
_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_ZSTD = 6
_OPTIONAL = 1
_UTF8 = 0

Field = tuple[int, int, bytes]
"""A field of a Thrift structure: id, wire type, encoded value."""
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12


def _i32(field: int, value: int) -> Field:
    return field, _I32, encode_varint(value)


def _i64(field: int, value: int) -> Field:
    return field, _I64, encode_varint(value)


def _binary(field: int, value: bytes) -> Field:
    return field, _BINARY, encode_uvarint(len(value)) + value


def _list(field: int, kind: int, items: Sequence[bytes]) -> Field:
    size = len(items)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + encode_uvarint(size)
    return field, _LIST, head + b"".join(items)


def _struct(field: int, *fields: Field) -> Field:
    return field, _STRUCT, _structure(*fields)


def _structure(*fields: Field) -> bytes:
    out, last = [], 0
    for field, kind, value in fields:
        out.append(bytes([(field - last) << 4 | kind]))
        out.append(value)
        last = field
    return b"".join(out) + b"\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One column of one row group: where its pages lie. Sizes in bytes, headers included."""

    column: str
    kind: int
    values: int
    position: int
    size: int
    raw_size: int
    has_dictionary: bool = False
    dictionary_size: int = 0
    only_word: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Rows of one table: a chunk for every column of the schema, in its order."""

    rows: int
    chunks: tuple[Chunk, ...]


def levels(rows: int, is_present: bool) -> bytes:
    """Return the definition levels of a page: one run."""
    run = encode_uvarint(rows << 1) + bytes([is_present])
    return struct.pack("<I", len(run)) + run


def data_page_header(rows: int, raw_size: int, body: bytes, *, is_dictionary: bool) -> bytes:
    """Return the header of a data page whose compressed bytes are `body`."""
    return _structure(
        _i32(1, _DATA_PAGE),
        _i32(2, raw_size),
        _i32(3, len(body)),
        _i32(4, _signed_crc(body)),
        _struct(
            5,
            _i32(1, rows),
            _i32(2, _RLE_DICTIONARY if is_dictionary else _PLAIN),
            _i32(3, _RLE),
            _i32(4, _RLE),
        ),
    )


def dictionary_page_header(words: int, raw_size: int, body: bytes) -> bytes:
    """Return the header of a dictionary page whose compressed bytes are `body`."""
    return _structure(
        _i32(1, _DICTIONARY_PAGE),
        _i32(2, raw_size),
        _i32(3, len(body)),
        _i32(4, _signed_crc(body)),
        _struct(7, _i32(1, words), _i32(2, _PLAIN)),
    )


def _signed_crc(body: bytes) -> int:
    crc = zlib.crc32(body)
    return crc - (1 << 32) if crc >> 31 else crc


def byte_codes(codes: bytes) -> bytes:
    """Return the indices of a dictionary-coded page: width 8, one bit-packed run."""
    groups = -(-len(codes) // 8)
    padding = bytes(groups * 8 - len(codes))
    return b"\x08" + encode_uvarint(groups << 1 | 1) + codes + padding


def footer(schema: Sequence[tuple[str, int]], groups: Sequence[RowGroup]) -> bytes:
    """Return what ends the file: its metadata, its length, the magic."""
    elements = [_structure(_binary(4, b"checkpoint"), _i32(5, len(schema)))]
    for name, kind in schema:
        fields = [_i32(1, kind), _i32(3, _OPTIONAL), _binary(4, name.encode())]
        if kind == BYTE_ARRAY:
            fields.append(_i32(6, _UTF8))
        elements.append(_structure(*fields))
    metadata = _structure(
        _i32(1, 1),
        _list(2, _STRUCT, elements),
        _i64(3, sum(group.rows for group in groups)),
        _list(4, _STRUCT, [_row_group(group) for group in groups]),
        _binary(6, b"lakehead"),
        _list(7, _STRUCT, [_structure(_struct(1))] * len(schema)),
    )
    return metadata + struct.pack("<I", len(metadata)) + MAGIC


def _row_group(group: RowGroup) -> bytes:
    return _structure(
        _list(1, _STRUCT, [_column_chunk(chunk) for chunk in group.chunks]),
        _i64(2, sum(chunk.raw_size for chunk in group.chunks)),
        _i64(3, group.rows),
    )


def _column_chunk(chunk: Chunk) -> bytes:
    encodings = [_RLE, _RLE_DICTIONARY, _PLAIN] if chunk.has_dictionary else [_RLE, _PLAIN]
    fields = [
        _i32(1, chunk.kind),
        _list(2, _I32, [encode_varint(encoding) for encoding in encodings]),
        _list(3, _BINARY, [encode_uvarint(len(chunk.column)) + chunk.column.encode()]),
        _i32(4, _ZSTD),
        _i64(5, chunk.values),
        _i64(6, chunk.raw_size),
        _i64(7, chunk.size),
        _i64(9, chunk.position + chunk.dictionary_size),
    ]
    if chunk.has_dictionary:
        fields.append(_i64(11, chunk.position))
    if chunk.only_word is not None:
        word = chunk.only_word.encode()
        fields.append(_struct(12, _i64(3, 0), _binary(5, word), _binary(6, word)))
    return _structure(_i64(2, chunk.position), _struct(3, *fields))
