"""Random Avro schemas and values, and what fastavro makes of bytes, as columns would show it."""

import datetime as dt
import io
import uuid
from decimal import Context, Decimal
from typing import Any

import fastavro
from hypothesis import strategies as st

LOGICAL = {
    "date": st.integers(-700_000, 2_900_000),
    "time-millis": st.integers(0, 86_399_999),
    "time-micros": st.integers(0, 86_399_999_999),
    "timestamp-millis": st.integers(-60_000_000_000_000, 250_000_000_000_000),
    "timestamp-micros": st.integers(-60_000_000_000_000_000, 250_000_000_000_000_000),
    "timestamp-nanos": st.integers(-9_000_000_000_000_000_000, 9_000_000_000_000_000_000),
    "local-timestamp-micros": st.integers(-60_000_000_000_000_000, 250_000_000_000_000_000),
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Pair = tuple[Any, st.SearchStrategy[Any]]


def _logical(kind: str, name: str) -> Pair:
    return {"type": kind, "logicalType": name}, LOGICAL[name]


def _decimal(draw: st.DrawFn, names: list[int]) -> Pair:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    most = 10**precision - 1
    kind: Any = "bytes"
    size = (most.bit_length() + 8) // 8
    if draw(st.booleans()):
        size += draw(st.integers(0, 5))
        kind = {"type": "fixed", "name": _name(names, "F"), "size": size}
    node = {"logicalType": "decimal", "precision": precision, "scale": scale}
    schema = {**kind, **node} if isinstance(kind, dict) else {"type": kind, **node}
    values = st.integers(-most, most).map(lambda n: n.to_bytes(size, "big", signed=True))
    return schema, values


def _name(names: list[int], prefix: str) -> str:
    names[0] += 1
    return f"{prefix}{names[0]}"


@st.composite
def scalars(draw: st.DrawFn, names: list[int]) -> Pair:
    kind = draw(st.integers(0, 14))
    if kind < 8:
        simple: list[Pair] = [
            ("boolean", st.booleans()),
            ("int", st.integers(-(1 << 31), (1 << 31) - 1)),
            ("long", st.integers(-(1 << 63), (1 << 63) - 1)),
            ("float", st.floats(width=32)),
            ("double", st.floats()),
            ("bytes", st.binary(max_size=9)),
            ("string", st.text(max_size=9)),
            ({"type": "string", "logicalType": "uuid"}, st.uuids().map(str)),
        ]
        return simple[kind]
    if kind == 8:
        symbols = draw(st.lists(st.sampled_from("ABCDEFG"), min_size=1, unique=True))
        schema: Any = {"type": "enum", "name": _name(names, "E"), "symbols": symbols}
        return schema, st.sampled_from(symbols)
    if kind == 9:
        size = draw(st.integers(1, 20))
        schema = {"type": "fixed", "name": _name(names, "F"), "size": size}
        return schema, st.binary(min_size=size, max_size=size)
    if kind == 10:
        schema = {"type": "fixed", "name": _name(names, "F"), "size": 16, "logicalType": "uuid"}
        return schema, st.binary(min_size=16, max_size=16)
    if kind == 11:
        return _decimal(draw, names)
    if kind == 12:
        return _logical("int", draw(st.sampled_from(["date", "time-millis"])))
    return _logical("long", draw(st.sampled_from(sorted(set(LOGICAL) - {"date", "time-millis"}))))


@st.composite
def types(draw: st.DrawFn, names: list[int], depth: int = 0) -> Pair:
    """A type, and a strategy of its values as fastavro writes them without logical types."""
    kind = draw(st.integers(0, 9 if depth < 3 else 4))
    if kind <= 4:
        return draw(scalars(names))
    if kind == 5:
        return draw(records(names, depth + 1))
    if kind == 6:
        schema, values = draw(types(names, depth + 1))
        return {"type": "array", "items": schema}, st.lists(values, max_size=4)
    if kind == 7:
        schema, values = draw(types(names, depth + 1))
        return {"type": "map", "values": schema}, st.dictionaries(
            st.text(max_size=3), values, max_size=3
        )
    if kind == 8:
        return ["null", "long", "string", "boolean"], st.none() | st.integers(
            -(1 << 63), (1 << 63) - 1
        ) | st.text(max_size=3) | st.booleans()
    schema, values = draw(
        types(names, depth + 1).filter(lambda pair: not isinstance(pair[0], list))
    )
    return draw(st.permutations(["null", schema])), st.none() | values


@st.composite
def records(draw: st.DrawFn, names: list[int], depth: int = 0) -> Pair:
    fields = [draw(types(names, depth + 1)) for _ in range(draw(st.integers(1, 5)))]
    schema = {
        "type": "record",
        "name": _name(names, "R"),
        "fields": [{"name": f"f{i}", "type": kind} for i, (kind, _) in enumerate(fields)],
    }
    return schema, st.fixed_dictionaries({f"f{i}": values for i, (_, values) in enumerate(fields)})


def plain(node: Any) -> Any:
    """A schema without its logical types: fastavro then shows what the bytes hold."""
    if isinstance(node, list):
        return [plain(each) for each in node]
    if isinstance(node, dict):
        return {key: plain(each) for key, each in node.items() if key != "logicalType"}
    return node


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, plain(schema), value)
    return out.getvalue()


def read(schema: Any, datum: bytes) -> Any:
    """What fastavro reads, as a row of columns. Raises what fastavro raises."""
    return shown(schema, fastavro.schemaless_reader(io.BytesIO(datum), plain(schema), None))


def shown(node: Any, value: Any) -> Any:
    if isinstance(node, list):
        others = [each for each in node if each != "null"]
        if value is None or len(others) == 1:
            return None if value is None else shown(others[0], value)
        chosen = {bool: "boolean", int: "long", str: "string"}[type(value)]
        return {f"member{i}": value if each == chosen else None for i, each in enumerate(others)}
    if isinstance(node, str):
        return value
    if node["type"] == "record":
        return {
            field["name"]: shown(field["type"], value[field["name"]]) for field in node["fields"]
        }
    if node["type"] == "array":
        return [shown(node["items"], each) for each in value]
    if node["type"] == "map":
        return {key: shown(node["values"], each) for key, each in value.items()}
    return _logical_value(node, value)


def _logical_value(node: Any, value: Any) -> Any:
    match node.get("logicalType"):
        case "decimal":
            number = int.from_bytes(value, "big", signed=True)
            return Decimal(number).scaleb(-node["scale"], Context(prec=100))
        case "date":
            return dt.date(1970, 1, 1) + dt.timedelta(days=value)
        case "uuid" if node["type"] == "fixed":
            return str(uuid.UUID(bytes=value))
        case "timestamp-millis":
            return _EPOCH + dt.timedelta(milliseconds=value)
        case "timestamp-nanos":
            return _EPOCH + dt.timedelta(microseconds=value // 1000)
        case "timestamp-micros" | "local-timestamp-micros":
            return _EPOCH + dt.timedelta(microseconds=value)
    return value
