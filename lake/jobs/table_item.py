"""One work item of `materialize`: byte ranges of a topic to data files of its table.

Runs in any process: it reads objects, writes files that no commit names yet, and returns what the
commit must know. Doing it twice, or half, changes nothing that anyone can see.
"""

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from lake.decode.decoder import RecordDecoder
from lake.planner import Split
from lake.record_reader import read_records
from lake.store_reader import store_reader
from lake.tables.data_file import DataFile, write_data_file
from lake.tables.layout import DEAD_LETTERS, DECODED, TableLayout, dead_letters
from storage.failpoints import failpoint

OnError = Literal["pause", "dead_letter", "drop"]

FILE_BYTES_MAX = 256 << 20
"""Rows of at most about this many bytes in memory go into one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableItem:
    """What one worker makes data files from."""

    store_uri: str
    split: Split
    layout: TableLayout
    table_uri: str
    dead_letters_uri: str
    on_error: OnError


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A record whose value is not what the table wants."""

    topic: str
    partition: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return (
            f"topic {self.topic}, partition {self.partition}, offset {self.offset}: {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableItemResult:
    """What was written. With `pause` and a record that cannot be read, nothing is."""

    files: tuple[DataFile, ...]
    dead_letters: tuple[DataFile, ...]
    unreadable: tuple[Unreadable, ...]  # the first of each partition, if it pauses the job
    dropped: int


def make_table_files(item: TableItem) -> TableItemResult:
    """Do a work item. Raises what reading and writing objects raises."""
    decoder = RecordDecoder(DECODED)
    rows = _Files(item.table_uri, item.layout.schema)
    letters = _Files(item.dead_letters_uri, DEAD_LETTERS)
    first_unreadable: dict[int, Unreadable] = {}
    dropped = 0
    pausing = item.on_error == "pause"
    for batch in read_records(store_reader(item.store_uri), item.split.ranges, decoder):
        made = item.layout.table_rows(batch, fault_count_max=1 if pausing else None)
        if made.faults:
            if pausing:
                found = _unreadable(batch, *made.faults[0])
                first_unreadable.setdefault(found.partition, found)
            elif item.on_error == "dead_letter":
                letters.add(dead_letters(batch, made.faults))
            else:
                dropped += len(made.faults)
        if not first_unreadable:
            rows.add(made.rows)
    if first_unreadable:
        # The job plans again, up to these records: a file is of no use.
        return TableItemResult(
            files=(), dead_letters=(), unreadable=tuple(first_unreadable.values()), dropped=0
        )
    return TableItemResult(
        files=rows.finish(), dead_letters=letters.finish(), unreadable=(), dropped=dropped
    )


def _unreadable(batch: Any, row: int, reason: str) -> Unreadable:
    return Unreadable(
        topic=batch.column("topic")[row].as_py(),
        partition=batch.column("partition")[row].as_py(),
        offset=batch.column("offset")[row].as_py(),
        reason=reason,
    )


class _Files:
    """Gathers rows and writes them as files of a bounded size."""

    def __init__(self, root: str, schema: Any) -> None:
        self._root = root
        self._schema = schema
        self._held: list[Any] = []
        self._held_bytes = 0
        self._files: list[DataFile] = []

    def add(self, rows: Any) -> None:
        if not rows.num_rows:
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= FILE_BYTES_MAX:
            self._write()

    def finish(self) -> tuple[DataFile, ...]:
        if self._held:
            self._write()
        return tuple(self._files)

    def _write(self) -> None:
        self._files.append(write_data_file(self._root, pa.concat_tables(self._held)))
        failpoint("materialize_file_written")
        self._held = []
        self._held_bytes = 0
