"""Lines of wal2json (format 2) as Debezium's messages, and rows as those of its snapshot.

As its PostgreSQL connector with Connect's JSON converter and schemas writes them: keys and values
with their schema, a tombstone after each delete, a key that changes as a delete and a create.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.changes.tables import SERVER, TABLES, Table

OPTIONS: Mapping[str, str] = {
    "format-version": "2",
    "include-xids": "1",
    "include-lsn": "1",
    "include-timestamp": "1",
    "add-tables": ",".join(f"public.{table.name}" for table in TABLES),
}
"""What wal2json is told."""


@dataclass(frozen=True, slots=True)
class Message:
    """A record of a topic."""

    topic: str
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Source:
    """Where a change comes from."""

    lsn: int
    transaction: int | None
    ts_ms: int
    snapshot: str = "false"


class Envelopes:
    """Makes messages of a table's changes."""

    def __init__(self, table: Table) -> None:
        self.table = table
        fields = [
            {**kind.connect, "optional": name not in table.keys, "field": name}
            for name, kind in table.columns.items()
        ]
        self._key_head = _head(
            {
                "type": "struct",
                "fields": fields[: table.key_columns],
                "optional": False,
                "name": f"{table.topic}.Key",
            }
        )
        self._value_head = _head(_envelope(table, fields))

    def image(self, columns: list[dict[str, Any]], base: dict[str, Any]) -> dict[str, Any]:
        """A row as Connect has it: `base` for the columns that are not among wal2json's, as those
        are that were left as they were and lie beside the row.
        """
        image = dict(base)
        kinds = self.table.columns
        for column in columns:
            name, value = column["name"], column["value"]
            image[name] = None if value is None else kinds[name].encode(value)
        return image

    def changed(
        self, before: dict[str, Any] | None, after: dict[str, Any] | None, source: Source
    ) -> Iterator[Message]:
        """The messages of one change."""
        if before and after and self._key(before) != self._key(after):
            yield from self.changed(before, None, source)
            yield from self.changed(None, after, source)
        elif after:
            op = "u" if before else "r" if source.snapshot != "false" else "c"
            yield self._message(op, before, after, after, source)
        elif before:
            yield self._message("d", before, None, before, source)
            yield Message(self.table.topic, self._key(before), None)

    def _message(
        self,
        op: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
        keyed: dict[str, Any],
        source: Source,
    ) -> Message:
        payload = {
            "before": before,
            "after": after,
            "source": {
                "connector": "postgresql",
                "name": SERVER,
                "ts_ms": source.ts_ms,
                "snapshot": source.snapshot,
                "db": "postgres",
                "schema": "public",
                "table": self.table.name,
                "txId": source.transaction,
                "lsn": source.lsn,
            },
            "op": op,
            "ts_ms": source.ts_ms,
            "transaction": None,
        }
        value = self._value_head + _compact(payload) + b"}"
        return Message(self.table.topic, self._key(keyed), value)

    def _key(self, image: dict[str, Any]) -> bytes:
        return self._key_head + _compact({name: image[name] for name in self.table.keys}) + b"}"


def _envelope(table: Table, fields: list[dict[str, Any]]) -> dict[str, Any]:
    row = {"type": "struct", "fields": fields, "optional": True, "name": f"{table.topic}.Value"}
    texts = {name: {"type": "string", "optional": False, "field": name} for name in _SOURCE_TEXTS}
    numbers = [{"type": "int64", "optional": True, "field": name} for name in _SOURCE_NUMBERS]
    source = {
        "type": "struct",
        "fields": [*texts.values(), *numbers],
        "optional": False,
        "name": "io.debezium.connector.postgresql.Source",
        "field": "source",
    }
    return {
        "type": "struct",
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            source,
            {"type": "string", "optional": False, "field": "op"},
            {"type": "int64", "optional": True, "field": "ts_ms"},
        ],
        "optional": False,
        "name": f"{table.topic}.Envelope",
        "version": 2,
    }


_SOURCE_TEXTS = ("connector", "name", "snapshot", "db", "schema", "table")
_SOURCE_NUMBERS = ("ts_ms", "txId", "lsn")


def _head(schema: dict[str, Any]) -> bytes:
    return b'{"schema":' + _compact(schema) + b',"payload":'


def _compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


_ENVELOPES = {table.name: Envelopes(table) for table in TABLES}


def messages(line: str, ts_ms: int) -> Iterator[Message]:
    """The messages of a line of wal2json; of what is no change of a row, none."""
    change = json.loads(line, parse_float=str)
    if change["action"] not in "IUD":
        return
    maker = _ENVELOPES[change["table"]]
    before = maker.image(change["identity"], {}) if change["action"] in "UD" else None
    after = maker.image(change["columns"], before or {}) if change["action"] in "IU" else None
    source = Source(lsn=lsn(change["lsn"]), transaction=change["xid"], ts_ms=ts_ms)
    yield from maker.changed(before, after, source)


def snapshot_messages(table: Table, line: str, at: int, ts_ms: int) -> Iterator[Message]:
    """The message of a line of `Table.rows_sql`."""
    maker = _ENVELOPES[table.name]
    texts = json.loads(line)
    values = (
        {"name": name, "value": None if texts[name] is None else _plain(texts[name], kind.sql)}
        for name, kind in table.columns.items()
    )
    source = Source(lsn=at, transaction=None, ts_ms=ts_ms, snapshot="true")
    yield from maker.changed(None, maker.image(list(values), {}), source)


def _plain(text: str, sql: str) -> Any:
    """The text of a column as wal2json has it."""
    if sql in {"bigint", "integer"}:
        return int(text)
    if sql == "boolean":
        return text == "true"
    return text.removeprefix("\\x") if sql == "bytea" else text


def lsn(text: str) -> int:
    """A position in the log, as a number."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)
