"""The reason of a fault names the field, and says of what kind its value is, in every format."""

import json
from collections.abc import Sequence

import pyarrow as pa
import pytest

from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.values.decoder import ValueSpec
from lakehead.lake.tables.values.formats import open_decoder

AVRO = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "name", "type": ["null", "string"]},
            {"name": "tags", "type": {"type": "map", "values": "string"}},
            {
                "name": "paid",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0},
            },
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
)
PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Step { google.protobuf.Timestamp at = 1; string note = 2; }
message Value { Step first = 1; repeated Step steps = 2; map<string, string> tags = 3; }
"""
BEYOND = b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
"""Protobuf: a Timestamp of 2^63 - 1 seconds."""
NINES = b"\xfe" + b"\xff" * 8 + b"\x01"
"""Avro: the long 2^63 - 1."""


def reasons(spec: ValueSpec, values: Sequence[bytes], schema: str = "") -> list[str]:
    columns = [pa.nulls(len(values), pa.binary()), pa.array(values, pa.binary())]
    batch = pa.RecordBatch.from_arrays(columns, names=["key", "value"])
    decoder = open_decoder(spec)
    wanted = parse_schema(schema) if schema else decoder.schema_of(batch)
    found = decoder.decode(batch, wanted)
    assert [fault.row for fault in found.faults] == list(range(len(values)))
    return [fault.reason for fault in found.faults]


@pytest.mark.parametrize(
    ("kind", "value", "held"),
    [
        ("DATE", '"soon"', "text"),
        ("DATE", "5", "a number"),
        ("TIMESTAMP", '"soon"', "text"),
        ("TIMESTAMP", "[]", "an array"),
        ("DECIMAL(20, 4)", '"much"', "text"),
        ("DECIMAL(20, 4)", "true", "a boolean"),
        ("BIGINT", "1.5", "a number"),
        ("BIGINT", "9223372036854775808", "a number"),
        ("INT", '"1"', "text"),
        ("INT", '"é"', "text"),
        ("BOOLEAN", "-1", "a number"),
        ("DOUBLE", "false", "a boolean"),
        ("STRING", "{}", "an object"),
        ("STRING", "1", "a number"),
        ("ARRAY<INT>", "{}", "an object"),
        ("STRUCT<x: INT>", "[]", "an array"),
    ],
)
def test_a_json_fault_names_its_field_and_the_kind_of_its_value(
    kind: str, value: str, held: str
) -> None:
    schema = f"other INT, a {kind}, s STRUCT<l: ARRAY<STRUCT<b: {kind}>>>"
    values = [f'{{"a": {value}}}', f'{{"s":{{"l":[null,{{}},{{"b":{value}}}]}}}}']
    assert reasons(ValueSpec(value_format="json"), [text.encode() for text in values], schema) == [
        f"field a: {held} that is not {kind}",
        f"field s.l[].b: {held} that is not {kind}",
    ]


def test_a_number_beyond_double_names_its_field() -> None:
    values = [b'{"a":1e999}', b'{"l":[0,-1e999]}']
    assert reasons(ValueSpec(value_format="json"), values, "a DOUBLE, l ARRAY<DOUBLE>") == [
        "field a: a number beyond DOUBLE",
        "field l[]: a number beyond DOUBLE",
    ]


def test_an_avro_fault_names_its_field() -> None:
    good_paid, good_at = b"\x02\x01", b"\x00"
    values = [
        b"\x02\x02\xff" + b"\x00" + good_paid + good_at,
        b"\x00" + b"\x02\x02k\x02\xff\x00" + good_paid + good_at,
        b"\x00" + b"\x00" + b"\x04\x7f\xff" + good_at,
        b"\x00" + b"\x00" + good_paid + NINES,
    ]
    assert reasons(ValueSpec(value_format="avro", schema=AVRO), values) == [
        "field name: text that is not UTF-8",
        "field tags[].value: text that is not UTF-8",
        "field paid: a number beyond DECIMAL(2, 0)",
        "field at: a time that no calendar holds",
    ]


def test_a_protobuf_fault_names_its_field() -> None:
    step = b"\x0a" + bytes([len(BEYOND)]) + BEYOND
    values = [
        b"\x0a" + bytes([len(step)]) + step,
        b"\x12\x00\x12" + bytes([len(step)]) + step,
        b"\x0a\x03\x12\x01\xff",
        b"\x1a\x06\x0a\x01k\x12\x01\xff",
    ]
    assert reasons(ValueSpec(value_format="protobuf", schema=PROTO, message="Value"), values) == [
        "field first.at: a time that no calendar holds",
        "field steps[].at: a time that no calendar holds",
        "field first.note: text that is not UTF-8",
        "field tags[].value: text that is not UTF-8",
    ]


def test_a_debezium_fault_names_its_field() -> None:
    values = [
        {"op": "c", "after": {"at": "soon"}},
        {"op": "u", "before": {"id": "x"}, "after": {"id": 1}},
    ]
    encoded = [json.dumps(value).encode() for value in values]
    assert reasons(ValueSpec(value_format="debezium"), encoded, "id INT, at TIMESTAMP") == [
        "field after.at: text that is not TIMESTAMP",
        "field before.id: text that is not INT",
    ]
