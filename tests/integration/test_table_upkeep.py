"""`optimize` and `vacuum` of declared tables: rows and progress stay, killed runs leave nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from broker.cli.app import app
from lake.jobs.declared_tables import DeclaredTables
from lake.jobs.table_lease import TableLeases, TableTaken
from lake.jobs.table_upkeep import TableTarget, is_optimize_due, look, optimize, targets, vacuum
from storage.errors import SettingsError
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic

TOPIC = "states"
CONFIGS = {"lakehead.table.enable": "true", "lakehead.table.mode": "upsert"}


def grown(root: Path, rounds: int, **configs: str) -> TableTarget:
    """A table of so many commits."""
    for turn in range(rounds):
        rows = [
            TestRecord(offset=0, timestamp=1, key=b"%d.%d" % (turn, n), value=b"v", headers=())
            for n in range(3)
        ]
        write_topic(root, TOPIC, {0: rows})
        place = {"lakehead.table.path": str(root.parent / "table")}
        configure(root, TOPIC, CONFIGS | place | configs)
        tables = DeclaredTables(str(root), topics=[TOPIC], workers=1)
        tables.bring_up(all_of_them=True, tell=lambda outcome: None)
        tables.close()
    (target,) = targets(str(root), [TOPIC])
    return target


def rows(target: TableTarget) -> list[tuple[Any, ...]]:
    held = DeltaTable(target.uri).to_pyarrow_table(columns=["_key", "value", "_offset"])
    return sorted(zip(*held.to_pydict().values(), strict=True))


def test_small_files_become_one_and_unneeded_ones_go(tmp_path: Path) -> None:
    root = tmp_path / "store"
    target = grown(root, 3)
    before = rows(target)
    assert len(before) == 9
    assert (look(target).small_files, look(target).is_due) == (3, False)
    assert optimize(str(root), target, dry_run=True).files_after == 3
    result = optimize(str(root), target)
    assert (result.error, result.files, result.files_after) == (None, 3, 1)
    assert rows(target) == before
    (topic_id,) = {target.topic_id}
    assert DeltaTable(target.uri).transaction_version(f"lakehead:{topic_id}:0") == 8
    # Of two files that no commit names, the one that a run may be about to commit stays.
    fresh, stale = (Path(target.uri) / f"part-{name}.parquet" for name in ("fresh", "stale"))
    for path in (fresh, stale):
        path.write_bytes(b"of a killed run")
    os.utime(stale, (1_000_000_000, 1_000_000_000))
    assert vacuum(str(root), target, dry_run=True).removed == 1
    assert vacuum(str(root), target).removed == 1
    assert fresh.exists()
    assert not stale.exists()
    assert rows(target) == before
    with pytest.raises(SettingsError, match="168 hours at least"):
        vacuum(str(root), target, retention_hours=167)


def test_a_job_that_is_killed_changes_no_row(tmp_path: Path) -> None:
    root = tmp_path / "store"
    target = grown(root, 2, **{"lakehead.table.cluster.by": "_key"})
    before = rows(target)
    for step in ("optimize_opened", "optimize_committed", "vacuum_done"):
        command = "vacuum" if step == "vacuum_done" else "optimize"
        killed = subprocess.run(
            [sys.executable, "-m", "broker.cli", command, TOPIC, "--path", str(tmp_path)],
            env=os.environ | {"LAKEHEAD_FAILPOINT": step},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert killed.returncode not in (0, 1), killed.stderr
        assert rows(target) == before
    assert optimize(str(root), target).error is None
    assert vacuum(str(root), target).error is None
    assert rows(target) == before


def test_many_small_files_are_due_unless_most_are_big() -> None:
    assert is_optimize_due(files=16, small_files=16)
    assert is_optimize_due(files=40, small_files=20)
    assert not is_optimize_due(files=15, small_files=15)
    assert not is_optimize_due(files=41, small_files=20)


def test_engines_that_cannot_compare_and_set_wait_for_the_lease(tmp_path: Path) -> None:
    root = tmp_path / "store"
    target = grown(root, 1)
    leases = TableLeases.open(str(root))
    leases.take(target.topic_id)
    version = DeltaTable(target.uri).version()
    try:
        refused = [
            optimize(str(root), target, engine="spark").error,
            vacuum(str(root), target, engine="spark").error,
        ]
    finally:
        leases.close()
    assert [type(error) for error in refused] == [TableTaken, TableTaken]
    assert DeltaTable(target.uri).version() == version
    with pytest.raises(SettingsError, match="leave the retention out"):
        vacuum(str(root), target, retention_hours=200, engine="spark")


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
