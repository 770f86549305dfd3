"""`lake.scan`: a topic as Arrow batches, without Spark. For pandas, Polars, DuckDB and pyarrow."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from lake.catalog import TopicPartition
from lake.committed import committed
from lake.decode.columns import chosen_columns
from lake.decode.decoder import RecordDecoder
from lake.offsets import EARLIEST, LATEST, Bounds, Position, resolve
from lake.planner import needed_objects, plan_splits
from lake.record_reader import read_records
from lake.store_reader import store_reader
from storage.errors import SettingsError
from storage.object_store import ObjectStore

Offsets = str | Mapping[int, int]


def scan(
    path: str | ObjectStore,
    topic: str,
    *,
    starting_offsets: Offsets = "earliest",
    ending_offsets: Offsets = "latest",
    starting_timestamp: int | None = None,
    ending_timestamp: int | None = None,
    columns: Sequence[str] | None = None,
    include_headers: bool = False,
    copy: bool = False,
    rows_max: int = 65_536,
) -> pa.RecordBatchReader:
    """Read a topic, partition after partition, each in offset order.

    `path` is the cluster's place (`./lakehead-data/store`, `s3://bucket/prefix`) or an open store.
    Offsets are `"earliest"`, `"latest"` or an offset for each partition ({0: 17, 1: 0}); the end is
    exclusive. Timestamps (milliseconds since the epoch) win over offsets: from the first record at
    or after one, to before the first at or after the other. What lies in objects at the time of
    this call is read, and no more than some ten megabytes of it is in memory at a time. Of
    transactions only what was committed is there; the end is before the first that is open.

    Columns are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
    timestampType and, with `include_headers`, headers. Only those in `columns` are decoded. Keys
    and values are `binary_view`s into the fetched bytes; `copy=True` makes them plain `binary`.

    Raises SettingsError (no cluster there, unknown column), UnknownTopic, DataLoss (an offset that
    is not there); the reader raises CorruptObject, StoreUnavailable.
    """
    names = chosen_columns(columns, include_headers=include_headers)
    reader = store_reader(path)
    logs = committed(reader, reader.open_catalog().partitions(topic))
    bounds = Bounds(
        starting=_positions(topic, starting_offsets, starting_timestamp),
        ending=_positions(topic, ending_offsets, ending_timestamp),
        latest_without_match=True,
    )
    asked = resolve(reader, logs, bounds)
    splits = plan_splits(asked, reader.read_indexes(needed_objects(asked)))
    ranges = [range_ for split in splits for range_ in split.ranges]
    decoder = RecordDecoder(names, views=not copy, rows_max=rows_max, bytes_max=1 << 30)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from read_records(reader, ranges, decoder)
        finally:
            if not isinstance(path, str):
                reader.end()

    return pa.RecordBatchReader.from_batches(decoder.schema, batches())


def _positions(
    topic: str, offsets: Offsets, timestamp: int | None
) -> Position | dict[TopicPartition, Position]:
    if timestamp is not None:
        return Position("timestamp", timestamp)
    if isinstance(offsets, str):
        if offsets not in ("earliest", "latest"):
            raise SettingsError(
                f"offsets are 'earliest', 'latest' or an offset for each partition, not {offsets!r}"
            )
        return EARLIEST if offsets == "earliest" else LATEST
    return {
        TopicPartition(topic, partition): Position("offset", offset)
        for partition, offset in offsets.items()
    }
