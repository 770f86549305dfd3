"""Jobs whose work items are tasks of Spark do what they do in a local pool."""

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakehead
from lakehead.lake.jobs.spark_runner import SparkFailed, spark_runner
from lakehead.storage.errors import CorruptObject, LakeheadError
from lakehead.storage.jobs.compact_objects import JOB as COMPACT
from lakehead.storage.jobs.compact_objects import CompactObjectsOptions
from lakehead.storage.jobs.job import run_job
from lakehead.storage.jobs.verify import JOB as VERIFY
from tests.support.topic_writer import write_topic


def negative(item: int) -> int:
    if item == 13:
        raise LakeheadError("item 13 is broken: leave it out")
    if item == 14:
        raise CorruptObject("data/14", 7, "its checksum is wrong")
    if item == 15:
        os.kill(os.getpid(), signal.SIGKILL)
    return -item


def test_each_item_comes_back_once(spark: SparkSession) -> None:
    items = list(range(12))
    done = dict(spark_runner(spark, wave=5)(negative, items))
    assert done == {item: -item for item in items}
    assert list(spark_runner(spark)(negative, [])) == []


def test_an_error_of_ours_is_the_runs_error(spark: SparkSession) -> None:
    with pytest.raises(LakeheadError, match=r"^item 13 is broken: leave it out$"):
        list(spark_runner(spark)(negative, [1, 13]))


def test_an_error_of_ours_keeps_its_class(spark: SparkSession) -> None:
    """By it a scheduler knows that another try cannot help."""
    with pytest.raises(CorruptObject, match=r"^object data/14 is corrupt at byte 7") as found:
        list(spark_runner(spark)(negative, [1, 14]))
    assert found.value.key == "data/14"


def test_a_worker_of_spark_that_dies_is_one_line(spark: SparkSession) -> None:
    with pytest.raises(SparkFailed, match=r"^Spark failed: ") as found:
        list(spark_runner(spark)(negative, [15]))
    assert "\n" not in str(found.value)
    assert dict(spark_runner(spark)(negative, [1])) == {1: -1}


def test_jobs_run_on_it(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    for number in range(4):
        values = {p: [b"%d %d" % (number, n) for n in range(20)] for p in range(3)}
        write_topic(Path(path), "t", values, partitions=3)
    before = lakehead.scan(path, "t").read_all().to_pylist()
    told: list[tuple[int, int]] = []
    figures = run_job(
        COMPACT,
        path,
        CompactObjectsOptions(count_min=2),
        runner=spark_runner(spark),
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert (figures.items, figures.objects_after) == (3, 3)
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] > 0
    assert lakehead.scan(path, "t").read_all().to_pylist() == before
    report = run_job(VERIFY, path, runner=spark_runner(spark))
    assert (report.damages, report.records) == ((), 240)
