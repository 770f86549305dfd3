"""The tables of the database, and their types in PostgreSQL, in Connect's schemas and in Python."""

import base64
import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

SERVER = "shop"


@dataclass(frozen=True, slots=True)
class Kind:
    """A type: its name in SQL, its schema in Kafka Connect as Debezium has it, what its text in
    PostgreSQL is as a value of Connect's JSON, and as a value of a Delta table.
    """

    sql: str
    connect: Mapping[str, Any]
    encode: Callable[[Any], Any]
    read: Callable[[str], Any]


def _as_is(value: Any) -> Any:
    return value


def _decimal(scale: int) -> Callable[[Any], str]:
    def encode(value: Any) -> str:
        unscaled = int(Decimal(value).scaleb(scale))
        length = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
        return base64.b64encode(unscaled.to_bytes(length, "big", signed=True)).decode()

    return encode


def _numeric(precision: int, scale: int) -> Kind:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    name = "org.apache.kafka.connect.data.Decimal"
    connect = {"type": "bytes", "name": name, "version": 1, "parameters": parameters}
    return Kind(f"numeric({precision},{scale})", connect, _decimal(scale), Decimal)


def _zoned(text: str) -> str:
    """`2026-01-02 03:04:05.6+00`, as the server has it in UTC, as Debezium's ZonedTimestamp."""
    return f"{text.removesuffix('+00').replace(' ', 'T')}Z"


def _instant(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text.replace(" ", "T").replace("+00", "+00:00"))


def _days(text: str) -> int:
    return (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days


BIGINT = Kind("bigint", {"type": "int64"}, _as_is, int)
INTEGER = Kind("integer", {"type": "int32"}, _as_is, int)
TEXT = Kind("text", {"type": "string"}, _as_is, str)
BOOLEAN = Kind("boolean", {"type": "boolean"}, _as_is, lambda text: text == "true")
DOUBLE = Kind("double precision", {"type": "double"}, float, float)
JSONB = Kind(
    "jsonb", {"type": "string", "name": "io.debezium.data.Json", "version": 1}, _as_is, str
)
DATE = Kind(
    "date",
    {"type": "int32", "name": "io.debezium.time.Date", "version": 1},
    _days,
    dt.date.fromisoformat,
)
ZONED = Kind(
    "timestamp with time zone",
    {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1},
    _zoned,
    _instant,
)
BYTEA = Kind(
    "bytea",
    {"type": "bytes"},
    lambda text: base64.b64encode(bytes.fromhex(text)).decode(),
    lambda text: bytes.fromhex(text.removeprefix("\\x")),
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table; its first `key_columns` columns are its primary key."""

    name: str
    columns: Mapping[str, Kind]
    key_columns: int = 1

    @property
    def topic(self) -> str:
        return f"{SERVER}.public.{self.name}"

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.columns)[: self.key_columns]

    @property
    def configs(self) -> dict[str, str]:
        """Those of its topic."""
        return {
            "lakehead.table.enable": "true",
            "lakehead.table.mode": "upsert",
            "lakehead.table.value.format": "debezium",
            "lakehead.table.keys": ",".join(self.keys),
        }

    @property
    def ddl(self) -> str:
        columns = ", ".join(f"{name} {kind.sql}" for name, kind in self.columns.items())
        return (
            f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({', '.join(self.keys)}));"
            f"ALTER TABLE {self.name} REPLICA IDENTITY FULL;"
        )

    @property
    def rows_sql(self) -> str:
        """A query of all rows, each a line of JSON with the texts of its columns."""
        texts = ", ".join(f"{name}::text" for name in self.columns)
        return f"SELECT row_to_json(t) FROM (SELECT {texts} FROM {self.name}) t"

    def row(self, line: str) -> tuple[Any, ...]:
        """A line of `rows_sql` as values."""
        texts = json.loads(line)
        return tuple(
            None if texts[name] is None else kind.read(texts[name])
            for name, kind in self.columns.items()
        )


TABLES = (
    Table(
        "customers",
        {
            "id": BIGINT,
            "name": TEXT,
            "balance": _numeric(12, 2),
            "active": BOOLEAN,
            "seen": ZONED,
            "profile": JSONB,
            "photo": BYTEA,
            "note": TEXT,
        },
    ),
    Table(
        "orders",
        {
            "region": TEXT,
            "number": INTEGER,
            "total": _numeric(30, 6),
            "placed": ZONED,
            "due": DATE,
            "weight": DOUBLE,
            "lines": JSONB,
        },
        key_columns=2,
    ),
    Table("words", {"word": TEXT, "uses": BIGINT, "spelling": BYTEA, "is_rude": BOOLEAN}),
)
