"""Topics with several tables: one read makes them all, and each has every record once."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PREFIX, TABLES
from lakehead.lake.jobs import table_item
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.moved_ranges import read_moved
from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import SettingsError
from lakehead.storage.failpoints import KILLED
from tests.support.command_line import CommandLine
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.template_process import lakehead_command
from tests.support.topic_writer import write_topic

CONFIGS = {
    f"{PREFIX}enable": "true",
    TABLES: "orders_raw,orders_flat",
    f"{PREFIX}orders_flat.value.format": "json",
    f"{PREFIX}orders_flat.schema": "id bigint",
}


def order(number: int) -> bytes:
    return json.dumps({"id": number}).encode()


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    values = {partition: [order(number) for number in range(10)] for partition in (0, 1)}
    write_topic(tmp_path / "cluster", "orders", values, partitions=2)
    configure(tmp_path / "cluster", "orders", CONFIGS)
    return tmp_path / "cluster"


@pytest.fixture
def command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def once(cluster: Path, *tables: str) -> Mapping[str, TableOutcome]:
    outcomes: list[TableOutcome] = []
    declared = DeclaredTables(str(cluster), topics=tables)
    try:
        declared.catch_up(all_of_them=True, on_table=outcomes.append)
    finally:
        declared.close()
    return {outcome.key: outcome for outcome in outcomes}


def rows(cluster: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        DeltaTable(cluster / "tables" / table).to_pyarrow_table().to_pylist()
    )
    return found


def places(cluster: Path, table: str) -> Counter[tuple[int, int]]:
    return Counter((row["_partition"], row["_offset"]) for row in rows(cluster, table))


def held(cluster: Path) -> tuple[int, ...]:
    catalog = store_reader(str(cluster)).open_catalog()
    return catalog.state.tables[catalog.topic("orders").topic_id].offsets


def test_one_read_of_a_topic_makes_each_of_its_tables(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    def counted(*given: Any) -> Any:
        reads.append(1)
        return read_moved(*given)

    monkeypatch.setattr("lakehead.lake.jobs.table_item.read_moved", counted)
    outcomes = once(cluster)
    assert {key: one.error for key, one in outcomes.items()} == {
        "orders/orders_raw": None,
        "orders/orders_flat": None,
    }
    every = Counter((p, n) for p in range(2) for n in range(10))
    assert places(cluster, "orders_raw") == places(cluster, "orders_flat") == every
    assert {row["value"] for row in rows(cluster, "orders_raw")} == {order(i) for i in range(10)}
    assert {row["id"] for row in rows(cluster, "orders_flat")} == set(range(10))
    assert held(cluster) == (10, 10)
    assert len(reads) == 1
    write_topic(cluster, "orders", {0: [order(10)]}, partitions=2)
    once(cluster)
    assert len(reads) == 2
    assert (
        places(cluster, "orders_raw")
        == places(cluster, "orders_flat")
        == every + Counter([(0, 10)])
    )


@pytest.mark.parametrize("step", ["__init__", "take", "finish"])
def test_a_defect_that_one_table_meets_does_not_stop_those_of_the_same_read(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    work = getattr(table_item._Work, step)

    def defective(self: Any, *given: Any) -> Any:
        item = given[0] if step == "__init__" else self._item
        if item.table_uri.endswith("orders_flat"):
            raise ZeroDivisionError
        return work(self, *given)

    monkeypatch.setattr(table_item._Work, step, defective)
    outcomes = once(cluster, "orders")
    assert outcomes["orders/orders_raw"].error is None
    assert "ZeroDivisionError" in str(outcomes["orders/orders_flat"].error)
    every = Counter((p, n) for p in range(2) for n in range(10))
    assert places(cluster, "orders_raw") == every
    assert not places(cluster, "orders_flat")
    monkeypatch.setattr(table_item._Work, step, work)
    once(cluster)
    assert places(cluster, "orders_flat") == every


def test_retention_goes_by_the_table_that_holds_least(cluster: Path) -> None:
    once(cluster, "orders/orders_raw")
    assert not (cluster / "tables" / "orders_flat").exists()
    assert held(cluster) in {(), (0, 0)}
    once(cluster, "orders/orders_flat")
    assert held(cluster) == (10, 10)
    write_topic(cluster, "orders", {0: [b"{"]}, partitions=2)
    outcomes = once(cluster)
    assert outcomes["orders/orders_raw"].error is None
    assert "offset 10" in str(outcomes["orders/orders_flat"].error)
    assert sum(places(cluster, "orders_raw").values()) == 21
    assert held(cluster) == (10, 10)


@pytest.mark.parametrize(
    "point", ["materialize_table_created:2", "materialize_file_written:2", "materialize_committed"]
)
def test_a_kill_leaves_each_table_with_every_record_once(cluster: Path, point: str) -> None:
    done = lakehead_command("materialize", "orders", "--path", str(cluster), failpoint=point)
    assert done.returncode == KILLED
    outcomes = once(cluster)
    assert [one.error for one in outcomes.values()] == [None, None]
    every = Counter((p, n) for p in range(2) for n in range(10))
    assert places(cluster, "orders_raw") == places(cluster, "orders_flat") == every
    assert held(cluster) == (10, 10)


def test_commands_take_a_topic_or_one_of_its_tables(
    cluster: Path, command_line: CommandLine
) -> None:
    at = ("--path", str(cluster))

    def runs(*arguments: str) -> str:
        outcome = command_line(*arguments)
        assert outcome.status == 0, outcome.err
        return outcome.out

    runs("materialize", "orders", *at)
    shown = runs("tables", *at, "--json")
    listed = [json.loads(line) for line in shown.splitlines()]
    assert [(one["topic"], one["name"], one["records_behind"]) for one in listed] == [
        ("orders", "orders_raw", 0),
        ("orders", "orders_flat", 0),
    ]
    assert "row for row" in runs("attest", "orders", *at)
    assert "row for row" in runs("attest", "orders/orders_flat", *at)
    runs("rebuild-table", "orders", *at)
    runs("optimize", "orders/orders_raw", *at)
    wrong = command_line.fails("materialize", "orders/other", *at)
    assert "declares no table orders/other, but: orders/orders_raw, orders/orders_flat" in wrong
    every = Counter((p, n) for p in range(2) for n in range(10))
    assert places(cluster, "orders_raw") == places(cluster, "orders_flat") == every


def test_forget_removes_a_key_from_each_table(tmp_path: Path, command_line: CommandLine) -> None:
    cluster = tmp_path / "cluster"
    write_topic(
        cluster,
        "orders",
        {
            0: [
                TestRecord(offset=0, timestamp=1, key=key, value=order(1), headers=())
                for key in (b"kept", b"gone")
            ]
        },
    )
    configure(cluster, "orders", CONFIGS)
    once(cluster)
    assert (
        command_line("forget", "orders", "--yes", "--key", "gone", "--path", str(cluster)).status
        == 0
    )
    for table in ("orders_raw", "orders_flat"):
        assert [row["_key"] for row in rows(cluster, table)] == [b"kept"]


def test_a_table_that_is_added_later_begins_at_the_first_record(cluster: Path) -> None:
    once(cluster)
    configure(cluster, "orders", CONFIGS | {TABLES: "orders_raw,orders_flat,more"})
    once(cluster)
    every = Counter((p, n) for p in range(2) for n in range(10))
    assert places(cluster, "more") == places(cluster, "orders_raw") == every


def test_a_notebook_reads_a_table_by_its_name(cluster: Path) -> None:
    from lakehead.lake.notebook.topic import Topic

    once(cluster)
    topic = Topic(str(cluster), "orders")
    assert len(topic.table_of("orders_flat").to_pyarrow_table()) == 20
    with pytest.raises(SettingsError, match="name one: orders/orders_raw, orders/orders_flat"):
        _ = topic.table


ROUTED = {
    f"{PREFIX}enable": "true",
    f"{PREFIX}value.format": "json",
    f"{PREFIX}on.error": "dead_letter",
    f"{PREFIX}route.field": "kind",
    TABLES: "created,paid",
    f"{PREFIX}created.route.values": "created",
    f"{PREFIX}paid.route.values": "paid,refunded",
}
EVENTS = [
    {"kind": "created", "id": 1, "customer": "a"},
    {"kind": "paid", "id": 2, "cents": 5},
    {"kind": "refunded", "id": 3, "cents": -5},
    {"id": 4},
    {"kind": "shipped", "id": 5},
]


@pytest.fixture
def routed(tmp_path: Path) -> Path:
    values: list[bytes | None] = [*(json.dumps(event).encode() for event in EVENTS), None, b"{"]
    write_topic(tmp_path / "cluster", "events", {0: values})
    configure(tmp_path / "cluster", "events", ROUTED)
    return tmp_path / "cluster"


def ids(cluster: Path, table: str) -> list[int]:
    return sorted(row["id"] for row in rows(cluster, table))


def test_a_field_decides_which_table_a_record_is_of(
    routed: Path, command_line: CommandLine
) -> None:
    outcomes = once(routed)
    assert [one.error for one in outcomes.values()] == [None, None]
    assert (ids(routed, "created"), ids(routed, "paid")) == ([1], [2, 3])
    names = DeltaTable(routed / "tables" / "created").to_pyarrow_table().column_names
    assert "customer" in names
    assert "cents" not in names
    letters = rows(routed, "created__dlq")
    assert sorted(row["_offset"] for row in letters) == [3, 4, 5, 6]
    assert {row["error_class"] for row in letters} == {"unrouted"}
    assert not (routed / "tables" / "paid__dlq").exists()
    attested = command_line("attest", "events", "--path", str(routed))
    assert attested.status == 0, attested.err
    assert "row for row" in attested.out


def test_a_table_without_values_takes_the_other_records(routed: Path) -> None:
    configure(routed, "events", {TABLES: "created,paid,others"})
    once(routed)
    assert (ids(routed, "created"), ids(routed, "paid")) == ([1], [2, 3])
    assert sorted(row["_offset"] for row in rows(routed, "others")) == [3, 4, 5]
    assert [row["error_class"] for row in rows(routed, "others__dlq")] == ["malformed"]


def test_a_dead_letter_that_is_of_another_table_by_now_stays_one(routed: Path) -> None:
    """The other table has passed it, so it would be in none."""
    write_topic(routed, "events", {0: [json.dumps({"kind": "lost", "id": 9}).encode()]})
    once(routed)
    configure(
        routed,
        "events",
        {
            f"{PREFIX}created.route.values": "created,shipped",
            f"{PREFIX}paid.route.values": "paid,refunded,lost",
        },
    )
    tables = DeclaredTables(str(routed))
    done = tables.replay("events/created")
    tables.close()
    assert (done.letters, done.replayed, done.left) == (5, 1, 4)
    assert ids(routed, "created") == [1, 5]
    assert sorted(row["_offset"] for row in rows(routed, "created__dlq")) == [3, 5, 6, 7]


def test_a_table_without_records_yet_has_columns_when_the_first_comes(routed: Path) -> None:
    configure(routed, "events", {f"{PREFIX}paid.route.values": "billed"})
    once(routed)
    assert rows(routed, "paid") == []
    write_topic(routed, "events", {0: [json.dumps({"kind": "billed", "id": 9}).encode()]})
    assert [one.error for one in once(routed).values()] == [None, None]
    assert ids(routed, "paid") == [9]


@pytest.mark.parametrize(
    "point", ["materialize_dead_letters_committed", "materialize_file_written:2"]
)
def test_a_kill_leaves_each_record_in_one_table_or_dead_letter(routed: Path, point: str) -> None:
    done = lakehead_command("materialize", "events", "--path", str(routed), failpoint=point)
    assert done.returncode == KILLED
    once(routed)
    assert (ids(routed, "created"), ids(routed, "paid")) == ([1], [2, 3])
    assert sorted(row["_offset"] for row in rows(routed, "created__dlq")) == [3, 4, 5, 6]
