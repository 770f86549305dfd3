"""The Spark data source `lakehead`."""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType


class LakeheadDataSource(DataSource):
    """Topics of a Lakehead cluster, read from its objects in place; no broker is asked.

        spark.read.format("lakehead").option("path", "s3://bucket/prefix")
             .option("subscribe", "orders").load()

    Schema, option names and their meaning are those of Spark's Kafka source, with `path` (the
    cluster's place) instead of `kafka.bootstrap.servers`. Further: `columns` (`value,offset`), or a
    narrower `.schema("value binary, offset bigint")`, decodes only those columns.

    What is latest is settled at the first action on a DataFrame and stays so for that DataFrame.
    With `spark.readStream` offsets live in the checkpoint, and starting options count for a new
    stream only.

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
        from lake.source.options import columns_of

        return spark_schema(columns_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of `schema`, which may be narrower than ours. Raises SettingsError."""
        from lake.source.batch_reader import BatchReader
        from lake.source.columns import columns_in
        from lake.source.options import batch_options

        return BatchReader(batch_options(self.options), columns_in(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream of `schema`. Raises SettingsError."""
        from lake.source.columns import columns_in
        from lake.source.options import stream_options
        from lake.source.stream_reader import StreamReader

        return StreamReader(stream_options(self.options), columns_in(schema))
