"""`lakehead.scan`: a topic as Arrow batches, without Spark. For pandas, Polars, DuckDB and
pyarrow.
"""

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self, get_args

import pyarrow as pa

from lakehead.lake.committed import committed
from lakehead.lake.decode.columns import arrow_schema, chosen_columns
from lakehead.lake.decode.decoder import RecordDecoder
from lakehead.lake.decode.invalid import ByMode
from lakehead.lake.decode.modes import Mode, checked_mode
from lakehead.lake.errors import ScanClosed
from lakehead.lake.group_offsets import without_groups
from lakehead.lake.moved_ranges import plan_moved, read_moved
from lakehead.lake.offsets import resolve
from lakehead.lake.planner import ByteRange
from lakehead.lake.positions import (
    EARLIEST,
    LATEST,
    Bounds,
    GroupPosition,
    Position,
    Positions,
    TopicPartition,
)
from lakehead.lake.record_reader import decode_all
from lakehead.lake.snapshot import Snapshot, Snapshots
from lakehead.lake.store_reader import StoreReader, store_reader
from lakehead.storage.encryption.settings import joined_address
from lakehead.storage.errors import ObjectNotFound, SettingsError
from lakehead.storage.object_store import ObjectStore

Offsets = str | Mapping[int, int]
Tail = Literal["objects", "wal"]
_LOOKS_MAX = 5


