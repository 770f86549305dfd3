"""Rounds of a MERGE by delta-spark that were left at any step, taken up by whoever comes next."""

from pathlib import Path

import pyarrow as pa
import pytest

from lakehead.lake.jobs.table_run import planned_merge
from lakehead.lake.tables.delta_table import CommitConflict, Table, create_table, open_table
from lakehead.lake.tables.left_out import COUNTS, DROPPED, LEFT_OUT, count_txns, counted
from lakehead.lake.tables.merge_engine import DeltaMerge, done_app, plan_merge, planned_app, settle
from lakehead.lake.tables.upsert import change_schema

TOPIC = "0" * 32
PARTITIONS = [(TOPIC, 0), (TOPIC, 1)]
ROW = pa.schema(
    [
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("_key", pa.binary()),
    ]
)


def opened(uri: str) -> Table:
    table = open_table(uri)
    assert table is not None
    return table


@pytest.fixture
def uri(tmp_path: Path) -> str:
    made = str(tmp_path / "t")
    create_table(made, ROW, name="t", description="")
    return made


def test_a_round_that_was_only_planned_is_given_up_by_another_engine(uri: str) -> None:
    number = plan_merge(opened(uri), dict.fromkeys(PARTITIONS, 29), {})
    table = opened(uri)
    assert not settle(table, PARTITIONS)
    row = {"_partition": 0, "_offset": 1, "_timestamp": 1, "_key": b"k", "_op": "u", "_seq": 0}
    changes = pa.Table.from_pylist([row | {"_at": 1}], schema=change_schema(ROW))
    merge = planned_merge(table, changes, ROW, (), is_history=False)
    DeltaMerge().merge(table, merge, dict.fromkeys(PARTITIONS, 9), {})
    table = opened(uri)
    # Its number is used up, so a MERGE that comes late is skipped; nor does it pass for done.
    assert table.txn_version(done_app(TOPIC)) == number
    assert table.txn_version(planned_app(TOPIC)) == number + 1
    assert not settle(table, PARTITIONS)
    assert [table.last_offset(*key) for key in PARTITIONS] == [9, 9]


def test_a_round_that_was_only_planned_is_planned_over(uri: str) -> None:
    first = plan_merge(opened(uri), dict.fromkeys(PARTITIONS, 29), {})
    second = plan_merge(opened(uri), dict.fromkeys(PARTITIONS, 19), {})
    table = opened(uri)
    assert (table.txn_version(done_app(TOPIC)), table.txn_version(planned_app(TOPIC))) == (
        first,
        second,
    )
    assert table.last_offset(TOPIC, 0) == -1


def test_a_round_that_is_done_is_settled_once(uri: str) -> None:
    number = plan_merge(opened(uri), {(TOPIC, 0): 60, (TOPIC, 1): -1}, {})
    opened(uri).commit([], {done_app(TOPIC): number}, modified_ms=1, commit_info={})
    late = opened(uri)
    assert settle(opened(uri), PARTITIONS)
    with pytest.raises(CommitConflict):
        settle(late, PARTITIONS)
    assert not settle(opened(uri), PARTITIONS)
    assert [opened(uri).last_offset(*key) for key in PARTITIONS] == [60, -1]


def test_of_two_runs_that_plan_at_once_one_does(uri: str) -> None:
    late = opened(uri)
    plan_merge(opened(uri), dict.fromkeys(PARTITIONS, 60), {})
    with pytest.raises(CommitConflict):
        plan_merge(late, dict.fromkeys(PARTITIONS, 60), {})


def test_counts_are_those_of_the_rounds_that_were_done(uri: str) -> None:
    progress = {(TOPIC, 0): 60, (TOPIC, 1): -1}
    plan_merge(opened(uri), progress, {}, count_txns(opened(uri), left_out=7, dropped=5))
    number = plan_merge(opened(uri), progress, {}, count_txns(opened(uri), left_out=2))
    opened(uri).commit([], {done_app(TOPIC): number}, modified_ms=1, commit_info={})
    assert [counted(opened(uri), app) for app in COUNTS] == [0, 0]
    assert settle(opened(uri), PARTITIONS)
    assert (counted(opened(uri), LEFT_OUT), counted(opened(uri), DROPPED)) == (2, 0)
    number = plan_merge(
        opened(uri), {(TOPIC, 0): 90}, {}, count_txns(opened(uri), left_out=1, dropped=1)
    )
    opened(uri).commit([], {done_app(TOPIC): number}, modified_ms=1, commit_info={})
    assert settle(opened(uri), PARTITIONS)
    assert (counted(opened(uri), LEFT_OUT), counted(opened(uri), DROPPED)) == (3, 1)
