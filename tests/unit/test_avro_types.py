"""Each type of Avro as a column, as Spark's `from_avro` has it, and what is refused by name."""

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from lakehead.lake.tables.ddl import to_ddl
from lakehead.lake.tables.values.avro import default_value, read_schema
from lakehead.lake.tables.values.decoder import ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.storage.errors import SettingsError
from tests.support.avro_values import plain


def fixed(size: int, logical: str, **more: Any) -> Any:
    return {"type": "fixed", "name": "F", "size": size, "logicalType": logical, **more}


def of(kind: str, logical: str, **more: Any) -> Any:
    return {"type": kind, "logicalType": logical, **more}


def record(kind: Any) -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}


def decoded(kind: Any, *values: Any) -> tuple[str, list[Any]]:
    """The column of a field's type, and what it holds of values that are written as they are."""
    schema = record(kind)
    datums = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, plain(schema), {"f": value})
        datums.append(out.getvalue())
    decoder = open_decoder(ValueSpec(value_format="avro", schema=json.dumps(schema)))
    columns = [pa.nulls(len(datums), pa.binary()), pa.array(datums, pa.binary())]
    batch = pa.RecordBatch.from_arrays(columns, names=["key", "value"])
    found = decoder.decode(batch, decoder.schema_of(batch))
    assert found.faults == ()
    return to_ddl(found.columns.schema), found.columns.column("f").to_pylist()


EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SECOND = EPOCH + dt.timedelta(seconds=1)
UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.mark.parametrize(
    ("kind", "given", "column", "held"),
    [
        (of("bytes", "decimal", precision=4, scale=2), b"\xff\x38", "DECIMAL(4, 2)", "-2.00"),
        (fixed(3, "decimal", precision=6, scale=0), b"\x00\x01\x00", "DECIMAL(6, 0)", "256"),
        (of("bytes", "decimal", precision=50, scale=2), b"\x01", "BINARY", b"\x01"),
        (of("bytes", "big-decimal"), b"\x02\x01\x00", "BINARY", b"\x02\x01\x00"),
        (of("int", "date"), -1, "DATE", dt.date(1969, 12, 31)),
        (of("int", "time-millis"), 1000, "INT", 1000),
        (of("long", "time-micros"), 1000, "BIGINT", 1000),
        (of("long", "timestamp-millis"), 1000, "TIMESTAMP", SECOND),
        (of("long", "timestamp-micros"), 1_000_000, "TIMESTAMP", SECOND),
        (of("long", "timestamp-nanos"), 1_000_000_999, "TIMESTAMP", SECOND),
        (of("long", "local-timestamp-millis"), 1000, "TIMESTAMP", SECOND),
        (of("long", "local-timestamp-micros"), 1_000_000, "TIMESTAMP", SECOND),
        (of("long", "local-timestamp-nanos"), 1_000_000_000, "TIMESTAMP", SECOND),
        (of("string", "uuid"), UUID, "STRING", UUID),
        (fixed(16, "uuid"), bytes(range(16)), "STRING", UUID),
        (fixed(12, "duration"), b"\1\0\0\0" * 3, "BINARY", b"\1\0\0\0" * 3),
        (of("string", "no-such-type"), "x", "STRING", "x"),
    ],
)
def test_logical_types(kind: Any, given: Any, column: str, held: Any) -> None:
    wanted = Decimal(held) if column.startswith("DECIMAL") else held
    assert decoded(kind, given) == (f"f {column}", [wanted])
    assert decoded(["null", kind], None, given) == (f"f {column}", [None, wanted])


def test_decimals_of_more_digits_than_python_keeps_by_itself() -> None:
    nines = Decimal("9" * 29)
    content = (10**29 - 1).to_bytes(13, "big")
    kind = of("bytes", "decimal", precision=29, scale=0)
    schema = record(kind)
    out = io.BytesIO()
    for value in (content, (10**29).to_bytes(13, "big")):
        fastavro.schemaless_writer(out, plain(schema), {"f": value})
    good, bad = out.getvalue()[:14], out.getvalue()[14:]
    decoder = open_decoder(ValueSpec(value_format="avro", schema=json.dumps(schema)))
    arrays = [pa.nulls(3, pa.binary()), pa.array([good, bad, good], pa.binary())]
    batch = pa.RecordBatch.from_arrays(arrays, names=["key", "value"])
    found = decoder.decode(batch, decoder.schema_of(batch))
    assert [fault.row for fault in found.faults] == [1]
    assert found.columns.column("f").to_pylist() == [nines, nines]
    reader = {
        **schema,
        "fields": [
            *schema["fields"],
            {"name": "g", "type": kind, "default": content.decode("latin-1")},
        ],
    }
    parsed = read_schema(json.dumps(reader))
    assert default_value(parsed, parsed.fields()[1], pa.decimal128(29, 0)) == nines


def test_unions_of_two_numbers_are_the_wider_one() -> None:
    assert decoded(["int", "null", "long"], ("int", 1), None, ("long", 1 << 40)) == (
        "f BIGINT",
        [1, None, 1 << 40],
    )
    assert decoded(["double", "float"], ("float", 0.5), ("double", 0.1)) == (
        "f DOUBLE",
        [0.5, 0.1],
    )


def test_other_unions_are_a_struct_of_members() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", "int"]}]}
    kinds = ["string", inner, "null", {"type": "array", "items": "float"}]
    column, held = decoded(kinds, "a", {"x": 5}, None, [0.5], {"x": None})
    assert column == "f STRUCT<member0: STRING, member1: STRUCT<x: INT>, member2: ARRAY<FLOAT>>"
    none = {"member0": None, "member1": None, "member2": None}
    assert held == [
        {**none, "member0": "a"},
        {**none, "member1": {"x": 5}},
        None,
        {**none, "member2": [0.5]},
        {**none, "member1": {"x": None}},
    ]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (["null", "R"], "field f is a R inside a R: a type that contains itself has no columns"),
        ({"type": "array", "items": "R"}, "field f is a R inside a R"),
        (
            {
                "type": "record",
                "name": "Node",
                "fields": [{"name": "next", "type": {"type": "map", "values": ["null", "Node"]}}],
            },
            "field f.next is a Node inside a Node",
        ),
        ({"type": "record", "name": "E", "fields": []}, "field f is a record without fields"),
        ({"type": "array", "items": "null"}, "field f is a list or map of nulls"),
    ],
)
def test_what_is_no_column_is_refused_by_name(kind: Any, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"the declared schema: {reason}"):
        decoded(kind)
