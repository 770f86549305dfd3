"""The rules of compatibility, case by case, and the one form that equal schemas have."""

import json
import time
from typing import Any

import pytest

from lakehead.connectors.schema_registry.compatibility import Earlier, problems, schema_type
from lakehead.connectors.schema_registry.errors import InvalidSchema, RegistryError
from lakehead.connectors.schema_registry.parsed import NamedText, ParsedSchema
from lakehead.connectors.schema_registry.protobuf_schema import serialized
from lakehead.connectors.schema_registry.registry import ParsedSchemas
from lakehead.connectors.schema_registry.requested import read_version

TEXT, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}
OPEN: dict[str, Any] = {"type": "object"}


def parse(kind: str, text: Any, *others: NamedText, normalize: bool = False) -> ParsedSchema:
    given = text if isinstance(text, str) else json.dumps(text)
    return schema_type(kind).parse(given, others, normalize)


def kinds(kind: str, old: Any, new: Any) -> list[str]:
    """The kinds of what the new schema does not read of the old one's."""
    found = schema_type(kind).unreadable(parse(kind, new).model, parse(kind, old).model)
    return [each.split("'")[1] for each in found]


def props(base: dict[str, Any], **properties: Any) -> dict[str, Any]:
    return {**base, "properties": properties}


JSON_CASES: list[tuple[Any, Any, list[str]]] = [
    # objects: open, closed, and what lies between
    (props(OPEN, a=TEXT), props(OPEN, a=TEXT, b=TEXT), ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    (props(OPEN, a=TEXT), props(OPEN, a=TEXT, b={}), []),
    (props(OPEN, a=TEXT, b=TEXT), props(OPEN, a=TEXT), []),
    (props(CLOSED, a=TEXT), props(CLOSED, a=TEXT, b=TEXT), []),
    (
        props(CLOSED, a=TEXT, b=TEXT),
        props(CLOSED, a=TEXT),
        ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"],
    ),
    (
        props(CLOSED, a=TEXT),
        props({**CLOSED, "required": ["b"]}, a=TEXT, b=TEXT),
        ["REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"],
    ),
    (
        props(CLOSED, a=TEXT),
        props({**CLOSED, "required": ["b"]}, a=TEXT, b={**TEXT, "default": ""}),
        [],
    ),
    (props({**OPEN, "additionalProperties": TEXT}), props(OPEN, a=TEXT), []),
    (
        {**OPEN, "additionalProperties": TEXT},
        {**OPEN, "additionalProperties": TEXT, "properties": {"a": INTEGER}},
        ["TYPE_CHANGED", "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
    ),
    (
        {**CLOSED, "patternProperties": {"^x": TEXT}},
        {**CLOSED, "patternProperties": {"^x": TEXT}, "properties": {"xy": TEXT}},
        [],
    ),
    (props(OPEN, a=TEXT), props({**OPEN, "required": ["a"]}, a=TEXT), ["REQUIRED_ATTRIBUTE_ADDED"]),
    (props({**OPEN, "required": ["a"]}, a=TEXT), props(OPEN, a=TEXT), []),
    (OPEN, CLOSED, ["ADDITIONAL_PROPERTIES_REMOVED"]),
    (CLOSED, OPEN, []),
    # values
    (INTEGER, NUMBER, []),
    (NUMBER, INTEGER, ["TYPE_NARROWED"]),
    (TEXT, INTEGER, ["TYPE_CHANGED"]),
    (TEXT, {}, []),
    ({}, TEXT, ["TYPE_CHANGED"]),
    (False, TEXT, []),
    (TEXT, {**TEXT, "maxLength": 3}, ["MAX_LENGTH_ADDED"]),
    ({**TEXT, "maxLength": 3}, {**TEXT, "maxLength": 4}, []),
    ({**TEXT, "minLength": 3}, {**TEXT, "minLength": 4}, ["MIN_LENGTH_INCREASED"]),
    ({**TEXT, "pattern": "a"}, {**TEXT, "pattern": "b"}, ["PATTERN_CHANGED"]),
    ({**NUMBER, "multipleOf": 4}, {**NUMBER, "multipleOf": 2}, []),
    ({**NUMBER, "multipleOf": 0.2}, {**NUMBER, "multipleOf": 0.4}, ["MULTIPLE_OF_EXPANDED"]),
    ({"enum": ["a"]}, {"enum": ["b", "a"]}, []),
    ({"enum": ["a", 1]}, {"enum": ["a"]}, ["ENUM_ARRAY_NARROWED"]),
    # several types
    (TEXT, {"type": ["string", "null"]}, []),
    ({"type": ["string", "null"]}, TEXT, ["TYPE_CHANGED"]),
    ({"oneOf": [TEXT, OPEN]}, {"oneOf": [OPEN, TEXT, NUMBER]}, []),
    ({"oneOf": [TEXT, NUMBER]}, {"oneOf": [TEXT]}, ["SUM_TYPE_NARROWED"]),
    ({"allOf": [TEXT, {"maxLength": 3}]}, TEXT, []),
    ({"not": TEXT}, {"not": {"type": ["string", "null"]}}, ["NOT_TYPE_EXTENDED"]),
    ({"allOf": [{"enum": ["a"]}, TEXT]}, {"allOf": [TEXT]}, []),
    ({"allOf": [TEXT]}, {"allOf": [{"enum": ["a"]}, TEXT]}, ["PRODUCT_TYPE_EXTENDED"]),
    ({"oneOf": [TEXT]}, {"anyOf": [NUMBER, TEXT]}, []),
    ({"anyOf": [NUMBER, TEXT]}, {"oneOf": [TEXT]}, ["COMBINED_TYPE_CHANGED"]),
    ({"anyOf": [TEXT]}, {"allOf": [NUMBER, TEXT]}, ["COMBINED_TYPE_CHANGED"]),
    ({"allOf": [TEXT, TEXT]}, {"allOf": [TEXT]}, []),
    (TEXT, {"allOf": [NUMBER, TEXT]}, ["TYPE_CHANGED"]),
    # arrays
    ({"type": "array", "items": INTEGER}, {"type": "array", "items": NUMBER}, []),
    ({"type": "array", "items": NUMBER}, {"type": "array", "items": TEXT}, ["TYPE_CHANGED"]),
    (
        {"type": "array", "items": [TEXT], "additionalItems": False},
        {"type": "array", "items": [TEXT, TEXT], "additionalItems": False},
        [],
    ),
    ({"type": "array"}, {"type": "array", "uniqueItems": True}, ["UNIQUE_ITEMS_ADDED"]),
    ({"additionalItems": True}, {"additionalItems": False}, ["ADDITIONAL_ITEMS_REMOVED"]),
    (
        {"type": "array", "items": [TEXT, NUMBER], "additionalItems": False},
        {"type": "array", "items": [TEXT], "additionalItems": NUMBER},
        [],
    ),
    (
        {"type": "array", "prefixItems": [TEXT], "items": False},
        {"type": "array", "prefixItems": [NUMBER], "items": False},
        ["TYPE_CHANGED"],
    ),
    # references, into the schema and around
    ({"$ref": "#/definitions/t", "definitions": {"t": TEXT}}, TEXT, []),
    (props(OPEN, n={"$ref": "#"}), props(OPEN, n={"$ref": "#"}), []),
]


@pytest.mark.parametrize(("old", "new", "found"), JSON_CASES)
def test_json_schema(old: Any, new: Any, found: list[str]) -> None:
    assert kinds("JSON", old, new) == found


PROTO_CASES: list[tuple[str, str, list[str]]] = [
    ("int32 a = 1;", "int64 a = 1; string b = 2;", []),
    ("int32 a = 1; string b = 2;", "bool a = 1;", []),
    ("string a = 1;", "bytes z = 1;", []),
    ("int32 a = 1;", "sint32 a = 1;", ["FIELD_SCALAR_KIND_CHANGED"]),
    ("int32 a = 1;", "B a = 1;", ["FIELD_KIND_CHANGED"]),
    ("int32 a = 1;", "repeated int32 a = 1;", ["FIELD_NUMERIC_LABEL_CHANGED"]),
    ("string a = 1;", "repeated string a = 1;", []),
    ("map<string, int32> a = 1;", "map<string, int64> a = 1;", []),
    ("map<string, int32> a = 1;", "map<string, B> a = 1;", ["FIELD_KIND_CHANGED"]),
    (
        "message C { int32 i = 1; } C c = 1;",
        "B c = 1;",
        ["FIELD_NAMED_TYPE_CHANGED", "MESSAGE_REMOVED"],
    ),
    ("message C { int32 i = 1; }", "", ["MESSAGE_REMOVED"]),
    ("int32 a = 1;", "oneof o { int32 a = 1; int32 c = 3; }", []),
    (
        "int32 a = 1; int32 b = 2;",
        "oneof o { int32 a = 1; int32 b = 2; }",
        ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"],
    ),
    (
        "int32 a = 1; oneof o { int32 b = 2; }",
        "oneof o { int32 a = 1; int32 b = 2; }",
        ["FIELD_MOVED_TO_EXISTING_ONEOF"],
    ),
    ("oneof o { bool a = 1; bool b = 2; }", "oneof o { bool a = 1; }", ["ONEOF_FIELD_REMOVED"]),
    ("optional int32 a = 1;", "int32 a = 1;", []),
    ("enum E { X = 0; } E e = 1;", "int32 e = 1;", []),
]


def test_protobuf() -> None:
    """All cases in one file, a message for each: protoc is started twice and not for every case."""
    old, new = (
        'syntax = "proto3"; message B { int32 i = 1; } '
        + " ".join(f"message Case{i} {{ {case[side]} }}" for i, case in enumerate(PROTO_CASES))
        for side in (0, 1)
    )
    unreadable = schema_type("PROTOBUF").unreadable
    reasons = unreadable(parse("PROTOBUF", new).model, parse("PROTOBUF", old).model)
    for index, case in enumerate(PROTO_CASES):
        of_case = [each.split("'")[1] for each in reasons if f"#/Case{index}/" in each]
        assert of_case == case[2], case


def test_protobuf_messages_of_other_files_and_required_fields() -> None:
    old, new = (
        NamedText(name="o.proto", text=f'syntax="proto3"; package o; message O {{ {kind} i = 1; }}')
        for kind in ("int32", "string")
    )
    using = 'syntax="proto3"; import "o.proto"; message A { o.O o = 1; }'
    unreadable = schema_type("PROTOBUF").unreadable
    first, second = parse("PROTOBUF", using, old), parse("PROTOBUF", using, new)
    found = [each.split("'")[1] for each in unreadable(second.model, first.model)]
    assert found == ["FIELD_SCALAR_KIND_CHANGED", "FIELD_NAMED_TYPE_CHANGED"]
    bare = 'syntax = "proto2"; message A { optional int32 a = 1; }'
    more = 'syntax = "proto2"; message A { optional int32 a = 1; required int32 b = 2; }'
    assert kinds("PROTOBUF", bare, more) == ["REQUIRED_FIELD_ADDED"]
    assert kinds("PROTOBUF", more, bare) == ["REQUIRED_FIELD_REMOVED"]


def test_levels_say_who_reads_whom_and_how_far_back() -> None:
    def record(*fields: str) -> ParsedSchema:
        listed = [{"name": name, "type": "int"} for name in fields]
        return parse("AVRO", {"type": "record", "name": "R", "fields": listed})

    first, second = record("a"), record("a", "b")
    versions = [Earlier(version=1, schema=second), Earlier(version=2, schema=first)]
    outcomes = {
        level: not problems(level, record("a"), versions)
        for level in ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FULL")
    }
    assert outcomes == dict.fromkeys(outcomes, True)
    assert problems("FORWARD_TRANSITIVE", record("a"), versions)
    assert problems("FULL_TRANSITIVE", record("a"), versions)
    found = problems("BACKWARD", second, versions)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in found[0]
    assert found[1] == "{oldSchemaVersion: 2}"
    assert problems("FULL", parse("JSON", TEXT), versions)[0].startswith("Incompatible because")


def test_avro_is_written_as_javas_library_writes_it() -> None:
    given = """{"fields": [{"type": {"type": "int"}, "name": "x", "order": "ascending"},
        {"name": "u", "default": null, "type": ["null", {"name": "n.In", "type": "record",
        "fields": [], "aliases": ["n.Old"]}]}, {"name": "v", "type": "n.In", "doc": "d"}],
        "name": "n.R", "type": "record", "extra": 1, "doc": "it"}"""
    assert parse("AVRO", given).text == (
        '{"type":"record","name":"R","namespace":"n","doc":"it","fields":['
        '{"name":"x","type":"int"},'
        '{"name":"u","type":["null",{"type":"record","name":"In","fields":[],"aliases":["Old"]}],'
        '"default":null},{"name":"v","type":"In","doc":"d"}],"extra":1}'
    )


def test_a_proto_text_and_a_descriptor_are_one_schema() -> None:
    text = """// a comment
    syntax = "proto3"; package a.b; option java_package = "x";
    message M { message N { bytes b = 1; } map<string, N> m = 4; oneof w { int32 x = 5; }
      optional int32 z = 7 [json_name = "Z", deprecated = true]; reserved 20 to 30; E e = 1; }
    enum E { A = 0; B = -1; } service S { rpc R (M) returns (stream M); }"""
    first = parse("PROTOBUF", text)
    assert parse("PROTOBUF", serialized(first)).text == first.text
    assert parse("PROTOBUF", first.text).text == first.text
    assert "comment" not in first.text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AVRO", "{"),
        ("AVRO", '{"type":"record"}'),
        ("AVRO", '["int","int"]'),
        ("AVRO", '{"type":"fixed","name":"f","size":NaN}'),
        ("AVRO", "[" * 9000 + "]" * 9000),
        ("JSON", "[]"),
        ("JSON", '{"type":"foo"}'),
        ("JSON", '{"$ref":"#"}'),
        ("JSON", '{"$ref":"elsewhere.json"}'),
        ("JSON", '{"$ref":"http://127.0.0.1:9/x"}'),
        ("JSON", '{"maxLength":1e999}'),
        ("PROTOBUF", "message"),
        ("PROTOBUF", 'syntax="proto3"; import "x.proto";'),
    ],
)
def test_what_is_no_schema_is_refused_with_a_reason(kind: str, text: str) -> None:
    with pytest.raises(InvalidSchema, match=r"^no \w+"):
        parse(kind, text)


def test_a_pattern_that_takes_for_ever_elsewhere_does_not_here() -> None:
    old = {**CLOSED, "patternProperties": {"(a+)+$": TEXT}}
    new = {**old, "properties": {"a" * 5000 + "b": INTEGER}}
    assert kinds("JSON", old, new) == []


def test_types_that_double_at_each_level_are_compared_once() -> None:
    inner: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for depth in range(1, 40):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{depth - 1}"}]
        inner = {"type": "record", "name": f"R{depth}", "fields": fields}
    assert kinds("AVRO", inner, inner) == []


def test_records_that_all_refer_to_each_other_are_compared_in_time() -> None:
    """By every order of thirty records there would be no end."""
    names = [f"R{number}" for number in range(30)]
    defined: set[str] = set()

    def use(name: str) -> Any:
        if name in defined:
            return name
        defined.add(name)
        fields = [{"name": f"f{other}", "type": ["null", use(other)]} for other in names]
        return {"type": "record", "name": name, "fields": fields}

    schema = use("R0")
    text = json.dumps(schema)
    assert kinds("AVRO", schema, schema) == []
    # One that cannot be read, deep inside, makes all that lead to it unreadable.
    name, other = '"name": "R29", "fields": [', '{"name": "x", "type": "int"}, '
    changed = text.replace(name, name + other)
    assert changed != text
    assert set(kinds("AVRO", text, changed)) == {"MISSING_UNION_BRANCH"}


def test_unions_of_thousands_of_records_are_compared() -> None:
    """As topics with all events of a company have."""
    union = [{"type": "record", "name": f"E{number}", "fields": []} for number in range(3000)]
    assert kinds("AVRO", union, [*union, "null"]) == []
    assert kinds("AVRO", union, union[1:]) == ["MISSING_UNION_BRANCH"]


def test_a_branch_that_failed_does_not_count_for_what_rested_on_it() -> None:
    """A's comparison rests on B's, which fails after that: A inside C is compared again."""
    link = {"name": "b", "type": ["null", "B"]}
    a = {"type": "record", "name": "A", "fields": [link]}

    def schema(*more: Any) -> Any:
        b = {"type": "record", "name": "B", "fields": [{"name": "a", "type": ["null", a]}, *more]}
        fields = [
            {"name": "first", "type": ["null", b]},
            {"name": "second", "type": ["null", "A"]},
        ]
        return {"type": "record", "name": "C", "fields": fields}

    found = kinds("AVRO", schema(), schema({"name": "x", "type": "int"}))
    assert found == ["MISSING_UNION_BRANCH", "MISSING_UNION_BRANCH"]


D4 = "http://json-schema.org/draft-04/schema#"


def test_long_lists_of_values_are_checked_in_time() -> None:
    values: list[Any] = [each for number in range(20_000) for each in (number, str(number))]
    parse("JSON", {"$schema": D4, "enum": [*values, True, 1.5]})
    with pytest.raises(InvalidSchema, match="non-unique"):
        parse("JSON", {"$schema": D4, "enum": [*values, 7.0]})


@pytest.mark.parametrize("kinds", ["text and numbers", "numbers", "text and objects", "objects"])
@pytest.mark.parametrize("keyword", ["type", "required", "dependencies"])
def test_long_lists_of_other_things_than_a_keyword_takes_are_refused_in_time(
    keyword: str, kinds: str
) -> None:
    made: dict[str, list[Any]] = {
        "text": [str(number) for number in range(20_000)],
        "numbers": list(range(20_000)),
        "objects": [{"title": number} for number in range(20_000)],
    }
    values = [each for kind in kinds.split(" and ") for each in made[kind]]
    wrong: Any = {"x": values} if keyword == "dependencies" else values
    with pytest.raises(InvalidSchema):
        parse("JSON", {keyword: wrong})


@pytest.mark.parametrize("mark", ["", "#"], ids=["ids", "anchors"])
def test_references_are_found_in_time(mark: str) -> None:
    schema = {
        "$id": "http://example.com/whole.json",
        "properties": {f"p{number}": {"$ref": f"{mark}i{number}"} for number in range(3000)},
        "definitions": {
            f"d{number}": {"$id": f"{mark}i{number}", "type": "string"} for number in range(3000)
        },
    }
    assert kinds("JSON", schema, schema) == []


def test_a_comparison_is_as_long_as_what_it_looks_at() -> None:
    """Parts that many ways lead to count each time, and patterns with each name."""

    def choices(prefix: str) -> Any:
        values = {"enum": [f"{prefix}{number}" for number in range(20_000)]}
        ways = [{"$ref": "#/definitions/e", "title": str(number)} for number in range(300)]
        return {"definitions": {"e": values}, "anyOf": ways}

    patterns = props({"patternProperties": {f"^a{number}$": TEXT for number in range(500)}})
    names = props(CLOSED, **{f"b{number}": TEXT for number in range(500)})
    for old, new in ((choices("a"), choices("b")), (patterns, names), (names, patterns)):
        with pytest.raises(InvalidSchema, match="steps to compare"):
            kinds("JSON", old, new)


def test_large_messages_are_compared_in_time() -> None:
    """Before, each `oneof` and each map was looked up in all others."""
    fields = "".join(
        f"oneof o{number} {{ int32 a{number} = {3 * number + 1}; }}"
        f"map<string, int32> m{number} = {3 * number + 2};"
        f"N{number} n{number} = {3 * number + 3}; message N{number} {{ int32 x = 1; }}"
        for number in range(2000)
    )
    schema = parse("PROTOBUF", f'syntax = "proto3"; message M {{ {fields} }}')
    began = time.process_time()
    assert schema_type("PROTOBUF").unreadable(schema.model, schema.model) == []
    assert time.process_time() - began < 2


def test_parsed_schemas_are_kept_up_to_their_size() -> None:
    schemas = ParsedSchemas(1000)
    small, other = '{"const":"a"}', '{"const":"b"}'
    first = schemas.get("JSON", small, (), False)
    assert schemas.get("JSON", small, (), False) is first
    large = json.dumps({"const": "x" * 1000})
    assert schemas.get("JSON", large, (), False) is not schemas.get("JSON", large, (), False)
    assert schemas.get("JSON", small, (), False) is first
    second = schemas.get("JSON", other, (), False)
    schemas.get("JSON", json.dumps({"const": "x" * 970}), (), False)
    assert schemas.get("JSON", other, (), False) is second
    assert schemas.get("JSON", small, (), False) is not first


def test_a_version_of_thousands_of_digits_is_no_version() -> None:
    assert read_version("7") == 7
    with pytest.raises(RegistryError, match="version"):
        read_version("0" * 19 + "1" + "9" * 5000)
