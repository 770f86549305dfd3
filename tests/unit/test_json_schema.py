"""What a JSON Schema says of types as columns, and what it leaves open refused by name."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.tables.ddl import parse_schema, to_ddl
from lakehead.lake.tables.values.decoder import UnusableSchema
from lakehead.lake.tables.values.json_program import Written, compile_json, fitting_forms
from lakehead.lake.tables.values.json_schema import read_json_schema
from tests.support.repetitions import examples


def columns(properties: Any, **others: Any) -> str:
    schema = {"type": "object", "properties": properties, **others}
    return to_ddl(read_json_schema(json.dumps(schema)).columns)


STRING = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, "BIGINT"),
        ({"type": "integer", "connect.type": "int16"}, "INT"),
        ({"type": "number"}, "DOUBLE"),
        ({"type": ["integer", "number", "null"]}, "DOUBLE"),
        ({"type": "boolean"}, "BOOLEAN"),
        (STRING, "STRING"),
        ({"type": ["null", "string"]}, "STRING"),
        ({"type": "string", "format": "date-time"}, "TIMESTAMP"),
        ({"type": "string", "format": "date"}, "DATE"),
        ({"type": "string", "format": "email", "minLength": 3}, "STRING"),
        ({"type": "string", "contentEncoding": "base64"}, "BINARY"),
        ({"enum": ["a", "b", None]}, "STRING"),
        ({"const": 3}, "BIGINT"),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, "BIGINT"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "BOOLEAN"),
        ({"oneOf": [{"const": "a"}, {"const": "b"}], "type": "string"}, "STRING"),
        ({"type": "array", "items": {"type": "number"}}, "ARRAY<DOUBLE>"),
        ({"type": "array", "items": {"properties": {"x": STRING}}}, "ARRAY<STRUCT<x: STRING>>"),
        ({"properties": {"x": {"type": "integer"}, "y": False}}, "STRUCT<x: BIGINT>"),
        (
            {"allOf": [{"properties": {"x": STRING}}, {"properties": {"y": STRING}}]},
            "STRUCT<x: STRING, y: STRING>",
        ),
        (
            {"properties": {"x": STRING}, "anyOf": [{"required": ["x"]}, {"minProperties": 2}]},
            "STRUCT<x: STRING>",
        ),
        ({"$ref": "#/$defs/place"}, "STRUCT<gate: STRING, next: STRUCT<a/b: STRING>>"),
    ],
)
def test_types(schema: Any, kind: str) -> None:
    place = {"properties": {"gate": STRING, "next": {"$ref": "#/$defs/sl~1ash"}}}
    inner = {"type": "object", "properties": {"a/b": STRING}}
    found = columns({"f": schema}, **{"$defs": {"place": place, "sl/ash": inner}})
    assert found.replace("`", "") == f"f {kind}"


def test_types_of_kafka_connect_and_how_they_are_written() -> None:
    connect = "org.apache.kafka.connect.data"
    decimal = {"title": f"{connect}.Decimal", "connect.parameters": {"scale": "2"}}
    found = read_json_schema(
        json.dumps(
            {
                "type": "object",
                "properties": {
                    "day": {"type": "integer", "title": f"{connect}.Date"},
                    "at": {"type": "integer", "title": f"{connect}.Timestamp"},
                    "price": {"type": "number", **decimal},
                    "cost": {"type": "string", **decimal},
                    "deep": {
                        "type": "array",
                        "items": {"type": "string", "connect.type": "bytes"},
                    },
                },
            }
        )
    )
    assert to_ddl(found.columns) == (
        "day DATE, at TIMESTAMP, price DECIMAL(38, 2), cost DECIMAL(38, 2), deep ARRAY<BINARY>"
    )
    assert found.forms == {
        ("day",): Written(type=pa.date32()),
        ("at",): Written(type=found.columns.field("at").type, numerator=1000),
        ("cost",): Written(type=pa.decimal128(38, 2)),
        ("deep", "[]"): Written(type=pa.binary()),
    }


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": ["string", "integer"]}, "field f may be integer or string"),
        ({}, "field f may be anything"),
        (True, "field f may be anything"),
        ({"type": "object"}, "field f is an object that names no fields"),
        ({"type": "object", "additionalProperties": STRING}, "field f is an object that names no"),
        ({"type": "array"}, "field f is a list of anything"),
        ({"type": "array", "items": [STRING]}, "field f is a list with items of several types"),
        ({"type": "array", "items": {"type": "array"}}, r"field f\[\] is a list of anything"),
        ({"oneOf": [STRING, {"type": "integer"}]}, "field f is one of several types"),
        ({"type": "integer", "oneOf": [STRING, {"const": "x"}]}, "is of a type and of another"),
        ({"$ref": "#"}, r"field f contains itself \(by #\)"),
        ({"properties": {"g": {"$ref": "#/properties/f"}}}, "field f.g.g contains itself"),
        ({"$ref": "other.json"}, "field f refers to other.json, which is not among"),
        ({"$ref": "#/nowhere"}, "no JSON Schema: 'nowhere'"),
        ({"$ref": "#part"}, "by an anchor"),
        ({"type": "text"}, "field f has the type 'text', which JSON does not have"),
        ({"properties": {"a b": STRING}}, "cannot have a column named 'a b'"),
        (7, "field f has an invalid schema"),
    ],
)
def test_what_is_no_column_is_refused_by_name(schema: Any, reason: str) -> None:
    with pytest.raises(UnusableSchema, match=reason):
        columns({"f": schema})


@pytest.mark.parametrize(
    "text", ["", "[", "7", '"x"', '{"type":"string"}', "{}", "[" * 100_000, '{"properties":7}']
)
def test_what_is_no_schema_of_objects_is_refused(text: str) -> None:
    with pytest.raises(UnusableSchema):
        read_json_schema(text)


def test_a_schema_that_grows_without_end_is_refused() -> None:
    names = [f"n{i}" for i in range(40)]
    defs: dict[str, Any] = {"n40": STRING}
    for name, inner in zip(names, [*names[1:], "n40"], strict=True):
        defs[name] = {"allOf": [{"$ref": f"#/$defs/{inner}"}, {"$ref": f"#/$defs/{inner}"}]}
    with pytest.raises(UnusableSchema, match="more than 10000 fields and parts of them"):
        columns({"f": {"$ref": "#/$defs/n0"}}, **{"$defs": defs})


KEYWORDS = ("type", "properties", "items", "$ref", "enum", "const", "allOf", "anyOf", "oneOf")
WORDS = st.sampled_from(
    ["object", "array", "string", "integer", "number", "null", "#", "#/properties/a", "date-time"]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*KEYWORDS, "a", "b", "format", "title", "connect.parameters"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@settings(max_examples=examples(300), deadline=None)
@given(ANYTHING, st.booleans())
def test_whatever_a_registry_holds_is_columns_or_refused(schema: Any, is_object: bool) -> None:
    given_schema = {"type": "object", "properties": {"f": schema}} if is_object else schema
    try:
        found = read_json_schema(json.dumps(given_schema))
    except UnusableSchema:
        return
    compile_json(found.columns, fitting_forms(found.forms, found.columns))


def test_references_to_other_schemas_by_name_and_by_their_id() -> None:
    place = {"$id": "https://example.com/place.json", "properties": {"gate": {"$ref": "#/$defs/g"}}}
    texts = {"place": json.dumps({**place, "$defs": {"g": STRING}})}
    by_name = {"properties": {"p": {"$ref": "place#/properties/gate"}, "q": {"$ref": "place"}}}
    by_id = {"$id": "https://example.com/x/y.json", "properties": {"p": {"$ref": "../place.json"}}}
    assert read_json_schema(json.dumps(by_name), texts).columns == parse_schema(
        "p STRING, q STRUCT<gate: STRING>"
    )
    assert read_json_schema(json.dumps(by_id), texts).columns == parse_schema(
        "p STRUCT<gate: STRING>"
    )
