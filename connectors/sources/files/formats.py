"""Formats of files: JSON lines, CSV and Parquet to rows, and compression.

JSON lines: each line is a value, kept byte for byte; empty lines have none. CSV is that of RFC
4180: fields in quotes may hold line ends, and quotes doubled. Parquet is read by row groups, never
a whole one in memory at a time. Lines come with the places where they end, in bounded memory; a
compressed file that ends too early is an error.
"""

import csv
import gzip
import math
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import zstandard

from lakehead.connectors.runtime.errors import BadInput
from lakehead.connectors.settings import ColumnType, Compression
from lakehead.connectors.sources.values import encoded, python_rows
from lakehead.storage.errors import SettingsError


class Row(msgspec.Struct, frozen=True, gc=False):
    """One record of a file, or what stands where one should be."""

    end: int
    """The position behind it: a byte of the (uncompressed) text, or a row of Parquet."""
    number: int
    """Its line or row, for people; the first is 1."""
    next_number: int
    """The line or row behind it."""
    value: bytes
    """The record's value; or the raw text of bad input."""
    columns: Mapping[str, Any] | None
    """None if the value is JSON but no object."""
    reason: str = ""
    """The reason why it is bad input; empty if it is not."""
    size: int = 0
    """Bytes of the file that it took, about."""
    may_be_cut: bool = False
    """True if the file ends within it: bad input may be the beginning of a record."""


_CHUNK_BYTES = 256 * 1024
_SHOWN_BYTES = 64 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Readable(Protocol):
    """A source of bytes, in order."""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes; none at the end."""


class Line(msgspec.Struct, frozen=True, gc=False):
    """A line as it stands in a file."""

    text: bytes
    """Without its end (LF or CRLF); of a line that is too long only the beginning."""
    end: int
    """The position in the (uncompressed) file behind it and its end."""
    number: int
    """The first is 1."""
    is_too_long: bool = False
    has_cr: bool = False
    """True if its end is CRLF."""
    is_ended: bool = True
    """True if there is a line end: the last line of a file may have none."""


def lines(file: Readable, *, at: int, number: int, limit: int) -> Iterator[Line]:
    """Yield the lines of a file that stands at position `at`, before line `number`.

    A line of more than `limit` bytes is yielded as too long and is never in memory as a whole.
    """
    rest, skipped = b"", 0  # of a line without an end so far; bytes of it that were let go
    while chunk := file.read(_CHUNK_BYTES):
        parts = chunk.split(b"\n")
        parts[0] = rest + parts[0]
        rest = parts.pop()
        for part in parts:
            at += skipped + len(part) + 1
            yield _line(part, at, number, limit, skipped=skipped)
            number, skipped = number + 1, 0
        if len(rest) > limit + _CHUNK_BYTES:
            skipped += len(rest) - limit - 1
            rest = rest[: limit + 1]
    if rest or skipped:
        end = at + skipped + len(rest)
        yield _line(rest, end, number, limit, skipped=skipped, is_ended=False)


def _line(
    text: bytes, end: int, number: int, limit: int, *, skipped: int, is_ended: bool = True
) -> Line:
    if number == 1:
        text = text.removeprefix(_BYTE_ORDER_MARK)
    if skipped or len(text) > limit + 1:  # the one may be CR
        return Line(text[:_SHOWN_BYTES], end, number, is_too_long=True, is_ended=is_ended)
    has_cr = text.endswith(b"\r")
    text = text.removesuffix(b"\r")
    if len(text) > limit:
        return Line(text[:_SHOWN_BYTES], end, number, is_too_long=True, is_ended=is_ended)
    return Line(text, end, number, has_cr=has_cr, is_ended=is_ended)


UNPACKING_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
"""Errors of a compressed file that is cut or damaged."""

_PACKED_BYTES = 2 * 1024
"""At a time: what they become may be thirty thousand times as much."""


def unpacked(packed: Any, compression: Compression) -> Readable:
    """Return the text of a compressed file, all its members or frames. Reading it raises one of
    UNPACKING_ERRORS where it is cut or damaged.
    """
    return gzip.GzipFile(fileobj=packed, mode="rb") if compression == "gzip" else _Frames(packed)


class _Frames:
    """The frames of a zstd file. zstandard's own reader takes an end within a frame for the end of
    the file.
    """

    def __init__(self, packed: Readable) -> None:
        self._packed = packed
        self._frame: Any = None
        self._rest = b""
        self._text = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes; none at the end."""
        while not self._text:
            data = self._rest or self._packed.read(_PACKED_BYTES)
            if not data:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return b""
            self._take(data)
        text, self._text = self._text[:size], self._text[size:]
        return bytes(text)

    def _take(self, data: bytes) -> None:
        frame = self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
        self._text = memoryview(frame.decompress(data))
        self._rest = frame.unused_data if frame.eof else b""
        if frame.eof:
            self._frame = None


