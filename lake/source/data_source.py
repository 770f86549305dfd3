"""The Spark data source `lakehead`."""

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType


class LakeheadDataSource(DataSource):
    """Topics of a Lakehead cluster, read from its objects in place; no broker is asked.

        spark.read.format("lakehead").option("path", "s3://bucket/prefix")
             .option("subscribe", "orders").load()

    Schema, option names and their meaning are those of Spark's Kafka source, with `path` (the
    cluster's place) instead of `kafka.bootstrap.servers`. Further: `columns` (`value,offset`), or a
    narrower `.schema("value binary, offset bigint")`, decodes only those columns.

    What is latest is settled at the first action on a DataFrame and stays so for that DataFrame.
    There is no filter pushdown (Spark's Python sources give wrong results with it): name the
    offsets or timestamps by options.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to `format`."""
        return "lakehead"

    def schema(self) -> StructType:
        """Return the columns of this read. Raises SettingsError for wrong options."""
        from lake.source.columns import spark_schema
        from lake.source.options import parse_options

        return spark_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of `schema`, which may be narrower than ours. Raises SettingsError."""
        from lake.source.batch_reader import BatchReader
        from lake.source.options import parse_options

        return BatchReader(parse_options(self.options), schema)
