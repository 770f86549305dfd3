"""Groups, oneofs, maps and Google's well-known messages as columns."""

import base64
import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.json_format import ParseDict

from lakehead.lake.tables.ddl import to_ddl
from lakehead.lake.tables.values.decoder import Decoded, UnusableSchema, ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.lake.tables.values.protobuf_schema import compile_proto, message_named
from tests.support.protobuf_values import message_class

KNOWN = """
syntax = "proto3";
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/empty.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message M {
  google.protobuf.Timestamp at = 1;
  google.protobuf.Duration took = 2;
  google.protobuf.Int64Value count = 3;
  repeated google.protobuf.StringValue names = 4;
  google.protobuf.Struct meta = 5;
  repeated google.protobuf.Value any = 6;
  google.protobuf.ListValue list = 7;
  google.protobuf.Any other = 8;
  google.protobuf.Empty empty = 9;
  google.protobuf.FieldMask mask = 10;
  map<string, google.protobuf.Struct> by_name = 11;
  map<string, google.protobuf.Timestamp> times = 12;
  oneof choice { google.protobuf.Struct some = 13; int32 none = 14; }
}
"""
GROUPS = """
syntax = "proto2";
message M {
  optional int32 a = 1;
  repeated group Line = 2 {
    optional string sku = 1;
    optional group Price = 2 { optional double amount = 1; }
    repeated int32 tags = 3;
  }
  oneof choice { group Left = 3 { optional int32 x = 1; } string right = 4; }
  optional int32 z = 5;
}
"""


def decode(text: str, *values: bytes) -> Decoded:
    decoder = open_decoder(ValueSpec(value_format="protobuf", schema=text))
    columns = [pa.nulls(len(values), pa.binary()), pa.array(values, pa.binary())]
    batch = pa.RecordBatch.from_arrays(columns, names=["key", "value"])
    found = decoder.decode(batch, decoder.schema_of(batch))
    for column in found.columns.columns:
        column.validate(full=True)
    return found


def made(text: str, given: Any) -> bytes:
    message = message_class(message_named(compile_proto(text), "M"))()
    content: bytes = ParseDict(given, message).SerializeToString()
    return content


def test_well_known_messages() -> None:
    meta = {"z": [1.5, "é", None, True, {"y": {}}], "a": -0.0}
    found = decode(
        KNOWN,
        made(
            KNOWN,
            {
                "at": "2026-11-22T01:02:03.000004Z",
                "took": "-1.5s",
                "count": "0",
                "names": ["", "x"],
                "meta": meta,
                "any": [None, "a", 2, [], {"b": False}],
                "list": [1, [2]],
                "mask": "a,b",
                "byName": {"k": {"v": 1}},
                "times": {"t": "1970-01-01T00:00:01Z"},
                "some": {},
            },
        ),
        b"",
    )
    assert found.faults == ()
    assert to_ddl(found.columns.schema) == (
        "at TIMESTAMP, took STRUCT<seconds: BIGINT, nanos: INT>, count BIGINT, names ARRAY<STRING>,"
        " meta STRING, any ARRAY<STRING>, list STRING, other STRUCT<type_url: STRING, value: "
        "BINARY>, empty BINARY, mask STRUCT<paths: ARRAY<STRING>>, by_name MAP<STRING, STRING>, "
        "times MAP<STRING, TIMESTAMP>, some STRING, none INT"
    )
    row, empty = found.columns.to_pylist()
    assert row["at"] == dt.datetime(2026, 11, 22, 1, 2, 3, 4, tzinfo=dt.UTC)
    assert row["took"] == {"seconds": -1, "nanos": -500_000_000}
    assert (row["count"], row["names"]) == (0, ["", "x"])
    assert json.loads(row["meta"]) == meta
    assert row["meta"].startswith('{"a":-0.0,"z":[1.5,"é",null,')
    assert row["any"] == ["null", '"a"', "2.0", "[]", '{"b":false}']
    assert row["list"] == "[1.0,[2.0]]"
    assert (row["other"], row["empty"]) == (None, None)
    assert row["mask"] == {"paths": ["a", "b"]}
    assert row["by_name"] == [("k", '{"v":1.0}')]
    assert row["times"] == [("t", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC))]
    assert (row["some"], row["none"]) == ("{}", None)
    lists = {"names", "any", "by_name", "times"}
    assert empty == {name: [] if name in lists else None for name in row}


