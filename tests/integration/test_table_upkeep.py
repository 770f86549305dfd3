"""`optimize` and `vacuum` of declared tables: rows and progress stay, killed runs leave nothing."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from lakehead.broker.cli.app import app
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.jobs.table_lease import TableLeases, TableTaken
from lakehead.lake.jobs.table_maintenance import (
    Hold,
    MaintenanceResult,
    TableTarget,
    is_optimize_due,
    look,
    optimize,
    targets,
    vacuum,
)
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.merge_engine import MergeEngineName
from lakehead.storage.errors import SettingsError
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.template_process import ForkedPython, lakehead_command
from tests.support.topic_writer import write_topic

TOPIC = "states"
CONFIGS = {"lakehead.table.enable": "true", "lakehead.table.mode": "upsert"}


def turn(root: Path, number: int, **configs: str) -> None:
    """Three more records, brought up."""
    records = [
        TestRecord(offset=0, timestamp=1, key=b"%d.%d" % (number, n), value=b"v", headers=())
        for n in range(3)
    ]
    write_topic(root, TOPIC, {0: records})
    place = {"lakehead.table.path": str(root.parent / "table")}
    configure(root, TOPIC, CONFIGS | place | configs)
    tables = DeclaredTables(str(root), topics=[TOPIC], workers=1)
    tables.catch_up(all_of_them=True, on_table=lambda outcome: None)
    tables.close()


def grown(root: Path, rounds: int, **configs: str) -> TableTarget:
    """A table of so many commits."""
    for number in range(rounds):
        turn(root, number, **configs)
    return target_of(root)


def target_of(root: Path) -> TableTarget:
    (target,) = targets(store_reader(str(root)).open_catalog(), [TOPIC])
    return target


@pytest.fixture
def hold(tmp_path: Path) -> Hold:
    """Holds the lease of the table of `TOPIC`, which is there when this is used."""

    @contextmanager
    def held() -> Iterator[None]:
        leases = TableLeases.open(str(tmp_path / "store"))
        try:
            with leases.held(target_of(tmp_path / "store").topic_id):
                yield
        finally:
            leases.close()

    return held


def rows(target: TableTarget) -> list[tuple[Any, ...]]:
    held = DeltaTable(target.uri).to_pyarrow_table(columns=["_key", "value", "_offset"])
    return sorted(zip(*held.to_pydict().values(), strict=True))


def test_small_files_become_one_and_unneeded_ones_go(tmp_path: Path, hold: Hold) -> None:
    root = tmp_path / "store"
    target = grown(root, 3)
    before = rows(target)
    assert len(before) == 9
    assert (look(target).small_files, look(target).is_due) == (3, False)
    assert optimize(target, hold, dry_run=True).files_after == 3
    result = optimize(target, hold)
    assert (result.error, result.files, result.files_after) == (None, 3, 1)
    assert rows(target) == before
    (topic_id,) = {target.topic_id}
    assert DeltaTable(target.uri).transaction_version(f"lakehead:{topic_id}:0") == 8
    # Of two files that no commit names, the one that a run may be about to commit stays.
    fresh, stale = (Path(target.uri) / f"part-{name}.parquet" for name in ("fresh", "stale"))
    for path in (fresh, stale):
        path.write_bytes(b"of a killed run")
    os.utime(stale, (1_000_000_000, 1_000_000_000))
    assert vacuum(target, hold, dry_run=True).removed == 1
    assert vacuum(target, hold).removed == 1
    assert fresh.exists()
    assert not stale.exists()
    assert rows(target) == before
    with pytest.raises(SettingsError, match="168 hours at least"):
        vacuum(target, hold, retention_hours=167)


def test_a_job_that_is_killed_changes_no_row(tmp_path: Path, hold: Hold) -> None:
    root = tmp_path / "store"
    target = grown(root, 2, **{"lakehead.table.cluster.by": "_key"})
    before = rows(target)
    for step in ("optimize_opened", "optimize_committed", "vacuum_done"):
        command = "vacuum" if step == "vacuum_done" else "optimize"
        killed = lakehead_command(command, TOPIC, "--path", str(tmp_path), failpoint=step)
        assert killed.returncode not in (0, 1), killed.stderr
        assert rows(target) == before
    assert optimize(target, hold).error is None
    assert vacuum(target, hold).error is None
    assert rows(target) == before


def test_many_small_files_are_due_unless_most_are_big() -> None:
    target = TableTarget(key="t", topic="t", topic_id="0", uri="", file_bytes=1)
    assert is_optimize_due(target, files=16, small_files=16)
    assert is_optimize_due(target, files=40, small_files=20)
    assert not is_optimize_due(target, files=15, small_files=15)
    assert not is_optimize_due(target, files=41, small_files=20)
    assert is_optimize_due(replace(target, small_percent=25), files=80, small_files=20)
    assert not is_optimize_due(replace(target, small_percent=25), files=81, small_files=20)


def test_files_that_share_no_partition_are_not_due(tmp_path: Path, hold: Hold) -> None:
    root = tmp_path / "store"
    append = {"lakehead.table.mode": "append", "lakehead.table.partition.by": "_offset"}
    found = look(grown(root, 6, **append))
    assert (found.files, found.small_files, found.is_due) == (18, 0, False)


@pytest.mark.parametrize("engine", ["delta-rs", "spark"])
def test_who_keeps_files_waits_for_the_lease(
    tmp_path: Path, hold: Hold, engine: MergeEngineName
) -> None:
    target = grown(tmp_path / "store", 1)
    version = DeltaTable(target.uri).version()
    with hold():
        refused = [job(target, hold, engine=engine).error for job in (optimize, vacuum)]
    assert [type(error) for error in refused] == [TableTaken, TableTaken]
    assert DeltaTable(target.uri).version() == version
    with pytest.raises(SettingsError, match="leave the retention out"):
        vacuum(target, hold, retention_hours=200, engine="spark")


def aged(root: Path) -> TableTarget:
    """A table of which OPTIMIZE and VACUUM are due: a VACUUM is a millisecond after it was made."""
    due = {"lakehead.table.vacuum.interval.ms": "1", "lakehead.table.optimize.interval.ms": "1"}
    target = grown(root, 1, **due)
    grow_small(target)
    return target


def grow_small(target: TableTarget) -> None:
    """Fifteen more files, quickly."""
    held = DeltaTable(target.uri).to_pyarrow_table()
    for _ in range(15):
        write_deltalake(target.uri, held, mode="append")


def never_again(root: Path) -> None:
    long = {f"lakehead.table.{job}.interval.ms": "3600000" for job in ("vacuum", "optimize")}
    configure(root, TOPIC, long)


def test_what_is_due_is_done_once_and_remembered(tmp_path: Path) -> None:
    root = tmp_path / "store"
    aged(root)
    runner, path = CliRunner(), ("--path", str(tmp_path), "--json")
    shown = runner.invoke(app, ["maintain", "--dry-run", *path]).stdout
    due = [json.loads(line)["due"] for line in shown.splitlines()]
    assert due[:2] == ["optimize 16 small files of 16", "vacuum 0 files to delete"]
    before = rows(target_of(root))
    never_again(root)
    figures = json.loads(runner.invoke(app, ["maintain", *path]).stdout)
    assert (figures["optimized_tables"], figures["vacuumed_tables"]) == (1, 0)
    configure(root, TOPIC, {"lakehead.table.vacuum.interval.ms": "1"})
    figures = json.loads(runner.invoke(app, ["maintain", *path]).stdout)
    assert (figures["optimized_tables"], figures["vacuumed_tables"]) == (0, 1)
    assert rows(target_of(root)) == before
    # Many commits later the table still knows, whatever of its history is left.
    never_again(root)
    grow_small(target_of(root))
    DeltaTable(target_of(root).uri).create_checkpoint()
    assert look(target_of(root)).small_files == 16
    figures = json.loads(runner.invoke(app, ["maintain", *path]).stdout)
    assert (figures["optimized_tables"], figures["vacuumed_tables"]) == (0, 0)
    configure(root, TOPIC, {"lakehead.table.optimize.interval.ms": "0"})
    assert not look(target_of(root)).is_due


def test_two_at_once_do_it_once_and_neither_fails(tmp_path: Path) -> None:
    root = tmp_path / "store"
    aged(root)
    never_again(root)
    command = [sys.executable, "-m", "lakehead", "maintain", "--path", str(tmp_path), "--json"]
    both = [
        ForkedPython(command, jobs=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [one.communicate(timeout=120) for one in both]
    assert [one.returncode for one in both] == [0, 0], told
    assert sum(json.loads(out)["optimized_tables"] for out, _ in told) == 1
    history = DeltaTable(target_of(root).uri).history()
    assert [one["operation"] for one in history].count("OPTIMIZE") == 1


def test_who_follows_a_table_keeps_its_files_under_its_lease(tmp_path: Path, hold: Hold) -> None:
    root = tmp_path / "store"
    target = aged(root)
    before = rows(target)
    tables = DeclaredTables(str(root), topics=[TOPIC], workers=1)
    stopped, told, other = threading.Event(), list[MaintenanceResult](), list[MaintenanceResult]()

    def tell(result: MaintenanceResult) -> None:
        told.append(result)
        if result.job == "vacuum":
            other.append(optimize(target, hold))
            stopped.set()

    try:
        tables.follow(stopped, lambda outcome: None, on_files=tell, files_every_s=0.01)
    finally:
        tables.close()
    assert [one.job for one in told[:2]] == ["optimize", "vacuum"]
    assert [one.error for one in told] == [None] * len(told)
    assert isinstance(other[0].error, TableTaken)
    assert look(target).files == 1
    assert rows(target) == before


def test_commands_do_what_is_due_or_named(tmp_path: Path) -> None:
    root = tmp_path / "store"
    grown(root, 2)
    runner = CliRunner()
    shown = runner.invoke(app, ["optimize", "--path", str(tmp_path), "--json"])
    row = json.loads(shown.stdout)
    assert (row["files"], row["after"], row["due"]) == (2, 2, False)
    shown = runner.invoke(app, ["optimize", TOPIC, "--path", str(tmp_path), "--json"])
    row = json.loads(shown.stdout)
    assert (row["files"], row["after"]) == (2, 1)
    shown = runner.invoke(app, ["vacuum", "--path", str(tmp_path), "--json"])
    row = json.loads(shown.stdout)
    assert (row["due"], row["removed"]) == (False, 0)


def test_the_table_of_dead_letters_is_kept_too(tmp_path: Path) -> None:
    """A stream of bad values would leave it with a file for each round."""
    root = tmp_path / "store"
    declared = {"value.format": "json", "schema": "id bigint", "on.error": "dead_letter"}
    odd = {f"lakehead.table.{name}": value for name, value in declared.items()}
    for number in range(2):  # no value is JSON
        turn(root, number, **odd)
    table, letters = targets(store_reader(str(root)).open_catalog(), [TOPIC])
    assert (letters.uri, letters.topic_id) == (f"{table.uri}__dlq", table.topic_id)
    assert DeltaTable(letters.uri).to_pyarrow_table().num_rows == 6
    shown = CliRunner().invoke(app, ["optimize", TOPIC, "--path", str(tmp_path), "--json"])
    found = {row["table"]: row for row in map(json.loads, shown.stdout.splitlines())}
    assert (found[letters.uri]["files"], found[letters.uri]["after"]) == (2, 1)
    assert DeltaTable(letters.uri).to_pyarrow_table().num_rows == 6