def json_rows(found: Iterator[Line], *, limit: int) -> Iterator[Row]:
    """Yield the values of lines."""
    decode = msgspec.json.Decoder().decode
    for line in found:
        text = line.text.strip()
        if not text:
            continue
        columns, reason = None, ""
        if line.is_too_long:
            reason = f"the line has more than {limit} bytes (line_bytes_max)"
        else:
            try:
                columns = decode(text)
            except (ValueError, RecursionError) as error:  # ValueError: also of what is not UTF-8
                reason = f"not JSON: {error}"
        yield Row(
            line.end,
            line.number,
            line.number + 1,
            line.text if reason else text,
            columns if isinstance(columns, dict) else None,
            reason,
            len(line.text) + 1,
            may_be_cut=not line.is_ended and reason.endswith("truncated"),
        )


_TRUTH = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
_FIELD_BYTES_MAX = 64 * 1024 * 1024


class _NotText(Exception):
    """A line that cannot be part of a row."""


class _Feed:
    """Gives lines to csv's reader, and knows those of the present row."""

    def __init__(self, found: Iterator[Line], limit: int) -> None:
        self.row: list[Line] = []
        self.is_over = False
        self._found = found
        self._again: deque[Line] = deque()
        self._limit = limit
        self._size = 0

    def begin(self) -> None:
        """A row begins."""
        self.row.clear()
        self._size = 0

    def give_back(self) -> None:
        """Only the first line of the present row is used up."""
        self._again.extendleft(reversed(self.row[1:]))
        del self.row[1:]

    @property
    def ends_unended(self) -> bool:
        """True if the present row is the last, and its last line has no end."""
        return bool(self.row) and not self.row[-1].is_ended and not self.row[-1].is_too_long

    def __iter__(self) -> "_Feed":
        return self

    def __next__(self) -> str:
        try:
            line = self._again.popleft() if self._again else next(self._found)
        except StopIteration:
            self.is_over = True
            raise
        self.row.append(line)
        self._size += len(line.text) + 1
        if line.is_too_long:
            raise _NotText(f"the line has more than {self._limit} bytes (line_bytes_max)")
        if self._size > self._limit and len(self.row) > 1:
            raise _NotText(f"a quote is not closed within {self._limit} bytes (line_bytes_max)")
        try:
            text = line.text.decode()
        except UnicodeDecodeError as error:
            raise _NotText(f"not UTF-8 (byte {error.start} of the line)") from None
        return f"{text}\r\n" if line.has_cr else f"{text}\n"  # it may be within quotes


class CsvRows:
    """The rows of one file; a row becomes a JSON object of its columns."""

    def __init__(
        self,
        found: Iterator[Line],
        *,
        delimiter: str,
        limit: int,
        types: Mapping[str, ColumnType],
        may_grow: bool,
    ) -> None:
        csv.field_size_limit(_FIELD_BYTES_MAX)  # of the whole process; ours is counted in _Feed
        self._feed = _Feed(found, limit)
        self._reader = csv.reader(self._feed, delimiter=delimiter, strict=True)
        self._types = types
        self._may_grow = may_grow
        self._is_cut = False

    def header(self) -> Row | tuple[str, ...] | None:
        """Return the names in the first row; a Row if it is none, None of an empty file."""
        fields = self._next()
        if fields is None or isinstance(fields, str):
            return None if fields is None else self._refused(fields)
        names = tuple(name.strip() for name in fields)
        if len(set(names)) < len(names) or not all(names):
            return self._refused("the first row does not name every column, each once")
        if absent := sorted(self._types.keys() - set(names)):
            return self._refused(f"there is no column {absent[0]}, which `types` names")
        return names

    def rows(self, names: Sequence[str]) -> Iterator[Row]:
        """Yield the rows that are left."""
        while (fields := self._next()) is not None:
            if isinstance(fields, str):
                yield self._refused(fields)
            elif len(fields) != len(names):
                yield self._refused(f"{len(fields)} fields where there are {len(names)} columns")
            else:
                yield self._row(names, fields)

    def _next(self) -> list[str] | str | None:
        """Return the next row that is not empty, or why it is none; None at the end."""
        while True:
            self._feed.begin()
            self._is_cut = False
            try:
                fields = next(self._reader)
            except StopIteration:
                return None
            except (csv.Error, _NotText) as error:
                if self._may_grow and self._feed.is_over:
                    return None  # the rest of the row may still come
                self._is_cut = self._feed.ends_unended
                self._feed.give_back()
                return str(error)
            if fields:
                return fields

    def _row(self, names: Sequence[str], fields: Sequence[str]) -> Row:
        columns: dict[str, object] = dict(zip(names, fields, strict=True))
        try:
            for name, kind in self._types.items():
                columns[name] = _typed(str(columns[name]), kind, name)
        except ValueError as error:
            return self._refused(str(error))
        last = self._feed.row[-1]
        return Row(
            last.end,
            self._feed.row[0].number,
            last.number + 1,
            msgspec.json.encode(columns),
            columns,
            "",
            sum(len(line.text) + 1 for line in self._feed.row),
            may_be_cut=self._feed.ends_unended,
        )

    def _refused(self, reason: str) -> Row:
        taken = self._feed.row
        raw = b"\n".join(line.text for line in taken)
        last = taken[-1]
        is_cut = self._is_cut or self._feed.ends_unended
        return Row(
            last.end,
            taken[0].number,
            last.number + 1,
            raw,
            None,
            reason,
            len(raw) + 1,
            may_be_cut=is_cut,
        )