def test_a_struct_that_is_none_is_a_fault_of_its_row() -> None:
    good = made(KNOWN, {"meta": {"a": 1}})
    bad = b"\x2a\x02\x0a\x05"
    endless = b"\x32\x09\x11" + b"\x00" * 6 + b"\xf0\x7f"
    found = decode(KNOWN, good, bad, good, endless)
    assert [(fault.row, fault.reason) for fault in found.faults] == [
        (1, "field meta: bytes that are not JSON of google.protobuf.Struct"),
        (3, "field any[]: bytes that are not JSON of google.protobuf.Value"),
    ]
    assert found.columns.column("meta").to_pylist() == ['{"a":1.0}'] * 2


def test_groups_are_structs() -> None:
    lines = [{"sku": "a", "price": {"amount": 0.5}, "tags": [1, 2]}, {}]
    found = decode(
        GROUPS,
        made(GROUPS, {"a": 1, "line": lines, "left": {"x": 3}, "z": 5}),
        made(GROUPS, {"right": "r"}),
        made(GROUPS, {"left": {"x": 3}}) + made(GROUPS, {"right": "r"}),
        made(GROUPS, {"left": {"x": 3}}) + made(GROUPS, {"left": {}}),
    )
    assert found.faults == ()
    none: dict[str, Any] = {"a": None, "line": [], "left": None, "right": None, "z": None}
    assert found.columns.to_pylist() == [
        {
            "a": 1,
            "line": [lines[0], {"sku": None, "price": None, "tags": []}],
            "left": {"x": 3},
            "right": None,
            "z": 5,
        },
        {**none, "right": "r"},
        {**none, "right": "r"},
        {**none, "left": {"x": 3}},
    ]


@pytest.mark.parametrize(
    "value",
    [
        b"\x13",  # begins and never ends
        b"\x13\x1c",  # ends as another
        b"\x14",  # ends without a beginning
        b"\x13\x13\x14",  # the outer one never ends
        b"\x13\x0a\x05\x14",  # ends inside a string
        b"\x1b\x08\x01",
        b"\x2b\x14",  # an unknown one that ends as another
        b"\x13" * 200 + b"\x14" * 200,
    ],
)
def test_a_group_that_does_not_end_as_it_began_is_a_fault(value: bytes) -> None:
    good = made(GROUPS, {"a": 7, "line": [{"sku": "x"}]})
    found = decode(GROUPS, good, value, good)
    assert [fault.row for fault in found.faults] == [1]
    line: dict[str, Any] = {"sku": "x", "price": None, "tags": []}
    assert found.columns.column("line").to_pylist() == [[line], [line]]


def test_delimited_messages_of_editions_are_groups() -> None:
    text = """
    edition = "2023";
    message M {
      message In { int32 x = 1; }
      In plain = 1;
      In wrapped = 2 [features.message_encoding = DELIMITED];
    }
    """
    descriptor = DescriptorProto()
    message_named(compile_proto(text), "M").CopyToProto(descriptor)
    assert descriptor.field[1].type == FieldDescriptorProto.TYPE_MESSAGE
    content = made(text, {"plain": {"x": 1}, "wrapped": {"x": 2}})
    assert content == b"\x0a\x02\x08\x01\x13\x08\x02\x14"
    found = decode(text, content)
    assert found.columns.to_pylist() == [{"plain": {"x": 1}, "wrapped": {"x": 2}}]


def test_files_that_are_imported_on_many_ways_are_taken_once() -> None:
    """On each way there would be no end: each file imports the next two."""
    count = 60
    files = []
    for number in range(count):
        near = [other for other in (number + 1, number + 2) if other < count]
        file = FileDescriptorProto(
            name=f"f{number}.proto",
            package=f"p{number}",
            syntax="proto3",
            dependency=[f"f{other}.proto" for other in near],
        )
        file.message_type.add(name="M")
        for place, other in enumerate(near, 1):
            file.message_type[0].field.add(
                name=f"m{other}",
                number=place,
                label=FieldDescriptorProto.LABEL_OPTIONAL,
                type=FieldDescriptorProto.TYPE_MESSAGE,
                type_name=f".p{other}.M",
            )
        files.append((file.name, base64.b64encode(file.SerializeToString()).decode()))
    (_, first), *others = files
    compiled = compile_proto(first, tuple(others))
    assert [each.name for each in compiled.dependencies] == ["f1.proto", "f2.proto"]


def test_an_import_that_google_does_not_have_is_refused() -> None:
    file = FileDescriptorProto(syntax="proto3", dependency=["google/protobuf/nonesuch.proto"])
    file.message_type.add(name="M")
    with pytest.raises(UnusableSchema):
        compile_proto(base64.b64encode(file.SerializeToString()).decode())
