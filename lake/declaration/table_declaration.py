"""The configs of a topic that declare its table: names, defaults and rules, and the
`TableDeclaration` that they make together. Its columns are checked against the schema. Pure.

The broker checks values by `check_declaration`, and shows and documents `TABLE_CONFIGS`. The lake
reads `TableDeclaration.of`. Both judge alike, so the lake can read every declaration that a broker
has accepted.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from lakehead.lake.declaration.avro_types import check_defaults, column_types, read_schema
from lakehead.lake.declaration.column_types import (
    ArrayType,
    Column,
    ColumnType,
    DecimalType,
    MapType,
    SimpleType,
    StructType,
    has_variant,
    parse_columns,
)
from lakehead.lake.declaration.paths import root_path
from lakehead.storage.encryption.settings import plain_address
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import TABLE_RETENTION_WAIT_MS, TopicState

Columns: TypeAlias = Mapping[str, ColumnType | None]
"""Types by name; None is a type that is not looked at."""

METADATA_TYPES: Columns = {
    "_topic": SimpleType("STRING"),
    "_partition": SimpleType("INT"),
    "_offset": SimpleType("BIGINT"),
    "_timestamp": SimpleType("TIMESTAMP"),
    "_key": SimpleType("BINARY"),
    "_headers": ArrayType(StructType((Column("key", SimpleType("STRING")),))),
}
CHANGE_TYPES: Columns = {
    "_op": SimpleType("STRING"),
    "_seq": SimpleType("INT"),
    "_source_ts": SimpleType("TIMESTAMP"),
    "_source_position": SimpleType("STRING"),
}
"""Columns of the history of Debezium's changes."""
HISTORY_TYPES: Columns = {
    "_valid_from": SimpleType("TIMESTAMP"),
    "_valid_to": SimpleType("TIMESTAMP"),
    "_is_current": SimpleType("BOOLEAN"),
}
"""Columns of a table that keeps every value of a key."""

