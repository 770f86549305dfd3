"""Valid values of every format of values, with all that a format has, to be damaged by tests."""

import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fastavro
from google.protobuf.json_format import ParseDict

from lakehead.lake.tables.values.decoder import ValueSpec
from lakehead.lake.tables.values.protobuf_schema import compile_proto, message_named
from tests.support.protobuf_values import message_class
from tests.support.schema_registry import Schemas

COUNT = 12

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "l", "type": ["null", "long"]},
        {"name": "s", "type": "string"},
        {"name": "b", "type": ["bytes", "null"]},
        {"name": "d", "type": "double"},
        {"name": "t", "type": "boolean"},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 5}},
        {"name": "a", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "u", "type": ["null", "string", "long", "float", {"type": "map", "values": "R2"}]},
        {"name": "n", "type": {"type": "bytes"}},
    ],
}
_R2 = {"type": "record", "name": "R2", "fields": [{"name": "x", "type": ["null", "double"]}]}
AVRO["fields"][10]["type"][4]["values"] = _R2
AVRO_DECIMAL = json.loads(json.dumps(AVRO))
AVRO_DECIMAL["fields"][11]["type"] |= {"logicalType": "decimal", "precision": 12, "scale": 2}

PROTO = """
syntax = "proto2";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message M {
  enum E { A = 0; B = 1; }
  optional int32 i = 1;
  optional sint64 l = 2;
  optional string s = 3;
  optional fixed64 x = 4;
  optional float d = 5;
  repeated E e = 6 [packed = true];
  repeated M.Inner in = 7;
  map<string, Inner> m = 8;
  oneof o { string os = 9; group Og = 10 { repeated int32 y = 1; } Inner oi = 11; }
  optional google.protobuf.Timestamp at = 12;
  optional google.protobuf.Struct js = 13;
  optional google.protobuf.BytesValue w = 14;
  repeated group Line = 15 { optional string sku = 1; optional bytes raw = 2; }
  optional M again = 16;
  message Inner { repeated sint32 p = 1; optional bool t = 2; }
}
"""

JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "i": {"type": "integer"},
        "d": {"type": "number"},
        "s": {"type": "string"},
        "t": {"type": ["null", "boolean"]},
        "at": {"type": "string", "format": "date-time"},
        "raw": {"type": "string", "contentEncoding": "base64"},
        "day": {"type": "integer", "title": "io.debezium.time.Date"},
        "o": {
            "type": "object",
            "properties": {"x": {"type": "array", "items": {"type": "number"}}},
        },
        "a": {
            "type": "array",
            "items": {"type": "object", "properties": {"k": {"type": "string"}}},
        },
    },
}
JSON_DDL = (
    "i BIGINT, d DOUBLE, s STRING, t BOOLEAN, at TIMESTAMP, raw STRING, day INT, "
    "o STRUCT<x: ARRAY<DOUBLE>>, a ARRAY<STRUCT<k: STRING>>"
)

