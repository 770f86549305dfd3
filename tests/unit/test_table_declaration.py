"""What topic configs declare of a table, and what is refused, by the broker with Kafka's code."""

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from immutables import Map
from kio.schema.errors import ErrorCode

from lakehead.broker.configs.topic_configs import TOPIC_CONFIGS, parse_topic_configs
from lakehead.broker.protocol.errors import KafkaError
from lakehead.lake.declaration.column_types import SimpleType
from lakehead.lake.declaration.table_declaration import (
    CHANGE_TYPES,
    HISTORY_TYPES,
    METADATA_COLUMNS,
    METADATA_TYPES,
    PREFIX,
    TABLE_CONFIGS,
    TABLES,
    PartitionPart,
    TableDeclaration,
    check_declaration,
    dead_letters_uri,
)
from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.layout import METADATA
from lakehead.lake.tables.upsert import HISTORY_FIELDS
from lakehead.lake.tables.values.changes import CHANGE_FIELDS
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import TopicState

FULL = {
    "enable": " TRUE ",
    "path": "s3://lake/orders?region=x",
    "value.format": "json",
    "schema": "id bigint, at timestamp, country string",
    "layout": "flat",
    "mode": "upsert",
    "keys": "id, country",
    "partition.by": "day(at), country",
    "on.error": "dead_letter",
    "evolution": "pause",
    "scd": "2",
    "freshness.ms": "2000",
    "file.bytes": "1048576",
    "optimize.interval.ms": "60000",
    "optimize.small.percent": "25",
    "optimize.deleted.percent": "30",
    "deletion.vectors": "true",
    "vacuum.interval.ms": "0",
    "schema.registry.url": "http://registry:8081",
}


def configs(**given: str) -> dict[str, str]:
    return {f"{PREFIX}{name.replace('_', '.')}": value for name, value in given.items()}


def test_a_topic_that_says_nothing_has_no_table() -> None:
    declared = TableDeclaration.parse("orders", "id", {"retention.ms": "1"})
    assert not declared.is_enabled
    assert (declared.value_format, declared.mode, declared.on_error) == ("raw", "append", "pause")
    for store in ("file:/data/store", "file:///data/store/", "/data/store", "/data"):
        assert declared.uri(store) == "/data/tables/orders"
    assert declared.uri("s3://b/p?region=x") == "s3://b/p/tables/orders?region=x"


def test_every_config_reaches_the_declaration() -> None:
    declared = TableDeclaration.parse(
        "orders", "id", {f"{PREFIX}{name}": value for name, value in FULL.items()}
    )
    assert declared.is_enabled
    assert declared.uri("s3://b/p") == "s3://lake/orders?region=x"
    assert declared.keys == ("id", "country")
    assert declared.partition_by == (
        PartitionPart(column="at", unit="day"),
        PartitionPart(column="country"),
    )
    assert declared.partition_columns == ("_date", "country")
    assert (declared.value_format, declared.schema) == (
        "json",
        "id bigint, at timestamp, country string",
    )
    assert (declared.layout, declared.mode, declared.scd) == ("flat", "upsert", 2)
    assert (declared.on_error, declared.evolution) == ("dead_letter", "pause")
    assert (declared.freshness_ms, declared.file_bytes) == (2000, 1 << 20)
    assert (declared.optimize_interval_ms, declared.optimize_small_percent) == (60_000, 25)
    assert (declared.takes_vectors, declared.optimize_deleted_percent) == (True, 30)
    assert declared.vacuum_interval_ms == 0
    assert declared.schema_registry_url == "http://registry:8081"
    assert dead_letters_uri(declared.path) == "s3://lake/orders__dlq?region=x"


def test_an_hour_makes_a_date_and_an_hour() -> None:
    declared = TableDeclaration.parse("t", "", configs(partition_by="hour(_timestamp)"))
    assert declared.partition_columns == ("_date", "_hour")


def avro(*fields: str, **others: str) -> dict[str, str]:
    """A declaration with a record of text fields."""
    return avro_of(*({"name": name, "type": "string"} for name in fields), **others)


