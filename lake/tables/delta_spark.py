"""Delta tables by delta-spark, in one Spark session of this process: statements, OPTIMIZE, VACUUM.

On S3, delta-spark checks for a commit and then puts it: two engines at once can lose one. Callers
hold the lease of the table.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakehead.lake.spark import s3a_settings, spark_place, spark_session
from lakehead.lake.tables.delta_table import (
    CommitConflict,
    TableUnavailable,
    one_line,
    open_table,
)
from lakehead.lake.tables.upsert import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATEMENT_LOCK = threading.Lock()
"""One statement at a time: its settings and its view of rows belong to the session."""


def optimize_by_spark(uri: str, *, file_bytes: int) -> Any:
    """Merge small files into large ones. Returns delta-spark's row of metrics. Raises
    CommitConflict, TableUnavailable.
    """
    session = delta_session(uri)
    statement = f"OPTIMIZE delta.{quoted(spark_place(uri))}"
    settings = {"spark.databricks.delta.optimize.maxFileSize": str(file_bytes)}
    with configured(session, settings), conflicts_as_errors(uri, _version(uri)):
        return session.sql(statement).collect()[0]


def vacuum_by_spark(uri: str, names: Sequence[str]) -> None:
    """Remove those of the files with these names, below a table's root, that no version of the last
    seven days names, which is what Delta's tables keep unless a property says otherwise. Raises
    CommitConflict, TableUnavailable.
    """
    session = delta_session(uri)
    root = spark_place(uri).rstrip("/")
    if root.startswith("/"):
        root = f"file:{root}"  # Delta passes over names that do not begin as it writes the root
    # The caller's listing has their sizes and ages; Delta looks at its log alone.
    rows = [(f"{root}/{name}", 1, False, 0) for name in names]
    columns = "path STRING, length LONG, isDir BOOLEAN, modificationTime LONG"
    # A query, since a view is refused where Delta wants the name of a table.
    inventory = "(SELECT * FROM lakehead_inventory)"
    statement = f"VACUUM delta.{quoted(spark_place(uri))} USING INVENTORY {inventory}"
    with STATEMENT_LOCK, conflicts_as_errors(uri, _version(uri)):
        session.createDataFrame(rows, columns).createOrReplaceTempView("lakehead_inventory")
        session.sql(statement).collect()


def _version(uri: str) -> int:
    table = open_table(uri)
    if table is None:
        raise TableUnavailable(f"there is no table at {uri}")
    return table.version


def delta_session(uri: str) -> "SparkSession":
    """Return the session for the table at `uri`, with s3a where it lies on S3."""
    if uri.startswith("s3:"):
        return spark_session(s3a=True, config=s3a_settings(uri))
    return spark_session()


@contextlib.contextmanager
def configured(session: "SparkSession", settings: Mapping[str, str]) -> Iterator[None]:
    """Set configs of a session for the duration of the block."""
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)


@contextlib.contextmanager
def conflicts_as_errors(uri: str, version: int) -> Iterator[None]:
    """Raise CommitConflict for an error of Spark if the table has left `version`, else
    TableUnavailable.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, ConnectionError) as error:
        now = open_table(uri)
        if now is None or now.version != version:
            raise CommitConflict(f"another run has committed to {uri}") from error
        text = one_line(error)[:400]
        raise TableUnavailable(f"delta-spark cannot write {uri}: {text}") from error
