"""Schemas in Spark's DDL notation, without Spark: `carrier STRING, delay DOUBLE, tags ARRAY<INT>`.

Types are those that Arrow, Parquet and a Delta table of protocol (1, 2) have in common. All
columns are nullable: a record may lack any field.
"""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.errors import SettingsError

TIMESTAMP = pa.timestamp("us", tz="UTC")
"""Delta's `timestamp`: microseconds, an instant."""

_SIMPLE: dict[str, Any] = {
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "BINARY": pa.binary(),
}
_NAMES = {kind: name for name, kind in reversed(_SIMPLE.items())}
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([\w$.-]+)|([<>(),:]))")
_DEPTH_MAX = 50

# Parquet and Delta refuse these in a column's name.
_REFUSED = set(" ,;{}()\n\t=")


def parse_schema(text: str) -> Any:
    """Return the Arrow schema for a DDL text, or for the file that `@path` names.

    Raises SettingsError that says what was not understood.
    """
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"cannot read the schema file {path}: {error}") from None
    parser = _Parser(text)
    fields = parser.fields(end=None, colon=False, depth=0)
    schema = pa.schema(fields)
    check_names(schema)
    return schema


def check_names(schema: Any) -> None:
    """Raise SettingsError for names that a table cannot have: odd characters, the same twice."""
    for container in _containers(schema):
        seen: dict[str, str] = {}
        for field in container:
            if not field.name or _REFUSED.intersection(field.name):
                raise SettingsError(f"a table cannot have a column named {field.name!r}")
            lower = field.name.lower()
            if lower in seen:
                raise SettingsError(
                    f"columns {seen[lower]!r} and {field.name!r} are one name to a table: it does "
                    "not tell upper case from lower"
                )
            seen[lower] = field.name


def to_ddl(schema: Any) -> str:
    """Return the DDL text of a schema that `parse_schema` reads back."""
    return ", ".join(f"{_quoted(field.name)} {type_name(field.type)}" for field in schema)


def type_name(kind: Any) -> str:
    """Return the name of an Arrow type in DDL."""
    if pa.types.is_struct(kind):
        fields = (kind.field(i) for i in range(kind.num_fields))
        inner = ", ".join(f"{_quoted(field.name)}: {type_name(field.type)}" for field in fields)
        return f"STRUCT<{inner}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _NAMES.get(kind) or str(kind).upper()


def _quoted(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return name
    return "`" + name.replace("`", "``") + "`"


def _containers(schema: Any) -> list[list[Any]]:
    """Fields of the schema, and those of every struct in it."""
    found = [list(schema)]
    for container in found:
        for field in container:
            kind = field.type
            while pa.types.is_list(kind) or pa.types.is_map(kind):
                kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
            if pa.types.is_struct(kind):
                found.append([kind.field(i) for i in range(kind.num_fields)])
    return found


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

    def fields(self, *, end: str | None, colon: bool, depth: int) -> list[Any]:
        if depth > _DEPTH_MAX:
            raise self._error("types nested so deep")
        fields: list[Any] = []
        while True:
            name = self._name()
            if colon:
                self._skip(":")
            fields.append(pa.field(name, self._type(depth)))
            if self._skip(","):
                continue
            if end is None and self._next == len(self._tokens):
                return fields
            if end is not None and self._skip(end):
                return fields
            raise self._error(self._here())

    def _type(self, depth: int) -> Any:
        name = self._name().upper()
        if name == "STRUCT":
            self._expect("<")
            return pa.struct(self.fields(end=">", colon=True, depth=depth + 1))
        if name == "ARRAY":
            if depth > _DEPTH_MAX:
                raise self._error("types nested so deep")
            self._expect("<")
            inner = self._type(depth + 1)
            self._expect(">")
            return pa.list_(inner)
        if name == "MAP":
            return self._map(depth)
        if name in ("DECIMAL", "DEC", "NUMERIC"):
            return self._decimal()
        if name not in _SIMPLE:
            raise SettingsError(
                f"type {name} of the schema is not known: use STRING, BOOLEAN, INT, BIGINT, "
                "DOUBLE, DECIMAL(p, s), DATE, TIMESTAMP, BINARY, ARRAY<...>, MAP<..., ...>, "
                "STRUCT<name: ...>"
            )
        return _SIMPLE[name]

    def _map(self, depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise self._error("types nested so deep")
        self._expect("<")
        key = self._type(depth + 1)
        self._expect(",")
        value = self._type(depth + 1)
        self._expect(">")
        return pa.map_(key, value)

    def _decimal(self) -> Any:
        precision, scale = 10, 0
        if self._skip("("):
            precision = self._integer()
            scale = self._integer() if self._skip(",") else 0
            self._expect(")")
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise self._error(f"DECIMAL({precision}, {scale})")
        return pa.decimal128(precision, scale)

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
