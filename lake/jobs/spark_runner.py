"""Runs work items as tasks of Spark: each item is a task of its own, on whatever executor is free.

Function, items and results travel pickled, so executors need this distribution and nothing else.
An item that fails with an error of ours fails the run with that error, of its class, without a
traceback of Spark's around it. An end of Spark itself is `SparkFailed`. Works on Spark Connect too.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from lakehead.storage.errors import LakeheadError
from lakehead.storage.jobs.job import Runner

Item = TypeVar("Item")
Result = TypeVar("Result")

_WAVE = 256
"""Items of one Spark job: results arrive after each job."""
_RESULTS = "number long, result binary, error binary"
_SCHEMA = pa.schema([("number", pa.int64()), ("result", pa.binary()), ("error", pa.binary())])


class SparkFailed(LakeheadError):
    """Spark did not start, gave up a task, or ended in the middle of the work."""


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn the errors of Spark itself into one line. Raises SparkFailed."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JNetworkError, ConnectionError):
        raise SparkFailed(
            "Spark's JVM ended in the middle of the work: it was killed, or ran out of memory"
        ) from None
    except (Py4JError, PySparkException) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise SparkFailed(f"Spark failed: {lines[0] if lines else type(error).__name__}") from error


def spark_runner(spark: Any, *, wave: int = _WAVE) -> Runner:
    """Return a runner on a Spark session. Results come after each `wave` of items."""

    def run(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        for first in range(0, len(items), wave):
            some = items[first : first + wave]
            tasks = _tasks(work, [pickle.dumps(item) for item in some])
            with spark_errors():
                rows = spark.range(0, len(some), 1, len(some)).mapInArrow(tasks, _RESULTS).collect()
            for row in rows:
                if row.error is not None:
                    raise pickle.loads(row.error)  # noqa: S301 - what our own task raised
                yield some[row.number], pickle.loads(row.result)  # noqa: S301 - what our own task returned

    return run


def _tasks(work: Callable[[Any], Any], pickled: Sequence[bytes]) -> Callable[[Any], Any]:
    """Return what a task does with the numbers of its items."""

    def done(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result, error = None, None
                try:
                    item = pickle.loads(pickled[number])  # noqa: S301 - from our own driver
                    result = pickle.dumps(work(item))
                except LakeheadError as failure:
                    error = pickle.dumps(failure)
                yield pa.RecordBatch.from_pylist(
                    [{"number": number, "result": result, "error": error}], schema=_SCHEMA
                )

    return done
