"""Values as JSON text for people: by a declared schema, and by a registry's."""

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest

from lakehead.lake.tables.readable_values import AS_IT_IS, ReadableValues, as_json
from lakehead.lake.tables.registry import SchemaRegistry, schema_registry
from lakehead.lake.tables.values.decoder import ValueSpec
from tests.support.schema_registry import Schemas, serve_schemas

FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
    ],
}
RECURSIVE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}


def datum(carrier: str) -> bytes:
    target = io.BytesIO()
    row = {"carrier": carrier, "at": 1_700_000_000_000, "tags": {"a": 1}}
    fastavro.schemaless_writer(target, fastavro.parse_schema(FLIGHT), row)
    return target.getvalue()


def framed(schema_id: int, value: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + value


@pytest.fixture(scope="module")
def registry() -> Iterator[tuple[str, Schemas, SchemaRegistry]]:
    with serve_schemas() as (url, schemas):
        yield url, schemas, schema_registry(url)


def test_a_declared_schema_decodes_what_it_can() -> None:
    spec = ValueSpec(value_format="avro", schema=json.dumps(FLIGHT))
    found = ReadableValues().by_declaration([datum("AA"), None, b"\xff", datum("UA")], spec)
    assert found[0].text == ('{"carrier":"AA","at":"2023-11-14T22:13:20+00:00","tags":{"a":1}}')
    assert found[1] == AS_IT_IS
    assert found[2].text is None
    assert "malformed" in found[2].fault
    assert json.loads(found[3].text or "")["carrier"] == "UA"


def test_each_value_is_decoded_by_its_own_schema(
    registry: tuple[str, Schemas, SchemaRegistry],
) -> None:
    url, schemas, client = registry
    avro = schemas.register("flights-value", {"schema": json.dumps(FLIGHT)})
    endless = schemas.register("nodes-value", {"schema": json.dumps(RECURSIVE)})
    text = schemas.register("notes-value", {"schema": "{}", "schemaType": "JSON"})
    values = [
        framed(avro, datum("AA")),
        framed(text, b'{"n": [1, 2]}'),
        framed(text, b"{"),
        framed(endless, b"\0"),
        framed(9999, b"x"),
        b"no frame",
        None,
    ]

    def read(*, is_declared: bool, readable: set[int]) -> list[Any]:
        return ReadableValues().by_registry(
            values, client, url, is_declared=is_declared, may_read=readable.__contains__
        )

    found = read(is_declared=True, readable={avro, text, endless})
    assert json.loads(found[0].text)["carrier"] == "AA"
    assert found[0].schema == f"AVRO schema {avro}"
    assert found[1].text == '{"n":[1,2]}'
    assert "not JSON" in found[2].fault
    assert str(endless) in found[3].fault
    assert "no schema 9999" in found[4].fault
    assert "no schema id" in found[5].fault
    assert found[6] == AS_IT_IS
    assert read(is_declared=False, readable=set())[4:] == [AS_IT_IS] * 3


def test_a_schema_that_the_viewer_may_not_read_decodes_nothing(
    registry: tuple[str, Schemas, SchemaRegistry],
) -> None:
    url, schemas, client = registry
    avro = schemas.register("flights-value", {"schema": json.dumps(FLIGHT)})
    assert client.subjects(avro) == ("flights-value",)
    (found,) = ReadableValues().by_registry(
        [framed(avro, datum("AA"))], client, url, is_declared=True, may_read=lambda _: False
    )
    assert found.text is None
    assert "do not let you read" in found.fault


def test_what_json_does_not_have_is_text() -> None:
    assert as_json({"k": float("nan"), "b": b"\x01"}) == '{"k":"nan","b":"01"}'
