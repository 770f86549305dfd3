"""The Spark data source `lakehead`."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from lakehead.storage.errors import LakeheadError

if TYPE_CHECKING:
    from lakehead.lake.source.options import ReadOptions
    from lakehead.lake.source.rows import Rows


class LakeheadDataSource(DataSource):
    """Topics of a Lakehead cluster, read from its objects in place, without a broker.

        spark.read.format("lakehead").option("path", "s3://bucket/prefix")
             .option("subscribe", "orders").load()

    Schema, option names and their meaning are those of Spark's Kafka source, with `path` (the
    cluster's place) instead of `kafka.bootstrap.servers`. Further: `columns` (`value,offset`), or a
    narrower `.schema("value binary, offset bigint")`, decodes only those columns; `decode` makes
    columns of the fields of values, as the topic declares; `catalog` reads a table about the
    cluster.

    The first action on a DataFrame resolves the latest offsets, which stay so for that DataFrame.
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
        from lakehead.lake.source.options import catalog_options, read_options
        from lakehead.lake.source.rows import rows_schema

        requested = catalog_options(self.options)
        if requested is not None:
            from lakehead.lake.source.catalog_reader import catalog_schema

            return catalog_schema(requested)
        return rows_schema(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of `schema`, which may be narrower than ours. Raises SettingsError."""
        from lakehead.lake.source.options import batch_options, catalog_options
        from lakehead.lake.source.rows import rows_of
        from lakehead.lake.source.table_comment import with_table_options

        given = with_table_options(self.options, schema)
        requested = catalog_options(given)
        if requested is not None:
            from lakehead.lake.source.catalog_reader import CatalogReader

            return CatalogReader(requested, schema)
        from lakehead.lake.source.batch_reader import BatchReader

        options = batch_options(given)
        return BatchReader(options, rows_of(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream of `schema`. Raises SettingsError, before Spark 4.2 when
        the stream starts.
        """
        if _has_admission_control():
            from lakehead.lake.source.stream_reader import StreamReader

            return StreamReader(*self._stream(schema))
        from lakehead.lake.source.unlimited_stream_reader import (
            RefusedStream,
            UnlimitedStreamReader,
        )

        try:
            return UnlimitedStreamReader(*self._stream(schema))
        except LakeheadError as reason:
            return RefusedStream(reason)

    def _stream(self, schema: StructType) -> "tuple[ReadOptions, Rows]":
        from lakehead.lake.source.options import stream_options
        from lakehead.lake.source.rows import rows_of
        from lakehead.lake.source.table_comment import with_table_options

        options = stream_options(with_table_options(self.options, schema))
        return options, rows_of(options, schema)


def _has_admission_control() -> bool:
    """Return whether Spark requests a batch with its start and a limit: from 4.2 on."""
    return find_spec("pyspark.sql.streaming.datasource") is not None
