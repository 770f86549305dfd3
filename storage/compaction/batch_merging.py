"""Merge small record batches of one producer into larger ones, without a change that a client can
see.

Each record keeps its offset, timestamp, sequence number and bytes; the merged batch keeps the
producer, the attributes (codec, kind of timestamps, transaction) and the leader epoch.

Batches are merged only if they follow each other without a gap and agree in all of these. Control
batches, batches that log compaction has touched, and batches that are malformed or fail their
checksum stay as they are: in doubt a batch is kept. Adjacent kept batches are one span of bytes of
their source. The work is done by `kernels`; codecs and memory are handled here.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c

from lakehead.storage.compaction import kernels
from lakehead.storage.compaction.batches import Arena
from lakehead.storage.compaction.kernels import distrust
from lakehead.storage.compaction.object_compaction_plan import RebatchSettings
from lakehead.storage.format.compression import BufferTooSmall, deflate
from lakehead.storage.format.inflater import Inflater
from lakehead.storage.format.record_batch import CODEC_MASK, CRC_POSITION, LENGTH_END

_SPAN_BYTES = 256 * 1024
_PLACE = (kernels.SOURCE, kernels.START, kernels.END, kernels.CRC)
_INT, _CRC = struct.Struct(">i"), struct.Struct(">I")
_PAYLOAD_AT = kernels.RECORD_HEADER - _INT.size
_LENGTH_AT = kernels.RECORD_HEADER + LENGTH_END - _INT.size
_CRC_AT = kernels.RECORD_HEADER + CRC_POSITION


class Span(NamedTuple):
    """Stored records that follow each other: `batches` of them, with the offsets [start_offset,
    end_offset), of which the last has this stream epoch. `max_timestamp` in milliseconds.
    """

    epoch: int
    start_offset: int
    end_offset: int
    batches: int
    max_timestamp: int
    data: memoryview


class RunMerger:
    """Merges runs of one stream to batches of about `target` bytes of records."""

    def __init__(self, stream_id: int, target: int, arena: Arena) -> None:
        self._stream_id = stream_id
        self._target = target
        self._arena = arena
        self._scratch: Any = np.empty(0, np.uint8)
        self._inflater = Inflater()
        self._state = np.empty(kernels.STATE_SIZE, np.int64)
        self._out: Any = arena.free
        self._memory: Callable[[int], Any] = arena.new
        self._table: Any = None
        self._made: Any = None
        self._batches: list[memoryview] = []

    def spans(self, table: Any, sources: list[memoryview]) -> list[Span]:
        """Return what becomes of rows, which are whole runs (`mark_runs`)."""
        in_runs = np.flatnonzero(table[:, kernels.RUN] >= 0)
        self._table, self._batches = table, []
        self._made = np.empty((len(in_runs) // 2, kernels.MADE_COLUMNS), np.int64)
        self._state[:] = (-1, 0, 0, 0, 0)
        if len(in_runs):
            self._merge_plain(sources)
            self._merge_compressed(in_runs, sources)
        made = self._made[: self._state[kernels.MADE]]
        order = np.argsort(made[:, 0])
        batches = [self._batches[number] for number in order.tolist()]
        spans = np.empty((len(table), kernels.SPAN_COLUMNS), np.int64)
        count = kernels.list_spans(table, len(table), made[order], len(made), _SPAN_BYTES, spans)
        return [
            Span(
                epoch=epoch,
                start_offset=first,
                end_offset=last,
                batches=held,
                max_timestamp=newest,
                data=batches[start] if source < 0 else sources[source][start:end],
            )
            for source, start, end, epoch, first, last, held, newest in spans[:count].tolist()
        ]

    def _merge_plain(self, sources: list[memoryview]) -> None:
        """Look at the checksums of all runs, and merge those that are not compressed, source by
        source.
        """
        numbers = self._table[:, kernels.SOURCE]
        self._out, self._memory = self._arena.free, self._arena.new
        first = 0
        for end in [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]:
            data = np.frombuffer(sources[numbers[first]], np.uint8)
            distrust(data, first, end, self._table)
            self._merge(data, first, end, is_last=end == len(numbers))
            first = end
        self._drain()
        self._arena.free = self._out[self._state[kernels.AT] :]

    def _merge_compressed(self, rows: Any, sources: list[memoryview]) -> None:
        """Merge what is compressed: as many batches of a run at a time as inflate to a few of the
        target. They are made in the same memory again and again.
        """
        rows = rows[self._table[rows, kernels.ATTRIBUTES] & CODEC_MASK != 0]
        if not len(rows):
            return
        inflated = np.empty(2 * self._target, np.uint8)
        self._out, self._memory = self._scratch, self._same_again
        self._state[kernels.AT] = 0
        ends = np.flatnonzero(np.diff(self._table[rows, kernels.RUN])) + 1
        for run in np.split(rows, ends):
            first, at = int(run[0]), 0
            for row in run.tolist():
                size = self._inflate(row, inflated[at:], at, sources)
                if size < 0 < at:
                    self._merge(inflated, first, row)
                    first, at = row, 0
                    size = self._inflate(row, inflated, 0, sources)
                at += max(size, 0)
            self._merge(inflated, first, int(run[-1]) + 1, is_last=True)
        self._drain()
        self._scratch = self._out

    def _same_again(self, size: int) -> Any:
        return self._out if size <= len(self._out) else np.empty(2 * size, np.uint8)

    def _inflate(self, row: int, target: Any, at: int, sources: list[memoryview]) -> int:
        """Inflate a batch to `target`, which is at `at` of what is inflated; return its size, or -1
        where it stays as it is: it is malformed, or there is no room for it.
        """
        source, start, end, crc = self._table[row, _PLACE].tolist()
        if crc == kernels.FAILED:
            return -1
        codec = int(self._table[row, kernels.ATTRIBUTES]) & CODEC_MASK
        body = sources[source][start + kernels.HEADERS : end]
        try:
            size = self._inflater.inflate_into(codec, body, target.data)
        except (BufferTooSmall, ValueError):
            return -1
        self._table[row, kernels.BODY], self._table[row, kernels.BODY_SIZE] = at, size
        return size

    def _merge(self, data: Any, first: int, end: int, *, is_last: bool = False) -> None:
        while True:
            first = kernels.merge_rows(
                *(data, first, end, self._stream_id, self._target),
                *(self._table, self._state, self._out, self._made, int(is_last)),
            )
            if first == end:
                return
            self._drain()
            state = self._state
            at = int(state[kernels.AT])
            opened = int(state[kernels.OPEN_AT]) if state[kernels.OPEN_ROW] >= 0 else at
            held = self._out[opened:at]
            body, count = self._table[first, (kernels.BODY_SIZE, kernels.COUNT)].tolist()
            room = max(body + kernels.GROWTH_MAX * count, self._target) + kernels.HEADERS
            self._out = self._memory(len(held) + room)
            self._out[: len(held)] = held
            state[kernels.OPEN_AT], state[kernels.AT] = 0, len(held)

    def _drain(self) -> None:
        """Finish the batches that are made."""
        out = self._out.data
        for number in range(len(self._batches), int(self._state[kernels.MADE])):
            row, _, start, end = self._made[number].tolist()
            codec = int(self._table[row, kernels.ATTRIBUTES]) & CODEC_MASK
            stored = out[start:end]
            self._batches.append(_sealed(_compressed(codec, stored) if codec else stored))


def _compressed(codec: int, stored: memoryview) -> memoryview:
    """Return a stored record with its batch compressed."""
    batch = bytearray(stored[: kernels.HEADERS]) + deflate(codec, stored[kernels.HEADERS :])
    size = len(batch) - kernels.RECORD_HEADER
    _INT.pack_into(batch, _PAYLOAD_AT, size)
    _INT.pack_into(batch, _LENGTH_AT, size - LENGTH_END)
    return memoryview(batch)


def _sealed(stored: memoryview) -> memoryview:
    """Give the batch of a stored record its checksum."""
    _CRC.pack_into(stored, _CRC_AT, crc32c(stored[kernels.CRC_FROM :]))
    return stored


_WINDOW_ROWS = 16 * 1024
_WINDOW_BYTES = 16 * 1024 * 1024
"""The most rows and bytes that one turn looks at."""


@dataclass(slots=True)
class RebatchStatistics:
    """Batches in and out."""

    before: int = 0
    after: int = 0


class Rebatching:
    """The merging of one stream's batches: data blocks in the order of offsets go in."""

    def __init__(
        self,
        stream_id: int,
        settings: RebatchSettings,
        figures: RebatchStatistics,
        arena: Arena | None = None,
    ) -> None:
        self.end_offset = 0
        """The end of what came in; what comes next begins there or above."""
        self._stream_id = stream_id
        self._settings = settings
        self._figures = figures
        self._spans: list[Span] = []
        self._sources: list[memoryview] = []
        self._table = np.empty((64, kernels.COLUMNS), np.int64)
        self._rows = self._bytes = self._row_next = 0
        self._merger = RunMerger(stream_id, settings.target_bytes, arena or Arena())

    def add(self, data: memoryview) -> None:
        """Take the data blocks of one item. Raises ValueError where they hold no batches, or others
        than are to come.
        """
        most = self._rows + len(data) // kernels.HEADERS + 1
        if most > len(self._table):
            larger = np.empty((max(most, 2 * self._rows), kernels.COLUMNS), np.int64)
            larger[: self._rows] = self._table[: self._rows]
            self._table = larger
        fault, position, rows, sources = kernels.scan_blocks(
            np.frombuffer(data, np.uint8),
            self._stream_id,
            self.end_offset,
            len(self._sources),
            self._table,
            self._rows,
        )
        if fault:
            raise ValueError(f"{kernels.FAULTS[fault]}: byte {position}")
        if rows == self._rows:
            return
        self._figures.before += rows - self._rows
        self._rows = rows
        self._sources += [data] * (sources - len(self._sources))
        self._bytes += len(data)
        self.end_offset = int(self._table[rows - 1, kernels.NEXT])
        if rows - self._row_next >= _WINDOW_ROWS or self._bytes >= _WINDOW_BYTES:
            self._look(is_last=False)

    def finish(self) -> list[Span]:
        """Return what became of all that came in."""
        self._look(is_last=True)
        return self._spans

    def _look(self, *, is_last: bool) -> None:
        """Merge what is there, but for the last run, which may go on."""
        settings, table = self._settings, self._table[: self._rows]
        end = kernels.mark_runs(
            table,
            self._rows,
            settings.small_bytes,
            settings.small_compressed_bytes,
            settings.target_bytes,
        )
        end = self._rows if is_last else int(end)
        spans = self._merger.spans(table[:end], self._sources)
        self._figures.after += sum(span.batches for span in spans)
        self._spans += spans
        left = self._rows - end
        first = int(table[end, kernels.SOURCE]) if left else len(self._sources)
        del self._sources[:first]
        self._table[:left] = table[end:].copy()
        self._table[:left, kernels.SOURCE] -= first
        self._rows, self._bytes, self._row_next = left, 0, left
