"""Protobuf values by a registry's ids, with bytes of Confluent's own serializer."""

import warnings
from typing import Any

import pyarrow as pa
import pytest

from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.values.decoder import ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.lake.tables.values.protobuf_schema import compile_proto, message_named
from lakehead.storage.errors import SettingsError
from tests.support.protobuf_values import message_class
from tests.support.schema_registry import Schemas, serve_schemas

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what the client is built on
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

TEXT = """
syntax = "proto3";
package air;
message Flight {
  string carrier = 1;
  optional int32 delay = 2;
  message Leg { string from = 1; Leg next = 2; }
  repeated Leg legs = 3;
}
message Gate { string name = 1; }
message Loop { Loop inner = 1; int32 n = 2; }
"""


def framed(schema_id: int, indexes: bytes, message: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + indexes + message


def batch(*values: bytes | None) -> pa.RecordBatch:
    columns = [pa.nulls(len(values), pa.binary()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value"])


def made(name: str, /, **fields: Any) -> Any:
    return message_class(message_named(compile_proto(TEXT), name))(**fields)


def registered(schemas: Schemas) -> int:
    return schemas.register("flights", {"schema": TEXT, "schemaType": "PROTOBUF"})


def test_messages_of_confluents_serializer() -> None:
    with serve_schemas() as (url, schemas), SchemaRegistryClient({"url": url}) as client:
        flight = made("Flight", carrier="AA", delay=5, legs=[{"from": "JFK"}])
        context = SerializationContext("flights", MessageField.VALUE)
        serializer = ProtobufSerializer(type(flight), client, {"use.deprecated.format": False})
        value = serializer(flight, context)  # registers a descriptor in place of a text
        assert "message" not in schemas.by_id[100]["schema"]
        decoder = open_decoder(ValueSpec(value_format="protobuf", registry=url))
        sample = batch(value, None)
        schema = decoder.schema_of(sample)
        assert schema == parse_schema(
            "carrier STRING, delay INT, legs ARRAY<STRUCT<from: STRING, next: BINARY>>"
        )
        found = decoder.decode(sample, schema)
        assert found.faults == ()
        assert found.columns.to_pylist() == [
            {"carrier": "AA", "delay": 5, "legs": [{"from": "JFK", "next": None}]},
            {"carrier": None, "delay": None, "legs": None},
        ]


def test_each_value_names_its_message() -> None:
    with serve_schemas() as (url, schemas):
        number = registered(schemas)
        gate = made("Gate", name="B7").SerializeToString()
        leg = made("Flight.Leg", **{"from": "JFK"}).SerializeToString()
        decoder = open_decoder(ValueSpec(value_format="protobuf", registry=url))
        sample = batch(
            framed(number, b"\x02\x02", gate),
            framed(number, b"\x04\x00\x00", leg),
            framed(number, b"\x00", b""),
            framed(number, b"\x02\x12", gate),
            framed(number, b"", b""),
            framed(number, b"\xff" * 99, b""),
            framed(9999, b"\x00", b""),
            b"bare",
            framed(number, b"\x02\x02", b"\x0a\x09"),
        )
        found = decoder.decode(sample, parse_schema("name STRING, from STRING"))
        assert found.columns.to_pylist() == [
            {"name": "B7", "from": None},
            {"name": None, "from": "JFK"},
            {"name": None, "from": None},
        ]
        assert [(fault.row, fault.error, fault.schema_id) for fault in found.faults] == [
            (3, "unusable_schema", number),
            (4, "unframed", number),
            (5, "unframed", number),
            (6, "unknown_schema", 9999),
            (7, "unframed", -1),
            (8, "malformed", number),
        ]
        assert found.found is not None
        assert {"carrier", "delay", "legs"} <= set(found.found.names)


def test_a_message_that_is_named_is_the_only_one() -> None:
    with serve_schemas() as (url, schemas):
        number = registered(schemas)
        spec = ValueSpec(value_format="protobuf", registry=url, message="Gate")
        gate = framed(number, b"\x02\x02", made("Gate", name="B7").SerializeToString())
        found = open_decoder(spec).decode(
            batch(gate, framed(number, b"\x00", b"")), parse_schema("name STRING")
        )
        assert found.columns.to_pylist() == [{"name": "B7"}]
        assert [(f.row, f.reason) for f in found.faults] == [
            (1, f"schema {number}: the value is a air.Flight, not a Gate")
        ]


def test_imports_come_from_references() -> None:
    with serve_schemas() as (url, schemas):
        schemas.register(
            "place",
            {
                "schema": 'syntax = "proto3"; message Place { string gate = 1; }',
                "schemaType": "PROTOBUF",
            },
        )
        text = 'syntax = "proto3"; import "a/place.proto"; message Stop { Place at = 1; }'
        reference = {"name": "a/place.proto", "subject": "place", "version": 1}
        number = schemas.register(
            "stop", {"schema": text, "schemaType": "PROTOBUF", "references": [reference]}
        )
        decoder = open_decoder(ValueSpec(value_format="protobuf", registry=url))
        sample = batch(framed(number, b"\x00", b"\x0a\x04\x0a\x02B7"))
        found = decoder.decode(sample, decoder.schema_of(sample))
        assert found.columns.to_pylist() == [{"at": {"gate": "B7"}}]


@pytest.mark.parametrize(
    ("text", "message", "reason"),
    [
        ("syntax = 3;", "", "no Protobuf schema: 1:"),
        (TEXT, "", "more than one message, and none is named: it has air.Flight"),
        (TEXT, "Ship", "no message 'Ship'"),
        ('syntax = "proto3"; import "x.proto"; message A { X x = 1; }', "", "x.proto"),
        (
            'syntax = "proto2"; message A { optional group G = 1 { optional group H = 2 { } } }',
            "A",
            "field A.G.h is a group that contains itself, or has no fields",
        ),
        ("", "", "more than one message, and none is named: it has none"),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused(text: str, message: str, reason: str) -> None:
    if not text:
        text = 'syntax = "proto3";'
    with pytest.raises(SettingsError, match=reason):
        open_decoder(ValueSpec(value_format="protobuf", schema=text, message=message))


def test_a_name_of_an_import_cannot_leave_its_folder() -> None:
    with serve_schemas() as (url, schemas):
        schemas.register("p", {"schema": "x", "schemaType": "PROTOBUF"})
        reference = {"name": "../../escaped.proto", "subject": "p", "version": 1}
        number = schemas.register(
            "s", {"schema": TEXT, "schemaType": "PROTOBUF", "references": [reference]}
        )
        found = open_decoder(ValueSpec(value_format="protobuf", registry=url)).decode(
            batch(framed(number, b"\x00", b"")), parse_schema("carrier STRING")
        )
        assert [fault.error for fault in found.faults] == ["unusable_schema"]


def test_a_message_that_contains_itself_is_its_bytes() -> None:
    inner = made("Loop", n=1)
    value = made("Loop", inner=inner, n=2).SerializeToString()
    decoder = open_decoder(ValueSpec(value_format="protobuf", schema=TEXT, message="air.Loop"))
    found = decoder.decode(batch(value), decoder.schema_of(batch(value)))
    assert found.columns.to_pylist() == [{"inner": inner.SerializeToString(), "n": 2}]
