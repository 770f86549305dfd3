"""A table made anew and put in place: readers see the old or the new one, kills lose nothing."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.table_rebuild import HistoryOnlyInTable, RebuildResult
from lakehead.lake.tables.delta_table import current_files
from lakehead.storage.errors import LakeheadError
from lakehead.storage.failpoints import KILLED
from tests.support.declared_topics import configure, delete_topic, trim
from tests.support.template_process import killed_job
from tests.support.topic_writer import Value, write_topic

RECORDS = 50


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    cluster = tmp_path / "cluster"
    write(cluster, 0)
    declare(cluster, {"schema": "id bigint", "on.error": "dead_letter"})
    materialize(cluster)
    return cluster


def write(cluster: Path, first: int) -> None:
    values: list[Value] = [
        b"{" if n == 7 else json.dumps({"id": n, "name": f"n{n % 3}"}).encode()
        for n in range(first, first + RECORDS)
    ]
    write_topic(cluster, "orders", {0: values, 1: values}, partitions=2)


def declare(cluster: Path, changes: dict[str, str]) -> None:
    configs = {"enable": "true", "value.format": "json", **changes}
    configure(cluster, "orders", {f"{PREFIX}{name}": value for name, value in configs.items()})


def materialize(cluster: Path) -> TableOutcome:
    outcomes: list[TableOutcome] = []
    tables = DeclaredTables(str(cluster))
    tables.catch_up(all_of_them=True, on_table=outcomes.append)
    tables.close()
    return outcomes[0]


def rebuild(cluster: Path, **options: Any) -> RebuildResult:
    tables = DeclaredTables(str(cluster))
    try:
        return tables.rebuild("orders", **options)
    finally:
        tables.close()


def check(cluster: Path, records: int) -> None:
    """The new layout, each record once, the bad ones in the other table, nothing beside."""
    place = cluster / "tables/orders"
    delta = DeltaTable(place)
    held = delta.to_pyarrow_table().to_pydict()
    everything = Counter((p, n) for p in (0, 1) for n in range(records))
    bad = Counter([(0, 7), (1, 7)])
    assert Counter(zip(held["_partition"], held["_offset"], strict=True)) == everything - bad
    assert held["id"] == held["_offset"]
    assert held["name"] == [f"n{n % 3}" for n in held["_offset"]]
    assert delta.metadata().partition_columns == ["name"]
    letters = DeltaTable(cluster / "tables/orders__dlq").to_pyarrow_table().to_pydict()
    assert Counter(zip(letters["_partition"], letters["_offset"], strict=True)) == bad


WANTED = {"schema": "id bigint, name string", "partition.by": "name"}


def test_a_table_gets_another_layout_in_one_commit(cluster: Path) -> None:
    place = cluster / "tables/orders"
    before = DeltaTable(place)
    old = before.to_pyarrow_table().num_rows
    declare(cluster, WANTED)
    assert "rebuild it" in str(materialize(cluster).error)
    assert rebuild(cluster, dry_run=True).bytes_to_read > 0
    result = rebuild(cluster)
    assert (result.records, result.rows_left_out) == (2 * RECORDS - 2, 0)
    check(cluster, RECORDS)
    assert DeltaTable(place).version() == before.version() + 1
    assert before.to_pyarrow_table().num_rows == old  # who has the old one open reads on
    write(cluster, RECORDS)
    assert materialize(cluster).error is None
    check(cluster, 2 * RECORDS)
    beside = cluster / "tables/orders__rebuild"
    assert not [*beside.rglob("*.parquet"), *beside.rglob("*.json")]


def test_rows_whose_records_are_gone_are_not_lost_unasked(cluster: Path) -> None:
    write(cluster, RECORDS)
    materialize(cluster)
    trim(cluster, "orders", 0, 10)
    declare(cluster, WANTED)
    with pytest.raises(HistoryOnlyInTable, match=r"10 rows of .* retention has removed"):
        rebuild(cluster)
    assert rebuild(cluster, without_history=True).rows_left_out == 10, "a dead letter among them"


def take_root(cluster: Path) -> None:
    write_topic(cluster, "others", {0: [b"{}"]})
    place = cluster / "tables/orders/within"
    configure(cluster, "others", {f"{PREFIX}enable": "true", f"{PREFIX}path": str(place)})


def move_root(cluster: Path) -> None:
    place = cluster / "tables/orders"
    place.rename(cluster.parent / "moved")
    place.symlink_to(cluster / "data")


def make_topic_again(cluster: Path) -> None:
    delete_topic(cluster, "orders")
    write_topic(cluster, "orders", {0: [b'{"id":1}']})
    declare(cluster, WANTED)


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (take_root, "overlaps the table of topic others"),
        (move_root, "topic orders: "),
        (make_topic_again, "orders was deleted"),
    ],
)
def test_a_root_that_is_not_its_own_any_more_is_not_replaced(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path], None], said: str
) -> None:
    def meanwhile(uri: str) -> Any:
        files = current_files(uri)
        happens(cluster)
        return files

    declare(cluster, WANTED)
    place = cluster / "tables/orders"
    version = DeltaTable(place).version()
    monkeypatch.setattr("lakehead.lake.jobs.table_rebuild.current_files", meanwhile)
    with pytest.raises(LakeheadError, match=said):
        rebuild(cluster)
    moved = cluster.parent / "moved"
    assert DeltaTable(moved if moved.exists() else place).version() == version
    assert not (cluster / "data" / "_delta_log").exists()


FAIL_POINTS = (
    *("backfill_table_created", "backfill_begun", "materialize_committed", "rebuild_made_beside"),
    *("rebuild_files_copied", "rebuild_swapped", "rebuild_letters_swapped"),
    *("delta_log_entry_deleted", "delta_files_deleted"),
)


@pytest.mark.parametrize("name", FAIL_POINTS)
def test_killed_anywhere_and_run_again(cluster: Path, name: str) -> None:
    declare(cluster, WANTED)
    script = (
        "import sys; from pathlib import Path; "
        "from tests.integration.test_rebuild_table import rebuild; "
        "rebuild(Path(sys.argv[1]))"
    )
    assert killed_job(script, str(cluster), failpoint=name) == KILLED
    write(cluster, RECORDS)
    rebuild(cluster)
    check(cluster, 2 * RECORDS)
    assert materialize(cluster).result.records == 0
