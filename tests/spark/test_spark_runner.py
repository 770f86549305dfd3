"""Jobs whose work items are tasks of Spark do what they do in a local pool."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lake
from lake.jobs.spark_runner import spark_runner
from storage.compaction.merge_plan import MergeRules
from storage.errors import LakeheadError
from storage.jobs.compact import CompactSettings, compact
from storage.jobs.verify import VerifySettings, verify
from tests.support.topic_writer import write_topic


def negative(item: int) -> int:
    if item == 13:
        raise LakeheadError("item 13 is broken: leave it out")
    return -item


def test_each_item_comes_back_once(spark: SparkSession) -> None:
    items = list(range(12))
    done = dict(spark_runner(spark, wave=5)(negative, items))
    assert done == {item: -item for item in items}
    assert list(spark_runner(spark)(negative, [])) == []


def test_an_error_of_ours_is_the_runs_error(spark: SparkSession) -> None:
    with pytest.raises(LakeheadError, match=r"^item 13 is broken: leave it out$"):
        list(spark_runner(spark)(negative, [1, 13]))


def test_jobs_run_on_it(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    for number in range(4):
        values = {p: [b"%d %d" % (number, n) for n in range(20)] for p in range(3)}
        write_topic(Path(path), "t", values, partitions=3)
    before = lake.scan(path, "t").read_all().to_pylist()
    told: list[tuple[int, int]] = []
    figures = compact(
        CompactSettings(path=path, rules=MergeRules(count_min=2)),
        runner=spark_runner(spark),
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert (figures.items, figures.objects_after) == (3, 3)
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] > 0
    assert lake.scan(path, "t").read_all().to_pylist() == before
    report = verify(VerifySettings(path=path), runner=spark_runner(spark))
    assert (report.damages, report.figures.records) == ((), 240)
