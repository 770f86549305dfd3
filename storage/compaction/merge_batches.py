"""Small record batches of one producer become larger ones, and nothing that a client can tell is
changed: each record keeps its offset, its timestamp, its sequence number, its bytes; the batch its
producer, its attributes (codec, kind of timestamps, transaction), its leader epoch.

Batches are merged only where they follow each other without a gap and agree in all of that. Control
batches, what compaction by keys has touched, and whatever is malformed or fails its checksum stay
as they are: when in doubt, a batch is kept. Kept neighbours are one span of their source's bytes.
"""

from dataclasses import dataclass

import numpy as np

from lakehead.storage.compaction import merge_kernels as kernels
from lakehead.storage.compaction.arena import Arena
from lakehead.storage.compaction.merge_plan import RebatchSettings
from lakehead.storage.compaction.merge_runs import RunMerger, Span

_WINDOW_ROWS = 16 * 1024
_WINDOW_BYTES = 16 * 1024 * 1024
"""What is looked at at once."""


@dataclass(slots=True)
class RebatchFigures:
    """Batches in and out."""

    before: int = 0
    after: int = 0


class Rebatching:
    """The merging of one stream's batches: data blocks in the order of offsets go in."""

    def __init__(
        self,
        stream_id: int,
        settings: RebatchSettings,
        figures: RebatchFigures,
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
