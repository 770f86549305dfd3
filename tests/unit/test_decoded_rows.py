"""Values as columns by what a topic declares: the Spark source's rows, made without Spark."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from lakehead.lake.errors import UndecodableValue
from lakehead.lake.source.data_source import LakeheadDataSource
from lakehead.lake.tables.registry import RegistryUnavailable
from lakehead.storage.errors import SettingsError
from tests.support.avro_values import written
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.schema_registry import serve_schemas
from tests.support.topic_writer import write_topic


def read(root: Path, topic: str, schema: Any = None, **options: str) -> list[dict[str, Any]]:
    """Read a topic as Spark does: schema, reader, partitions, tasks."""
    given = {"path": str(root), "subscribe": topic, "decode": "declared", **options}
    source = LakeheadDataSource(given)
    reader = source.reader(schema or source.schema())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert all(batch.schema == batches[0].schema for batch in batches)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist() if batches else []
    return sorted(rows, key=lambda row: row.get("_offset") or 0)


def declare(root: Path, topic: str, **configs: str) -> None:
    named = {f"lakehead.table.{name.replace('_', '.')}": text for name, text in configs.items()}
    configure(root, topic, named)


def objects(*rows: Mapping[str, Any]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def test_fields_are_columns_with_where_each_record_came_from(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: [TestRecord(offset=0, timestamp=5, key=b"k", value=b'{"a":1}')]})
    declare(tmp_path, "t", value_format="json")
    (row,) = read(tmp_path, "t")
    assert row.pop("_timestamp").timestamp() == 0.005
    assert row == {"a": 1, "_topic": "t", "_partition": 0, "_offset": 0, "_key": b"k"}
    assert "_headers" in read(tmp_path, "t", includeHeaders="true")[0]


def test_a_topic_that_declares_nothing_is_read_as_it_is(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: [b"\xff"]})
    (row,) = read(tmp_path, "t")
    assert row["value"] == b"\xff"
    assert "_offset" not in row


def test_a_declared_schema_needs_no_record_and_is_the_schema(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: []})
    declare(tmp_path, "t", value_format="json")
    with pytest.raises(SettingsError, match=r"topic t has no records .* lakehead\.table\.schema"):
        read(tmp_path, "t")
    declare(tmp_path, "t", value_format="json", schema="a DOUBLE, l ARRAY<STRUCT<x: INT>>")
    assert read(tmp_path, "t") == []
    write_topic(tmp_path, "t", {0: objects({"a": 1, "l": [{"x": 2}], "b": 3})})
    assert read(tmp_path, "t", columns="l,a") == [{"l": [{"x": 2}], "a": 1.0}]


def test_what_only_the_newest_records_have_is_a_column_too(tmp_path: Path) -> None:
    old, new = objects({"a": 1}), objects({"a": 1, "b": "x"})
    write_topic(tmp_path, "t", {0: old * 6000 + new}, batch_records=1000)
    declare(tmp_path, "t", value_format="json")
    rows = read(tmp_path, "t", columns="b,_offset")
    assert len(rows) == 6001
    assert [row["b"] for row in rows[-2:]] == [None, "x"]


def test_a_metadata_name_in_a_record_takes_no_column_from_the_others(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: objects({"_offset": 7, "a": 1}, {"a": 2})})
    declare(tmp_path, "t", value_format="json")
    assert [(row["a"], row["_offset"]) for row in read(tmp_path, "t")] == [(1, 0), (2, 1)]
    write_topic(tmp_path, "only", {0: objects({"_Error": 7})})
    declare(tmp_path, "only", value_format="json")
    with pytest.raises(SettingsError, match="'_Error' has the name of a metadata column"):
        read(tmp_path, "only")


def test_nested_values_are_one_column(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: objects({"_offset": 7, "a": 1}, {"a": 2})})
    declare(tmp_path, "t", value_format="json", layout="nested")
    values = [row["value"] for row in read(tmp_path, "t")]
    assert values == [{"_offset": 7, "a": 1}, {"_offset": None, "a": 2}]


@pytest.mark.parametrize("places", [[1], [0], [3], [0, 1], [0, 1, 2, 3], [1, 3]])
def test_what_cannot_be_decoded_fails_by_name_or_is_null(tmp_path: Path, places: list[int]) -> None:
    values = objects(*({"a": n} for n in range(4)))
    for place in places:
        values[place] = b"{" if place % 2 else b'{"a":"text"}'
    write_topic(tmp_path, "t", {1: values}, partitions=2)
    declare(tmp_path, "t", value_format="json", schema="a BIGINT")
    with pytest.raises(UndecodableValue, match=f"topic t, partition 1, offset {places[0]}: "):
        read(tmp_path, "t")
    rows = read(tmp_path, "t", undecodable="null")
    assert [row["_offset"] for row in rows] == [0, 1, 2, 3]
    assert [row["a"] for row in rows] == [None if n in places else n for n in range(4)]
    assert [n for n, row in enumerate(rows) if row["_error"] is not None] == places


@pytest.mark.parametrize("place", [0, 3, 6000])
def test_one_value_of_another_type_costs_its_own_record_and_not_the_columns(
    tmp_path: Path, place: int
) -> None:
    values = objects(*({"a": n, "s": {"b": "x"}} for n in range(6001)))
    values[place] = b'{"a":"text","s":{"b":7}}'
    write_topic(tmp_path, "t", {0: values}, batch_records=1000)
    declare(tmp_path, "t", value_format="json")
    rows = read(tmp_path, "t", undecodable="null", columns="a,_offset,_error")
    assert [row["a"] for row in rows] == [None if n == place else n for n in range(6001)]
    errors = {row["_offset"]: row["_error"] for row in rows if row["_error"] is not None}
    assert errors == {place: "field a: text that is not BIGINT"}
    with pytest.raises(UndecodableValue, match=f"offset {place}: field a: text that is not BIGINT"):
        read(tmp_path, "t")


def test_events_of_debezium_with_one_value_of_another_type_have_columns(tmp_path: Path) -> None:
    events = [{"op": "c", "after": {"a": a}} for a in (1, "x", 3)]
    write_topic(tmp_path, "t", {0: objects(*events)})
    declare(tmp_path, "t", value_format="debezium")
    assert [row["a"] for row in read(tmp_path, "t", undecodable="null")] == [1, None, 3]


def test_values_that_are_no_json_are_said_to_be_readable_as_bytes(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: [b"text"]})
    declare(tmp_path, "t", value_format="json")
    with pytest.raises(SettingsError, match=r"lakehead\.table\.schema, .*value\.format=raw"):
        read(tmp_path, "t")


@pytest.mark.parametrize("which", ["starting", "ending"])
def test_a_partition_left_out_is_named_with_the_option_that_left_it_out(
    tmp_path: Path, which: str
) -> None:
    write_topic(tmp_path, "t", {0: objects({"a": 1}), 1: objects({"a": 2})}, partitions=2)
    by_time, by_offset = f"{which}OffsetsByTimestamp", f"{which}Offsets"
    with pytest.raises(SettingsError, match="Assigned") as told:
        read(tmp_path, "t", decode="none", **{by_time: '{"t":{"0":1}}'})
    assert f"If {by_time} contains specific timestamps" in str(told.value)
    assert f"Use {which}Timestamp for one time of all partitions" in str(told.value)
    assert "-1 for latest" not in str(told.value)
    with pytest.raises(SettingsError, match="Assigned") as told:
        read(tmp_path, "t", decode="none", **{by_offset: '{"t":{"0":1}}'})
    assert f"If {by_offset} contains specific offsets" in str(told.value)
    assert "Use -1 for latest, -2 for earliest" in str(told.value)


def test_a_tombstone_is_a_row_of_nulls_without_an_error(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: [*objects({"a": 1}), None]})
    declare(tmp_path, "t", value_format="json")
    rows = read(tmp_path, "t", undecodable="null")
    assert [(row["a"], row["_error"]) for row in rows] == [(1, None), (None, None)]


def test_json_can_be_asked_for_and_a_schema_given(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: objects({"a": 1, "b": "x"})})
    assert read(tmp_path, "t", decode="json")[0]["a"] == 1
    asked = StructType([StructField("_offset", LongType()), StructField("a", DoubleType())])
    assert read(tmp_path, "t", asked, decode="json", undecodable="null") == [
        {"_offset": 0, "a": 1.0}
    ]
    wrong = StructType([StructField("_offset", StringType())])
    with pytest.raises(SettingsError, match="'_offset' is _offset BIGINT"):
        read(tmp_path, "t", wrong, decode="json")


def test_avro_of_two_schemas_is_decoded_by_the_ids_in_its_values(tmp_path: Path) -> None:
    first = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    added = {"name": "b", "type": ["null", "string"], "default": None}
    second = {**first, "fields": [*first["fields"], added]}
    with serve_schemas() as (url, schemas):

        def framed(schema: Any, value: Any) -> bytes:
            number = schemas.register("t-value", {"schema": json.dumps(schema)})
            return b"\x00" + number.to_bytes(4, "big") + written(schema, value)

        values = [framed(first, {"a": 1}), framed(second, {"a": 2, "b": "x"})]
        unknown = b"\x00" + (99).to_bytes(4, "big") + b"\x02"
        write_topic(tmp_path, "t", {0: [*values, unknown]})
        declare(tmp_path, "t", value_format="avro", schema_registry_url=url)
        with pytest.raises(UndecodableValue, match=r"partition 0, offset 2: .* no schema 99"):
            read(tmp_path, "t")
        rows = read(tmp_path, "t", undecodable="null")
    assert [(row["a"], row["b"]) for row in rows] == [(1, None), (2, "x"), (None, None)]
    assert [row["_error"] is None for row in rows] == [True, True, False]


def test_a_registry_that_is_gone_is_no_fault_of_a_value(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: [b"\x00\x00\x00\x00\x01\x02"]})
    with serve_schemas() as (url, schemas):
        schemas.failures_to_come = 100
        declare(tmp_path, "t", value_format="avro", schema_registry_url=url)
        with pytest.raises(RegistryUnavailable, match="schema registry"):
            read(tmp_path, "t", undecodable="null")


def test_streams_decode_too(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: objects({"a": 1}, {"a": 2})})
    declare(tmp_path, "t", value_format="json")
    source = LakeheadDataSource(
        {"path": str(tmp_path), "subscribe": "t", "decode": "declared", "columns": "a"}
        | {"startingOffsets": "earliest"}
    )
    stream: Any = source.streamReader(source.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    batches = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
    assert pa.Table.from_batches(batches).to_pylist() == [{"a": 1}, {"a": 2}]


def test_changes_of_debezium_are_rows(tmp_path: Path) -> None:
    def event(op: str, before: Any, after: Any) -> dict[str, Any]:
        return {"before": before, "after": after, "op": op, "ts_ms": 1, "source": {"lsn": 1}}

    a, b = {"id": 1, "v": "a"}, {"id": 1, "v": "b"}
    moved = {"id": 2, "v": "b"}
    events = objects(event("c", None, a), event("u", a, b), event("u", b, moved))
    records = [TestRecord(offset=0, key=b'{"id":1}', value=value) for value in [*events, None]]
    write_topic(tmp_path, "t", {0: [*records, b"junk"]})
    declare(tmp_path, "t", value_format="debezium")
    rows = read(tmp_path, "t", undecodable="null")
    assert [(row["_offset"], row["id"], row["_op"]) for row in rows] == [
        (0, 1, "c"),
        (1, 1, "u"),
        (2, 1, "d"),
        (2, 2, "c"),
        (4, None, None),
    ]
    assert [row["_error"] is None for row in rows] == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode": "avro"}, "'decode' is none or declared or json, not 'avro'"),
        ({"subscribe": "t,u"}, "'decode' is for one topic"),
        ({"decode": "none", "undecodable": "null"}, "'undecodable' is for values that are decoded"),
        ({"undecodable": "skip"}, "'undecodable' is fail or null"),
        ({"columns": "nope"}, "unknown column 'nope': there are a, _topic"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, str], message: str) -> None:
    write_topic(tmp_path, "t", {0: objects({"a": 1})})
    declare(tmp_path, "t", value_format="json")
    with pytest.raises(SettingsError, match=message):
        read(tmp_path, "t", **options)
