"""A Hive metastore: Delta tables as Spark, Trino and Hive's own connector find them there.

Spark writes the entry (`CREATE TABLE … USING delta LOCATION`), in a process of its own: a JVM of
half a gigabyte for some seconds, and only if the entry may have news. Spark reads the schema from
the table's log, so an entry is right as long as its place is. Spark would write properties and
comments into the table itself, so the entry has none; it is the table's own if the place is.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from lakehead.lake.catalogs.table_entry import CatalogRejected, CatalogUnavailable, TableEntry
from lakehead.storage.errors import SettingsError

_LIMIT_S = 300.0
_REJECTED, _FAILED = "rejected", "failed"


class HiveCatalog:
    """The metastore at a Thrift URI (`thrift://host:9083`); `spark` has further settings of the
    session. Names of tables have two parts: database, table.
    """

    def __init__(self, name: str, *, uri: str, spark: Mapping[str, str] | None = None) -> None:
        self._name = name
        self._settings = {"spark.hadoop.hive.metastore.uris": uri} | dict(spark or {})
        self._known: dict[str, TableEntry] = {}
        """By name: the entries that were there as they were wanted."""

    def put(self, entry: TableEntry) -> bool:
        """See `TableCatalog.put`. Entries by former names stay: they do not name their topic."""
        if len(entry.parts) != 2:
            raise SettingsError(f"{entry.name}: a name in Hive has two parts, database.table")
        if self._known.get(entry.name) == entry:
            return False
        task = {
            "settings": self._settings,
            "database": entry.parts[0],
            "table": entry.parts[1],
            "uri": entry.uri,
            "location": entry.location,
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "lakehead.lake.catalogs.hive"],
                input=json.dumps(task),
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CatalogUnavailable(f"catalog {self._name}: {error}") from None
        report = _report(done.stdout)
        if report is None:
            last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
            raise CatalogUnavailable(f"catalog {self._name}: Spark failed: {last[0]}")
        if report[0] == _REJECTED:
            raise CatalogRejected(f"catalog {self._name}: {report[1]}")
        if report[0] == _FAILED:
            raise CatalogUnavailable(f"catalog {self._name}: {report[1]}")
        self._known[entry.name] = entry
        return report[0] == "made"


def _report(output: str) -> tuple[str, str] | None:
    """Return the outcome in the last line of a process, None without one."""
    lines = output.strip().splitlines()
    try:
        outcome, text = json.loads(lines[-1]) if lines else (None, None)
    except (ValueError, TypeError):
        return None
    return (str(outcome), str(text)) if outcome else None


def _put(task: Mapping[str, Any]) -> tuple[str, str]:
    """Write the entry by a session; return the outcome and a text."""
    from lakehead.lake.spark import s3a_settings, spark_place, spark_session

    is_s3 = task["uri"].startswith("s3:")
    settings = {"spark.sql.catalogImplementation": "hive"} | task["settings"]
    if is_s3:
        settings |= s3a_settings(task["uri"])
    spark = spark_session(s3a=is_s3, config=settings)
    try:
        name = f"`{task['database']}`.`{task['table']}`"
        spark.sql(f"CREATE DATABASE IF NOT EXISTS `{task['database']}`")
        if spark.catalog.tableExists(f"{task['database']}.{task['table']}"):
            rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
            found = {row["col_name"]: row["data_type"] for row in rows}
            place = str(found.get("Location", "")).rstrip("/")
            if _plain(place) != _plain(task["location"]):
                return _REJECTED, (
                    f"it has {task['database']}.{task['table']} already, at {place}: set another "
                    "lakehead.table.catalog.name"
                )
            return "there", place
        location = spark_place(task["location"]) if is_s3 else task["location"]
        location = location.replace("'", "\\'")
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{location}'")
        return "made", task["location"]
    finally:
        spark.stop()


def _plain(place: str) -> str:
    """Return a place without what Hadoop and we write differently."""
    scheme, colon, rest = place.partition(":")
    if not colon:
        return place.rstrip("/")
    scheme = "s3" if scheme == "s3a" else scheme
    return f"{scheme}:/{rest.strip('/')}"


if __name__ == "__main__":
    try:
        outcome = _put(json.load(sys.stdin))
    except Exception as error:  # noqa: BLE001 - of Spark: whatever it raises
        outcome = _FAILED, " ".join(str(error).split())[:500]
    sys.stdout.write(json.dumps(outcome) + "\n")