class Scan:
    """Records of a topic, as Arrow batches: what `lakehead.scan` returns.

    Each iteration, `read_all` and query of an engine is a pass of its own over the same records.
    An engine takes it as a table by Arrow's PyCapsule interface: `duckdb.sql("FROM orders")` where
    `orders` is a variable with a scan, `polars.DataFrame(scan)`, `pyarrow.table(scan)`. A pass
    holds some ten megabytes of what it fetched, and what the batches that are still in use need.

    Closing it (`close`, or the end of a `with`) stops what passes fetch; one that is not at its
    end raises ScanClosed then. Safe for use by several threads, each pass for one at a time.
    """

    def __init__(
        self,
        topic: str,
        reader: StoreReader,
        ranges: Sequence[ByteRange],
        names: Sequence[str],
        *,
        views: bool,
        rows_max: int,
        mode: Mode = "FAILFAST",
    ) -> None:
        self.topic = topic
        self.schema: pa.Schema = arrow_schema(names, views=views)
        self._reader = reader
        self._ranges = ranges
        self._names = tuple(names)
        self._views = views
        self._rows_max = rows_max
        self._mode: Mode = mode
        self._passes: weakref.WeakSet[_Pass] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def length(self) -> int:
        """Bytes that one pass fetches."""
        return sum(range_.length for range_ in self._ranges)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Begin a pass. Raises CorruptObject, InvalidRecord, ObjectNotFound, StoreUnavailable,
        ScanClosed.
        """
        decoder = RecordDecoder(
            self._names,
            views=self._views,
            rows_max=self._rows_max,
            bytes_max=1 << 30,
            invalid=ByMode(mode=self._mode),
        )
        with self._lock:
            if self._closed:
                raise self._is_closed()
            begun = _Pass(self, decode_all(read_moved(self._reader, self._ranges), decoder))
            self._passes.add(begun)
        return begun

    def to_reader(self) -> pa.RecordBatchReader:
        """Begin a pass, as pyarrow's own reader. Raises as an iteration does."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def read_all(self) -> pa.Table:
        """Return all records in memory. Raises as an iteration does."""
        return self.to_reader().read_all()

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Stop all passes, and forget what they have fetched. May be repeated."""
        with self._lock:
            self._closed = True
            passes = list(self._passes)
        for one in passes:
            one.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_closed(self) -> ScanClosed:
        return ScanClosed(f"the scan of topic {self.topic!r} is closed: scan it again")


class _Pass:
    """One reading of a scan. It keeps its scan alive, so that an engine's stream may outlive the
    caller's variable.
    """

    def __init__(self, scan: Scan, batches: Iterator[pa.RecordBatch]) -> None:
        # First of all, so that it also goes first: what it gives up needs the scan's reader.
        self._batches: Iterator[pa.RecordBatch] | None = batches
        self._scan = scan
        self._is_over = False
        self._lock = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._lock:
            if self._is_over:
                raise StopIteration
            if self._batches is None:
                raise self._scan._is_closed()  # noqa: SLF001 - the scan's own
            try:
                return next(self._batches)
            except StopIteration:
                self._is_over = True
                raise

    def stop(self) -> None:
        """Drop what is fetched; called from any thread, while another is at work at most for as
        long as that takes with its batch.
        """
        with self._lock:
            self._batches = None  # the end of a generator cancels its requests


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
    tail: Tail = "objects",
    mode: Mode = "FAILFAST",
    encryption: Mapping[str, str] | None = None,
) -> Scan:
    """Read a topic, partition after partition, each in offset order.

    `path` is the cluster's place (`./lakehead-data/store`, `s3://bucket/prefix`) or an open store.
    Offsets are `"earliest"`, `"latest"`, an offset for each partition ({0: 17, 1: 0}), or
    `"group:NAME"`: the offsets that a consumer group has committed. The end is exclusive.
    Timestamps (milliseconds since the epoch) win over offsets: from the first record at or after
    one, to before the first at or after the other. A scan reads the records in objects at the time
    of this call and, with `tail="wal"`, the acknowledged ones in WAL objects of nodes (see
    `lakehead.lake.snapshot`). It fetches nothing before the request for the first batch. Of
    transactions only committed records are there; the end is before the first open one.

    Columns are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
    timestampType and, with `include_headers`, headers. Only those in `columns` are decoded. Keys
    and values are `binary_view`s into the fetched bytes; `copy=True` makes them plain `binary`. A
    batch has at most `rows_max` rows.

    `mode` is the handling of a batch that no reader can read, and of a record with a time that the
    column cannot hold: `FAILFAST` raises InvalidRecord in the pass, `DROPMALFORMED` leaves it out,
    `PERMISSIVE` has nulls in its place (see `lakehead.lake.decode.invalid`).

    `encryption` has the settings that decrypt the cluster at a path, by their names:
    `{"encryption.key.provider": "kms"}`. Without it they are the environment's.

    Raises SettingsError (no cluster there, unknown column or mode, a tail that lies elsewhere, no
    views in this pyarrow), KeyUnavailable, UnknownTopic, DataLoss (an offset that
    is not there).
    """
    names = chosen_columns(columns, include_headers=include_headers)
    mode = checked_mode(mode)
    if not copy and not hasattr(pa, "binary_view"):
        raise SettingsError(f"pyarrow {pa.__version__} has no views: scan with copy=True")
    if encryption is not None and isinstance(path, str):
        path = joined_address(path, encryption)
    reader = store_reader(path)
    try:
        bounds = Bounds(
            starting=_requested(topic, starting_offsets, starting_timestamp),
            ending=_requested(topic, ending_offsets, ending_timestamp),
            latest_without_match=True,
        )
        ranges = _ranges(_snapshots(reader, topic, tail), topic, bounds)
    except BaseException:
        if not isinstance(path, str):
            reader.end()
        raise
    made = Scan(topic, reader, ranges, names, views=not copy, rows_max=rows_max, mode=mode)
    if not isinstance(path, str):  # its thread is ours alone
        weakref.finalize(made, reader.end)
    return made


def _snapshots(reader: StoreReader, topic: str, tail: Tail) -> Snapshots:
    if tail not in get_args(Tail):
        raise SettingsError(f"tail is 'objects' or 'wal', not {tail!r}")
    if tail == "objects":
        return Snapshots(reader)
    return Snapshots(reader, select=lambda catalog: catalog.topic(topic).partitions)


def _ranges(snapshots: Snapshots, topic: str, bounds: Bounds) -> list[ByteRange]:
    """Return where the records lie; looked up again if an object went away meanwhile."""
    for _ in range(_LOOKS_MAX):
        try:
            return _ranges_in(snapshots.now(), topic, bounds)
        except ObjectNotFound:
            continue
    return _ranges_in(snapshots.now(), topic, bounds)


def _ranges_in(snapshot: Snapshot, topic: str, bounds: Bounds) -> list[ByteRange]:
    logs = committed(snapshot, snapshot.catalog.partitions(topic))
    requested = resolve(snapshot, logs, without_groups(snapshot, logs, bounds))
    splits = plan_moved(snapshot, requested)
    return [range_ for split in splits for range_ in split.ranges]


def _requested(topic: str, offsets: Offsets, timestamp: int | None) -> Positions:
    if timestamp is not None:
        return Position("timestamp", timestamp)
    if not isinstance(offsets, str):
        return {
            TopicPartition(topic, partition): Position("offset", offset)
            for partition, offset in offsets.items()
        }
    if (of_group := GroupPosition.parse(offsets)) is not None:
        return of_group
    if offsets not in ("earliest", "latest"):
        raise SettingsError(
            "offsets are 'earliest', 'latest', 'group:NAME' or an offset for each partition, not "
            f"{offsets!r}"
        )
    return EARLIEST if offsets == "earliest" else LATEST
