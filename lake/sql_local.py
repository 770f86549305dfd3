"""Rows of small views, read in this process while Spark starts.

A view of Spark's Python source costs a worker that says the columns, one that plans and one for
each task: seconds, before the first record is read. What is small is read here by the same source
and handed to Spark as rows that it has already (a local relation), so that a statement over a few
hundred records takes as long as Spark itself. Anything larger is left to Spark's tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehead.lake.sql_views import ViewSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

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
    from pyspark.sql.pandas.types import to_arrow_schema

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
        return LocalRows(table=to_arrow_schema(schema, timezone="UTC").empty_table(), schema=schema)
    return LocalRows(table=pa.Table.from_batches(batches), schema=schema)
