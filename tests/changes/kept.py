"""A stream of changes and the rows that it must end in, kept in a file.

A line is [topic, key, value] of a message, in order, and after these [table, columns' texts] of
each row that the database had at the end.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from tests.changes.connector import advance, changes, create_slot, snapshot
from tests.changes.envelopes import Message
from tests.changes.postgres import Postgres, running_postgres
from tests.changes.row_changes import SCHEMA, Workload
from tests.changes.tables import TABLES

FILE = Path(__file__).parent / "kept_changes.jsonl.zst"
_SNAPSHOT_TRANSACTIONS = 12


@dataclass(frozen=True, slots=True)
class Kept:
    """What the file holds: messages, and the rows by table."""

    messages: tuple[Message, ...]
    rows: dict[str, list[tuple[Any, ...]]]


def read() -> Kept:
    """The kept changes."""
    with FILE.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        lines = reader.readall().splitlines()
    messages, rows = [], {table.name: [] for table in TABLES}  # type: ignore[var-annotated]
    tables = {table.name: table for table in TABLES}
    for line in map(json.loads, lines):
        if len(line) == 3:
            topic, key, value = line
            messages.append(Message(topic, key.encode(), None if value is None else value.encode()))
        else:
            rows[line[0]].append(tables[line[0]].row(line[1]))
    return Kept(tuple(messages), rows)


def keep(rows: int, seed: int) -> None:
    """Make the file anew, by a PostgreSQL."""
    with running_postgres() as server:
        server.query(SCHEMA)
        made = [*_messages(server, rows, seed)]
        lines: list[Any] = [
            [m.topic, m.key.decode(), None if m.value is None else m.value.decode()] for m in made
        ]
        lines += [[t.name, line] for t in TABLES for line in server.query(t.rows_sql)]
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    parameters = zstandard.ZstdCompressionParameters.from_level(19, window_log=24, enable_ldm=True)
    FILE.write_bytes(
        zstandard.ZstdCompressor(compression_params=parameters).compress(text.encode())
    )


def _messages(server: Postgres, rows: int, seed: int) -> Iterator[Message]:
    transactions = Workload(seed, rows).transactions()
    for _ in range(_SNAPSHOT_TRANSACTIONS):
        server.query(next(transactions).sql)
    create_slot(server.folder)
    yield from snapshot(server.folder)
    for transaction in transactions:
        server.query(transaction.sql)
    while True:
        found, end = changes(server.folder)
        yield from found
        if end is None:
            return
        advance(server.folder, end)
