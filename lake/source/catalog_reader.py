"""Reads of tables of the catalog by the Spark source: one task, which reads the metadata when it
runs.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakehead.lake.cluster_table_columns import OFFSETS_FOR
from lakehead.lake.cluster_tables import CATALOG_SCHEMAS, catalog_tables
from lakehead.lake.source.arrow_schema import arrow_schema_of
from lakehead.lake.source.options import CatalogOptions
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    import pyarrow as pa


def catalog_schema(options: CatalogOptions) -> StructType:
    """Return the columns of a table of the catalog."""
    return from_arrow_schema(CATALOG_SCHEMAS[options.table])


class CatalogReader(DataSourceReader):
    """One read of a table of the catalog, in the columns of `schema`, which may be narrower."""

    def __init__(self, options: CatalogOptions, schema: StructType) -> None:
        whole = catalog_schema(options)
        for field in schema:
            if field.name not in whole.names or whole[field.name].dataType != field.dataType:
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
