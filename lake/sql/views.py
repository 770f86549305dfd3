"""The views of `lakehead sql`, and their rows where they are small.

A topic's view has the columns of the data source `lakehead`. A topic that declares the format of
its values (`lakehead.table.value.format`, with a table or without) has their fields as columns
instead, with `_topic`, `_partition`, `_offset`, `_timestamp` and `_key` beside them, and its bytes
under `<topic>__raw`. `lakehead.topics` and the others of that schema are the tables of
`lakehead.catalog_tables`.

A view of Spark's Python source costs a worker for the columns, one for the plan and one for each
task: seconds, before the first record is read. A small view is read in this process by the same
source while Spark starts, and handed to Spark as a local relation, so that a statement over a few
hundred records takes as long as Spark itself. Larger views are left to Spark's tasks.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, cast

from lakehead.lake.catalog import Catalog
from lakehead.lake.cluster_table_columns import OFFSETS_FOR
from lakehead.lake.cluster_tables import CATALOG_SCHEMAS
from lakehead.lake.declaration.column_types import has_variant, parse_columns
from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.decode.modes import Mode, checked_mode
from lakehead.lake.needs import ALL, Needs
from lakehead.lake.source.options import Undecodable
from lakehead.lake.source.split_partition import CountedPartition, SplitPartition
from lakehead.lake.spark import CATALOG_DATABASE
from lakehead.lake.sql.as_of import AsOf, ending_offsets, find_as_of
from lakehead.lake.sql.query_needs import Options, options_key
from lakehead.lake.sql.statements import Call, find_calls
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.ddl import parse_schema, to_ddl
from lakehead.storage.errors import LakeheadError, SettingsError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from lakehead.lake.source.data_source import LakeheadDataSource


RAW_SUFFIX = "__raw"
_NO_COLUMNS = Needs(columns=frozenset())

_METADATA = "_topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP, _key BINARY"
_TABLES = tuple(name for name in CATALOG_SCHEMAS if name != OFFSETS_FOR)


class TopicViews:
    """Temporary views over a cluster, made when a statement may need them.

    Making a view costs a request to Spark's Python worker for its schema, so only the views that a
    statement's text names are made, unless the statement lists views (then all but Kafka's own,
    `__...`).
    """

    def __init__(
        self,
        path: str,
        json_topics: Sequence[str] = (),
        undecodable: Undecodable = "fail",
        mode: Mode = "FAILFAST",
    ) -> None:
        self._path = path
        self._undecodable = undecodable
        self._mode = checked_mode(mode)
        self._made: set[str] = set()
        self._read_by_spark: dict[str, tuple[ViewSource, DataFrame]] = {}
        self._json = dict(map(_json_option, json_topics))
        catalog = store_reader(path).open_catalog()
        for topic in self._json:
            catalog.topic(topic)

    def topics(self) -> tuple[str, ...]:
        """Names of the topics there are now."""
        return store_reader(self._path).open_catalog().topics()

    def named(self, statement: str) -> "dict[str, ViewSource]":
        """Return the views that a statement names, as they are now: those of topics by their names,
        in backquotes if there is a dot in it, those about the cluster with the database's.
        """
        text = _Text(statement)
        found: dict[str, ViewSource] = {}
        for table in _TABLES:
            if text.has(CATALOG_DATABASE) and text.has(table):
                found[f"{CATALOG_DATABASE}.{table}"] = self._about_cluster(table)
        catalog = store_reader(self._path).open_catalog()
        for name in catalog.topics():
            if text.has(name) or text.has(name + RAW_SUFFIX):
                sources = self._sources(catalog, name)
                found |= {
                    _quoted(view) if "." in view else view: one
                    for view, one in sources.items()
                    if text.has(view)
                }
        return found

    def prepare(
        self,
        session: "SparkSession",
        statement: str,
        named: "Mapping[str, ViewSource]",
        rows: "Mapping[str, LocalRows]",
    ) -> str:
        """Make the views that a statement may name, and return it as Spark can run it.

        `named` is what `named` returned of the statement, `rows` are of those of its views whose
        rows have been read already.
        """
        # Made again for each statement: a view keeps the offsets of its first use.
        self._read_by_spark.clear()
        for name, source in named.items():
            frame = (rows.get(name) or source).frame(session)
            if source.is_about_cluster:
                frame.createOrReplaceGlobalTempView(name.removeprefix(f"{CATALOG_DATABASE}."))
                continue
            view = _quoted(name.strip("`"))
            frame.createOrReplaceTempView(view)
            self._made.add(name.strip("`"))
            if name not in rows:
                self._read_by_spark[view] = (source, frame)
        if re.match(r"\s*(show|use|describe|desc)\b", statement, re.IGNORECASE):
            self._make_listed(session, statement)
        return self._with_offsets(session, self._as_of(session, statement))

    @property
    def are_read_by_spark(self) -> bool:
        """True if Spark reads a topic for the statement that `prepare` was called for."""
        return bool(self._read_by_spark)

    @contextlib.contextmanager
    def narrowed(self, session: "SparkSession", found: Mapping[Options, Needs]) -> Iterator[None]:
        """Within the block, the views of the statement that `prepare` was called for have no more
        than is needed of each. A later statement may name them by a view of the user's.
        """
        narrowed: list[tuple[str, DataFrame]] = []
        for view, (source, whole) in self._read_by_spark.items():
            needs = found.get(source.key, ALL)
            if needs != ALL:
                narrowed.append((view, whole))
                frame = source.needed_frame(session, whole.schema, needs)
                frame.createOrReplaceTempView(view)
        try:
            yield
        finally:
            for view, whole in narrowed:
                whole.createOrReplaceTempView(view)

    def _make_listed(self, session: "SparkSession", statement: str) -> None:
        """Make the views that a statement may list without their names."""
        from pyspark.errors import PySparkException

        if _Text(statement).has(CATALOG_DATABASE):
            for table in _TABLES:
                self._make_catalog_view(session, table, catalog=table)
        catalog = store_reader(self._path).open_catalog()
        for topic in catalog.topics():
            if topic.startswith("__"):
                continue
            with contextlib.suppress(LakeheadError, PySparkException):
                for name, source in self._sources(catalog, topic).items():
                    if name not in self._made:
                        source.frame(session).createOrReplaceTempView(_quoted(name))
                        self._made.add(name)

    def _about_cluster(self, table: str) -> "ViewSource":
        return ViewSource(path=self._path, options={"catalog": table})

    def source(self, name: str) -> "ViewSource | None":
        """Return the source of a view; None for a name, in this spelling, that is not a view of a
        topic or of the cluster.
        """
        database, dot, table = name.partition(".")
        if dot and database == CATALOG_DATABASE and table in _TABLES:
            return self._about_cluster(table)
        catalog = store_reader(self._path).open_catalog()
        base = name.removesuffix(RAW_SUFFIX)
        if name not in catalog.topics() and base not in catalog.topics():
            return None
        topic = name if name in catalog.topics() else base
        return self._sources(catalog, topic).get(name)

    def _sources(self, catalog: Catalog, name: str) -> "dict[str, ViewSource]":
        """Return the views of a topic by their names: its records, and perhaps its values."""
        topic = catalog.topic(name)
        offsets = sum(log.end_offset - log.start_offset for log in catalog.partitions(name))
        raw = ViewSource(
            path=self._path,
            options={"subscribe": name, "includeHeaders": "true", "mode": self._mode},
            offsets=offsets,
        )
        by_json = name in self._json
        if not by_json and topic.configs.get(f"{PREFIX}value.format", "raw") == "raw":
            return {name: raw}
        decoded = ViewSource(
            path=self._path,
            options={
                "subscribe": name,
                "decode": "json" if by_json else "declared",
                "undecodable": self._undecodable,
                "mode": self._mode,
            },
            ddl=self._ddl(name),
            offsets=offsets,
        )
        return {name + RAW_SUFFIX: raw, name: decoded}

    def _ddl(self, topic: str) -> str | None:
        """Return the columns of a topic's values that the user gave, with those beside them."""
        ddl = self._json.get(topic)
        if ddl is None:
            return None
        error = ", _error STRING" if self._undecodable == "null" else ""
        return f"{ddl}, {_METADATA}{error}"

    def _with_offsets(self, session: "SparkSession", statement: str) -> str:
        """The statement with a view in place of each call of `lakehead.offsets_for`: Spark has no
        table functions in Python that bear the name of a database.
        """
        for number, call in reversed(list(enumerate(find_calls(statement, _OFFSETS_FOR)))):
            timestamp, topics = _arguments(session, call)
            view = f"{OFFSETS_FOR}_{number}"
            self._make_catalog_view(
                session,
                view,
                catalog=OFFSETS_FOR,
                timestamp=str(timestamp),
                **({"subscribe": ",".join(topics)} if topics else {}),
            )
            name = f"{CATALOG_DATABASE}.{view}"
            statement = statement[: call.start] + name + statement[call.end :]
        return statement

    def _as_of(self, session: "SparkSession", statement: str) -> str:
        """The statement with a view in place of each topic `AS OF` a time or a version."""
        for number, clause in reversed(list(enumerate(find_as_of(statement)))):
            source = self.source(clause.name)
            if source is None:  # Spark's own, such as a Delta table
                continue
            view = f"{clause.name}__as_of_{number}"
            frame = (as_of := self._ending(session, source, clause)).frame(session)
            frame.createOrReplaceTempView(_quoted(view))
            self._read_by_spark[_quoted(view)] = (as_of, frame)
            shown = _quoted(view) if clause.has_alias else f"{_quoted(view)} {_quoted(clause.name)}"
            statement = statement[: clause.start] + shown + statement[clause.end :]
        return statement

    def _ending(self, session: "SparkSession", source: "ViewSource", clause: AsOf) -> "ViewSource":
        """Return the source with an end. Raises SettingsError."""
        if source.is_about_cluster:
            raise SettingsError(
                f"{clause.kind} AS OF is for topics: {clause.name} has rows of now alone"
            )
        if clause.kind == "TIMESTAMP":
            at_ms = _milliseconds(session, clause.expression)
            if at_ms is None:
                raise SettingsError(
                    f"TIMESTAMP AS OF wants a timestamp since 1970, not {clause.expression}"
                )
            end = {"endingTimestamp": str(at_ms + 1)}
        else:
            topic = source.options["subscribe"]
            partitions = len(store_reader(self._path).open_catalog().topic(topic).partitions)
            version = _unquoted_text(clause.expression)
            end = {"endingOffsets": ending_offsets(topic, partitions, version)}
        return replace(source, options={**source.options, **end})

    def _make_catalog_view(self, session: "SparkSession", name: str, **options: str) -> None:
        source = ViewSource(path=self._path, options=options)
        source.frame(session).createOrReplaceGlobalTempView(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSource:
    """The source of a view: options of the data source `lakehead`, and a schema if the user gave
    one.
    """

    path: str
    options: Mapping[str, str]
    ddl: str | None = None
    offsets: int = 0
    """Number of offsets of its topics, when its statement began."""

    @property
    def is_about_cluster(self) -> bool:
        """True if its rows are about the cluster: a table of `lakehead.catalog_tables`."""
        return "catalog" in self.options

    def read_with(self, columns: Sequence[str], schema: "StructType") -> Sequence[str]:
        """Return what to read for some columns of `schema` to have the rows that all have: a value
        that is not decoded cannot fail, nor can a time.
        """
        if "decode" in self.options:
            return schema.fieldNames()
        times = [name for name in schema.fieldNames() if name == "timestamp"]
        return list(dict.fromkeys([*columns, *times]))

    def frame(self, session: "SparkSession") -> "DataFrame":
        """Return the rows in Spark."""
        read = session.read.format("lakehead").options(path=self.path, **self.options)
        return (read if self.ddl is None else read.schema(self.ddl)).load()

    def needed_frame(
        self, session: "SparkSession", schema: "StructType", needs: Needs
    ) -> "DataFrame":
        """Return the needed part of the rows, in the columns of `schema`."""
        read = session.read.format("lakehead").options(path=self.path, **self.options)
        return read.option("needs", needs.form()).schema(schema).load()

    def count(self, schema: "StructType") -> int:
        """Return the number of rows: by the indexes of objects, as far as each record is a row and
        they count it, and by reading the rest. Raises what reading raises.
        """
        if self.is_about_cluster or "decode" in self.options:
            batches = self.read(schema)
            assert batches is not None, "without a limit"
            return sum(batch.num_rows for batch in batches)
        whole = self if self.options["mode"] != "FAILFAST" else self._needing(_NO_COLUMNS)
        reader = whole._data_source().reader(schema)  # noqa: SLF001 - of this class
        read = cast("Callable[[InputPartition], Iterator[pa.RecordBatch]]", reader.read)
        rows = 0
        for one in reader.partitions():
            if isinstance(one, CountedPartition):
                rows += sum(count.rows for count in one.counts)
            else:
                rows += sum(batch.num_rows for batch in read(one))
        return rows

    def beginning(self, rows: int) -> "ViewSource":
        """Return the source of the first `rows` rows; perhaps of more."""
        return self if self.is_about_cluster else self._needing(Needs(limit=rows))

    def _needing(self, needs: Needs) -> "ViewSource":
        return replace(self, options={**self.options, "needs": needs.form()})

    @property
    def key(self) -> Options:
        """The name of the source in `query_needs`."""
        return options_key({"path": self.path, **self.options})

    def schema(self) -> "StructType":
        """Return the columns, without Spark. Raises what the data source raises."""
        if self.ddl is None:
            return self._data_source().schema()
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(parse_schema(self.ddl))

    def read(
        self, schema: "StructType", fetched_bytes_max: float = math.inf
    ) -> "Iterator[pa.RecordBatch] | None":
        """Return the rows in the columns of `schema`, without Spark; None, before anything is
        read, if more than so many bytes of objects are to be fetched for them.
        """
        reader = self._data_source().reader(schema)
        partitions = reader.partitions()
        lengths = (one.split.length for one in partitions if isinstance(one, SplitPartition))
        if sum(lengths) > fetched_bytes_max:
            return None
        read = cast("Callable[[InputPartition], Iterator[pa.RecordBatch]]", reader.read)
        return chain.from_iterable(map(read, partitions))

    def _data_source(self) -> "LakeheadDataSource":
        from pyspark.sql.datasource import CaseInsensitiveDict

        from lakehead.lake.source.data_source import LakeheadDataSource

        return LakeheadDataSource(CaseInsensitiveDict({"path": self.path, **self.options}))


class _Text:
    """The text of a statement, for finding names in it, in any case. Strings count as well:
    `IDENTIFIER` and `EXECUTE IMMEDIATE` take names as strings.
    """

    def __init__(self, statement: str) -> None:
        self._text = statement.lower()
        self._words = set(re.findall(r"\w+", self._text))

    def has(self, name: str) -> bool:
        """Return whether it may name a view: as a whole word, so that `orders_old` does not name
        `orders`. A name that is not a word, such as `my-orders`, is found within others too.
        """
        name = name.lower()
        return name in (self._words if re.fullmatch(r"\w+", name) else self._text)


_OFFSETS_FOR = rf"{CATALOG_DATABASE}\s*\.\s*{OFFSETS_FOR}"


def _arguments(session: "SparkSession", call: Call) -> tuple[int, list[str]]:
    """The timestamp in milliseconds, and the topics, of a call with constant expressions."""
    from pyspark.sql.types import IntegralType

    if not call.arguments.strip():
        raise SettingsError(f"lakehead.{OFFSETS_FOR} wants a timestamp, then perhaps topics")
    query = f"SELECT {call.arguments}"
    fields = session.sql(query).schema.fields
    names = [f"c{number}" for number in range(len(fields))]
    is_number = isinstance(fields[0].dataType, IntegralType)
    first = "c0" if is_number else "unix_millis(CAST(c0 AS TIMESTAMP))"
    chosen = ", ".join([first, *names[1:]])
    given = f"({query}\n) AS given({', '.join(names)})"
    row = session.sql(f"SELECT {chosen} FROM {given}").first()  # noqa: S608 - the user's own text
    if row is None or row[0] is None or row[0] < 0:
        raise SettingsError(
            f"lakehead.{OFFSETS_FOR} wants a timestamp or milliseconds since 1970, not "
            f"{call.arguments.strip()}"
        )
    return int(row[0]), [str(topic) for topic in row[1:]]


def _milliseconds(session: "SparkSession", expression: str) -> int | None:
    """Return the time of a constant expression as Spark casts it; None for none, or before 1970."""
    query = f"SELECT unix_millis(CAST(({expression}\n) AS TIMESTAMP))"
    row = session.sql(query).first()
    return None if row is None or row[0] is None or row[0] < 0 else int(row[0])


def _unquoted_text(literal: str) -> str:
    """Return the text of a string in SQL, or a number as it is."""
    if literal[0] not in "'\"":
        return literal
    return re.sub(r"\\(.)", r"\1", literal[1:-1])


def _json_option(option: str) -> tuple[str, str | None]:
    """Take `topic` or `topic=DDL` apart; the DDL is checked."""
    topic, equals, ddl = option.partition("=")
    if not topic.strip():
        raise SettingsError(f"--json-values wants TOPIC or TOPIC=SCHEMA, not {option!r}")
    if not equals:
        return topic.strip(), None
    schema = to_ddl(parse_schema(ddl))
    if any(has_variant(column.type) for column in parse_columns(schema)):
        raise SettingsError(
            f"--json-values {topic.strip()}: VARIANT is a type of tables alone: declare it as "
            "lakehead.table.schema of the topic"
        )
    return topic.strip(), schema


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


OFFSETS_MAX = 50_000
"""A topic with more offsets is not small: about what one worker decodes while it starts."""

FETCHED_BYTES_MAX = 8 << 20
"""As `lakehead.lake.planner.SPLIT_BYTES_MIN`: what Spark would give to a single task."""

HELD_BYTES_MAX = 32 << 20
"""Of all views of a statement, as Arrow. Spark keeps up to 48 MiB as a local relation
(`spark.sql.execution.arrow.localRelationThreshold`).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRows:
    """The rows of a view, with Spark's types of its columns."""

    table: "pa.Table"
    schema: "StructType"

    def frame(self, session: "SparkSession") -> "DataFrame":
        """Return the rows in Spark."""
        return session.createDataFrame(self.table, schema=self.schema)


def read_small(sources: Mapping[str, ViewSource]) -> dict[str, LocalRows]:
    """Return the rows of the views that are small; each view is as it is when this is called.

    A view that cannot be read is left out: Spark reads it then, and names what is wrong only if the
    statement needs those rows.
    """
    found: dict[str, LocalRows] = {}
    left = HELD_BYTES_MAX
    for name, source in sources.items():
        try:
            rows = _rows(source, left)
        except Exception:  # noqa: BLE001, S112 - whatever it is, Spark's own read reports it
            continue
        if rows is not None:
            found[name] = rows
            left -= rows.table.nbytes
    return found


def _rows(source: ViewSource, bytes_max: int) -> LocalRows | None:
    """Return the rows of a view; None for more than `bytes_max`, or than the limits above."""
    import pyarrow as pa

    from lakehead.lake.source.arrow_schema import arrow_schema_of

    if source.offsets > OFFSETS_MAX:
        return None
    schema = source.schema()
    batches: list[pa.RecordBatch] = []
    rows = source.read(schema, fetched_bytes_max=FETCHED_BYTES_MAX)
    if rows is None:
        return None
    for batch in rows:
        bytes_max -= batch.nbytes
        if bytes_max < 0:
            return None
        batches.append(batch)
    if not batches:
        return LocalRows(table=arrow_schema_of(schema).empty_table(), schema=schema)
    return LocalRows(table=pa.Table.from_batches(batches), schema=schema)
