"""JSON in Confluent's wire format: columns by the JSON Schema behind each value's id."""

import datetime as dt
import json
import warnings
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.values.decoder import ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.storage.errors import SettingsError
from tests.support.schema_registry import Schemas, serve_schemas

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what the client is built on
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "placed": {"type": "string", "format": "date-time"},
        "customer": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "vip": {"type": ["boolean", "null"]}},
        },
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "price": {"type": "number"}},
                "required": ["sku"],
            },
        },
    },
    "required": ["id"],
}
LATER = {**ORDER, "properties": {**ORDER["properties"], "gift": {"type": "boolean"}}}  # type: ignore[dict-item]
COLUMNS = parse_schema(
    "id BIGINT, placed TIMESTAMP, customer STRUCT<name: STRING, vip: BOOLEAN>, "
    "lines ARRAY<STRUCT<sku: STRING, price: DOUBLE>>"
)
VALUE = {
    "id": 1,
    "placed": "2026-11-22T01:02:03.5+01:00",
    "customer": {"name": "Ann", "vip": None},
    "lines": [{"sku": "a", "price": 2}, {"sku": "b", "price": 0.5}],
}
ROW = {**VALUE, "placed": dt.datetime(2026, 11, 22, 0, 2, 3, 500_000, tzinfo=dt.UTC)}


@pytest.fixture
def served() -> Iterator[tuple[str, Schemas]]:
    with serve_schemas() as found:
        yield found


def serialized(url: str, schema: Any, *values: Any) -> list[bytes]:
    context = SerializationContext("orders", MessageField.VALUE)
    with SchemaRegistryClient({"url": url}) as client:
        serializer = JSONSerializer(Schema(json.dumps(schema), "JSON"), client)
        return [serializer(value, context) for value in values]


def registered(schemas: Schemas, schema: Any) -> int:
    return schemas.register("orders", {"schema": json.dumps(schema), "schemaType": "JSON"})


def framed(schema_id: int, value: Any) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + json.dumps(value).encode()


