"""CSV as in RFC 4180: fields in quotes may hold line ends, and quotes doubled.

A row that cannot be is one *line* that cannot be: reading goes on behind it. So a quote that is
never closed costs one line, not the rest of the file.
"""

import csv
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from lakehead.connectors.settings import ColumnType
from lakehead.connectors.sources.files.lines import Line
from lakehead.connectors.sources.files.rows import Row

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
        """Whether the present row is the last, and its last line has no end."""
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
        raise ValueError(f"column {name}: {text[:100]!r} is no {kind}") from None
