"""The files source: which files are to be read from where, and batches of records out of them.

The position of a file, kept under its name, says how far it was read (bytes of the uncompressed
text, or rows of Parquet) and which file that was: size and time, or the ETag. `done` is a file that
was read to its end.
"""

import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import msgspec

from lakehead.connectors.runtime.errors import BadInput, InputChanged
from lakehead.connectors.runtime.interfaces import (
    Batch,
    DeadLetter,
    Position,
    Positions,
    Record,
    Work,
)
from lakehead.connectors.settings import Compression, FilesSettings, Format
from lakehead.connectors.sources.files.formats import (
    UNPACKING_ERRORS,
    CsvRows,
    Line,
    Row,
    json_rows,
    lines,
    parquet_looked_at,
    parquet_rows,
    unpacked,
)
from lakehead.connectors.sources.files.place import (
    READ_BYTES,
    FilePlace,
    FoundFile,
    PlacedFile,
    file_kind,
)
from lakehead.connectors.sources.values import NoSuchValue, key_of, timestamp_of
from lakehead.storage.clock import Clock
from lakehead.storage.errors import SettingsError

_BATCH_BYTES = 512 * 1024
_BATCH_ROWS = 2_000
_CHECKED_BYTES = 1024
_CHUNK_BYTES = 256 * 1024
_ROUGH = {"gzip": 5, "zstd": 5}
_UNPACKED_BYTES = 16 * 1024 * 1024
"""Of a compressed file that is looked at, between two times at which a run may end."""


class _Kind(msgspec.Struct, frozen=True):
    """The reading of a file: its format and compression."""

    format: Format
    compression: Compression
    may_grow: bool
    """True if more may be appended: a last line without an end is left for later."""

    @property
    def is_text(self) -> bool:
        """True if positions are bytes of the file as it lies there."""
        return self.compression == "none" and self.format != "parquet"


