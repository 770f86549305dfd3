"""Debezium's change events in each of its encodings become the same change rows."""

import base64
import datetime as dt
import json
import warnings
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.values.changes import CHANGE_FIELDS
from lakehead.lake.tables.values.decoder import Decoded, ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from tests.support.schema_registry import serve_schemas

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what the client is built on
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

ROW = parse_schema("id BIGINT, name STRING")
JSON = ValueSpec(value_format="debezium")
Pair = tuple[bytes | None, bytes | None]


def event(op: str | None, before: Any = None, after: Any = None, **source: Any) -> dict[str, Any]:
    return {
        "before": before,
        "after": after,
        "source": {"connector": "postgresql", "lsn": 7, "ts_ms": 1000, "txId": 3} | source,
        "op": op,
        "ts_ms": 2000,
        "transaction": None,
    }


def row(number: int, name: str | None = None) -> dict[str, Any]:
    return {"id": number, "name": name}


def pair(key: Any, value: Any) -> Pair:
    return json.dumps(key).encode(), None if value is None else json.dumps(value).encode()


def decode(pairs: Sequence[Pair], spec: ValueSpec = JSON, schema: Any = ROW) -> Decoded:
    arrays = [pa.array(column, pa.binary()) for column in zip(*pairs, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["key", "value"])
    return open_decoder(spec).decode(batch, schema)


def told(found: Decoded) -> list[tuple[int, str, int, Any, Any]]:
    columns = found.columns.select(["_op", "_seq", "id", "name"]).to_pylist()
    rows = found.rows.to_pylist()
    return [(r, *line.values()) for r, line in zip(rows, columns, strict=True)]


EVENTS = [
    ({"id": 1}, event("r", None, row(1, "a"))),
    ({"id": 2}, event("c", None, row(2, "b"))),
    ({"id": 2}, event("u", row(2, "b"), row(2, "c"))),
    ({"id": 2}, event("u", row(2, "c"), row(3, "c"))),
    ({"id": 1}, event("d", row(1, "a"), None)),
    ({"id": 1}, None),
    ({"id": 3}, event("d", None, None)),
    ({"id": 0}, event("t", None, None)),
    ({"id": 0}, event("m", None, None)),
]
CHANGES = [
    (0, "r", 0, 1, "a"),
    (1, "c", 0, 2, "b"),
    (2, "u", 0, 2, "c"),
    (3, "d", 0, 2, "c"),
    (3, "c", 1, 3, "c"),
    (4, "d", 0, 1, "a"),
    (6, "d", 0, 3, None),
    (7, "t", 0, None, None),
]


def test_events_without_a_schema() -> None:
    found = decode([pair(key, value) for key, value in EVENTS])
    assert told(found) == CHANGES
    assert found.faults == ()
    assert found.columns.schema == pa.schema([*ROW, *CHANGE_FIELDS])
    first = found.columns.to_pylist()[0]
    assert first["_source_ts"] == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    assert first["_source_position"] == "7"


def with_schema(key: Any, value: Any) -> Pair:
    fields = [
        {"type": "int64", "optional": False, "field": "id"},
        {"type": "string", "optional": True, "field": "name"},
    ]
    image = {"type": "struct", "fields": fields, "optional": True, "name": "server.t.Value"}
    schema = {
        "type": "struct",
        "fields": [{**image, "field": "before"}, {**image, "field": "after"}],
        "name": "server.t.Envelope",
    }
    key_schema = {"type": "struct", "fields": fields[:1], "name": "server.t.Key"}
    encoded = compact({"schema": key_schema, "payload": key})
    return encoded, None if value is None else compact({"schema": schema, "payload": value})


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def test_events_with_their_schema_and_among_them_some_without() -> None:
    pairs = [with_schema(key, value) for key, value in EVENTS]
    assert told(decode(pairs)) == CHANGES
    mixed = [pair(*e) if i % 2 else with_schema(*e) for i, e in enumerate(EVENTS)]
    spaced = [(k, v and json.dumps(json.loads(v), indent=1).encode()) for k, v in mixed]
    assert told(decode(mixed)) == CHANGES
    assert told(decode(spaced)) == CHANGES
    arrays = [pa.array(column, pa.binary()) for column in zip(*pairs, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["key", "value"])
    assert open_decoder(JSON).schema_of(batch) == ROW


def test_the_schema_of_plain_events_is_that_of_their_rows() -> None:
    arrays = [
        pa.array(column, pa.binary()) for column in zip(*(pair(*e) for e in EVENTS), strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=["key", "value"])
    assert open_decoder(JSON).schema_of(batch) == ROW


IMAGE = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
    ],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "server.t",
    "fields": [
        {"name": "before", "type": ["null", IMAGE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [
                    {"name": "connector", "type": "string"},
                    {"name": "lsn", "type": ["null", "long"], "default": None},
                    {"name": "ts_ms", "type": "long"},
                ],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}


def test_events_in_avro() -> None:
    with serve_schemas() as (url, _), SchemaRegistryClient({"url": url}) as client:
        value = AvroSerializer(client, json.dumps(ENVELOPE))
        key = AvroSerializer(client, json.dumps(KEY))
        pairs = [
            (
                key(k, SerializationContext("t", MessageField.KEY)),
                None if v is None else value(v, SerializationContext("t", MessageField.VALUE)),
            )
            for k, v in EVENTS
        ]
        spec = ValueSpec(value_format="debezium", registry=url)
        found = decode(pairs, spec)
        assert told(found) == CHANGES
        assert found.found is None
        narrow = decode(pairs, spec, parse_schema("id BIGINT"))
        assert narrow.found == ROW
        arrays = [pa.array(column, pa.binary()) for column in zip(*pairs, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, names=["key", "value"])
        assert open_decoder(spec).schema_of(batch) == ROW


def test_what_each_event_has_beside_the_table_is_told_by_its_schema_in_the_registry() -> None:
    """Also behind values that are no events, and beside events that have nothing more."""
    note = {"type": "record", "name": "Note", "fields": [{"name": "after", "type": "string"}]}
    more = json.loads(json.dumps(ENVELOPE))
    more["fields"][0]["type"][1]["fields"].append({"name": "extra", "type": "int"})
    with serve_schemas() as (url, _), SchemaRegistryClient({"url": url}) as client:
        at = SerializationContext("t", MessageField.VALUE)
        conf = {"subject.name.strategy": lambda _, record: record}
        notes, plain, wide = (
            AvroSerializer(client, json.dumps(schema), conf=conf)
            for schema in (note, ENVELOPE, more)
        )
        values = [
            notes({"after": "all"}, at),
            plain(event("c", None, row(1)), at),
            None,
            wide(event("c", None, {**row(2), "extra": 1}), at),
            plain(event("d", row(1), None), at),
            wide(event("u", None, {**row(2), "extra": 2}), at),
        ]
        spec = ValueSpec(value_format="debezium", registry=url)
        found = decode([(b"", value) for value in values], spec)
        extra = pa.schema([*ROW, pa.field("extra", pa.int32())])
        assert found.found == extra
        assert dict(found.found_by_row()) == {3: extra, 5: extra}
        assert [fault.row for fault in found.faults] == [0]
        assert [change[0] for change in told(found)] == [1, 3, 4, 5]


def test_events_in_json_with_their_schema_in_a_registry() -> None:
    image = {
        "type": "object",
        "title": "server.t.Value",
        "properties": {
            "id": {"type": "integer", "connect.type": "int64"},
            "name": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        },
    }
    maybe = {"oneOf": [{"type": "null"}, image]}
    place = {"lsn": {"oneOf": [{"type": "null"}, {"type": "integer"}]}, "txId": {"type": "integer"}}
    envelope = {
        "type": "object",
        "properties": {
            "before": maybe,
            "after": maybe,
            "source": {"type": "object", "properties": place},
            "op": {"type": "string"},
            "ts_ms": {"oneOf": [{"type": "null"}, {"type": "integer"}]},
        },
    }
    key = {"type": "object", "properties": {"id": {"type": "integer"}}}
    with serve_schemas() as (url, schemas):

        def framed(subject: str, schema: Any, value: Any) -> bytes:
            given = {"schema": json.dumps(schema), "schemaType": "JSON"}
            number = schemas.register(subject, given)
            return b"\x00" + number.to_bytes(4, "big") + compact(value)

        pairs = [
            (framed("t-key", key, k), None if v is None else framed("t-value", envelope, v))
            for k, v in EVENTS
        ]
        found = decode(pairs, ValueSpec(value_format="debezium", registry=url))
    assert told(found) == CHANGES
    assert found.faults == ()
    assert found.columns.column("_source_position").to_pylist()[0] == "7"


def test_what_stands_behind_the_envelope_is_a_fault() -> None:
    """A byte behind the closing brace that JSON does not count as blank, in the second of values
    that begin alike: only the first is taken apart as text.
    """
    key, value = with_schema(*EVENTS[1])
    assert value is not None
    blank = [(key, value + space) for space in (b"", b" \n", b"\x00", b"}", b"\x1f")]
    found = decode(blank)
    assert found.rows.to_pylist() == [0, 1]
    assert [(fault.row, fault.error) for fault in found.faults] == [
        (row, "malformed") for row in (2, 3, 4)
    ]


def test_a_schema_beside_the_payload_that_is_none_is_a_fault_of_its_events() -> None:
    good = with_schema(*EVENTS[1])
    key, value = good
    assert value is not None
    broken = [
        value.replace(b'"field":"id"', b'"fild":"id"'),
        value.replace(b'"type":"int64"', b'"type":[]'),
        value.replace(b'"field":"name"', b'"field":"a b"'),
    ]
    unread = [(key, each) for each in broken]
    found = decode([good, *unread, good])
    assert found.rows.to_pylist() == [0, 4]
    assert [(fault.row, fault.error) for fault in found.faults] == [
        (row, "unusable_schema") for row in (1, 2, 3)
    ]
    assert found.faults[0].reason.startswith("the schema of the payload is not one of Connect's")


def test_what_is_no_change_event_is_a_fault_of_its_row() -> None:
    found = decode(
        [
            (None, b"{}"),
            pair({"id": 1}, event("c", None, row(1))),
            (None, b"{"),
            pair({"id": 1}, event("x", None, row(1))),
            pair({"id": 1}, event("u", row(1), None)),
            pair("text", event("d", None, None)),
            pair({"id": 1}, event("c", None, {"id": "one"})),
        ]
    )
    assert [(fault.row, fault.error) for fault in found.faults] == [
        (0, "misfit"),
        (2, "malformed"),
        (3, "misfit"),
        (4, "misfit"),
        (5, "misfit"),
        (6, "misfit"),
    ]
    assert told(found) == [(1, "c", 0, 1, None)]


def test_keys_that_are_declared_decide_what_is_another_row() -> None:
    change = [pair({"id": 1}, event("u", row(1, "a"), row(1, "b")))]
    assert told(decode(change)) == [(0, "u", 0, 1, "b")]
    declared = ValueSpec(value_format="debezium", keys=("name",))
    assert told(decode(change, declared)) == [(0, "d", 0, 1, "a"), (0, "c", 1, 1, "b")]


def test_types_that_json_does_not_have() -> None:
    fields = [
        {"type": "int32", "name": "io.debezium.time.Date", "field": "day"},
        {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "field": "at"},
        {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "field": "zoned"},
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "6"},
            "field": "price",
        },
        {"type": "bytes", "field": "blob"},
    ]
    image = {"type": "struct", "fields": fields}
    schema = {
        "type": "struct",
        "fields": [{**image, "field": "before"}, {**image, "field": "after"}],
    }
    price = base64.b64encode((-1234).to_bytes(2, "big", signed=True)).decode()
    good = {"day": 1, "at": 5, "zoned": "1970-01-02T00:00:00Z", "price": price, "blob": "AAE="}
    bad = {**good, "blob": "no base64!"}
    events = [{"schema": schema, "payload": event("c", None, image)} for image in (good, bad, good)]
    pairs = [(None, json.dumps(each, separators=(",", ":")).encode()) for each in events]
    arrays = [pa.array(column, pa.binary()) for column in zip(*pairs, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["key", "value"])
    decoder = open_decoder(JSON)
    columns = decoder.schema_of(batch)
    assert columns == parse_schema(
        "day DATE, at TIMESTAMP, zoned TIMESTAMP, price DECIMAL(6, 2), blob BINARY"
    )
    found = decoder.decode(batch, columns)
    assert [fault.row for fault in found.faults] == [1]
    assert found.rows.to_pylist() == [0, 2]
    line = found.columns.select(columns.names).to_pylist()[0]
    assert line == {
        "day": dt.date(1970, 1, 2),
        "at": dt.datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=dt.UTC),
        "zoned": dt.datetime(1970, 1, 2, tzinfo=dt.UTC),
        "price": Decimal("-12.34"),
        "blob": b"\x00\x01",
    }


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_and_only_tombstones(count: int) -> None:
    columns = [pa.array([b"{}"] * count, pa.binary()), pa.nulls(count, pa.binary())]
    batch = pa.RecordBatch.from_arrays(columns, names=["key", "value"])
    found = open_decoder(JSON).decode(batch, ROW)
    assert found.columns.num_rows == 0
    assert found.faults == ()
