"""The views of `lakehead sql`.

A topic's view has the columns of the data source `lakehead`. A topic that declares what its values
are (`lakehead.table.value.format`, with a table or without) has their fields as columns instead,
with `_topic`, `_partition`, `_offset`, `_timestamp` and `_key` beside them, and its bytes under
`<topic>__raw`. `lakehead.topics` and its like are the tables of `lake.catalog_tables`.
"""

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lake.cluster_tables import CATALOG_SCHEMAS, OFFSETS_FOR
from lake.source.option_decoding import Undecodable
from lake.spark import CATALOG_DATABASE
from lake.sql_statements import Call, find_calls
from lake.store_reader import store_reader
from lake.tables.ddl import parse_schema, to_ddl
from storage.errors import LakeheadError, SettingsError
from storage.metadata.state import TopicState
from storage.metadata.table_declaration import PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

RAW_SUFFIX = "__raw"

_METADATA = "_topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP, _key BINARY"
_TABLES = tuple(name for name in CATALOG_SCHEMAS if name != OFFSETS_FOR)


class TopicViews:
    """Temporary views over a cluster, made when a statement may need them.

    Making a view asks Spark's Python worker for a schema, so only the topics that a statement's
    text names get one, unless the statement lists views (then all but Kafka's own, `__...`).
    """

    def __init__(
        self, path: str, json_topics: Sequence[str] = (), undecodable: Undecodable = "fail"
    ) -> None:
        self._path = path
        self._undecodable = undecodable
        self._made: set[str] = set()
        self._json = dict(map(_json_option, json_topics))
        catalog = store_reader(path).open_catalog()
        for topic in self._json:
            catalog.topic(topic)

    def topics(self) -> tuple[str, ...]:
        """Names of the topics there are now."""
        return store_reader(self._path).open_catalog().topics()

    def prepare(self, session: "SparkSession", statement: str) -> str:
        """Make the views that a statement may name, and return it as Spark can run it."""
        from pyspark.errors import PySparkException

        text = statement.lower()
        everything = re.match(r"\s*(show|use|describe|desc)\b", text) is not None
        for table in _TABLES:
            is_named = re.search(rf"{CATALOG_DATABASE}`?\s*\.\s*`?{table}\b", text)
            if is_named or (everything and CATALOG_DATABASE in text):
                self._make_catalog_view(session, table, catalog=table)
        catalog = store_reader(self._path).open_catalog()
        for name in catalog.topics():
            # Made again for each statement: a view keeps the offsets of its first use.
            if name.lower() in text:
                self._make(session, catalog.topic(name))
            elif everything and name not in self._made and not name.startswith("__"):
                with contextlib.suppress(LakeheadError, PySparkException):
                    self._make(session, catalog.topic(name))
        return self._with_offsets(session, statement)

    def _make(self, session: "SparkSession", topic: TopicState) -> None:
        records = self._read(session, subscribe=topic.name, includeHeaders="true").load()
        declared = topic.configs.get(f"{PREFIX}value.format", "raw") != "raw"
        is_decoded = declared or topic.name in self._json
        records.createOrReplaceTempView(_quoted(topic.name + RAW_SUFFIX * is_decoded))
        if is_decoded:
            self._decoded(session, topic.name).createOrReplaceTempView(_quoted(topic.name))
        self._made.add(topic.name)

    def _decoded(self, session: "SparkSession", topic: str) -> "DataFrame":
        by = "json" if topic in self._json else "declared"
        read = self._read(session, subscribe=topic, decode=by, undecodable=self._undecodable)
        ddl = self._json.get(topic)
        if ddl is not None:
            error = ", _error STRING" if self._undecodable == "null" else ""
            read = read.schema(f"{ddl}, {_METADATA}{error}")
        return read.load()

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

    def _make_catalog_view(self, session: "SparkSession", name: str, **options: str) -> None:
        self._read(session, **options).load().createOrReplaceGlobalTempView(name)

    def _read(self, session: "SparkSession", **options: str) -> "DataFrameReader":
        return session.read.format("lakehead").options(path=self._path, **options)


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


def _json_option(option: str) -> tuple[str, str | None]:
    """Take `topic` or `topic=DDL` apart; the DDL is checked."""
    topic, equals, ddl = option.partition("=")
    if not topic.strip():
        raise SettingsError(f"--json wants TOPIC or TOPIC=SCHEMA, not {option!r}")
    return topic.strip(), to_ddl(parse_schema(ddl)) if equals else None


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
