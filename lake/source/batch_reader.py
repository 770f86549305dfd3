"""Batch reads of the Spark source. Runs in Spark's Python workers: `partitions` once per read, on
the driver's side, `read` once per split.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lake.committed import committed
from lake.offsets import resolve
from lake.planner import Split, needed_objects, plan_splits
from lake.source.columns import spark_schema
from lake.source.options import ReadOptions
from lake.store_reader import store_reader
from storage.errors import SettingsError

if TYPE_CHECKING:
    import pyarrow as pa

_NOTHING = Split(ranges=())
_SPLITS_WANTED = 16
"""A small read is still shared out; how many cores there are is not told to a data source."""


class SplitPartition(InputPartition):
    """A split, as Spark hands it to a task."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


class BatchReader(DataSourceReader):
    """One read of topics. What is latest is settled when Spark asks for the partitions: at the
    first action on a DataFrame, and for good.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = _chosen(schema)

    def partitions(self) -> list[InputPartition]:
        """Plan the splits, from the metadata log and the indexes of the objects in reach."""
        options = self._options
        reader = store_reader(options.path)
        catalog = reader.open_catalog()
        logs = [catalog.partition(id_) for id_ in options.partitions(catalog)]
        if options.read_committed:
            logs = [*committed(reader, logs)]
        asked = resolve(reader, logs, options.bounds)
        splits = plan_splits(
            asked,
            reader.read_indexes(needed_objects(asked)),
            splits_min=options.splits_min,
            splits_wanted=_SPLITS_WANTED,
            fail_on_data_loss=options.bounds.fail_on_data_loss,
        )
        return [SplitPartition(split) for split in splits or (_NOTHING,)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the records of a split as Arrow batches."""
        # Only tasks decode: the planner, and the worker that asks for the schema, start quicker.
        from lake.decode.decoder import RecordDecoder
        from lake.record_reader import read_records

        assert isinstance(partition, SplitPartition)
        yield from read_records(
            store_reader(self._options.path), partition.split.ranges, RecordDecoder(self._columns)
        )


def _chosen(schema: StructType) -> tuple[str, ...]:
    """The columns that a user's schema names. Raises SettingsError for one that we do not have."""
    whole = {field.name: field for field in spark_schema(None)}
    for field in schema:
        known = whole.get(field.name)
        if known is None:
            raise SettingsError(f"unknown column {field.name!r}: a topic has {', '.join(whole)}")
        if known.dataType != field.dataType or not field.nullable:
            raise SettingsError(
                f"column {field.name!r} is a nullable {known.dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
            )
    if not len(schema):
        raise SettingsError("the schema names no column")
    return tuple(schema.fieldNames())
