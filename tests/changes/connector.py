"""A connector as Debezium's: reads a replication slot and produces; told how by JSON as argument.

First it produces the rows that are there, then each change, again and again; the slot moves on only
when the messages are acknowledged. So what a kill interrupts is produced a second time.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Producer

from tests.changes.envelopes import OPTIONS, Message, lsn, messages, snapshot_messages
from tests.changes.postgres import Failed, query, query_patiently
from tests.changes.tables import TABLES

SLOT = "lakehead"
CHUNK = 10_000
"""Changes between two acknowledgements, or one transaction."""
_PAUSE_S = 0.2


def create_slot(folder: Path) -> None:
    """Begin to keep changes, if that was not done."""
    query(
        folder,
        f"SELECT pg_create_logical_replication_slot('{SLOT}', 'wal2json') "
        f"WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{SLOT}')",
    )


def snapshot(folder: Path) -> Iterator[Message]:
    """The rows of all tables, as of some moment after the slot was made."""
    at = lsn(query(folder, "SELECT pg_current_wal_lsn()")[0])
    for table in TABLES:
        for line in query(folder, table.rows_sql):
            yield from snapshot_messages(table, line, at, _now_ms())


def changes(folder: Path, chunk: int = CHUNK) -> tuple[Iterator[Message], str | None]:
    """The messages of the next changes, and where the slot may be put after them (None: no
    transaction ended). They stay until it is.
    """
    options = ", ".join(f"'{name}', '{value}'" for name, value in OPTIONS.items())
    sql = f"SELECT data FROM pg_logical_slot_peek_changes('{SLOT}', NULL, {chunk}, {options})"
    lines = query(folder, sql)
    ends = (json.loads(line)["nextlsn"] for line in reversed(lines) if '"action":"C"' in line)
    return (message for line in lines for message in messages(line, _now_ms())), next(ends, None)


def advance(folder: Path, position: str) -> None:
    """The changes before a position are not needed any more."""
    query(folder, f"SELECT pg_replication_slot_advance('{SLOT}', '{position}')")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _produce(producer: Producer, sent: Iterator[Message]) -> None:
    """Produce and wait for every acknowledgement."""

    def delivered(error: object, _: object) -> None:
        assert error is None, error

    for message in sent:
        while True:
            try:
                producer.produce(message.topic, message.value, message.key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(300) == 0


def main() -> None:
    """Run until killed."""
    given = json.loads(sys.argv[1])
    folder = Path(given["postgres"])
    producer = Producer(
        {
            "bootstrap.servers": given["bootstrap"],
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 20,
            "batch.size": 262_144,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    query_patiently(folder, "SELECT 1")
    create_slot(folder)
    if query(folder, "SELECT is_read FROM connector") == ["f"]:
        _produce(producer, snapshot(folder))
        query(folder, "UPDATE connector SET is_read = true")
    while True:
        try:
            found, end = changes(folder)
        except (Failed, subprocess.TimeoutExpired):
            time.sleep(_PAUSE_S)  # the server is away, or has not let go of the one before us
            continue
        _produce(producer, found)
        if end is None:
            time.sleep(_PAUSE_S)
        else:
            advance(folder, end)


if __name__ == "__main__":
    main()
