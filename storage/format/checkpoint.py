"""The file of a checkpoint: tables of columns in one Parquet file, with a directory of our own.

Every table has the same wide schema, `SCHEMA`; the column `table` says whose a row is, and a row
group holds rows of one table. So any Parquet reader sees the tables, and skips the row groups of
those it does not want. Lakehead itself finds pages by the directory, which Parquet readers pass
over; every byte of the file is under a checksum of it. Integers of head and directory are
big-endian.

    PAR1 · head (40 bytes) · pages · directory · Parquet footer

    head: magic "LHMC", version u32 (the feature level in force), directory position u64,
          directory length u32, directory CRC-32C u32, file size u64, zero u32,
          CRC-32C of the 36 bytes before u32
    directory (MessagePack): number, tail CRC-32C, tables, pages that only Parquet readers want
          table: name, rows, columns; column: name, words, pages
          page: position, header size, size with header, raw size, rows, CRC-32C of header and body
"""

import struct
from collections.abc import Generator, Mapping
from dataclasses import dataclass

import cramjam
import msgspec
from crc32c import crc32c

from lakehead.storage.errors import CorruptObject
from lakehead.storage.format import parquet
from lakehead.storage.format.columns import Column, Doubles, Flags, Longs, Texts, Words
from lakehead.storage.format.compression import ZSTD, BufferTooSmall, inflate_into
from lakehead.storage.format.feature_level import BASE_LEVEL, refuse_newer, unknown_here
from lakehead.storage.format.varint import encode_uvarint

LONG, DOUBLE, FLAG, WORD, TEXT = "long", "double", "flag", "word", "text"
SCHEMA: dict[str, str] = {
    "table": WORD,
    "cluster_id": TEXT,
    "next_entry": LONG,
    "next_stream_id": LONG,
    "next_producer_id": LONG,
    "forgotten_entry": LONG,
    "term": LONG,
    "node_id": LONG,
    "node_epoch": LONG,
    "incarnation": TEXT,
    "host": TEXT,
    "port": LONG,
    "rack": TEXT,
    "is_fenced": FLAG,
    "is_retired": FLAG,
    "wal_epoch": LONG,
    "wal_floor": LONG,
    "writer": TEXT,
    "entry": LONG,
    "nonce": TEXT,
    "topic": TEXT,
    "topic_id": TEXT,
    "partition": LONG,
    "stream_id": LONG,
    "stream_epoch": LONG,
    "is_open": FLAG,
    "start_offset": LONG,
    "end_offset": LONG,
    "object": LONG,
    "key": TEXT,
    "kind": WORD,
    "size": LONG,
    "created_ms": LONG,
    "unreferenced_ms": LONG,
    "max_timestamp": LONG,
    "partitions": TEXT,
    "owner": TEXT,
    "name": TEXT,
    "value": TEXT,
    "limit": DOUBLE,
    "document": TEXT,
    "host_id": TEXT,
    "wal": TEXT,
    "is_draining": FLAG,
    "assigned": LONG,
    "preferred": LONG,
    "state_from": LONG,
    "process": TEXT,
    "until_ms": LONG,
    "features_epoch": LONG,
    "level": LONG,
    "min_level": LONG,
    "max_level": LONG,
    "log_id": TEXT,
    "log_epoch": LONG,
    "log_position": LONG,
    "lost_log_id": TEXT,
    "lost_log_epoch": LONG,
    "lost_log_ms": LONG,
    "lost_log_streams": LONG,
    "node_secret": TEXT,
    "problem": TEXT,
    "tables": TEXT,
    "endpoints": TEXT,
    "requester": TEXT,
    "requested_until_ms": LONG,
}
"""Every column of a checkpoint and its kind. `table` comes first; new ones go to the end."""

Columns = Mapping[str, Column]
_PARQUET = {
    LONG: parquet.INT64,
    DOUBLE: parquet.DOUBLE,
    FLAG: parquet.BOOLEAN,
    WORD: parquet.BYTE_ARRAY,
    TEXT: parquet.BYTE_ARRAY,
}
_PAGE_ROWS = 16 * 1024
_HEAD = struct.Struct(">4sIQIIQI")
_HEAD_SIZE = _HEAD.size + 4
_HEAD_MAGIC = b"LHMC"
_LEVEL = 3
_WORDS_MAX = 256
_EXPANSION_MAX = 1 << 15
"""No byte of Zstandard expands to more."""


class _Page(msgspec.Struct, frozen=True, array_like=True):
    position: int
    header_size: int
    size: int
    raw_size: int
    rows: int
    crc: int


class _Column(msgspec.Struct, frozen=True, array_like=True):
    name: str
    words: tuple[str, ...]
    pages: tuple[_Page, ...]


