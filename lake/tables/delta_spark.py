"""Delta tables by delta-spark: MERGE, OPTIMIZE and VACUUM in one Spark session of this process.

On S3, delta-spark looks whether a commit exists and then puts it: two engines at once can lose one.
Who calls this holds the table's lease.
"""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakehead.lake.spark import spark_session
from lakehead.lake.spark import s3a_settings, spark_place
from lakehead.lake.tables.data_file import delete_data_files, write_data_file
from lakehead.lake.tables.delta_table import (
    Table,
    TableMoved,
    TableUnavailable,
    one_line,
    open_table,
)
from lakehead.lake.tables.left_out import NO_COUNTS
from lakehead.lake.tables.merge_engine import Progress, done_app, plan_merge, planned_app, settle
from lakehead.lake.tables.table_history import CHANGE
from lakehead.lake.tables.upsert import Clause, Merge, quoted
from lakehead.storage.clock import SystemClock
from lakehead.storage.failpoints import failpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITE = "spark.databricks.delta.write"
_NOTES = "spark.databricks.delta.commitInfo.userMetadata"
_MERGING = threading.Lock()
"""One MERGE at a time: settings and the view of its changes are the session's."""


class SparkMerge:
    """See `MergeEngine`: a commit that plans, the MERGE, a commit that settles."""

    def merge(
        self,
        table: Table,
        merge: Merge,
        progress: Progress,
        notes: Mapping[str, str],
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> None:
        """Apply the changes and move the progress, as one to whoever looks at progress."""
        session = _session(table.uri)
        (topic_id,) = {topic_id for topic_id, _ in progress}
        change = {name: text for name, text in notes.items() if name == CHANGE}
        plain = {name: text for name, text in notes.items() if name != CHANGE}
        number = plan_merge(table, progress, plain, counts)  # nothing is visible by it yet
        staged = write_data_file(table.uri, merge.source)
        failpoint("merge_staged")
        place = f"{spark_place(table.uri).rstrip('/')}/{staged.path}"
        settings = {
            f"{_WRITE}.txnAppId": done_app(topic_id),
            f"{_WRITE}.txnVersion": str(number),
            _NOTES: json.dumps(dict(notes)),
        }
        with _MERGING, _configured(session, settings), _told(table.uri, table.version + 1):
            session.read.parquet(place).createOrReplaceTempView("lakehead_changes")
            session.sql(merge_statement(table.uri, merge)).collect()
        failpoint("merge_committed")
        delete_data_files(table.uri, [staged.path])
        self._settle(table.uri, topic_id, number, list(progress), change)

    def _settle(
        self,
        uri: str,
        topic_id: str,
        number: int,
        partitions: Sequence[tuple[str, int]],
        change: Mapping[str, str],
    ) -> None:
        now = open_table(uri)
        if now is None or now.marked(planned_app(topic_id)) != number:
            raise TableMoved(f"another run has committed to {uri}")
        if now.marked(done_app(topic_id)) < number:  # no row was to be changed
            now.commit([], {done_app(topic_id): number}, modified_ms=_now_ms(), notes=change)
            now = now.refreshed()
        settle(now, partitions)


def _now_ms() -> int:
    return SystemClock().now_ms()


def merge_statement(uri: str, merge: Merge) -> str:
    """Return the SQL of a MERGE whose source is the view `lakehead_changes`."""
    into = quoted(spark_place(uri))
    clauses = " ".join(_clause(clause) for clause in merge.clauses)
    return f"MERGE INTO delta.{into} t USING lakehead_changes s ON {merge.on} {clauses}"


def _clause(clause: Clause) -> str:
    condition = f" AND {clause.condition}" if clause.condition else ""
    if clause.verb == "insert":
        names = ", ".join(quoted(name) for name, _ in clause.values)
        values = ", ".join(text for _, text in clause.values)
        inserted = f"INSERT ({names}) VALUES ({values})"  # noqa: S608 - names are quoted
        return f"WHEN NOT MATCHED{condition} THEN {inserted}"
    which = "NOT MATCHED BY SOURCE" if clause.verb.endswith("_missing") else "MATCHED"
    if clause.verb.startswith("delete"):
        return f"WHEN {which}{condition} THEN DELETE"
    changes = ", ".join(f"t.{quoted(name)} = {text}" for name, text in clause.values)
    return f"WHEN {which}{condition} THEN UPDATE SET {changes}"


def optimize_by_spark(uri: str, *, order_by: Sequence[str] = (), file_bytes: int) -> Any:
    """Make big files of small ones, rows that are near in `order_by` together (Z-order). Returns
    what delta-spark tells of it. Raises TableMoved, TableUnavailable.
    """
    session = _session(uri)
    order = ", ".join(quoted(name) for name in order_by)
    statement = f"OPTIMIZE delta.{quoted(spark_place(uri))}"
    settings = {"spark.databricks.delta.optimize.maxFileSize": str(file_bytes)}
    with _configured(session, settings), _told(uri, _version(uri)):
        return session.sql(statement + (f" ZORDER BY ({order})" if order else "")).collect()[0]


def vacuum_by_spark(uri: str, names: Sequence[str]) -> None:
    """Remove those of the files with these names, below a table's root, that no version of the last
    seven days names, which is what Delta's tables keep unless a property says otherwise. Raises
    TableMoved, TableUnavailable.
    """
    session = _session(uri)
    root = spark_place(uri).rstrip("/")
    if root.startswith("/"):
        root = f"file:{root}"  # Delta passes over names that do not begin as it writes the root
    # Whoever lists them has looked at their sizes and ages; Delta looks at its log alone.
    rows = [(f"{root}/{name}", 1, False, 0) for name in names]
    columns = "path STRING, length LONG, isDir BOOLEAN, modificationTime LONG"
    # A query, since a view is refused where Delta wants the name of a table.
    inventory = "(SELECT * FROM lakehead_inventory)"
    statement = f"VACUUM delta.{quoted(spark_place(uri))} USING INVENTORY {inventory}"
    with _MERGING, _told(uri, _version(uri)):
        session.createDataFrame(rows, columns).createOrReplaceTempView("lakehead_inventory")
        session.sql(statement).collect()


def _version(uri: str) -> int:
    table = open_table(uri)
    if table is None:
        raise TableUnavailable(f"there is no table at {uri}")
    return table.version


def _session(uri: str) -> "SparkSession":
    if uri.startswith("s3:"):
        return spark_session(s3a=True, config=s3a_settings(uri))
    return spark_session()


@contextlib.contextmanager
def _configured(session: "SparkSession", settings: Mapping[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)


@contextlib.contextmanager
def _told(uri: str, version: int) -> Iterator[None]:
    """Say what an error of Spark means for a table that was looked at in `version`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, ConnectionError) as error:
        now = open_table(uri)
        if now is None or now.version != version:
            raise TableMoved(f"another run has committed to {uri}") from error
        text = one_line(error)[:400]
        raise TableUnavailable(f"delta-spark cannot write {uri}: {text}") from error