def batch(values: Sequence[bytes | None]) -> pa.RecordBatch:
    columns = [pa.nulls(len(values), pa.binary()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value"])


def test_values_of_confluents_serializer_in_two_versions(served: tuple[str, Schemas]) -> None:
    url, _ = served
    first = serialized(url, ORDER, VALUE)
    second = serialized(url, LATER, {"id": 2, "gift": True, "unheard": [1]})
    decoder = open_decoder(ValueSpec(value_format="json", registry=url))
    sample = batch([first[0], None])
    schema = decoder.schema_of(sample)
    assert schema == COLUMNS
    found = decoder.decode(batch([second[0], first[0], None]), schema)
    assert found.faults == ()
    assert found.rows.to_pylist() == [0, 1, 2]
    empty = dict.fromkeys(COLUMNS.names)
    assert found.columns.to_pylist() == [{**empty, "id": 2}, ROW, empty]
    more = parse_schema("gift BOOLEAN").field(0)
    assert found.found == pa.schema([*COLUMNS, more])
    found = decoder.decode(batch([second[0], first[0]]), found.found)
    assert found.found is None
    assert found.columns.column("gift").to_pylist() == [True, None]


def test_faults_by_class_and_schema_id(served: tuple[str, Schemas]) -> None:
    url, schemas = served
    good = registered(schemas, ORDER)
    open_ended = {"type": "object", "properties": {"meta": {"type": "object"}}}
    unusable = registered(schemas, open_ended)
    avro = schemas.register("x", {"schema": '"string"'})
    values = [
        framed(good, VALUE),
        framed(good, VALUE)[:-1],
        framed(good, {"id": "one"}),
        framed(unusable, {"meta": {}}),
        framed(avro, {}),
        framed(9999, {}),
        b'{"id":1}',
        framed(good, {"placed": "yesterday"}),
    ]
    decoder = open_decoder(ValueSpec(value_format="json", registry=url))
    found = decoder.decode(batch(values), COLUMNS)
    assert found.columns.to_pylist() == [ROW]
    assert [(fault.row, fault.error, fault.schema_id) for fault in found.faults] == [
        (1, "malformed", good),
        (2, "misfit", good),
        (3, "unusable_schema", unusable),
        (4, "unusable_schema", avro),
        (5, "unknown_schema", 9999),
        (6, "unframed", -1),
        (7, "misfit", good),
    ]
    reasons = [fault.reason for fault in found.faults]
    assert reasons[1] == "field id: text that is not BIGINT"
    assert reasons[2].startswith(f"schema {unusable}: field meta is an object that names no fields")
    assert reasons[3] == f"schema {avro}: it is AVRO, not JSON"
    with pytest.raises(SettingsError, match="field meta is an object that names no fields"):
        decoder.schema_of(batch([values[3]]))


def test_a_declared_schema_takes_what_a_json_schema_leaves_open(
    served: tuple[str, Schemas],
) -> None:
    url, schemas = served
    schema_id = registered(schemas, {"type": "object", "properties": {"meta": {}}})
    spec = ValueSpec(value_format="json", registry=url, schema="id BIGINT")
    found = open_decoder(spec).decode(
        batch([framed(schema_id, {"id": 1, "meta": 5})]), parse_schema("id BIGINT")
    )
    assert found.columns.to_pylist() == [{"id": 1}]


def test_a_newer_type_that_does_not_fit_is_a_conflict_to_find(
    served: tuple[str, Schemas],
) -> None:
    url, schemas = served
    other = registered(schemas, {"type": "object", "properties": {"id": {"type": "string"}}})
    held = parse_schema("id BIGINT")
    decoder = open_decoder(ValueSpec(value_format="json", registry=url))
    found = decoder.decode(batch([framed(other, {"id": "x"})]), held)
    assert found.found == parse_schema("id STRING")
    assert [fault.reason for fault in found.faults] == ["field id: text that is not BIGINT"]


def test_values_of_kafka_connect(served: tuple[str, Schemas]) -> None:
    url, schemas = served
    connect = "org.apache.kafka.connect.data"
    parameters = {"scale": "2", "connect.decimal.precision": "6"}
    decimal = {"title": f"{connect}.Decimal", "connect.parameters": parameters}
    schema_id = registered(
        schemas,
        {
            "type": "object",
            "properties": {
                "day": {
                    "oneOf": [{"type": "null"}, {"type": "integer", "title": f"{connect}.Date"}]
                },
                "at": {"type": "integer", "title": f"{connect}.Timestamp"},
                "price": {"type": "number", **decimal},
                "cost": {"type": "string", **decimal},
                "blobs": {
                    "type": "array",
                    "items": {"type": "string", "connect.type": "bytes"},
                },
            },
        },
    )
    good = {"day": 1, "at": -1, "price": 12.5, "cost": "+y4=", "blobs": ["AAE=", "", None]}
    bad = [
        {**good, "blobs": ["A"]},
        {**good, "cost": "=AAA"},
        {**good, "cost": "AA=="[:2] + "A="},
        {**good, "cost": "f////w=="},
        {**good, "at": 1 << 60},
        {**good, "day": 1 << 40},
        {**good, "blobs": ["AA==AAAA"]},
        {**good, "blobs": ["A\u00e9AA"]},
    ]
    slashes = {**good, "blobs": ["////"]}
    escaped = framed(schema_id, slashes).replace(b"////", rb"\/\/\u002f/")
    decoder = open_decoder(ValueSpec(value_format="json", registry=url))
    values = [framed(schema_id, good), *(framed(schema_id, each) for each in bad), escaped]
    sample = batch(values)
    schema = decoder.schema_of(sample)
    found = decoder.decode(sample, schema)
    assert [fault.row for fault in found.faults] == [1, 2, 4, 5, 6, 7, 8]
    row = {
        "day": dt.date(1970, 1, 2),
        "at": dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=dt.UTC),
        "price": Decimal("12.50"),
        "cost": Decimal("-12.34"),
        "blobs": [b"\x00\x01", b"", None],
    }
    rows = found.columns.to_pylist()
    assert rows == [row, {**row, "cost": Decimal(0)}, {**row, "blobs": [b"\xff\xff\xff"]}]
