"""Topics as DataFrames by `mapInArrow`: for Spark 3.5, which has no data sources in Python.

Options, columns and offsets are those of the data source `lakehead`. A stream is a loop of this
process, whose checkpoint is laid out as Spark's own: the query may go on with
`spark.readStream.format("lakehead")` once it has Spark 4.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from lakehead.lake.group_offsets import without_groups
from lakehead.lake.offsets import resolve
from lakehead.lake.planner import Split
from lakehead.lake.source.options import ReadOptions, batch_options, stream_options
from lakehead.lake.source.rows import Rows, rows_of, rows_schema
from lakehead.lake.source.splits import read_split, splits_of_read
from lakehead.lake.source.stream_offsets import StreamOffsets
from lakehead.lake.source.stream_planner import StreamPlanner
from lakehead.lake.source.view import View, Viewer
from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import ObjectExists, ObjectNotFound, OutcomeUnknown, SettingsError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Work = Callable[["DataFrame", int], None]
"""Gets the rows of a batch and its number, which a batch that runs again has again."""

BATCHES_KEPT = 100
"""In the checkpoint, as `spark.sql.streaming.minBatchesToRetain`."""
IDLE_S = 0.5


def read_topics(
    spark: "SparkSession", options: Mapping[str, str], schema: StructType | None = None
) -> "DataFrame":
    """Return the records of topics, up to the latest offsets of this moment.

    `schema` may be narrower than the options' columns. Raises SettingsError for wrong options, and
    what looking at the cluster raises.
    """
    checked = batch_options(options)

    def plan(view: View) -> Sequence[Split]:
        logs = list(view.logs.values())
        bounds = without_groups(view.snapshot, logs, checked.bounds)
        requested = resolve(view.snapshot, logs, bounds)
        return splits_of_read(checked, view.snapshot, requested)

    wanted = schema or rows_schema(checked)
    return _frame(spark, checked, wanted, Viewer(checked).look(plan))


def _frame(
    spark: "SparkSession", options: ReadOptions, schema: StructType, splits: Sequence[Split]
) -> "DataFrame":
    """Return a DataFrame with a task for each split."""
    rows = rows_of(options, schema)

    def read(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        yield from _read(options, rows, splits, batches)

    numbers = spark.range(0, len(splits), 1, max(len(splits), 1))
    return numbers.mapInArrow(read, schema)


def _read(
    options: ReadOptions,
    rows: Rows,
    splits: Sequence[Split],
    batches: Iterable["pa.RecordBatch"],
) -> Iterator["pa.RecordBatch"]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from read_split(options, rows, splits[number])


class TopicStream:
    """A stream of topics that hands batch after batch to a function, as `foreachBatch` does.

    A batch whose function has not ended runs again, with the same number and the same offsets:
    at least once, and exactly once where the function does nothing for a number that it knows.
    """

    def __init__(
        self,
        spark: "SparkSession",
        options: Mapping[str, str],
        checkpoint: str,
        schema: StructType | None = None,
    ) -> None:
        """`checkpoint` is the place of a store, as `path` is. Raises SettingsError."""
        self._spark = spark
        self._options = stream_options(options)
        self._schema = schema or rows_schema(self._options)
        self._checkpoint = Checkpoint(checkpoint)

    def run_available(self, work: Work) -> None:
        """Work through what is there at the start, and return (`availableNow`).

        Raises DataLoss, SettingsError for a checkpoint that another query writes, and what looking
        and `work` raise.
        """
        planner = StreamPlanner(self._options)
        planner.stop_at_present()
        batches = self._batches(planner, work)
        while next(batches):
            pass

    def run(self, work: Work, stop: threading.Event, *, interval_s: float = 0.0) -> None:
        """Work through what is there and what comes, until `stop` is set. A batch begins no sooner
        than `interval_s` after the one before. Raises as `run_available`.
        """
        batches = self._batches(StreamPlanner(self._options), work)
        while not stop.is_set():
            began = time.monotonic()
            rest = interval_s if next(batches) else max(interval_s, IDLE_S)
            stop.wait(max(began + rest - time.monotonic(), 0))

    def _batches(self, planner: StreamPlanner, work: Work) -> Iterator[bool]:
        """Yield true after each batch, and false where there is nothing to read."""
        number, start = self._go_on(planner, work)
        while True:
            begin = planner.initial() if start is None else start
            end = planner.latest(begin, is_unlimited=False)
            if start == end:
                yield False
                continue
            self._checkpoint.plan(number, end)
            self._work(planner, number, begin, end, work)
            number, start = number + 1, end
            yield True

    def _go_on(self, planner: StreamPlanner, work: Work) -> tuple[int, StreamOffsets | None]:
        """Run again what an earlier run left in the middle. Return the next batch's number, and its
        start, which a new stream has not.
        """
        number = self._checkpoint.newest()
        if number is None:
            return 0, None
        end = self._checkpoint.end_of(number)
        if not self._checkpoint.is_done(number):
            start = self._checkpoint.end_of(number - 1) if number else planner.initial()
            self._work(planner, number, start, end, work)
        return number + 1, end

    def _work(
        self,
        planner: StreamPlanner,
        number: int,
        start: StreamOffsets,
        end: StreamOffsets,
        work: Work,
    ) -> None:
        splits = planner.plan(
            start,
            end,
            lambda snapshot, ranges: splits_of_read(self._options, snapshot, ranges),
        )
        if splits:
            work(_frame(self._spark, self._options, self._schema, splits), number)
        self._checkpoint.finish(number)


class Checkpoint:
    """Offsets of planned batches and marks of finished ones, laid out as Spark's checkpoints are:
    `metadata`, `offsets/N`, `commits/N`.

    Raises SettingsError for a place that is no store's.
    """

    def __init__(self, place: str) -> None:
        self._reader = store_reader(place)
        self._place = place

    def newest(self) -> int | None:
        """Return the number of the newest planned batch; None for a new stream."""
        listed = self._reader.run(self._reader.store.list("offsets/"))
        names = (one.key.rpartition("/")[2] for one in listed)
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def end_of(self, number: int) -> StreamOffsets:
        """Return the end of a planned batch. Raises DataLoss for another form, SettingsError if it
        is not there.
        """
        try:
            text = self._get(f"offsets/{number}").decode()
        except ObjectNotFound:
            raise SettingsError(f"the checkpoint {self._place} lacks offsets/{number}") from None
        return StreamOffsets.parse(json.loads(text.splitlines()[2]))

    def is_done(self, number: int) -> bool:
        """Return whether a batch has been finished."""
        try:
            self._get(f"commits/{number}")
        except ObjectNotFound:
            return False
        return True

    def plan(self, number: int, end: StreamOffsets) -> None:
        """Write down the end of a batch before it runs. Raises SettingsError if another query has
        planned it.
        """
        if not number:
            self._create("metadata", json.dumps({"id": str(uuid.uuid4())}))
        about = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
        offsets = json.dumps(end.form(), separators=(",", ":"))
        if not self._create(f"offsets/{number}", f"v1\n{json.dumps(about)}\n{offsets}"):
            raise SettingsError(
                f"another query writes the checkpoint {self._place}: it has planned batch {number}"
            )

    def finish(self, number: int) -> None:
        """Write down that a batch has run, and forget one that is long gone."""
        self._create(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')
        old = number - BATCHES_KEPT
        if old >= 0:
            self._reader.run(self._reader.store.delete([f"offsets/{old}", f"commits/{old}"]))

    def _get(self, key: str) -> bytes:
        return self._reader.run(self._reader.store.get(key))

    def _create(self, key: str, text: str) -> bool:
        """Return whether the text is there, and not another one."""
        body = text.encode()
        while True:
            try:
                self._reader.run(self._reader.store.create(key, [body]))
            except ObjectExists:
                return self._get(key) == body
            except OutcomeUnknown:
                continue  # a second try shows whether the first one has succeeded
            return True
