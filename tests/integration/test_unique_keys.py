"""A table keeps the unique key that it was made with: where the mode or the keys of a declaration
change, no row of another key gets in before the table is rebuilt.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PREFIX, TableMode
from lakehead.lake.jobs import table_schema
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.table_rebuild import rebuild_table
from lakehead.lake.jobs.table_run import TableRun
from lakehead.lake.jobs.table_settings import MaterializeSettings, Unguarded
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.delta_table import NOTHING, Table, open_table
from lakehead.lake.tables.unique_key import UNIQUE_KEY, check_unique_key, unique_key_txn
from lakehead.storage.errors import SettingsError
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic

ALWAYS = {"enable": "true", "value.format": "json", "schema": "id bigint, note string"}


def write(root: Path, *notes: str) -> None:
    records = [
        TestRecord(offset=0, key=b"k", value=b'{"id": 1, "note": "%s"}' % note.encode())
        for note in notes
    ]
    write_topic(root, "orders", {0: records})


def declare(root: Path, configs: dict[str, str | None]) -> None:
    configure(root, "orders", {f"{PREFIX}{name}": value for name, value in configs.items()})


def catch_up(root: Path) -> TableOutcome:
    outcomes: list[TableOutcome] = []
    tables = DeclaredTables(str(root))
    tables.catch_up(all_of_them=True, on_table=outcomes.append)
    tables.close()
    return outcomes[0]


def notes(outcome: TableOutcome) -> list[str]:
    held = DeltaTable(outcome.table).to_pyarrow_table(columns=["note"])
    return sorted(held.column("note").to_pylist())


@pytest.mark.parametrize(
    ("before", "after", "rebuilt"),
    [
        ({}, {"mode": "upsert"}, ["c"]),
        ({"mode": "upsert"}, {"mode": None}, ["a", "b", "c"]),
        ({"mode": "upsert"}, {"keys": "id"}, ["c"]),
        ({"mode": "upsert", "keys": "id,note"}, {"keys": "id"}, ["c"]),
    ],
)
def test_a_table_gets_no_rows_of_another_unique_key(
    tmp_path: Path,
    before: dict[str, str | None],
    after: dict[str, str | None],
    rebuilt: list[str],
) -> None:
    """A MERGE would put a row in the place of each of several that it finds."""
    write(tmp_path, "a", "b")
    declare(tmp_path, {**ALWAYS, **before})
    assert catch_up(tmp_path).error is None
    declare(tmp_path, after)
    write(tmp_path, "c")
    outcome = catch_up(tmp_path)
    assert "lakehead rebuild-table" in str(outcome.error)
    assert "c" not in notes(outcome)
    tables = DeclaredTables(str(tmp_path))
    tables.rebuild("orders")
    tables.close()
    outcome = catch_up(tmp_path)
    assert outcome.error is None
    assert notes(outcome) == rebuilt


def test_a_run_looks_for_the_unique_key_once_and_again_in_a_table_that_was_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the table's first commit, and to find it is to read the log from its checkpoint."""
    found: list[int] = []

    def check(table: Table, mode: TableMode, keys: Sequence[str]) -> None:
        found.append(table.version)
        check_unique_key(table, mode, keys)

    monkeypatch.setattr(table_schema, "check_unique_key", check)
    settings = MaterializeSettings(
        path=str(tmp_path), topic="orders", table=str(tmp_path / "tables/orders")
    )
    reader = store_reader(settings.path)
    run = TableRun(settings, reader, Unguarded())
    for _ in range(3):
        write(tmp_path, "a")
        run.catch_up(reader.open_catalog())
    assert len(found) == 1
    rebuild_table(replace(settings, mode="upsert"), reader, reader.open_catalog(), Unguarded())
    write(tmp_path, "a")
    with pytest.raises(SettingsError, match="rebuild-table"):
        run.catch_up(reader.open_catalog())


