"""Columns in Spark's DDL notation: `carrier STRING, delay DOUBLE, tags ARRAY<INT>`. Pure.

Types are those that Arrow, Parquet and a Delta table of protocol (1, 2) have in common, and
VARIANT, for which a table has a feature of protocol (3, 7).
`lakehead.lake.tables.ddl` has their types in Arrow; a node needs no Arrow to check a schema.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from lakehead.storage.errors import SettingsError

_SIMPLE = {
    "STRING": "STRING",
    "BOOLEAN": "BOOLEAN",
    "TINYINT": "TINYINT",
    "BYTE": "TINYINT",
    "SMALLINT": "SMALLINT",
    "SHORT": "SMALLINT",
    "INT": "INT",
    "INTEGER": "INT",
    "BIGINT": "BIGINT",
    "LONG": "BIGINT",
    "FLOAT": "FLOAT",
    "REAL": "FLOAT",
    "DOUBLE": "DOUBLE",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP",
    "BINARY": "BINARY",
    "VARIANT": "VARIANT",
}
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([\w$.-]+)|([<>(),:]))")
_DEPTH_MAX = 50

# Parquet and Delta refuse these in a column's name.
_REFUSED = set(" ,;{}()\n\t=")


@dataclass(frozen=True, slots=True)
class SimpleType:
    """A type without parameters, by Spark's first name for it: `BIGINT`, not `LONG`."""

    name: str


@dataclass(frozen=True, slots=True)
class DecimalType:
    """`DECIMAL(precision, scale)`."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class ArrayType:
    """`ARRAY<item>`."""

    item: "ColumnType"


@dataclass(frozen=True, slots=True)
class MapType:
    """`MAP<key, value>`."""

    key: "ColumnType"
    value: "ColumnType"


@dataclass(frozen=True, slots=True)
class StructType:
    """`STRUCT<name: type, ...>`."""

    columns: "tuple[Column, ...]"


ColumnType: TypeAlias = SimpleType | DecimalType | ArrayType | MapType | StructType


@dataclass(frozen=True, slots=True)
class Column:
    """A column or a field of a struct. All may be null: a record may lack any field."""

    name: str
    type: ColumnType


def parse_columns(text: str) -> tuple[Column, ...]:
    """Return the columns of a DDL text; `VARIANT` alone is one column, `value`. Raises
    SettingsError that says what was not understood.
    """
    if is_whole_variant(text):
        return (Column("value", SimpleType("VARIANT")),)
    return _Parser(text).columns(end=None, colon=False, depth=0)


def is_whole_variant(text: str) -> bool:
    """Return whether a DDL text is the type VARIANT alone: each value is one, whole."""
    return text.strip().upper() == "VARIANT"


def has_variant(kind: ColumnType) -> bool:
    """Return whether values of a type are VARIANT, or have one inside."""
    if isinstance(kind, ArrayType):
        return has_variant(kind.item)
    if isinstance(kind, MapType):
        return has_variant(kind.key) or has_variant(kind.value)
    if isinstance(kind, StructType):
        return any(has_variant(column.type) for column in kind.columns)
    return kind == SimpleType("VARIANT")


def check_column_names(names: Iterable[str]) -> None:
    """Raise SettingsError for names that a table, or a struct in it, cannot have: odd characters,
    the same twice.
    """
    seen: dict[str, str] = {}
    for name in names:
        if not name or _REFUSED.intersection(name):
            raise SettingsError(f"a table cannot have a column named {name!r}")
        lower = name.lower()
        if lower in seen:
            raise SettingsError(
                f"columns {seen[lower]!r} and {name!r} are one name to a table: it does "
                "not distinguish upper and lower case"
            )
        seen[lower] = name


class _Parser:
    """Recursive descent over the tokens of a DDL text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, bool]] = []  # (token, is a name)
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._error(f"{text[at:].strip()[:20]!r}")
            quoted, word, mark = found.groups()
            if quoted is not None:
                self._tokens.append((quoted.replace("``", "`"), True))
            else:
                self._tokens.append((word or mark, word is not None))
            at = found.end()
        self._next = 0

    def columns(self, *, end: str | None, colon: bool, depth: int) -> tuple[Column, ...]:
        if depth > _DEPTH_MAX:
            raise self._error("types nested so deep")
        columns: list[Column] = []
        while True:
            name = self._name()
            if colon:
                self._skip(":")
            columns.append(Column(name, self._type(depth)))
            if self._skip(","):
                continue
            if end is None and self._next == len(self._tokens):
                break
            if end is not None and self._skip(end):
                break
            raise self._error(self._here())
        check_column_names(column.name for column in columns)
        return tuple(columns)

    def _type(self, depth: int) -> ColumnType:
        name = self._name().upper()
        if name == "STRUCT":
            self._expect("<")
            return StructType(self.columns(end=">", colon=True, depth=depth + 1))
        if name == "ARRAY":
            if depth > _DEPTH_MAX:
                raise self._error("types nested so deep")
            self._expect("<")
            inner = self._type(depth + 1)
            self._expect(">")
            return ArrayType(inner)
        if name == "MAP":
            return self._map(depth)
        if name in ("DECIMAL", "DEC", "NUMERIC"):
            return self._decimal()
        if name not in _SIMPLE:
            raise SettingsError(
                f"type {name} of the schema is not known: use STRING, BOOLEAN, INT, BIGINT, "
                "DOUBLE, DECIMAL(p, s), DATE, TIMESTAMP, BINARY, VARIANT, ARRAY<...>, "
                "MAP<..., ...>, STRUCT<name: ...>"
            )
        return SimpleType(_SIMPLE[name])

    def _map(self, depth: int) -> MapType:
        if depth > _DEPTH_MAX:
            raise self._error("types nested so deep")
        self._expect("<")
        key = self._type(depth + 1)
        self._expect(",")
        value = self._type(depth + 1)
        self._expect(">")
        return MapType(key, value)

    def _decimal(self) -> DecimalType:
        precision, scale = 10, 0
        if self._skip("("):
            precision = self._integer()
            scale = self._integer() if self._skip(",") else 0
            self._expect(")")
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise self._error(f"DECIMAL({precision}, {scale})")
        return DecimalType(precision, scale)

    def _integer(self) -> int:
        token = self._name()
        if not token.isdecimal() or len(token) > 3:
            raise self._error(token)
        return int(token)

    def _name(self) -> str:
        if self._next < len(self._tokens) and self._tokens[self._next][1]:
            self._next += 1
            return self._tokens[self._next - 1][0]
        raise self._error(self._here())

    def _skip(self, mark: str) -> bool:
        if self._next < len(self._tokens) and self._tokens[self._next] == (mark, False):
            self._next += 1
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise self._error(f"{self._here()} where {mark} was expected")

    def _here(self) -> str:
        if self._next < len(self._tokens):
            return repr(self._tokens[self._next][0])
        return "the end"

    def _error(self, what: str) -> SettingsError:
        text = " ".join(self._text.split())
        return SettingsError(f"cannot read the schema {text[:80]!r}: did not understand {what}")