def _typed(text: str, kind: ColumnType, name: str) -> object:
    """Return a field as a type that is no text; an empty one is null. Raises ValueError."""
    if kind == "string":
        return text
    if not text.strip():
        return None
    try:
        if kind == "boolean":
            return _TRUTH[text.strip().lower()]
        if "_" in text:  # Python's own way of writing numbers
            raise ValueError(text)
        if kind == "integer":
            return int(text)
        if not math.isfinite(number := float(text)):
            raise ValueError(text)  # JSON has no such number
        return number
    except (ValueError, KeyError):
        raise ValueError(f"column {name}: {text[:100]!r} is not of type {kind}") from None


_ROWS_AT_ONCE = 2_000
_ROWS_LOOKED_AT = 64 * 1024


def parquet_looked_at(file: Any, uri: str) -> Iterator[None]:
    """Decode a file to its end, so that nothing is read of one with a damaged page; it may take
    long, hence a step of the iterator now and then. Raises BadInput.
    """
    opened = _opened(file, uri)
    for group in range(opened.num_row_groups):
        with _explained(opened, uri, group):
            batches = opened.iter_batches(
                batch_size=_ROWS_LOOKED_AT, row_groups=[group], use_threads=False
            )
            for _ in batches:
                yield


def parquet_rows(file: Any, uri: str, *, at: int) -> Iterator[Row]:
    """Yield the rows from number `at` on. Raises BadInput for what is not a Parquet file."""
    opened, first = _opened(file, uri), 0
    for group in range(opened.num_row_groups):
        meta = opened.metadata.row_group(group)
        if first + meta.num_rows > at:
            size = max(1, meta.total_byte_size // max(1, meta.num_rows))
            with _explained(opened, uri, group):
                yield from _group(opened, group, first, at, size)
        first += meta.num_rows


def _opened(file: Any, uri: str) -> Any:
    """Return the file, of which pages with checksums are compared with them."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise SettingsError(
            "pyarrow is not installed; get it with: pip install 'lakehead[lake]'"
        ) from None
    with _explained(None, uri, 0):
        return pq.ParquetFile(
            pa.PythonFile(file, mode="r"), pre_buffer=False, page_checksum_verification=True
        )


@contextmanager
def _explained(opened: Any, uri: str, group: int) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        place = ""
        if opened is not None:
            columns = opened.metadata.row_group(group)
            starts = [
                columns.column(n).dictionary_page_offset or columns.column(n).data_page_offset
                for n in range(columns.num_columns)
            ]
            place = f", row group {group} from byte {min(starts, default=0)}"
        reason = " ".join(str(error).split())
        raise BadInput(f"{uri} cannot be read as Parquet{place}: {reason}") from None


def _group(opened: Any, group: int, first: int, at: int, size: int) -> Iterator[Row]:
    number = first
    batches = opened.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=[group], use_threads=False)
    for batch in batches:
        skipped = min(max(0, at - number), batch.num_rows)
        for row, found in enumerate(python_rows(batch.slice(skipped)), number + skipped):
            value = encoded(found.columns)
            yield Row(row + 1, row + 1, row + 2, value, found.columns, found.reason, size)
        number += batch.num_rows