def test_keys_in_another_order_are_the_same(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    declare(tmp_path, {**ALWAYS, "mode": "upsert", "keys": "id,note"})
    assert catch_up(tmp_path).error is None
    declare(tmp_path, {"keys": "note,id"})
    write(tmp_path, "b", "c")
    outcome = catch_up(tmp_path)
    assert outcome.error is None
    assert notes(outcome) == ["a", "b", "c"]


def test_a_table_that_begins_later_records_its_unique_key(tmp_path: Path) -> None:
    write(tmp_path, "a")
    declare(tmp_path, {**ALWAYS})
    tables = DeclaredTables(str(tmp_path))
    tables.begin("orders", at={0: 0})
    tables.close()
    table = open_table(str(tmp_path / "tables/orders"))
    assert table is not None
    assert table.txn_version(UNIQUE_KEY) != NOTHING


@pytest.fixture
def made_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As tables were made before they recorded a unique key, while the patch lasts."""
    with monkeypatch.context() as patch:
        for module in ("table_schema", "table_run"):
            patch.setattr(f"lakehead.lake.jobs.{module}.unique_key_txn", lambda _mode, _keys: {})
        yield patch


def recorded(root: Path) -> int:
    table = open_table(str(root / "tables/orders"))
    assert table is not None
    return table.txn_version(UNIQUE_KEY)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"mode": "upsert", "keys": "id,note"}, {"mode": None, "keys": None}),
        ({"mode": "upsert", "keys": "id,note", "scd": "2"}, {"keys": "id"}),
        ({}, {"mode": "upsert"}),
    ],
)
def test_a_table_that_was_made_before_gets_no_rows_of_another_unique_key(
    tmp_path: Path,
    made_before: pytest.MonkeyPatch,
    before: dict[str, str | None],
    after: dict[str, str | None],
) -> None:
    """Its rows show it: two have one key, or a MERGE was there."""
    write(tmp_path, "a", "b")
    declare(tmp_path, {**ALWAYS, **before})
    assert catch_up(tmp_path).error is None
    write(tmp_path, "b")
    assert catch_up(tmp_path).error is None
    made_before.undo()
    declare(tmp_path, after)
    write(tmp_path, "c")
    outcome = catch_up(tmp_path)
    assert "lakehead rebuild-table" in str(outcome.error)
    assert "\n" not in str(outcome.error)
    assert "c" not in notes(outcome)


@pytest.mark.parametrize(
    "declared", [{}, {"mode": "upsert"}, {"mode": "upsert", "keys": "id,note", "scd": "2"}]
)
def test_a_table_that_was_made_before_records_its_unique_key(
    tmp_path: Path, made_before: pytest.MonkeyPatch, declared: dict[str, str | None]
) -> None:
    write(tmp_path, "a", "b")
    declare(tmp_path, {**ALWAYS, **declared})
    assert catch_up(tmp_path).error is None
    made_before.undo()
    assert catch_up(tmp_path).error is None
    is_upsert = "mode" in declared
    keys = ("id", "note") if "keys" in declared else ()
    wanted = unique_key_txn("upsert" if is_upsert else "append", keys)
    assert recorded(tmp_path) == wanted[UNIQUE_KEY]
    declare(
        tmp_path, {"mode": None, "keys": None, "scd": None} if is_upsert else {"mode": "upsert"}
    )
    write(tmp_path, "c")
    assert "lakehead rebuild-table" in str(catch_up(tmp_path).error)


def test_a_merge_of_another_engine_makes_no_table_one_by_upsert(
    tmp_path: Path, made_before: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a", "b")
    declare(tmp_path, {**ALWAYS})
    outcome = catch_up(tmp_path)
    made_before.undo()
    table = DeltaTable(outcome.table)
    merger = table.merge(table.to_pyarrow_table(), "t._offset = s._offset", "s", "t")
    merger.when_matched_update({"note": "'c'"}).execute()
    assert table.history(1)[0]["operation"] == "MERGE"
    assert catch_up(tmp_path).error is None
    assert recorded(tmp_path) == unique_key_txn("append", ())[UNIQUE_KEY]