IMAGE = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", IMAGE]},
        {"name": "after", "type": ["null", "Value"]},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [{"name": "lsn", "type": ["null", "long"]}],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
    ],
}
_CONNECT_IMAGE = {
    "type": "struct",
    "fields": [
        {"type": "int64", "field": "id"},
        {"type": "string", "optional": True, "field": "name"},
    ],
}
CONNECT = {
    "type": "struct",
    "fields": [{**_CONNECT_IMAGE, "field": "before"}, {**_CONNECT_IMAGE, "field": "after"}],
}
_JSON_IMAGE = {
    "oneOf": [
        {"type": "null"},
        {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
        },
    ]
}
JSON_ENVELOPE = {
    "type": "object",
    "properties": {
        "before": _JSON_IMAGE,
        "after": _JSON_IMAGE,
        "source": {"type": "object", "properties": {"lsn": {"type": "integer"}}},
        "op": {"type": "string"},
        "ts_ms": {"type": "integer"},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Values of one declaration, all valid."""

    spec: ValueSpec
    values: tuple[bytes, ...]


def samples(url: str, schemas: Schemas) -> dict[str, Sample]:
    """Return samples of every format, framed ones with their schemas in the registry."""
    rng = random.Random(5)
    avro = [_avro(AVRO, _avro_value(rng)) for _ in range(COUNT)]
    proto = [_proto(rng) for _ in range(COUNT)]
    objects = [_json(_json_value(rng)) for _ in range(COUNT)]
    changes = [_change(rng) for _ in range(COUNT)]
    bare = [_json(each) for each in changes]
    schema_of = {
        "avro": schemas.register("a", {"schema": json.dumps(AVRO_DECIMAL)}),
        "protobuf": schemas.register("p", {"schema": PROTO, "schemaType": "PROTOBUF"}),
        "json": schemas.register("j", {"schema": json.dumps(JSON_SCHEMA), "schemaType": "JSON"}),
        "envelope": schemas.register("d", {"schema": json.dumps(ENVELOPE)}),
        "json envelope": schemas.register(
            "e", {"schema": json.dumps(JSON_ENVELOPE), "schemaType": "JSON"}
        ),
    }

    def framed(name: str, values: list[bytes], place: bytes = b"") -> tuple[bytes, ...]:
        head = b"\x00" + schema_of[name].to_bytes(4, "big") + place
        return tuple(head + value for value in values)

    def spec(value_format: Any, **options: Any) -> ValueSpec:
        return ValueSpec(value_format=value_format, **options)

    return {
        "raw": Sample(spec=spec("raw"), values=tuple(objects)),
        "json": Sample(spec=spec("json", schema=JSON_DDL), values=tuple(objects)),
        "json variants": Sample(
            spec=spec("json", schema="i BIGINT, d VARIANT, s VARIANT, o VARIANT, a VARIANT"),
            values=tuple(objects),
        ),
        "json variant": Sample(spec=spec("json", schema="VARIANT"), values=tuple(objects)),
        "json texts": Sample(
            spec=spec("json", schema="i VARIANT, o VARIANT", variants_as_text=True),
            values=tuple(objects),
        ),
        "json by id": Sample(spec=spec("json", registry=url), values=framed("json", objects)),
        "avro": Sample(spec=spec("avro", schema=json.dumps(AVRO_DECIMAL)), values=tuple(avro)),
        "avro by id": Sample(spec=spec("avro", registry=url), values=framed("avro", avro)),
        "protobuf": Sample(spec=spec("protobuf", schema=PROTO, message="M"), values=tuple(proto)),
        "protobuf by id": Sample(
            spec=spec("protobuf", registry=url), values=framed("protobuf", proto, b"\x00")
        ),
        "debezium": Sample(spec=spec("debezium"), values=tuple(bare)),
        "debezium with schema": Sample(
            spec=spec("debezium"),
            values=tuple(_json({"schema": CONNECT, "payload": each}) for each in changes),
        ),
        "debezium json by id": Sample(
            spec=spec("debezium", registry=url), values=framed("json envelope", bare)
        ),
        "debezium by id": Sample(
            spec=spec("debezium", registry=url),
            values=framed("envelope", [_avro(ENVELOPE, each) for each in changes]),
        ),
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def _some(rng: random.Random, make: Callable[[], Any], most: int = 3) -> list[Any]:
    return [make() for _ in range(rng.randrange(most + 1))]


def _word(rng: random.Random) -> str:
    return "".join(rng.choice('abé"\\𝄞/') for _ in range(rng.randrange(8)))


def _avro_value(rng: random.Random) -> Any:
    return {
        "i": rng.randrange(-(1 << 31), 1 << 31),
        "l": rng.choice([None, rng.randrange(-(1 << 63), 1 << 63)]),
        "s": _word(rng),
        "b": rng.choice([None, rng.randbytes(rng.randrange(9))]),
        "d": rng.uniform(-9, 9),
        "t": rng.random() < 0.5,
        "e": rng.choice("AB"),
        "f": rng.randbytes(5),
        "a": _some(rng, lambda: rng.choice([None, _word(rng)])),
        "m": {str(i): _some(rng, lambda: rng.randrange(99)) for i in range(rng.randrange(3))},
        "u": rng.choice([None, _word(rng), 7, 0.5, {"k": {"x": 0.5}, "l": {"x": None}}]),
        "n": rng.randrange(-(10**11), 10**11).to_bytes(8, "big", signed=True),
    }


def _proto(rng: random.Random) -> bytes:
    made = message_class(message_named(compile_proto(PROTO), "M"))

    def inner() -> Any:
        return {"p": _some(rng, lambda: rng.randrange(-99, 99)), "t": rng.random() < 0.5}

    def value(depth: int) -> Any:
        given: dict[str, Any] = {
            "i": rng.randrange(-9, 9),
            "l": rng.randrange(-(1 << 62), 1 << 62),
            "s": _word(rng),
            "x": rng.randrange(1 << 64),
            "d": 0.5,
            "e": _some(rng, lambda: rng.choice("AB")),
            "in": _some(rng, inner),
            "m": {str(i): inner() for i in range(rng.randrange(3))},
            "at": "2026-11-22T01:02:03Z",
            "js": {"a": [1, None, {"b": _word(rng)}]},
            "w": "AAE=",
            "line": _some(rng, lambda: {"sku": _word(rng), "raw": "AAEC"}),
            **rng.choice([{"os": "x"}, {"og": {"y": [1, 2]}}, {"oi": inner()}, {}]),
        }
        chosen = {name: each for name, each in given.items() if rng.random() < 0.8}
        return chosen | ({"again": value(depth + 1)} if depth < 2 else {})

    content: bytes = ParseDict(value(0), made()).SerializeToString()
    return content


def _json_value(rng: random.Random) -> Any:
    given: dict[str, Any] = {
        "i": rng.randrange(-(1 << 63), 1 << 63),
        "d": rng.choice([0, -1.5e-7, rng.uniform(-9, 9), 12345678901234567890123]),
        "s": _word(rng),
        "t": rng.choice([None, True, False]),
        "at": rng.choice(["2026-11-22T01:02:03Z", "2026-11-22 01:02:03.000001+05:30"]),
        "raw": rng.choice(["", "AAE=", "AAECAwQF"]),
        "day": rng.randrange(20_000),
        "o": {"x": _some(rng, lambda: rng.uniform(-9, 9)), "more": {"y": [{}]}},
        "a": _some(rng, lambda: rng.choice([None, {"k": _word(rng)}])),
        "unknown": [{"a": "]"}],
    }
    return {name: each for name, each in given.items() if rng.random() < 0.9}


def _change(rng: random.Random) -> Any:
    op = rng.choice("crud")
    before, after = ({"id": rng.randrange(4), "name": _word(rng)} for _ in range(2))
    return {
        "before": before if op in "ud" else None,
        "after": after if op != "d" else None,
        "source": {"lsn": rng.choice([None, 7])},
        "op": op,
        "ts_ms": rng.randrange(10**12),
    }
