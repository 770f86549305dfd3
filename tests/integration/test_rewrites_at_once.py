"""Files of a table that several runs rewrite at once: one commits, and no row is there twice.

A process that was stopped for longer than its lease is one of two, and so is the thread that
optimizes a table while values need a wider column.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakehead.lake.jobs import table_maintenance
from lakehead.lake.jobs.table_clustering import cubes_to_make, make_cube
from lakehead.lake.jobs.table_maintenance import TableTarget
from lakehead.lake.tables.data_file import write_data_file
from lakehead.lake.tables.delta_table import (
    CommitConflict,
    Table,
    create_table,
    open_table,
    replace_table,
)

ROW = pa.schema([pa.field("a", pa.int32())])
WIDER = pa.schema([pa.field("a", pa.int64())])


def opened(uri: str) -> Table:
    table = open_table(uri)
    assert table is not None
    return table


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of three files."""
    place = str(tmp_path / "t")
    create_table(place, ROW, name="t", description="")
    for number in range(3):
        file = write_data_file(place, pa.table({"a": [number]}, schema=ROW))
        opened(place).commit([file], {"x": number}, modified_ms=1, commit_info={})
    return place


def target(uri: str) -> TableTarget:
    return TableTarget(key="t", topic="t", topic_id="0" * 32, uri=uri, file_bytes=1 << 20)


def by_joining(uri: str) -> None:
    table_maintenance._compact(target(uri))


def by_delta_rs(uri: str) -> None:
    """As another engine does it."""
    DeltaTable(uri).optimize.compact()


def by_clustering(uri: str) -> None:
    table = opened(uri)
    (cube,) = cubes_to_make(table, ["a"], 1 << 30)
    make_cube(table, cube, ["a"], file_bytes=1 << 20)


def check(uri: str) -> None:
    assert sorted(opened(uri).rows(["a"], None).column("a").to_pylist()) == [0, 1, 2]
    assert sorted(DeltaTable(uri).to_pyarrow_table().column("a").to_pylist()) == [0, 1, 2]


REWRITES = pytest.mark.parametrize("other", [by_joining, by_clustering, by_delta_rs])


@REWRITES
def test_an_optimize_that_comes_second_begins_again(
    uri: str, other: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [other]

    def failpoint(name: str) -> None:
        if name == "optimize_opened" and waiting:
            waiting.pop()(uri)

    monkeypatch.setattr(table_maintenance, "failpoint", failpoint)
    by_joining(uri)
    assert not waiting
    check(uri)


@REWRITES
def test_a_cube_that_comes_second_is_refused(uri: str, other: Callable[[str], None]) -> None:
    table = opened(uri)
    (cube,) = cubes_to_make(table, ["a"], 1 << 30)
    other(uri)
    with pytest.raises(CommitConflict):
        make_cube(table, cube, ["a"], file_bytes=1 << 20)
    check(uri)


@REWRITES
def test_an_overwrite_that_comes_second_is_refused(uri: str, other: Callable[[str], None]) -> None:
    table = opened(uri)
    other(uri)
    file = write_data_file(uri, pa.table({"a": [0, 1, 2]}, schema=WIDER))
    with pytest.raises(CommitConflict):
        table.commit([file], {"x": 2}, modified_ms=1, commit_info={}, replaced_by=WIDER)
    check(uri)


def test_an_overwrite_after_rows_of_another_application_is_refused(uri: str) -> None:
    table = opened(uri)
    more = write_data_file(uri, pa.table({"a": [3]}, schema=ROW))
    opened(uri).commit([more], {"y": 1}, modified_ms=1, commit_info={})
    file = write_data_file(uri, pa.table({"a": [0, 1, 2]}, schema=WIDER))
    with pytest.raises(CommitConflict):
        table.commit([file], {"x": 2}, modified_ms=1, commit_info={}, replaced_by=WIDER)
    assert opened(uri).rows(["a"], None).num_rows == 4


@REWRITES
def test_a_replacement_of_the_table_that_comes_second_is_refused(
    uri: str, other: Callable[[str], None]
) -> None:
    old = opened(uri)
    other(uri)
    file = write_data_file(uri, pa.table({"a": [0, 1, 2]}, schema=ROW))
    details: dict[str, Any] = {"name": "t", "description": "", "partition_by": ()}
    with pytest.raises(CommitConflict):
        replace_table(uri, ROW, [file], {}, old=old, modified_ms=1, commit_info={}, **details)
    check(uri)


def test_an_optimize_beside_appends_commits(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is written all the time would never be optimized."""

    def failpoint(name: str) -> None:
        if name == "optimize_opened":
            file = write_data_file(uri, pa.table({"a": [3]}, schema=ROW))
            opened(uri).commit([file], {"x": 3}, modified_ms=1, commit_info={})

    monkeypatch.setattr(table_maintenance, "failpoint", failpoint)
    by_joining(uri)
    assert len(DeltaTable(uri).file_uris()) == 2
    assert opened(uri).rows(["a"], None).num_rows == 4