class FilesSource:
    """Reads the files of a place; see `FilesSettings`."""

    def __init__(
        self, settings: FilesSettings, clock: Clock, pause: Callable[[float], object]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._place = FilePlace(settings.path, pause)
        self._files: dict[str, FoundFile] = {}
        self._raw: PlacedFile | None = None
        self._head: tuple[FoundFile | None, bytes] = None, b""
        if not settings.header and not settings.columns:
            raise SettingsError("source.columns: with header = false, name the columns here")

    def work(self, positions: Positions) -> Sequence[Work]:
        """See `Source.work`. Raises InputChanged, SettingsError, StorageError."""
        found = [file for file in self._place.list() if self._is_settled(file)]
        known = [file for file in found if self._kind(file) is not None]
        if found and not known:
            raise SettingsError(
                f"source.format: none of the {len(found)} files in {self._place.name} has a suffix "
                "of a known format: set json, csv or parquet"
            )
        if self._settings.order == "name":
            known.sort(key=lambda file: file.path)
        else:
            known.sort(key=lambda file: (file.modified_ms, file.path))
        self._files = {file.uri: file for file in known}
        return [work for file in known if (work := self._left(file, positions)) is not None]

    def _is_settled(self, file: FoundFile) -> bool:
        if not self._settings.settle_seconds:
            return True
        age_ms = self._clock.now_ms() - file.modified_ms
        return age_ms >= self._settings.settle_seconds * 1000

    def _kind(self, file: FoundFile) -> _Kind | None:
        format_, compression = file_kind(file.path)
        format_ = self._settings.format or format_
        compression = self._settings.compression or compression or "none"
        if format_ is None:
            return None
        may_grow = (
            self._settings.changed == "append" and compression == "none" and format_ != "parquet"
        )
        return _Kind(format_, compression, may_grow)

    def _left(self, file: FoundFile, positions: Positions) -> Work | None:
        """Return what is left to read of a file."""
        position = positions(_partition(file))
        if position is None:
            return Work(_partition(file), file.uri, file.size)
        if _is_same(file, position):
            read = int(position.get("read", 0))
            left = max(0, file.size - read)
            return None if position["done"] else Work(_partition(file), file.uri, left)
        kind = self._kind(file)
        assert kind is not None
        if self._settings.changed == "reread":
            return Work(_partition(file), file.uri, file.size)
        at = int(position["position"])
        if not at:  # nothing of it was read
            return Work(_partition(file), file.uri, file.size)
        if kind.may_grow and file.size >= at and self._digest(file, at) == position.get("check"):
            return Work(_partition(file), file.uri, file.size - at) if file.size > at else None
        if kind.may_grow:
            advice = "restore the part that was read"
        elif kind.is_text and file.size >= at and self._digest(file, at) == position.get("check"):
            advice = 'set changed = "append" since lines were added to it'
        elif kind.is_text:
            advice = "restore the part that was read"
        else:
            advice = "only text that is not compressed can be appended to"
        raise InputChanged(
            f"{file.uri} is not the file that was read to {position['position']}: {advice}, or "
            'give it another name, or set changed = "reread" to read it all once more'
        )

    def read(self, work: Work, position: Position | None) -> Iterator[Batch]:
        """See `Source.read`. Raises BadInput, InputChanged, InputLost, StorageError."""
        file = self._files[work.name]
        kind = self._kind(file)
        assert kind is not None
        if position is not None and self._settings.changed == "reread":
            position = position if _is_same(file, position) else None
        if position is not None and not position["position"]:
            position = None
        at = int(position["position"]) if position else 0
        number = int(position["line"]) if position else 1
        batch = _Gathering(file, at, number)
        if not at:
            for _ in self._looked_at(file, kind):
                yield self._batch(batch, kind, is_done=False)
        for row in self._rows(file, kind, at, number):
            outcome = self._outcome(file, row)
            if row.may_be_cut and isinstance(outcome, DeadLetter):
                end = file.size if kind.is_text else row.end
                raise BadInput(
                    f"{file.uri} ends too early, at byte {end} in line {row.number} "
                    f"({outcome.reason}): run again when it is whole, or end its last line"
                )
            batch.add(row, outcome)
            if batch.is_full:
                yield self._batch(batch, kind, is_done=False)
                batch = _Gathering(file, batch.at, batch.number)
        yield self._batch(batch, kind, is_done=True)

    def _looked_at(self, file: FoundFile, kind: _Kind) -> Iterator[None]:
        """Unpack a file to its end, so that nothing is read of one that is cut or damaged; it may
        take long, hence a step of the iterator now and then. Raises BadInput.
        """
        if kind.format == "parquet":
            raw = PlacedFile(self._place, file)
            yield from parquet_looked_at(io.BufferedReader(raw, READ_BYTES), file.uri)
        elif kind.compression != "none":
            yield from self._unpacked(file, kind.compression)

    def _unpacked(self, file: FoundFile, compression: Compression) -> Iterator[None]:
        packed = io.BufferedReader(PlacedFile(self._place, file), READ_BYTES)
        text = unpacked(packed, compression)
        count = 0
        try:
            while data := text.read(_CHUNK_BYTES):
                count += len(data)
                if count >= _UNPACKED_BYTES:
                    count = 0
                    yield
        except UNPACKING_ERRORS as error:
            reason = " ".join(str(error).split()) or "it ends too early"
            raise BadInput(
                f"{file.uri} cannot be unpacked at byte {packed.tell()} of {file.size}: {reason}. "
                "No record of it was read: run again when it is complete"
            ) from None

    def _outcome(self, file: FoundFile, row: Row) -> Record | DeadLetter:
        place = f"{file.uri}, line {row.number}"
        if row.reason:
            return DeadLetter(place, row.reason, row.value)
        settings = self._settings
        try:
            key = key_of(row.columns, settings.key)
            timestamp = timestamp_of(row.columns, settings.timestamp, settings.timestamp_unit)
        except NoSuchValue as error:
            return DeadLetter(place, str(error), row.value)
        return Record(row.value, key, (), timestamp, None, place)

    def _batch(self, batch: "_Gathering", kind: _Kind, *, is_done: bool) -> Batch:
        file = batch.file
        position: dict[str, Any] = {
            "position": batch.at,
            "line": batch.number,
            "done": is_done,
            "size": file.size,
            "modified": file.modified_ms,
            "etag": file.etag,
        }
        if kind.is_text:
            position["check"] = self._digest(file, batch.at)
            position["read"] = batch.at
        read = batch.read_bytes // _ROUGH.get(kind.compression, 1)
        return Batch(tuple(batch.records), position, tuple(batch.letters), read)

    def _digest(self, file: FoundFile, at: int) -> int:
        """Return a checksum of how a file begins and of what stands before a position."""
        if self._head[0] is not file:
            self._head = file, self._bytes(file, 0, min(file.size, _CHECKED_BYTES))
        head = self._head[1][:at]
        tail = self._bytes(file, max(0, at - _CHECKED_BYTES), at)
        return zlib.crc32(tail, zlib.crc32(head))

    def _bytes(self, file: FoundFile, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        raw = self._raw if self._raw is not None and self._raw.file is file else None
        if raw is not None and (held := raw.held(start, end)) is not None:
            return held
        kind = self._kind(file)
        assert kind is not None
        return self._place.read(file, start, end, may_grow=kind.may_grow)

    def _rows(self, file: FoundFile, kind: _Kind, at: int, number: int) -> Iterator[Row]:
        if kind.format == "parquet":
            raw = PlacedFile(self._place, file)
            return parquet_rows(io.BufferedReader(raw, READ_BYTES), file.uri, at=at)
        if kind.format == "json":
            return json_rows(
                self._lines(file, kind, at, number), limit=self._settings.line_bytes_max
            )
        return self._csv(file, kind, at, number)

    def _csv(self, file: FoundFile, kind: _Kind, at: int, number: int) -> Iterator[Row]:
        names: Row | tuple[str, ...] | None = self._settings.columns
        if self._settings.header:
            rows = self._csv_rows(file, kind, 0, 1)
            names = rows.header()
            if names is None:
                return
            if isinstance(names, Row):
                raise BadInput(f"{file.uri}, line {names.number}: {names.reason}")
            if at == 0:
                yield from rows.rows(names)
                return
        assert isinstance(names, tuple)
        yield from self._csv_rows(file, kind, at, number).rows(names)

    def _csv_rows(self, file: FoundFile, kind: _Kind, at: int, number: int) -> CsvRows:
        tab = "\t" if ".tsv" in PurePosixPath(file.path).suffixes else ","
        return CsvRows(
            self._lines(file, kind, at, number),
            delimiter=self._settings.delimiter or tab,
            limit=self._settings.line_bytes_max,
            types=self._settings.types,
            may_grow=kind.may_grow,
        )

    def _lines(self, file: FoundFile, kind: _Kind, at: int, number: int) -> Iterator[Line]:
        raw = PlacedFile(self._place, file, may_grow=kind.may_grow)
        opened: Any
        self._raw = raw if kind.is_text else None
        if kind.is_text:
            raw.seek(at)
            opened = io.BufferedReader(raw, READ_BYTES)
        else:
            opened = unpacked(io.BufferedReader(raw, READ_BYTES), kind.compression)
            _skip(opened, at)
        limit = self._settings.line_bytes_max
        for line in lines(opened, at=at, number=number, limit=limit):
            if line.is_ended or not kind.may_grow:
                yield line

    def close(self) -> None:
        """See `Source.close`: nothing is open."""


class _Gathering:
    """A batch that is being made."""

    def __init__(self, file: FoundFile, at: int, number: int) -> None:
        self.file = file
        self.at = at
        self.number = number
        self.records: list[Record] = []
        self.letters: list[DeadLetter] = []
        self.read_bytes = 0
        self._value_bytes = 0

    def add(self, row: Row, outcome: Record | DeadLetter) -> None:
        """Take a row."""
        if isinstance(outcome, DeadLetter):
            self.letters.append(outcome)
            self._value_bytes += len(outcome.raw)
        else:
            self.records.append(outcome)
            self._value_bytes += outcome.size_bytes
        self.at, self.number = row.end, row.next_number
        self.read_bytes += row.size

    @property
    def is_full(self) -> bool:
        """True if it is time for another."""
        return (
            self._value_bytes >= _BATCH_BYTES
            or len(self.records) + len(self.letters) >= _BATCH_ROWS
        )


def _partition(file: FoundFile) -> dict[str, str]:
    return {"file": file.uri}


def _is_same(file: FoundFile, position: Position) -> bool:
    if file.etag is not None and position.get("etag") is not None:
        return bool(file.etag == position["etag"])
    return bool(file.size == position["size"] and file.modified_ms == position["modified"])


def _skip(file: Any, count: int) -> None:
    while count > 0:
        passed = len(file.read(min(count, READ_BYTES)))
        if not passed:
            return
        count -= passed
