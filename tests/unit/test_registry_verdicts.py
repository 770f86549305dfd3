"""The registry judges schemas as the Java libraries of Confluent's registry do.

The recorded verdicts are those of Java (`make registry` compares more of them, with a JVM).
"""

import json

import pytest

from lakehead.connectors.schema_registry.compatibility import schema_type
from lakehead.connectors.schema_registry.errors import InvalidSchema
from lakehead.connectors.schema_registry.parsed import NamedText
from tests.registry.__main__ import sample
from tests.registry.verdicts import KINDS, disagreements

_FIELD = '{"type":"record","name":"R","fields":[%s]}'
_WITHIN_A_NAME_SPACE = (
    '{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":'
    '{"type":"record","name":"I","namespace":"","fields":[]}},{"name":"b","type":"I"}]}'
)


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_verdicts_of_java_on_schemas_are_the_registrys(kind: str) -> None:
    lines = [json.loads(line) for line in sample(kind).read_text().splitlines()]
    assert len(lines) > 5
    taken = [each["ok"] for line in lines for each in line["verdict"]["parsed"]]
    assert 0.2 < sum(taken) / len(taken) < 1, "schemas that are taken, and that are not"
    found = [each for line in lines for each in disagreements(line["case"], line["verdict"])]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        _FIELD % '{"name":"a","type":"int"},{"name":"a","type":"string"}',
        _FIELD % '{"name":"a","type":"int","default":1099511627776}',
        _FIELD % '{"name":"a","type":"long","default":9223372036854775808}',
        _FIELD % '{"name":"a","type":"int","default":1.0}',
        _FIELD % '{"name":"a","type":"string","default":null}',
        _FIELD % '{"name":"a","type":"int","order":"sideways"}',
        _FIELD % '{"name":"a-b","type":"int"}',
        '{"type":"record","name":"R","namespace":"com.my-company","fields":[]}',
        '{"type":"enum","name":"E","symbols":["A","A"]}',
        '{"type":"enum","name":"E","symbols":["A"],"default":"B"}',
        '{"type":"fixed","name":"F","size":-1}',
        '{"type":{"type":"string"}}',
        '["null",["int"]]',
    ],
)
def test_a_schema_that_java_refuses_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchema, match="no Avro schema"):
        schema_type("AVRO").parse(text, (), False)


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"bytes","logicalType":"decimal","precision":2,"scale":5}',
        '{"type":"fixed","name":"F","size":2,"logicalType":"decimal","precision":40}',
        _WITHIN_A_NAME_SPACE,
        _FIELD % '{"name":"a","type":["null","string"],"default":"x"}',
        _FIELD % '{"name":"a","type":"double","default":"1.5"}',
        _FIELD % '{"name":"a","type":"Later"},{"name":"b","type":'
        '{"type":"fixed","name":"Later","size":2}}',
        '{"type":"string"} ',
        '/* a comment */ "string"',
    ],
)
def test_a_schema_that_java_takes_is_taken_and_its_text_is_the_same_schema(text: str) -> None:
    parse = schema_type("AVRO").parse
    first = parse(text, (), False)
    assert parse(first.text, (), False).text == first.text


def test_a_type_of_a_reference_is_written_by_its_name() -> None:
    other = NamedText(name="other", text='{"type":"record","name":"n.O","fields":[]}')
    found = schema_type("AVRO").parse(_FIELD % '{"name":"a","type":"n.O"}', (other,), False)
    assert json.loads(found.text)["fields"] == [{"name": "a", "type": "n.O"}]


def test_the_reason_why_a_file_without_syntax_is_refused_is_its_error_and_no_remark() -> None:
    text = "package a; message M { optional Nowhere b = 2; }"
    with pytest.raises(InvalidSchema, match=r'1:33: "Nowhere" is not defined'):
        schema_type("PROTOBUF").parse(text, (), False)


def test_a_definition_that_nothing_refers_to_has_no_dead_reference() -> None:
    text = '{%s"type":"string","$defs":{"a":{"$ref":"#/$defs/none"}}}'
    late = text % '"$schema":"https://json-schema.org/draft/2020-12/schema",'
    with pytest.raises(InvalidSchema, match="leads nowhere"):
        schema_type("JSON").parse(late, (), False)
    schema_type("JSON").parse(text % "", (), False)  # before 2019-09 nothing looks at it
