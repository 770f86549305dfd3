"""A process that follows tables hands a lease over to a process that requests it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.declared_tables import TableOutcome
from lakehead.lake.jobs.table_lease import TableLeases, TableTaken
from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import StoreUnavailable
from lakehead.storage.metadata.records import Record, RequestTable, TakeTable
from lakehead.storage.metadata.state import TableState
from lakehead.storage.wal.holder import HostProcesses
from tests.support.command_line import CommandLine
from tests.support.declared_tables import followed
from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until

GONE = f"here:1/00 {replace(HostProcesses().current(), start_time=1).name}"
"""A process that had the pid of this one before it, and has ended."""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A topic with a declared table, one record and a dead letter to be."""
    cluster = tmp_path / "cluster"
    write_topic(cluster, "orders", {0: [b'{"id": 1}', b"{"]})
    configs = {
        "enable": "true",
        "value.format": "json",
        "schema": "id int",
        "on.error": "dead_letter",
        "freshness.ms": "1000",
    }
    configure(cluster, "orders", {f"{PREFIX}{name}": value for name, value in configs.items()})
    return cluster


@pytest.fixture
def command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def follower(cluster: Path) -> Iterator[list[TableOutcome]]:
    """The outcomes of a process that follows the tables, and has the lease."""
    with followed(cluster, on_files=lambda _: None) as outcomes:
        assert wait_until(lambda: has_rows(cluster, 1), 60)
        yield outcomes


def has_rows(cluster: Path, count: int) -> bool:
    table = str(cluster / "tables/orders")
    return DeltaTable.is_deltatable(table) and len(ids(cluster)) == count


def ids(cluster: Path) -> list[int]:
    found: list[int] = DeltaTable(cluster / "tables/orders").to_pyarrow_table()["id"].to_pylist()
    return found


def topic_id(cluster: Path) -> str:
    return store_reader(str(cluster)).open_catalog().topic("orders").topic_id


def held(cluster: Path) -> TableState:
    return store_reader(str(cluster)).open_catalog().state.tables[topic_id(cluster)]


@pytest.fixture
def leases(cluster: Path) -> Iterator[list[TableLeases]]:
    """Three processes that take leases."""
    three = [TableLeases.open(str(cluster), lease_s=60) for _ in range(3)]
    yield three
    for one in three:
        one.close()


def commit(leases: TableLeases, *records: Record) -> None:
    leases._reader.run(leases._log.commit_with(lambda _: records))


@pytest.mark.parametrize(
    "words",
    [
        "replay-dead-letters orders",
        "rebuild-table orders",
        "materialize orders",
        "materialize orders --from earliest",
        "optimize orders",
        "vacuum orders",
        "forget orders --key k --until 0:2 --yes",
    ],
)
def test_a_command_gets_the_lease_of_a_table_that_another_process_follows(
    cluster: Path, follower: list[TableOutcome], command_line: CommandLine, words: str
) -> None:
    outcome = command_line(*words.split(), "--path", str(cluster), "--json")
    assert outcome.status == 0, outcome.err
    assert all(json.loads(line) for line in outcome.out.splitlines())
    assert "the table of topic orders is written by" in outcome.err
    assert "s left): waiting 60 s for it" in outcome.err
    write_topic(cluster, "orders", {0: [b'{"id": 2}']})
    assert wait_until(lambda: 2 in ids(cluster), 60)
    assert sorted(ids(cluster)) == [1, 2]
    unexpected = [one.error for one in follower if not isinstance(one.error, TableTaken | None)]
    assert unexpected == []


def test_a_command_that_is_not_to_wait_names_the_holder_and_requests_nothing(
    cluster: Path, follower: list[TableOutcome], command_line: CommandLine
) -> None:
    line = command_line.fails(
        "replay-dead-letters", "orders", "--wait", "0", "--path", str(cluster)
    )
    assert "the table of topic orders is written by" in line
    assert "wait for it with --wait SECONDS" in line
    assert held(cluster).requester == ""
    assert [one.error for one in follower] == [None]


def test_only_the_requester_takes_a_lease_that_was_handed_over(
    cluster: Path, leases: list[TableLeases]
) -> None:
    holder, requester, third = leases
    topic = topic_id(cluster)
    holder.take(topic)
    commit(holder, RequestTable(topic_id=topic, requester=requester._name, until_ms=1 << 60))
    assert holder.hand_over(holder.catalog().state) == {topic}
    for other in (holder, third):
        other.catalog()
        with pytest.raises(TableTaken, match="is requested by"):
            other.take(topic)
    requester.take(topic)
    assert held(cluster).requester == ""


def test_a_table_under_maintenance_is_handed_over_at_its_end(
    cluster: Path, leases: list[TableLeases]
) -> None:
    holder, requester, _ = leases
    topic = topic_id(cluster)
    with holder.kept(topic):
        commit(holder, RequestTable(topic_id=topic, requester=requester._name, until_ms=1 << 60))
        assert not holder.hand_over(holder.catalog().state)
        holder.check(topic)
    with pytest.raises(TableTaken), holder.kept(topic):
        pass
    assert holder.hand_over(holder.catalog().state) == {topic}


@pytest.mark.parametrize(
    ("requester", "until_ms"),
    [(GONE, 1 << 60), ("elsewhere:1/00 x", 1)],
    ids=["the process is gone", "the time is over"],
)
def test_a_request_whose_process_or_time_is_gone_delays_no_table(
    cluster: Path, leases: list[TableLeases], requester: str, until_ms: int
) -> None:
    holder, other, _ = leases
    topic = topic_id(cluster)
    holder.take(topic)
    commit(holder, RequestTable(topic_id=topic, requester=requester, until_ms=until_ms))
    assert not holder.hand_over(holder.catalog().state)
    holder.release(topic)
    other.take(topic)


def test_a_wait_that_was_in_vain_ends_its_request(cluster: Path, leases: list[TableLeases]) -> None:
    holder, requester, _ = leases
    topic = topic_id(cluster)
    commit(holder, TakeTable(topic_id=topic, holder="elsewhere:7/00 x", term=0, until_ms=1 << 60))
    with pytest.raises(TableTaken, match="is written by elsewhere:7"):
        requester.take(topic, wait_s=0.6)
    assert held(cluster).requester == ""


def test_a_lease_that_cannot_be_given_back_ends_with_its_time(
    cluster: Path, leases: list[TableLeases], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, requester, _ = leases
    topic = topic_id(cluster)
    holder.take(topic)
    commit(holder, RequestTable(topic_id=topic, requester=requester._name, until_ms=1 << 60))
    state = holder.catalog().state

    async def refuse(_: object) -> None:
        raise StoreUnavailable("the store does not respond")

    monkeypatch.setattr(holder._log, "commit_with", refuse)
    assert holder.hand_over(state) == {topic}
    assert not holder.holds(topic)


def test_a_late_report_of_a_former_lease_leaves_the_new_one(
    cluster: Path, leases: list[TableLeases]
) -> None:
    holder, _, _ = leases
    topic = topic_id(cluster)
    holder.take(topic)
    former = dict(holder._held)
    other = TakeTable(topic_id=topic, holder=GONE, term=held(cluster).term + 1, until_ms=1 << 60)
    commit(holder, other)
    holder.take(topic)
    holder._reader.run(holder._report(former, is_end=False))
    holder.check(topic)
