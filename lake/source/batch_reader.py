"""Batch reads of the Spark source: of topics, and of tables of the catalog.

Spark's Python workers call `partitions` once per read, on the driver's side, and `read` once per
split. A read of the catalog is one task, which reads the metadata when it runs.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakehead.lake.cluster_tables import CATALOG_SCHEMAS, OFFSETS_FOR, catalog_tables
from lakehead.lake.offsets import resolve
from lakehead.lake.planner import Split
from lakehead.lake.source.arrow_schema import arrow_schema_of
from lakehead.lake.source.options import CatalogOptions, ReadOptions
from lakehead.lake.source.rows import Rows
from lakehead.lake.source.split_partition import SplitPartition, partitions_of, split_of
from lakehead.lake.source.splits import read_split, splits_of_read
from lakehead.lake.source.view import View, Viewer
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    import pyarrow as pa


_NOTHING = Split(ranges=())


class BatchReader(DataSourceReader):
    """One read of topics. The latest offsets are fixed when Spark calls `partitions`, at the first
    action on a DataFrame.
    """

    def __init__(self, options: ReadOptions, rows: Rows) -> None:
        self._options = options
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Plan the splits, from the metadata log and the indexes of the objects in reach."""
        # Spark needs one split at least.
        return Viewer(self._options).look(self._plan) or [SplitPartition(_NOTHING)]

    def _plan(self, view: View) -> list[InputPartition]:
        requested = resolve(view.snapshot, list(view.logs.values()), self._options.bounds)
        return partitions_of(splits_of_read(self._options, view.snapshot, requested))

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the records of a split as Arrow batches."""
        yield from read_split(self._options, self._rows, split_of(partition))


def catalog_schema(options: CatalogOptions) -> StructType:
    """Return the columns of a table of the catalog."""
    return from_arrow_schema(CATALOG_SCHEMAS[options.table])


class CatalogReader(DataSourceReader):
    """One read of a table of the catalog, in the columns of `schema`, which may be narrower."""

    def __init__(self, options: CatalogOptions, schema: StructType) -> None:
        whole = catalog_schema(options)
        for field in schema:
            if field not in list(whole):
                raise SettingsError(
                    f"unknown column {field.name!r}: lakehead.{options.table} has "
                    f"{', '.join(whole.fieldNames())}"
                )
        self._options = options
        self._schema = arrow_schema_of(schema)

    def partitions(self) -> list[InputPartition]:
        """Return the one task."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:  # noqa: ARG002
        """Yield the rows as of now."""
        options = self._options
        tables = catalog_tables(options.path)
        if options.table == OFFSETS_FOR:
            rows = tables.offsets_for(options.timestamp, options.topics)
        else:
            rows = tables.table(options.table)
        yield from rows.select(self._schema.names).cast(self._schema).to_batches(10_000)
