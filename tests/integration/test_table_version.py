"""Versions of a table as of times, offsets and the commits of groups."""

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PREFIX, TABLES
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.jobs.table_version import AsOfPosition, table_version
from lakehead.lake.positions import GroupPosition
from lakehead.storage.errors import SettingsError
from tests.support.command_line import CommandLine
from tests.support.declared_tables import materialize_all
from tests.support.declared_topics import configure
from tests.support.group_commits import commit_offsets
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic

MINUTE = 60_000
ROUNDS = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of six rounds: 2 records of partition 0 and 1 of partition 1 each, a minute apart."""
    root = tmp_path_factory.mktemp("versions")
    for number in range(ROUNDS):
        at = number * MINUTE
        records = [
            TestRecord(offset=0, timestamp=at + n, value=json.dumps({"n": n}).encode())
            for n in range(3)
        ]
        write_topic(root, "orders", {0: records[:2], 1: records[2:]}, partitions=2)
        if not number:
            declared = {"enable": "true", "value.format": "json"}
            configure(root, "orders", {f"{PREFIX}{name}": one for name, one in declared.items()})
        materialize_all(root)
    commit_offsets(root, "reports", "orders", {0: 8, 1: 3})
    commit_offsets(root, "one", "orders", {0: 4})
    write_topic(root, "plain", {0: [b"x"]})
    return root


@pytest.mark.parametrize(
    ("position", "requested", "offsets"),
    [
        ({0: 6, 1: 3}, {0: 6, 1: 3}, {0: 6, 1: 3}),
        ({0: 5, 1: 3}, {0: 5, 1: 3}, {0: 6, 1: 3}),
        ({1: 1}, {0: 0, 1: 1}, {0: 2, 1: 1}),
        ({}, {0: 0, 1: 0}, {0: 0, 1: 0}),
        (GroupPosition("reports"), {0: 8, 1: 3}, {0: 8, 1: 4}),
        (GroupPosition("one"), {0: 4, 1: 0}, {0: 4, 1: 2}),
        (2 * MINUTE + 2, {0: 6, 1: 3}, {0: 6, 1: 3}),
        (2 * MINUTE + 1, {0: 6, 1: 2}, {0: 6, 1: 3}),
        (10**12, {0: 12, 1: 6}, {0: 12, 1: 6}),
    ],
)
def test_the_oldest_version_that_holds_the_position_is_found(
    root: Path, position: AsOfPosition, requested: dict[int, int], offsets: dict[int, int]
) -> None:
    found = table_version(str(root), "orders", position)
    assert (found.requested, found.offsets) == (requested, offsets)
    assert found.is_exact == (requested == offsets) == (found.condition is None)
    table = DeltaTable(found.table, version=found.version).to_pyarrow_table()
    rows = set(zip(table["_partition"].to_pylist(), table["_offset"].to_pylist(), strict=True))
    assert rows == {(p, offset) for p, end in offsets.items() for offset in range(end)}
    if found.version:
        before = DeltaTable(found.table, version=found.version - 1).to_pyarrow_table()
        held = zip(before["_partition"].to_pylist(), before["_offset"].to_pylist(), strict=True)
        asked = {(p, offset) for p, end in requested.items() for offset in range(end)}
        assert not asked <= set(held)


@pytest.mark.parametrize(
    ("topic", "position", "message"),
    [
        ("orders", {0: 13}, "holds partition 0 up to offset 12, not yet up to 13"),
        ("orders", {2: 1}, "topic orders has 2 partitions: none is 2"),
        ("orders", GroupPosition("nobody"), "group 'nobody' has committed no offset"),
        ("plain", {0: 1}, "topic plain declares no table"),
    ],
)
def test_a_position_without_a_version_is_an_error_that_says_why(
    root: Path, topic: str, position: AsOfPosition, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        table_version(str(root), topic, position)


def test_a_version_holds_the_older_records_that_a_backfill_added(tmp_path: Path) -> None:
    """The versions before reach the position too, and lack its first records."""
    write_topic(tmp_path, "orders", {0: [b'{"n": 1}'] * 6})
    declared = {"enable": "true", "value.format": "json"}
    configure(tmp_path, "orders", {f"{PREFIX}{name}": one for name, one in declared.items()})
    for begin in (3, 0):
        tables = DeclaredTables(str(tmp_path))
        tables.begin("orders", at={0: begin})
        tables.close()
        materialize_all(tmp_path)
        found = table_version(str(tmp_path), "orders", {0: 5})
        rows = DeltaTable(found.table, version=found.version).to_pyarrow_table(columns=["_offset"])
        assert sorted(rows.column("_offset").to_pylist()) == list(range(begin, 6))
    assert table_version(str(tmp_path), "orders", {0: 0}).version == 0


def test_each_of_several_tables_has_its_own_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One table goes on where the other pauses: the same position is another version."""
    configs = {
        f"{PREFIX}enable": "true",
        TABLES: "raw_rows,flat_rows",
        f"{PREFIX}flat_rows.value.format": "json",
    }
    good, bad = json.dumps({"n": 1}).encode(), b"{"
    for number, value in enumerate((good, good, bad)):
        write_topic(tmp_path, "orders", {0: [value, good]})
        if not number:
            configure(tmp_path, "orders", configs)
        tables = DeclaredTables(str(tmp_path))
        tables.catch_up(all_of_them=True, on_table=lambda _: None)
        tables.close()
    commit_offsets(tmp_path, "reports", "orders", {0: 6})
    command = CommandLine(monkeypatch, capsys)

    def shown(table: str, as_of: str) -> dict[str, Any]:
        done = command("table-version", table, as_of, "--path", str(tmp_path), "--json")
        found: dict[str, Any] = json.loads(done.out)
        return found

    for table in ("raw_rows", "flat_rows"):
        for end in (2, 3, 4):
            found = shown(f"orders/{table}", f"0:{end}")
            assert found["table"] == str(tmp_path / "tables" / table)
            rows = DeltaTable(found["table"], version=found["version"]).to_pyarrow_table()
            assert sorted(rows["_offset"].to_pylist()) == list(range(2 * ((end + 1) // 2)))
    assert shown("orders/raw_rows", "group:reports")["exact"]
    path = ("--path", str(tmp_path))
    error = command.fails("table-version", "orders/flat_rows", "group:reports", *path)
    assert "holds partition 0 up to offset 4, not yet up to 6" in error
    error = command.fails("table-version", "orders", "0:1", *path)
    assert "several tables, name one: orders/raw_rows, orders/flat_rows" in error
    error = command.fails("table-version", "orders/other", "0:1", *path)
    assert "orders" in error


def test_the_command_names_the_query_and_refuses_other_positions(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = CommandLine(monkeypatch, capsys)
    shown = command("table-version", "orders", "0:5,1:3", "--path", str(root))
    assert shown.status == 0
    (query,) = (line for line in shown.out.splitlines() if line.startswith("query"))
    assert query.endswith(" WHERE _partition = 0 AND _offset < 5 OR _partition = 1 AND _offset < 3")
    found = json.loads(
        command("table-version", "orders", "group:reports", "--path", str(root), "--json").out
    )
    assert (found["exact"], found["requested"]) == (False, {"0": 8, "1": 3})
    error = command.fails("table-version", "orders", "newest", "--path", str(root))
    assert error.startswith("AS_OF is a time")
