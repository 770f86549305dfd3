"""Where tables begin: from a time on, and then from an earlier one, each record once."""

import json
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.table_settings import MaterializeResult
from lakehead.storage.errors import SettingsError
from lakehead.storage.failpoints import KILLED
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.template_process import killed_job
from tests.support.topic_writer import Value, write_topic

BEGUN = 1_700_000_000_000
RECORDS = 60
BAD = 5


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    cluster = tmp_path / "cluster"
    write(cluster, 0)
    write(cluster, RECORDS)
    configs = {"enable": "true", "value.format": "json", "schema": "id bigint"}
    configs["on.error"] = "dead_letter"
    configure(cluster, "orders", {f"{PREFIX}{name}": value for name, value in configs.items()})
    return cluster


def write(cluster: Path, first: int) -> None:
    """Record n of each partition is of second n."""
    values: list[Value] = [
        TestRecord(
            offset=0,
            timestamp=BEGUN + n * 1000,
            value=b"{" if n == BAD else json.dumps({"id": n}).encode(),
        )
        for n in range(first, first + RECORDS)
    ]
    write_topic(cluster, "orders", {0: values, 1: values}, partitions=2, batch_records=10)


def begin(cluster: Path, second: int | None) -> MaterializeResult:
    tables = DeclaredTables(str(cluster))
    try:
        return tables.begin("orders", at=None if second is None else BEGUN + second * 1000)
    finally:
        tables.close()


def materialize(cluster: Path) -> None:
    outcomes: list[TableOutcome] = []
    tables = DeclaredTables(str(cluster))
    tables.catch_up(all_of_them=True, on_table=outcomes.append)
    tables.close()
    assert [outcome.error for outcome in outcomes] == [None]


def check(cluster: Path, first: int, end: int) -> None:
    for name, wanted in (
        ("orders", {n for n in range(first, end) if n != BAD}),
        ("orders__dlq", {BAD} & set(range(first, end))),
    ):
        place = cluster / "tables" / name
        if wanted or place.exists():
            held = DeltaTable(place).to_pyarrow_table(columns=["_partition", "_offset"]).to_pydict()
            found = Counter(zip(held["_partition"], held["_offset"], strict=True))
            assert found == Counter((p, n) for p in (0, 1) for n in wanted)


def test_a_table_begins_at_a_time_and_older_records_come_later(cluster: Path) -> None:
    assert begin(cluster, 70).records == 0
    materialize(cluster)
    check(cluster, 70, 2 * RECORDS)
    assert begin(cluster, 70).commits == begin(cluster, 90).commits == 0
    assert begin(cluster, 33).records == 2 * (70 - 33)
    check(cluster, 33, 2 * RECORDS)
    write(cluster, 2 * RECORDS)
    materialize(cluster)
    check(cluster, 33, 3 * RECORDS)
    assert begin(cluster, None).dead_letters == 2
    check(cluster, 0, 3 * RECORDS)
    assert begin(cluster, None).commits == 0


def test_a_table_that_begins_at_the_beginning_has_nothing_before(cluster: Path) -> None:
    materialize(cluster)
    assert begin(cluster, None).commits == 0
    check(cluster, 0, 2 * RECORDS)


def test_a_table_begins_at_offsets(cluster: Path) -> None:
    tables = DeclaredTables(str(cluster))
    tables.begin("orders", at={0: 70, 1: 70})
    materialize(cluster)
    check(cluster, 70, 2 * RECORDS)
    with pytest.raises(SettingsError, match="topic orders has no partition 7"):
        tables.begin("orders", at={7: 1})
    tables.begin("orders", at={0: 50, 1: 50})
    check(cluster, 50, 2 * RECORDS)
    tables.begin("orders", at={})
    check(cluster, 0, 2 * RECORDS)
    tables.close()


def test_a_table_that_was_made_anew_has_nothing_before(cluster: Path) -> None:
    begin(cluster, 70)
    materialize(cluster)
    tables = DeclaredTables(str(cluster))
    tables.rebuild("orders")
    tables.close()
    check(cluster, 0, 2 * RECORDS)
    assert begin(cluster, None).commits == 0
    check(cluster, 0, 2 * RECORDS)


@pytest.mark.parametrize(
    "name",
    [
        *("backfill_table_created", "backfill_begun", "backfill_files_written"),
        *("materialize_dead_letters_committed", "backfill_committed"),
    ],
)
def test_killed_anywhere_and_run_again(cluster: Path, name: str) -> None:
    if name not in {"backfill_table_created", "backfill_begun"}:
        begin(cluster, 70)
        materialize(cluster)
    script = (
        "import sys; from pathlib import Path; "
        "from tests.integration.test_backfill import begin; "
        "begin(Path(sys.argv[1]), int(sys.argv[2]))"
    )
    second = "70" if name in {"backfill_table_created", "backfill_begun"} else "2"
    assert killed_job(script, str(cluster), second, failpoint=name) == KILLED
    begin(cluster, int(second))
    materialize(cluster)
    check(cluster, int(second), 2 * RECORDS)