_PARTITION_TYPES = (
    "STRING",
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "DATE",
    "TIMESTAMP",
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")
_TOP = "lakehead.table."

PREFIX = "lakehead.table."

TABLES = "lakehead.tables"
"""The config of a topic that names its tables, if it has several."""

TABLES_MAX = 16
"""Tables that a topic may name: each holds rows in memory while a read of the topic makes them."""

OF_ONE_TABLE = ("path", "catalog.name", "iceberg.name", "route.values")
"""Configs that two tables cannot share."""

OF_ALL_TABLES = ("enable", "retention.wait.ms", "route.field")
"""Configs that one of several tables cannot have for itself."""

_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

ValueFormat = Literal["raw", "json", "avro", "protobuf", "debezium"]
ValueLayout = Literal["flat", "nested"]
TableMode = Literal["append", "upsert"]
OnError = Literal["pause", "dead_letter", "drop"]
Evolution = Literal["evolve", "pause", "dead_letter"]

METADATA_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_headers")
"""Columns of every table: where each record came from."""

DATE, HOUR = "_date", "_hour"
"""Columns that `day(c)` and `hour(c)` of `lakehead.table.partition.by` make."""

_NAME = r"[^\s,()]+"
_PART = re.compile(rf"(?:(day|hour)\(({_NAME})\)|({_NAME}))")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """One config. `name` without the prefix; `pattern` is what each item of a list has to match."""

    name: str
    kind: Literal["boolean", "string", "list", "int", "long"]
    default: str
    note: str
    choices: tuple[str, ...] | None = None
    least: int | None = None
    pattern: str | None = None


TABLE_CONFIGS: tuple[TableConfig, ...] = (
    TableConfig(
        name="catalog",
        kind="string",
        default="",
        note="The catalog that has an entry of the table, by its name in LAKEHEAD_TABLE_CATALOGS "
        "on the machine that writes the table. Empty: none.",
    ),
    TableConfig(
        name="catalog.name",
        kind="string",
        default="",
        note="The table's name in the catalog, with as many parts as it takes: database.table, or "
        "catalog.schema.table. Empty: lakehead.TOPIC, with _ for each dot and dash.",
    ),
    TableConfig(
        name="cluster.by",
        kind="list",
        default="",
        note="Columns that OPTIMIZE keeps rows together by (Z-order). It rewrites new files, and "
        "joins cubes of such files (cluster.bytes).",
        pattern=_NAME,
    ),
    TableConfig(
        name="cluster.bytes",
        kind="long",
        default=str(8 << 30),
        note="The size, in bytes, up to which cubes of clustered files are joined. A query by the "
        "clustering columns reads a part of each cube; larger ones cost more rewriting.",
        least=1 << 20,
    ),
    TableConfig(
        name="comment",
        kind="string",
        default="",
        note="A text about the table, for the catalog.",
    ),
    TableConfig(
        name="deletion.vectors",
        kind="boolean",
        default="false",
        note="An upsert marks the rows that it replaces by Delta's deletion vectors, and rewrites "
        "no file. Readers need Delta's protocol (3, 7). Not with formats=delta,iceberg: such a "
        "table is rewritten.",
    ),
    TableConfig(
        name="enable",
        kind="boolean",
        default="false",
        note="Keep the topic as a Delta table. Retention then waits for the table "
        "(lakehead.table.retention.wait.ms).",
    ),
    TableConfig(
        name="evolution",
        kind="string",
        default="evolve",
        note="A value of another schema: evolve adds columns, widens and relaxes types where no "
        "value is lost, and handles the rest as on.error says; pause stops; dead_letter keeps the "
        "value aside.",
        choices=("evolve", "pause", "dead_letter"),
    ),
    TableConfig(
        name="file.bytes",
        kind="long",
        default=str(128 << 20),
        note="The target size of the table's files, in bytes.",
        least=1 << 20,
    ),
    TableConfig(
        name="formats",
        kind="string",
        default="delta",
        note="Formats of the table: with iceberg, an Iceberg table names the same files too.",
        choices=("delta", "delta,iceberg"),
    ),
    TableConfig(
        name="freshness.ms",
        kind="long",
        default="60000",
        note="The longest time that the table may be behind the records in objects, in ms.",
        least=1000,
    ),
    TableConfig(
        name="iceberg.catalog",
        kind="string",
        default="default",
        note="The catalog of the Iceberg table, by its name in PyIceberg's settings on the machine "
        "that writes the table.",
    ),
    TableConfig(
        name="iceberg.name",
        kind="string",
        default="",
        note="Namespace and name of the Iceberg table. Empty: lakehead.TOPIC, with _ for each dot.",
    ),
    TableConfig(
        name="keys",
        kind="list",
        default="",
        note="Columns that identify a row (upsert); none: the record's key.",
        pattern=_NAME,
    ),
    TableConfig(
        name="layout",
        kind="string",
        default="flat",
        note="flat: the fields of values are columns; nested: they are in one column, value.",
        choices=("flat", "nested"),
    ),
    TableConfig(
        name="mode",
        kind="string",
        default="append",
        note="append: each record is a row; upsert: each key is a row, a null value removes it.",
        choices=("append", "upsert"),
    ),
    TableConfig(
        name="on.error",
        kind="string",
        default="pause",
        note="A record that cannot be a row: pause stops before it; dead_letter keeps it in the "
        "table's __dlq table; drop leaves it out.",
        choices=("pause", "dead_letter", "drop"),
    ),
    TableConfig(
        name="optimize.deleted.percent",
        kind="int",
        default="10",
        note="The share of rows that deletion vectors have deleted from which OPTIMIZE is due and "
        "rewrites a file, in percent.",
        least=1,
    ),
    TableConfig(
        name="optimize.interval.ms",
        kind="long",
        default="3600000",
        note="The least time between two OPTIMIZEs that maintenance runs, in ms; 0: it runs none. "
        "OPTIMIZE is due when many files are small.",
    ),
    TableConfig(
        name="optimize.small.percent",
        kind="int",
        default="50",
        note="The share of small files (below a quarter of file.bytes, with another such file in "
        "their partition) from which OPTIMIZE is due, in percent. 16 files must be small.",
        least=1,
    ),
    TableConfig(
        name="owner",
        kind="string",
        default="",
        note="The owner of the table, for the catalog.",
    ),
    TableConfig(
        name="partition.by",
        kind="list",
        default="",
        note="Columns that the table is partitioned by; day(column) makes _date of a timestamp, "
        "hour(column) makes _date and _hour.",
        pattern=_PART.pattern,
    ),
    TableConfig(
        name="path",
        kind="string",
        default="",
        note="The root of the table: a folder's whole path, or s3://bucket/prefix, in one of the "
        "places that nodes allow (table.roots); empty: tables/ beside the cluster's objects.",
    ),
    TableConfig(
        name="retention.wait.ms",
        kind="long",
        default=str(TABLE_RETENTION_WAIT_MS),
        note="The time in ms that records stay beyond retention.ms while the table does not have "
        "them. After it retention removes them, and the table never gets them. "
        "9223372036854775807: no limit.",
    ),
    TableConfig(
        name="route.field",
        kind="string",
        default="",
        note="A field of JSON values (type, or event.type for one inside of others) that decides "
        "which of the topic's tables a record is of. Empty: each table has every record.",
    ),
    TableConfig(
        name="route.values",
        kind="list",
        default="",
        note="Values of route.field, for one of several tables: it has the records with these. "
        "Empty: the records that no other table has.",
        pattern=r"[^,]+",
    ),
    TableConfig(
        name="scd",
        kind="int",
        default="1",
        note="1: a row is the newest value of its key; 2: every value is kept, with its times.",
        choices=("1", "2"),
    ),
    TableConfig(
        name="schema",
        kind="string",
        default="",
        note="The schema of values: DDL (json), an Avro schema, a Protobuf file (message=<name> "
        "before it where there are several). Empty: by the id in each value; JSON without a "
        "registry: inferred once and kept.",
    ),
    TableConfig(
        name="schema.registry.url",
        kind="string",
        default="",
        note="The schema registry of schema ids in values (Confluent wire format), one of those "
        "that nodes allow (table.registries).",
    ),
    TableConfig(
        name="value.format",
        kind="string",
        default="raw",
        note="The format of values, for the table and for lakehead sql.",
        choices=("raw", "json", "avro", "protobuf", "debezium"),
    ),
    TableConfig(
        name="vacuum.interval.ms",
        kind="long",
        default="86400000",
        note="The time between two VACUUMs that maintenance runs, in ms; 0: it runs none. VACUUM "
        "deletes files that no version of the last seven days references.",
    ),
)
_DEFAULTS = {config.name: config.default for config in TABLE_CONFIGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPart:
    """An item of `lakehead.table.partition.by`: a column as it is, or the day or hour of one."""

    column: str
    unit: Literal["", "day", "hour"] = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Partition columns of the table that it makes."""
        if not self.unit:
            return (self.column,)
        return (DATE,) if self.unit == "day" else (DATE, HOUR)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDeclaration:
    """A topic's declaration of a table. The fields are the configs, see `TABLE_CONFIGS`. The
    value format and the schema are of use without a table too (`is_enabled`). `name` is the
    table's: one of `table_names`, those that `lakehead.tables` names, else the topic's.
    """

    topic: str
    topic_id: str
    name: str
    table_names: tuple[str, ...]
    is_enabled: bool
    path: str
    value_format: ValueFormat
    schema: str
    schema_registry_url: str
    layout: ValueLayout
    mode: TableMode
    keys: tuple[str, ...]
    partition_by: tuple[PartitionPart, ...]
    cluster_by: tuple[str, ...]
    cluster_bytes: int
    on_error: OnError
    evolution: Evolution
    scd: int
    route_field: str
    route_values: tuple[tuple[str, ...], ...]
    freshness_ms: int
    file_bytes: int
    has_deletion_vectors: bool
    has_iceberg: bool
    iceberg_catalog: str
    iceberg_name: str
    catalog: str
    catalog_name: str
    comment: str
    owner: str
    optimize_deleted_percent: int
    optimize_interval_ms: int
    optimize_small_percent: int
    vacuum_interval_ms: int

    @classmethod
    def parse(
        cls, topic: str, topic_id: str, configs: Mapping[str, str], *, name: str = ""
    ) -> "TableDeclaration":
        """Return the declaration of the table `name` of a topic that sets `configs` (empty: of its
        first one); it skips configs that are not of tables. Raises SettingsError for values that
        are invalid, alone or together.
        """
        names = table_names(configs)
        name = name or (names[0] if names else topic)
        values = {**_DEFAULTS, **_given(configs, names, name)}
        for config in TABLE_CONFIGS:
            _check_value(config, values[config.name])
        declared = cls(
            topic=topic,
            topic_id=topic_id,
            name=name,
            table_names=names,
            is_enabled=values["enable"].lower() == "true",
            path=values["path"],
            value_format=cast(ValueFormat, values["value.format"]),
            schema=values["schema"],
            schema_registry_url=values["schema.registry.url"],
            layout=cast(ValueLayout, values["layout"]),
            mode=cast(TableMode, values["mode"]),
            keys=_items(values["keys"]),
            partition_by=tuple(_part(item) for item in _items(values["partition.by"])),
            cluster_by=_items(values["cluster.by"]),
            cluster_bytes=int(values["cluster.bytes"]),
            on_error=cast(OnError, values["on.error"]),
            evolution=cast(Evolution, values["evolution"]),
            scd=int(values["scd"]),
            route_field=values["route.field"],
            route_values=tuple(
                _items(_given(configs, names, one).get("route.values", "")) for one in names
            ),
            freshness_ms=int(values["freshness.ms"]),
            file_bytes=int(values["file.bytes"]),
            has_deletion_vectors=values["deletion.vectors"].lower() == "true",
            has_iceberg=values["formats"] == "delta,iceberg",
            iceberg_catalog=values["iceberg.catalog"],
            iceberg_name=values["iceberg.name"],
            catalog=values["catalog"],
            catalog_name=values["catalog.name"],
            comment=values["comment"],
            owner=values["owner"],
            optimize_deleted_percent=int(values["optimize.deleted.percent"]),
            optimize_interval_ms=int(values["optimize.interval.ms"]),
            optimize_small_percent=int(values["optimize.small.percent"]),
            vacuum_interval_ms=int(values["vacuum.interval.ms"]),
        )
        _check_together(declared)
        return declared

    @classmethod
    def of(cls, topic: TopicState) -> "TableDeclaration":
        """Return the declaration of a topic: of its first table, which says how the topic's values
        are read elsewhere too. Raises SettingsError.
        """
        return cls.parse(topic.name, topic.topic_id, topic.configs)

    @classmethod
    def each_of(cls, topic: TopicState) -> "tuple[TableDeclaration, ...]":
        """Return the declarations of a topic's tables, in their order. Raises SettingsError."""
        names = table_names(topic.configs) or (topic.name,)
        return tuple(
            cls.parse(topic.name, topic.topic_id, topic.configs, name=name) for name in names
        )

    @property
    def is_named(self) -> bool:
        """True if the topic names its tables."""
        return bool(self.table_names)

    @property
    def key(self) -> str:
        """The table's name among all tables of the cluster: its topic's, or TOPIC/TABLE if the
        topic names its tables. Names of topics have no slash.
        """
        return f"{self.topic}/{self.name}" if self.is_named else self.topic

    def uri(self, store: str) -> str:
        """Return the root of the table, given the URI of the cluster's objects."""
        return self.path or default_table_uri(store, self.name)

    @property
    def takes_vectors(self) -> bool:
        """True if an upsert may mark rows by deletion vectors, which Iceberg's readers of the same
        files would not see.
        """
        return self.has_deletion_vectors and not self.has_iceberg

    @property
    def iceberg_table(self) -> str:
        """The Iceberg table's namespace and name."""
        return self.iceberg_name or f"lakehead.{self.name.replace('.', '_')}"

    @property
    def catalog_table(self) -> str:
        """The table's name in its catalog."""
        return self.catalog_name or f"lakehead.{re.sub('[.-]', '_', self.name.lower())}"

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The table's partition columns, in order."""
        made = (column for part in self.partition_by for column in part.columns)
        return tuple(dict.fromkeys(made))


def table_names(configs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tables that a topic names; none if it has one table, with the topic's own name.
    Raises SettingsError.
    """
    names = _items(configs.get(TABLES, ""))
    reserved = {name.partition(".")[0] for name in _DEFAULTS}
    for name in names:
        _require(
            _TABLE_NAME.fullmatch(name) is not None,
            f"{TABLES}: {name} is not the name of a table: letters, digits and _, at most 100, "
            "and no digit first",
        )
        _require(
            name not in reserved,
            f"{TABLES}: {name} begins the name of a config: choose another name",
        )
    _require(len({name.lower() for name in names}) == len(names), f"{TABLES} names a table twice")
    _require(len(names) <= TABLES_MAX, f"{TABLES} names {len(names)} tables: at most {TABLES_MAX}")
    return names


def declared_paths(topic: str, configs: Mapping[str, str]) -> dict[str, str]:
    """Return `lakehead.table.path` of each table of a topic, by name; empty for the default place.
    Of an invalid declaration it returns what can be known.
    """
    names = _items(configs.get(TABLES, ""))
    if not names:
        return {topic: (configs.get(f"{PREFIX}path") or "").strip()}
    return {name: (configs.get(f"{PREFIX}{name}.path") or "").strip() for name in names}


def _given(configs: Mapping[str, str], names: tuple[str, ...], name: str) -> dict[str, str]:
    """Return what a topic sets for a table: the common configs, and over them its own."""
    common, own = {}, {}
    for full, value in configs.items():
        if not full.startswith(PREFIX):
            continue
        config = full.removeprefix(PREFIX)
        table, _, inner = config.partition(".")
        if config in _DEFAULTS:
            _require(
                not names or config not in OF_ONE_TABLE,
                f"{full} cannot be of several tables: set {PREFIX}TABLE.{config} for each of "
                f"{TABLES}",
            )
            common[config] = value.strip()
            continue
        _require(inner in _DEFAULTS, f"{full}: no such config")
        _require(table in names, f"{full}: {TABLES} names no table {table}")
        _require(inner not in OF_ALL_TABLES, f"{full}: set {PREFIX}{inner} for all of {TABLES}")
        if table == name:
            own[inner] = value.strip()
    return {**common, **own}


def default_table_uri(store: str, table: str) -> str:
    """Return the root of a table that is declared without one: `tables/` beside the store. `table`
    is its name, that of its topic unless the topic has several.
    """
    store = plain_address(store)
    scheme, colon, folder = store.partition(":")
    if not colon or "/" in scheme:  # a plain path
        scheme, folder = "file", store
    if scheme == "file":
        folder = folder.removeprefix("//").rstrip("/").removesuffix("/store")
        return f"{folder}/tables/{table}"
    place, mark, options = store.partition("?")
    return f"{place.rstrip('/')}/tables/{table}{mark}{options}"


def dead_letters_uri(table: str) -> str:
    """Return the root of the dead-letter table of the table at a URI."""
    place, mark, options = table.partition("?")
    return f"{place.rstrip('/')}__dlq{mark}{options}"


def rebuild_uri(table: str) -> str:
    """Return the root of a rebuilt table, which takes the place of the one at a URI."""
    place, mark, options = table.partition("?")
    return f"{place.rstrip('/')}__rebuild{mark}{options}"


def check_declaration(configs: Mapping[str, str]) -> None:
    """Raise SettingsError unless the configs of a topic are valid declarations."""
    for name in table_names(configs) or ("",):
        TableDeclaration.parse("topic", "", configs, name=name)


def _check_value(config: TableConfig, value: str) -> None:
    name = f"{PREFIX}{config.name}"
    if config.choices is not None:
        _require(value in config.choices, f"{name} is one of: {', '.join(config.choices)}")
    elif config.kind == "boolean":
        _require(value.lower() in {"true", "false"}, f"{name} is true or false")
    elif config.kind in {"int", "long"}:
        _require(
            value.isdecimal() and (config.least or 0) <= int(value) < 1 << 63,
            f"{name} is a number, at least {config.least or 0}",
        )
    elif config.pattern is not None:
        items = _items(value)
        for item in items:
            _require(
                re.fullmatch(config.pattern, item) is not None, f"{name}: {item} is not a column"
            )
        _require(len(set(items)) == len(items), f"{name} names a column twice")


def _check_routes(declared: TableDeclaration) -> None:
    each = declared.route_values
    if not declared.route_field:
        _require(not any(each), f"{PREFIX}TABLE.route.values needs {PREFIX}route.field")
        return
    _require(declared.is_named, f"{PREFIX}route.field needs several tables: set {TABLES}")
    _require(
        declared.value_format == "json",
        f"{PREFIX}route.field is for JSON values: set {PREFIX}value.format=json for each table",
    )
    _require(
        declared.mode == "append",
        f"{PREFIX}route.field is for tables by append: a null value would be of no table",
    )
    _require(
        all(declared.route_field.split(".")), f"{PREFIX}route.field: a name between dots is empty"
    )
    _require(
        each.count(()) <= 1,
        f"{PREFIX}TABLE.route.values: two tables have none, and only one can take the rest",
    )
    values = [value for some in each for value in some]
    _require(
        len(set(values)) == len(values),
        f"{PREFIX}TABLE.route.values: two tables have the same value",
    )


def _check_together(declared: TableDeclaration) -> None:
    _check_routes(declared)
    is_upsert = declared.mode == "upsert"
    units = [part for part in declared.partition_by if part.unit]
    _require(len(units) <= 1, f"{PREFIX}partition.by takes one day() or hour()")
    names = [column for part in declared.partition_by for column in part.columns]
    _require(len(set(names)) == len(names), f"{PREFIX}partition.by makes a column twice")
    _require(
        not (declared.partition_by and declared.cluster_by),
        f"{PREFIX}partition.by and {PREFIX}cluster.by exclude each other: a table has partitions, "
        "or is clustered",
    )
    _require(
        is_upsert or not declared.keys,
        f"{PREFIX}keys is for upsert: set {PREFIX}mode=upsert, or leave the keys out",
    )
    _require(
        is_upsert or declared.scd == 1,
        f"{PREFIX}scd=2 is for upsert: set {PREFIX}mode=upsert as well",
    )
    _require(
        is_upsert or not declared.has_deletion_vectors,
        f"{PREFIX}deletion.vectors is for upsert: set {PREFIX}mode=upsert as well",
    )
    _require(
        declared.value_format != "raw" or not declared.schema,
        f"{PREFIX}schema does not apply to raw values: set {PREFIX}value.format as well",
    )
    _require(
        bool(re.fullmatch(r"[\w-]+(\.[\w-]+)+", declared.iceberg_table)),
        f"{PREFIX}iceberg.name is a namespace and a name: lake.orders",
    )
    _require(
        bool(re.fullmatch(r"\w+(\.\w+){1,2}", declared.catalog_table)),
        f"{PREFIX}catalog.name is database.table or catalog.schema.table",
    )
    if declared.path:
        try:
            root_path(declared.path)
        except SettingsError as error:
            raise SettingsError(f"{PREFIX}path: {error}") from None
    _require(
        not declared.schema.startswith("@"),
        f"{PREFIX}schema is the schema itself: a node reads no file of yours",
    )
    if declared.value_format in {"avro", "protobuf"} and declared.is_enabled:
        _require(
            bool(declared.schema or declared.schema_registry_url),
            f"{PREFIX}value.format={declared.value_format} needs {PREFIX}schema.registry.url or "
            f"{PREFIX}schema",
        )
    check_columns(declared, _value_columns(declared))


def _value_columns(declared: TableDeclaration) -> Columns | None:
    """Return the fields of a declaration's values, None if only records will show them."""
    if declared.value_format == "raw":
        return {"value": SimpleType("BINARY")}
    if not declared.schema:
        return None
    try:
        if declared.value_format == "avro":
            return avro_columns(declared.schema)
        if declared.value_format == "protobuf":
            check_protobuf(declared.schema)
            return None
        columns = {column.name: column.type for column in parse_columns(declared.schema)}
        if declared.value_format == "json":
            check_json(columns)
        return columns
    except SettingsError as error:
        raise SettingsError(f"{PREFIX}schema: {error}") from None


def _part(item: str) -> PartitionPart:
    found = _PART.fullmatch(item)
    assert found is not None, "checked before"
    unit, inner, plain = found.groups()
    if unit is None:
        return PartitionPart(column=plain)
    return PartitionPart(column=inner, unit=cast(Literal["day", "hour"], unit))


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def check_columns(declared: TableDeclaration, fields: Columns | None) -> None:
    """Check the columns of a declaration; `fields` are those of its values, None if only records
    show them. Raises SettingsError.
    """
    is_nested = declared.layout == "nested" and declared.value_format != "raw"
    _require(
        not (is_nested and declared.keys),
        f"{_TOP}keys names columns, but values are in one column: set {_TOP}layout=flat, "
        "or leave the keys out",
    )
    if fields is None:
        return
    _check_variants(declared, fields)
    made: Columns = {
        **METADATA_TYPES,
        **(CHANGE_TYPES if declared.value_format == "debezium" else {}),
        **(HISTORY_TYPES if declared.scd == 2 else {}),
    }
    taken = {*made, *(c for part in declared.partition_by if part.unit for c in part.columns)}
    for name in () if is_nested else fields:
        _require(
            name.lower() not in taken,
            f"{_TOP}schema: {name} has the name of a column that is made: leave it out, or set "
            f"{_TOP}layout=nested",
        )
    values: Columns = {"value": StructType(())} if is_nested else fields
    known = {**values, **made}
    for part in declared.partition_by:
        _check_part(part, known)
    for name in declared.cluster_by:
        _check_known("cluster.by", name, known)
        _require(
            not _holds_others(known[name]),
            f"{_TOP}cluster.by: rows cannot be kept together by {name}, which holds other values",
        )
    for name in declared.keys:
        _check_known("keys", name, fields)
        _require(
            not _holds_others(fields[name]),
            f"{_TOP}keys: {name} holds other values, which is not a key",
        )


def _holds_others(kind: ColumnType | None) -> bool:
    """Return whether values of a type hold other values."""
    return isinstance(kind, ArrayType | MapType | StructType) or kind == SimpleType("VARIANT")


def _check_variants(declared: TableDeclaration, fields: Columns) -> None:
    """Raise SettingsError for columns of VARIANT in a table that cannot have any."""
    for name, kind in fields.items():
        if kind is None or not has_variant(kind):
            continue
        column = f"{_TOP}schema: column {name} cannot be VARIANT"
        _require(
            declared.value_format == "json",
            f"{column}: only JSON is read as VARIANT (lakehead.table.value.format=json)",
        )
        _require(
            kind == SimpleType("VARIANT") and declared.layout == "flat",
            f"{column} inside another type: make it a column of its own, with {_TOP}layout=flat",
        )
        _require(
            not declared.has_iceberg,
            f"{column} of an Iceberg table, which PyIceberg cannot write: use STRING, or set "
            f"{_TOP}formats=delta",
        )
        _require(
            not declared.catalog,
            f"{column} of a table in a catalog: use STRING, or leave {_TOP}catalog empty",
        )


def _check_part(part: PartitionPart, known: Columns) -> None:
    _check_known("partition.by", part.column, known)
    kind = known[part.column]
    if kind is None:
        return
    name = kind.name if isinstance(kind, SimpleType) else ""
    if part.unit:
        _require(
            name == "TIMESTAMP" or (part.unit == "day" and name == "DATE"),
            f"{_TOP}partition.by: {part.unit}({part.column}) needs a timestamp",
        )
    else:
        _require(
            name in _PARTITION_TYPES,
            f"{_TOP}partition.by: a table cannot be partitioned by {part.column}: that takes text, "
            "an integer, a boolean or a time",
        )


def _check_known(config: str, name: str, known: Columns) -> None:
    _require(
        name in known,
        f"{_TOP}{config}: the table has no column {name}: it has {', '.join(known)}",
    )


def check_json(columns: Columns) -> None:
    """Raise SettingsError for a type that JSON values cannot have."""
    for name, kind in columns.items():
        _require(
            kind is None or _is_json(kind),
            f"column {name}: JSON has no BINARY, and an object is a STRUCT, not a MAP",
        )


def _is_json(kind: ColumnType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_json(kind.item)
    if isinstance(kind, StructType):
        return all(_is_json(column.type) for column in kind.columns)
    return isinstance(kind, DecimalType) or (isinstance(kind, SimpleType) and kind.name != "BINARY")


def avro_columns(text: str) -> Columns:
    """Return the columns of an Avro schema: the fields of a record, or the one that other values
    make. Raises SettingsError for a schema that tables cannot read.
    """
    schema = read_schema(text)
    check_defaults(schema)
    return column_types(schema)


def check_protobuf(text: str) -> None:
    """Raise SettingsError for text that has not the message that it names, or no message. Text is a
    Protobuf file, or its descriptor in base64, which is left to the table.
    """
    first, _, rest = text.partition("\n")
    wanted = first.removeprefix("message=").strip() if first.startswith("message=") else ""
    file = rest if wanted else text
    if _BASE64.fullmatch(file):
        return
    names = re.findall(r"\bmessage\s+(\w+)", _COMMENT.sub(" ", file))
    _require(bool(names), "not a Protobuf file: it has no message")
    _require(
        not wanted or wanted.rpartition(".")[2] in names,
        f"there is no message {wanted}: it has {', '.join(names)}",
    )


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise SettingsError(reason)