def avro_of(*fields: Any, **others: str) -> dict[str, str]:
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    return configs(value_format="avro", schema=schema, **others)


def avro_field(kind: Any, **others: Any) -> dict[str, str]:
    return avro_of({"name": "f", "type": kind, **others})


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (configs(enable="yes"), "true or false"),
        (configs(value_format="csv"), "one of: raw, json"),
        (configs(freshness_ms="999"), "at least 1000"),
        (configs(freshness_ms="soon"), "at least 1000"),
        (configs(file_bytes=str(1 << 63)), "a number"),
        (configs(partition_by="month(at)"), "not a column"),
        (configs(partition_by="day(at"), "not a column"),
        (configs(partition_by="day(at),hour(at)"), "one day() or hour()"),
        (configs(partition_by="_date,day(at)"), "twice"),
        (configs(partition_by="a,a"), "twice"),
        (configs(partition_by="a", cluster_by="b"), "exclude each other"),
        (configs(keys="id"), "upsert"),
        (configs(scd="2"), "upsert"),
        (configs(deletion_vectors="true"), "upsert"),
        (configs(mode="upsert", optimize_deleted_percent="0"), "at least 1"),
        (configs(scd="3"), "one of: 1, 2"),
        (configs(schema="id bigint"), "value.format"),
        (configs(value_format="avro", schema="record"), "no Avro schema: undefined name 'record'"),
        (configs(value_format="avro", schema="{"), "no Avro schema: Expecting property name"),
        (configs(value_format="avro", schema="{}"), "no Avro schema: no type"),
        (configs(value_format="avro", schema='"strin"'), "undefined name 'strin'"),
        (configs(value_format="avro", schema='{"type":"record","name":"R"}'), "without fields: R"),
        (configs(value_format="avro", schema='{"type":"record","fields":[]}'), "no name"),
        (avro("a", "a"), "field a twice in record R"),
        (avro("a", "A"), "columns 'a' and 'A' are one name to a table"),
        (avro_of({"type": "int"}), "no field name"),
        (avro_of({"name": "f"}), "no type of field f"),
        (avro_field("wibble"), "undefined name 'wibble'"),
        (avro_field({"type": "array"}), "array without items"),
        (avro_field({"type": "map"}), "map without values"),
        (avro_field({"type": "enum", "name": "E"}), "an enum without symbols: E"),
        (avro_field({"type": "fixed", "name": "F"}), "size of fixed F is null"),
        (avro_field({"type": "fixed", "name": "F", "size": -1}), "size of fixed F is -1"),
        (avro_field({"type": "fixed", "name": "F", "size": 0}), "type F has no bytes"),
        (avro_field({"type": "array", "items": "null"}), "field f is a list or map of nulls"),
        (avro_field({"type": "record", "name": "E", "fields": []}), "a record without fields"),
        (avro_field(["null", "R"]), "a type that contains itself has no columns"),
        (avro_field("int", default="x"), "default of field f is not a value of its type"),
        (avro_field("bytes", default="\u0416"), "the default of field f: 'latin-1' codec"),
        (
            avro_field({"type": "long", "logicalType": "timestamp-millis"}, default=1 << 62),
            "ms is beyond what a TIMESTAMP holds",
        ),
        (configs(value_format="avro", schema='"string"', partition_by="zz"), "no column zz"),
        (configs(value_format="avro", schema="[" * 100_000), "no Avro schema: nested too deep"),
        (avro("at", partition_by="day(at)"), "day(at) needs a timestamp"),
        (avro("a", partition_by="zz"), "partition.by: the table has no column zz"),
        (avro("a", cluster_by="zz"), "cluster.by: the table has no column zz"),
        (avro("a", "_key"), "_key has the name"),
        (avro("a", mode="upsert", keys="b"), "keys: the table has no column b"),
        (configs(value_format="protobuf", schema="enum E { A = 0; }"), "has no message"),
        (
            configs(value_format="protobuf", schema="message=shop.B\nmessage A {} // message B"),
            "no message shop.B: it has A",
        ),
        (configs(enable="true", value_format="avro"), "needs lakehead.table.schema.registry.url"),
        (configs(enable="true", value_format="protobuf"), "or lakehead.table.schema"),
        (configs(value_format="json", schema="a int", cluster_by="b"), "no column b: it has a, _"),
        (configs(value_format="json", schema="a array<int>", cluster_by="a"), "other values"),
        (
            configs(value_format="json", schema="a struct<b:int>", layout="nested", cluster_by="a"),
            "no column a",
        ),
        (configs(cluster_by="id"), "no column id: it has value, _"),
        (configs(partition_by="id"), "no column id: it has value, _"),
        (configs(partition_by="_key"), "cannot be partitioned by _key"),
        (configs(value_format="json", schema="a double", partition_by="a"), "partitioned by a"),
        (configs(value_format="json", schema="a date", partition_by="hour(a)"), "a timestamp"),
        (configs(value_format="json", schema="a string", partition_by="day(a)"), "a timestamp"),
        (configs(value_format="json", schema="a map<string,int>"), "column a: JSON has no BINARY"),
        (configs(value_format="json", schema="a array<struct<b:binary>>"), "column a: JSON"),
        (configs(value_format="json", schema="a int", mode="upsert", keys="b"), "no column b"),
        (
            configs(value_format="json", schema="a struct<b:int>", mode="upsert", keys="a"),
            "a holds other values, which is not a key",
        ),
        (
            configs(value_format="json", layout="nested", mode="upsert", keys="a"),
            "values are in one column: set",
        ),
        (configs(mode="upsert", keys="id"), "keys: the table has no column id: it has value"),
        (configs(value_format="debezium", schema="id int, _op string"), "_op has the name"),
        (configs(value_format="debezium", schema="id int", cluster_by="name"), "no column name"),
        (
            configs(value_format="json", schema="a int, _valid_to date", mode="upsert", scd="2"),
            "_valid_to has the name",
        ),
        (configs(value_format="json", schema="id bigint, at"), "did not understand the end"),
        (configs(value_format="debezium", schema="id WIBBLE"), "type WIBBLE"),
        (configs(path="memory:x"), "memory"),
        (configs(value_format="json", schema="@/etc/passwd"), "no file"),
        (configs(colour="red"), "no such config"),
        (configs(value_format="json", schema="a int, _offset bigint"), "_offset has the name"),
        (configs(value_format="json", schema="_KEY string"), "_KEY has the name"),
        (
            configs(value_format="json", schema="at timestamp, _date date", partition_by="day(at)"),
            "_date has the name",
        ),
        (configs(value_format="json", schema="a int", partition_by="zz"), "no column zz"),
        (configs(value_format="debezium", schema="v variant"), "only JSON is read as VARIANT"),
        (configs(value_format="json", schema="v array<variant>"), "inside another type"),
        (configs(value_format="json", schema="v struct<a: variant>"), "inside another type"),
        (
            configs(value_format="json", schema="v variant, w array<variant>"),
            "column w cannot be VARIANT inside another type",
        ),
        (configs(value_format="json", schema="v variant", layout="nested"), "inside another type"),
        (
            configs(value_format="json", schema="v variant", mode="upsert", keys="v"),
            "v holds other values, which is not a key",
        ),
        (
            configs(value_format="json", schema="variant", layout="nested"),
            "value cannot be VARIANT",
        ),
        (configs(value_format="json", schema="v variant", formats="delta,iceberg"), "PyIceberg"),
        (configs(value_format="json", schema="v variant", catalog="glue"), "table in a catalog"),
        (configs(value_format="json", schema="v variant", cluster_by="v"), "other values"),
        (configs(value_format="json", schema="v variant", partition_by="v"), "partitioned by v"),
        (configs(value_format="json", schema="a int", partition_by="day(zz)"), "no column zz"),
        (
            configs(value_format="json", schema="a int", layout="nested", partition_by="a"),
            "no column a",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_one_line(wrong: dict[str, str], word: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check_declaration(wrong)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(KafkaError) as answered:
        parse_topic_configs(wrong)
    assert answered.value.code is ErrorCode.invalid_config


def test_a_change_is_judged_with_what_the_topic_has() -> None:
    upsert = configs(value_format="json", mode="upsert", keys="id")
    parse_topic_configs(configs(keys="other"), upsert)
    with pytest.raises(KafkaError):
        parse_topic_configs({f"{PREFIX}mode": None}, upsert)
    parse_topic_configs({f"{PREFIX}mode": None, f"{PREFIX}keys": None}, upsert)
    # What has nothing to do with tables is not held up by a declaration of another release.
    parse_topic_configs({"retention.ms": "5"}, configs(colour="red"))


def test_every_config_is_described_with_a_default_that_may_be_set() -> None:
    for config in TABLE_CONFIGS:
        described = TOPIC_CONFIGS[f"{PREFIX}{config.name}"]
        assert described.default == config.default
        assert described.note
        parse_topic_configs({described.name: config.default})


names = st.sampled_from([config.name for config in TABLE_CONFIGS])
values = st.sampled_from(
    ["", "true", "1", "2", "upsert", "json", "avro", "a", "day(a)", "hour(b),c", "{}", "1048576"]
) | st.text(max_size=5)


@given(st.dictionaries(names, values, max_size=4), st.dictionaries(names, values, max_size=2))
@example({}, {"path": "\x1b"})
@example({}, {"cluster.by": "\x1b"})
def test_what_the_broker_takes_can_be_read(held: dict[str, str], change: dict[str, str]) -> None:
    given_configs = {f"{PREFIX}{name}": value for name, value in held.items()}
    changed = {f"{PREFIX}{name}": value for name, value in change.items()}
    try:
        stored = {name: text or "" for name, text in parse_topic_configs(given_configs).items()}
        stored |= {name: text or "" for name, text in parse_topic_configs(changed, stored).items()}
    except KafkaError:
        return
    declared = TableDeclaration.parse("t", "i", stored)  # trimmed, as Kafka trims
    assert set(declared.partition_columns) >= {
        part.column for part in declared.partition_by if not part.unit
    }


@pytest.mark.parametrize(
    "right",
    [
        configs(value_format="json", schema="a int, at date", partition_by="a,day(_timestamp)"),
        configs(value_format="json", schema="_offset bigint", layout="nested"),
        configs(value_format="json", partition_by="zz"),  # inferred: known at the first record
        configs(value_format="json", cluster_by="zz"),
        configs(value_format="avro"),  # for views, until a registry is named or a table asked for
        avro_of(
            {"name": "a", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "on", "type": {"type": "int", "connect.name": "io.debezium.time.Date"}},
            partition_by="day(at),on",
            mode="upsert",
            keys="a",
        ),
        configs(value_format="avro", schema='["null",{"type":"record","name":"R","fields":[]}]'),
        configs(value_format="avro", schema='"string"', partition_by="value"),
        configs(value_format="avro", schema="string"),
        avro_field({"type": {"type": "string"}}),
        avro_field(["int", "string"], default="x"),
        configs(value_format="protobuf", schema="message=a.b.C\nmessage X { message C {} }"),
        configs(value_format="protobuf", schema="CgZvcmRlcnM="),
        configs(partition_by="day(_timestamp),_topic"),
        configs(cluster_by="_key,value"),
        configs(value_format="debezium", schema="id int", partition_by="_op", cluster_by=""),
        configs(value_format="json", schema="v decimal(9,2), d date", cluster_by="v,d,_offset"),
        configs(value_format="json", schema="a int", mode="upsert", scd="2", keys="a"),
        configs(value_format="json", schema="id int, v variant", cluster_by="id"),
        configs(value_format="json", schema="id int, v variant", mode="upsert", keys="id"),
        configs(value_format="json", schema=" variant"),
    ],
)
def test_columns_that_a_declared_schema_makes_are_taken(right: dict[str, str]) -> None:
    check_declaration(right)


def test_the_columns_of_every_table_are_known_to_brokers() -> None:
    assert tuple(METADATA) == METADATA_COLUMNS == tuple(METADATA_TYPES)
    assert [field.name for field in CHANGE_FIELDS] == list(CHANGE_TYPES)
    assert [field.name for field in HISTORY_FIELDS] == list(HISTORY_TYPES)
    for types in (CHANGE_TYPES, HISTORY_TYPES):
        ddl = ", ".join(
            f"{name} {kind.name}" for name, kind in types.items() if isinstance(kind, SimpleType)
        )
        assert list(parse_schema(ddl)) == list(
            CHANGE_FIELDS if types is CHANGE_TYPES else HISTORY_FIELDS
        )


SEVERAL = {
    f"{PREFIX}enable": "true",
    f"{PREFIX}value.format": "json",
    TABLES: "raw,flat",
    f"{PREFIX}raw.value.format": "raw",
    f"{PREFIX}flat.mode": "upsert",
    f"{PREFIX}flat.freshness.ms": "1000",
}


ROUTED = configs(value_format="json", route_field="kind")


def test_each_of_several_tables_has_the_common_configs_and_its_own() -> None:
    topic = TopicState(name="orders", topic_id="i", partitions=(), configs=Map(SEVERAL))
    raw, flat = TableDeclaration.each_of(topic)
    assert (raw.key, raw.value_format, raw.mode) == ("orders/raw", "raw", "append")
    assert (flat.key, flat.value_format, flat.mode) == ("orders/flat", "json", "upsert")
    assert (raw.freshness_ms, flat.freshness_ms) == (60_000, 1000)
    assert flat.uri("file:/lake/store") == "/lake/tables/flat"
    assert (flat.catalog_table, flat.iceberg_table) == ("lakehead.flat", "lakehead.flat")
    assert TableDeclaration.of(topic) == raw
    assert parse_topic_configs(dict(SEVERAL)) == SEVERAL


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({TABLES: "value"}, "value begins the name of a config"),
        ({TABLES: "a,A"}, "names a table twice"),
        ({TABLES: "1a"}, "1a"),
        ({TABLES: "a-b"}, "a-b"),
        ({TABLES: ",".join(f"t{n}" for n in range(17))}, "17 tables: at most 16"),
        ({TABLES: "a,b", f"{PREFIX}path": "/lake"}, "cannot be of several tables"),
        ({TABLES: "a,b", f"{PREFIX}c.mode": "upsert"}, "names no table c"),
        ({f"{PREFIX}a.mode": "upsert"}, "names no table a"),
        ({TABLES: "a,b", f"{PREFIX}a.enable": "true"}, "set lakehead.table.enable for all"),
        ({TABLES: "a,b", f"{PREFIX}a.route.field": "x"}, "set lakehead.table.route.field for all"),
        ({f"{PREFIX}route.field": "kind"}, "needs several tables"),
        ({TABLES: "a,b", f"{PREFIX}a.route.values": "x"}, "needs lakehead.table.route.field"),
        ({TABLES: "a,b", **ROUTED}, "only one can take the rest"),
        (
            {TABLES: "a,b", **ROUTED, f"{PREFIX}a.route.values": "x", f"{PREFIX}mode": "upsert"},
            "append",
        ),
        ({TABLES: "a,b", f"{PREFIX}route.field": "kind", f"{PREFIX}a.route.values": "x"}, "JSON"),
        (
            {TABLES: "a,b", **ROUTED, **{f"{PREFIX}{t}.route.values": "x" for t in "ab"}},
            "the same value",
        ),
        (
            {TABLES: "a,b", **ROUTED, f"{PREFIX}a.route.values": "x", f"{PREFIX}route.field": "a."},
            "a name between dots is empty",
        ),
        ({TABLES: "a,b", f"{PREFIX}a.colour": "red"}, "colour"),
        ({TABLES: "a,b", f"{PREFIX}b.scd": "2"}, "scd=2 is for upsert"),
    ],
)
def test_several_tables_that_make_no_sense_are_refused(wrong: dict[str, str], word: str) -> None:
    with pytest.raises(KafkaError, match=re.escape(word)) as refused:
        parse_topic_configs({f"{PREFIX}enable": "true", **wrong})
    assert refused.value.code is ErrorCode.invalid_config
