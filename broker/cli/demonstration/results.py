"""The demo's query, run on the topics, on the Delta table and on the source's own DataFrames.

It counts the flights of each airline, and averages their delay on arrival.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakehead.storage.errors import LakeheadError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

QUERY = """\
SELECT a.name, count(*) AS flights, avg(f.arr_delay) AS mean_delay
FROM {flights} f JOIN airlines a ON f.carrier = a.carrier
GROUP BY a.name ORDER BY flights DESC"""

_COLUMNS = {
    "flights": "carrier string, arr_delay int",
    "airlines": "carrier string, name string",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AirlineDelay:
    """A row of the result: `mean_delay` in minutes."""

    name: str
    flights: int
    mean_delay: float


def make_views(spark: "SparkSession", store: str) -> None:
    """Make each topic a view: the stream objects in place, JSON values as columns."""
    for topic, columns in _COLUMNS.items():
        records = (
            spark.read.format("lakehead").option("path", store).option("subscribe", topic).load()
        )
        parsed = records.selectExpr(f"from_json(cast(value AS string), '{columns}') AS row")
        parsed.selectExpr("row.*").createOrReplaceTempView(topic)


def table_in_spark(spark: "SparkSession", uri: str) -> str:
    """Return what to call a Delta table in a query.

    Delta's jars read a folder; for S3 they would need those of Hadoop and the AWS SDK (hundreds of
    megabytes), so the query's columns of a table there are read by delta-rs and handed over as
    Arrow.
    """
    if ":" not in uri:
        return f"delta.`{uri}`"
    from lakehead.lake.tables.delta_table import open_table

    table = open_table(uri)
    assert table is not None, "it was just made"
    columns = [column.split()[0] for column in _COLUMNS["flights"].split(", ")]
    spark.createDataFrame(table.rows(columns, None)).createOrReplaceTempView("flights_table")
    return "flights_table"


def query_delays(spark: "SparkSession", flights: str) -> list[AirlineDelay]:
    """Query by Spark SQL; `flights` is the view or table."""
    rows: list[Any] = spark.sql(QUERY.format(flights=flights)).collect()
    return [
        AirlineDelay(name=row["name"], flights=row["flights"], mean_delay=row["mean_delay"])
        for row in rows
    ]


def reference(flights: "pd.DataFrame", airlines: "pd.DataFrame") -> list[AirlineDelay]:
    """Query the source's own tables, with pandas alone."""
    joined = flights.merge(airlines, on="carrier", how="inner")
    groups = joined.groupby("name")["arr_delay"].agg(["size", "mean"])
    ordered = groups.sort_values("size", ascending=False)
    return [
        AirlineDelay(name=str(name), flights=int(size), mean_delay=float(mean))
        for name, size, mean in ordered.itertuples()
    ]


def check_equal(what: str, found: Sequence[AirlineDelay], wanted: Sequence[AirlineDelay]) -> None:
    """Raise LakeheadError, naming the first difference, unless both results are the same."""
    if len(found) != len(wanted):
        raise LakeheadError(f"{what} has {len(found)} airlines, the source {len(wanted)}")
    for row, expected in zip(found, wanted, strict=True):
        same = (row.name, row.flights) == (expected.name, expected.flights)
        if not same or not math.isclose(row.mean_delay, expected.mean_delay, rel_tol=1e-12):
            raise LakeheadError(f"{what} says {row}, the source says {expected}")