class _Table(msgspec.Struct, frozen=True, array_like=True):
    name: str
    rows: int
    columns: tuple[_Column, ...]


class _Directory(msgspec.Struct, frozen=True, array_like=True):
    number: int
    tail_crc: int
    tables: tuple[_Table, ...]
    other_pages: tuple[_Page, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint's content: the tables of the state before entry `number`. Its `version` is the
    feature level in force then.
    """

    number: int
    tables: Mapping[str, Columns]
    version: int = BASE_LEVEL


def rows_of(columns: Columns) -> int:
    """Return how many rows a table has."""
    return next((len(column) for column in columns.values()), 0)


class _Writer:
    """Gathers pages and where they lie."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = [parquet.MAGIC, b""]
        self.pages: list[_Page] = []
        self.position = len(parquet.MAGIC) + _HEAD_SIZE

    def add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.position += len(piece)

    def data_page(self, raw: bytes, rows: int, *, is_dictionary: bool = False) -> _Page:
        body = bytes(cramjam.zstd.compress(raw, _LEVEL))
        header = parquet.data_page_header(rows, len(raw), body, is_dictionary=is_dictionary)
        return self._page(header, body, len(raw), rows)

    def dictionary_page(self, words: tuple[str, ...]) -> _Page:
        raw = Texts.of(words).data
        body = bytes(cramjam.zstd.compress(raw, _LEVEL))
        header = parquet.dictionary_page_header(len(words), len(raw), body)
        return self._page(header, body, len(raw), 0)

    def _page(self, header: bytes, body: bytes, raw_size: int, rows: int) -> _Page:
        crc = crc32c(body, crc32c(header))
        page = _Page(self.position, len(header), len(header) + len(body), raw_size, rows, crc)
        self.pages.append(page)
        self.add(header)
        self.add(body)
        return page


def encode(checkpoint: Checkpoint) -> Generator[None, None, list[bytes]]:
    """Encode a checkpoint, step by step: a page between two yields. Returns the file's pieces."""
    writer = _Writer()
    tables, groups = [], []
    for name, columns in checkpoint.tables.items():
        rows = rows_of(columns)
        if not rows:
            continue
        whole = {"table": Words(bytes(rows), (name,)), **columns}
        assert whole.keys() <= SCHEMA.keys()
        assert all(len(column) == rows for column in whole.values())
        described, chunks = [], []
        for column_name in SCHEMA:
            column = whole.get(column_name)
            entry, chunk = yield from _encode_column(writer, column_name, column, rows)
            chunks.append(chunk)
            if column is not None and column_name != "table":
                described.append(entry)
        tables.append(_Table(name, rows, tuple(described)))
        groups.append(parquet.RowGroup(rows=rows, chunks=tuple(chunks)))
    tail = parquet.footer([(name, _PARQUET[kind]) for name, kind in SCHEMA.items()], groups)
    ours = {page.position for table in tables for column in table.columns for page in column.pages}
    others = tuple(page for page in writer.pages if page.position not in ours)
    directory = msgspec.msgpack.encode(
        _Directory(checkpoint.number, crc32c(tail), tuple(tables), others)
    )
    place, size = writer.position, writer.position + len(directory) + len(tail)
    head = _HEAD.pack(
        _HEAD_MAGIC, checkpoint.version, place, len(directory), crc32c(directory), size, 0
    )
    writer.pieces[1] = head + struct.pack(">I", crc32c(head))
    return [*writer.pieces, directory, tail]


def _encode_column(
    writer: _Writer, name: str, column: Column | None, rows: int
) -> Generator[None, None, tuple[_Column, parquet.Chunk]]:
    first = writer.position
    words = column.words if isinstance(column, Words) else ()
    pages = [writer.dictionary_page(words)] if words else []
    dictionary_size = writer.position - first
    if column is None:
        pages.append(writer.data_page(parquet.levels(rows, False), rows))
    else:
        for start in range(0, rows, _PAGE_ROWS):
            end = min(start + _PAGE_ROWS, rows)
            if isinstance(column, Words):
                values = parquet.byte_codes(column.codes[start:end])
            else:
                values = column.plain(start, end)
            raw = parquet.levels(end - start, True) + values
            pages.append(writer.data_page(raw, end - start, is_dictionary=bool(words)))
            yield
    chunk = parquet.Chunk(
        column=name,
        kind=_PARQUET[SCHEMA[name]],
        values=rows,
        position=first,
        size=writer.position - first,
        raw_size=sum(page.header_size + page.raw_size for page in pages),
        has_dictionary=bool(words),
        dictionary_size=dictionary_size,
        only_word=words[0] if len(words) == 1 else None,
    )
    return _Column(name, words, tuple(page for page in pages if page.rows)), chunk


def decode(key: str, body: bytes) -> Generator[None, None, Checkpoint]:
    """Decode a file, step by step. Raises CorruptObject (named by `key`), UnsupportedFormat."""
    directory = _read_directory(key, body)
    for page in directory.other_pages:
        _check_page(key, body, page)
    tables: dict[str, Columns] = {}
    for table in directory.tables:
        columns: dict[str, Column] = {}
        for column in table.columns:
            if column.name not in SCHEMA:
                raise unknown_here(key, f"a column {table.name}.{column.name}")
            pages = []
            for page in column.pages:
                pages.append(_read_page(key, body, page))
                yield
            try:
                columns[column.name] = yield from _column(column, pages)
            except (ValueError, TypeError) as error:
                where = column.pages[0].position if column.pages else 0
                raise CorruptObject(key, where, f"{table.name}.{column.name}: {error}") from error
            yield
        if any(len(column) != table.rows for column in columns.values()):
            raise CorruptObject(key, 0, f"table {table.name}: columns of unequal length")
        tables[table.name] = columns
    return Checkpoint(number=directory.number, tables=tables)


def _read_directory(key: str, body: bytes) -> _Directory:
    first = len(parquet.MAGIC)
    if len(body) < first + _HEAD_SIZE or body[:first] != parquet.MAGIC:
        raise CorruptObject(key, 0, f"no checkpoint: {len(body)} bytes")
    head = body[first : first + _HEAD.size]
    (stored,) = struct.unpack_from(">I", body, first + _HEAD.size)
    if crc32c(head) != stored:
        raise CorruptObject(key, first, "the head does not match its checksum")
    magic, version, place, length, crc, size, _ = _HEAD.unpack(head)
    if magic != _HEAD_MAGIC:
        raise CorruptObject(key, first, f"magic {magic!r}")
    refuse_newer(key, version)
    if size != len(body):
        raise CorruptObject(key, min(size, len(body)), f"{len(body)} bytes of {size}")
    raw = body[place : place + length]
    if crc32c(raw) != crc:
        raise CorruptObject(key, place, "the directory does not match its checksum")
    try:
        directory = msgspec.msgpack.decode(raw, type=_Directory)
    except ValueError as error:
        raise CorruptObject(key, place, f"the directory cannot be read: {error}") from error
    if crc32c(body[place + length :]) != directory.tail_crc:
        raise CorruptObject(key, place + length, "the footer does not match its checksum")
    return directory


def _check_page(key: str, body: bytes, page: _Page) -> memoryview:
    stored = memoryview(body)[page.position : page.position + page.size]
    if crc32c(stored) != page.crc:
        raise CorruptObject(key, page.position, "a page does not match its checksum")
    return stored


def _read_page(key: str, body: bytes, page: _Page) -> tuple[bytes, int]:
    """Return a page's values, without levels, and its rows."""
    stored = _check_page(key, body, page)
    try:
        compressed = stored[page.header_size :]
        if not 0 <= page.raw_size <= _EXPANSION_MAX * len(compressed):
            raise ValueError("it has another size than the directory says")
        raw = bytearray(page.raw_size)
        if inflate_into(ZSTD, compressed, memoryview(raw)) != len(raw):
            raise ValueError("it has another size than the directory says")
        (skipped,) = struct.unpack_from("<I", raw)
    except BufferTooSmall:
        raise CorruptObject(
            key, page.position, "a page is larger than its directory says"
        ) from None
    except (ValueError, struct.error) as error:
        raise CorruptObject(key, page.position, f"a page cannot be read: {error}") from error
    return bytes(memoryview(raw)[4 + skipped :]), page.rows


def _column(column: _Column, pages: list[tuple[bytes, int]]) -> Generator[None, None, Column]:
    kind = SCHEMA[column.name]
    if kind == FLAG:
        return Flags(b"".join(Flags.of_plain(data, rows).values for data, rows in pages))
    if kind == WORD:
        codes, words = b"".join(_codes(data, rows) for data, rows in pages), column.words
        if len(words) > _WORDS_MAX or codes.translate(None, bytes(range(len(words)))):
            raise ValueError("a code without a word")
        return Words(codes, words)
    data = b"".join(data for data, _ in pages)
    if kind == LONG:
        return Longs(memoryview(data).cast("q"))
    if kind == DOUBLE:
        return Doubles(memoryview(data).cast("d"))
    return (yield from Texts.reading(data))


def _codes(data: bytes, rows: int) -> bytes:
    start = 1 + len(encode_uvarint(-(-rows // 8) << 1 | 1))
    return data[start : start + rows]
