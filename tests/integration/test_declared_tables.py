"""Tables that topics declare: brought up when due, followed, by one writer at a time."""

import datetime as dt
import json
import threading
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs import table_maintenance
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.table_lease import LeaseLost, TableLeases, TableTaken
from lakehead.lake.jobs.table_maintenance import MaintenanceResult
from lakehead.lake.jobs.table_run import TableRun
from lakehead.lake.jobs.table_status import table_statuses
from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import SettingsError
from lakehead.storage.failpoints import KILLED
from lakehead.storage.metadata.state import TableState
from tests.support.command_line import CommandLine
from tests.support.declared_tables import followed
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.template_process import killed_job
from tests.support.topic_writer import write_topic

NOON = 1_700_049_600_000  # 2023-11-15 12:00 UTC
HOUR = 3_600_000


def order(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, **more}).encode()


def rows(table: Path) -> list[dict[str, Any]]:
    held: list[dict[str, Any]] = DeltaTable(table).to_pyarrow_table().to_pylist()
    return held


def has_rows(table: Path, count: int) -> bool:
    """Return true if a table has so many rows. It may be in the middle of its first commit."""
    try:
        return len(rows(table)) == count
    except TableNotFoundError:
        return False


def places(table: Path) -> Counter[tuple[int, int]]:
    return Counter((row["_partition"], row["_offset"]) for row in rows(table))


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


@pytest.fixture
def command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def declare(cluster: Path, topic: str, **configs: str) -> Path:
    named = {f"{PREFIX}{name.replace('_', '.')}": value for name, value in configs.items()}
    configure(cluster, topic, {f"{PREFIX}enable": "true", **named})
    return cluster / "tables" / topic


def once(cluster: Path, *topics: str, all_of_them: bool = True) -> dict[str, TableOutcome]:
    outcomes: list[TableOutcome] = []
    tables = DeclaredTables(str(cluster), topics=topics)
    try:
        tables.catch_up(all_of_them=all_of_them, on_table=outcomes.append)
    finally:
        tables.close()
    return {outcome.topic: outcome for outcome in outcomes}


def progress(cluster: Path, topic: str) -> TableState:
    catalog = store_reader(str(cluster)).open_catalog()
    return catalog.state.tables[catalog.topic(topic).topic_id]


def test_declared_tables_are_made_and_the_metadata_log_knows_how_far_they_are(
    cluster: Path,
) -> None:
    for topic in ("orders", "others", "plain"):
        values = {n: [order(i) for i in range(10)] for n in range(2)}
        write_topic(cluster, topic, values, partitions=2)
    orders = declare(cluster, "orders", value_format="json")
    others = declare(cluster, "others")
    outcomes = once(cluster)
    assert set(outcomes) == {"orders", "others"}
    assert outcomes["orders"].error is None
    assert outcomes["orders"].lag.records == 0
    assert places(orders) == places(others) == Counter((p, n) for p in range(2) for n in range(10))
    assert rows(orders)[0]["id"] == 0
    assert json.loads(rows(others)[0]["value"]) == {"id": 0}
    held = progress(cluster, "orders")
    assert (held.offsets, held.until_ms) == ((10, 10), 0)
    assert once(cluster)["orders"].result.records == 0
    with pytest.raises(SettingsError, match="plain declares no table"):
        once(cluster, "plain")


def test_a_declared_table_is_not_written_by_its_place(
    cluster: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be without the lease, beside a MERGE that may overwrite what it commits."""
    for topic in ("orders", "others"):
        write_topic(cluster, topic, {0: [order(1)]})
    table = declare(cluster, "orders", value_format="json")
    monkeypatch.chdir(cluster)
    for topic in ("orders", "others"):
        for place in (str(table), f"file:{table}/", "tables/orders"):
            told = ("materialize", topic, "--path", str(cluster), "--table", place)
            assert "the table that topic orders declares" in command_line.fails(*told)
    assert not table.exists()


def test_only_what_is_due_by_its_freshness_is_brought_up(cluster: Path) -> None:
    write_topic(cluster, "soon", {0: [order(1)]})
    write_topic(cluster, "later", {0: [order(1)]})
    declare(cluster, "soon", freshness_ms="1000")
    later = declare(cluster, "later", freshness_ms="86400000")
    outcomes: dict[str, TableOutcome] = {}
    while "soon" not in outcomes:  # due half a second after it came
        outcomes = once(cluster, all_of_them=False)
    assert set(outcomes) == {"soon"}
    assert not later.exists()


def test_days_and_columns_partition_a_table(cluster: Path) -> None:
    values = [
        TestRecord(offset=0, timestamp=NOON + n * 7 * HOUR, value=order(n, country=country))
        for n, country in enumerate(["DE", "FR", "DE", "", None, "a b/c=d", "DE"])
    ]
    write_topic(cluster, "orders", {0: [*values, None]})
    table = declare(
        cluster,
        "orders",
        value_format="json",
        schema="id bigint, country string",
        partition_by="hour(_timestamp),country",
    )
    assert once(cluster)["orders"].error is None
    delta = DeltaTable(table)
    assert delta.metadata().partition_columns == ["_date", "_hour", "country"]
    found = {row["_offset"]: row for row in rows(table)}
    assert len(found) == 8
    for number, value in enumerate(values):
        at = dt.datetime.fromtimestamp(value.timestamp / 1000, dt.UTC)
        assert (found[number]["_date"], found[number]["_hour"]) == (at.date(), at.hour)
        assert found[number]["id"] == number
    assert [found[n]["country"] for n in range(8)] == [
        *("DE", "FR", "DE", None, None, "a b/c=d", "DE", None)
    ]
    only = delta.to_pyarrow_table(filters=[("country", "=", "DE")])
    assert sorted(only.column("id").to_pylist()) == [0, 2, 6]
    declare(cluster, "orders", partition_by="")
    with pytest.raises(SettingsError, match="is partitioned by _date, _hour, country, not by"):
        raise once(cluster)["orders"].error or AssertionError


def test_nested_values_lie_in_one_column(cluster: Path) -> None:
    write_topic(cluster, "orders", {0: [order(1, at={"x": 2}), None]})
    table = declare(cluster, "orders", value_format="json", layout="nested")
    assert once(cluster)["orders"].error is None
    write_topic(cluster, "orders", {0: [order(3)]})
    assert once(cluster)["orders"].error is None
    held = {row["_offset"]: row["value"] for row in rows(table)}
    assert held[0] == {"id": 1, "at": {"x": 2}}
    assert held[2]["id"] == 3


def test_a_second_writer_waits_or_is_told_who_writes(cluster: Path) -> None:
    write_topic(cluster, "orders", {0: [order(1)]})
    declare(cluster, "orders")
    topic_id = store_reader(str(cluster)).open_catalog().topic("orders").topic_id
    first = TableLeases.open(str(cluster), lease_s=60)
    second = TableLeases.open(str(cluster), lease_s=60)
    first.take(topic_id)
    with pytest.raises(TableTaken, match=r"the table of topic orders is written by .*: wait"):
        second.take(topic_id)
    with pytest.raises(LeaseLost):
        second.check(topic_id)
    first.check(topic_id)
    first.report(topic_id, (1,))
    timer = threading.Timer(0.1, first.release, [topic_id])
    timer.start()
    second.take(topic_id, wait_s=30)
    timer.join()
    assert progress(cluster, "orders").offsets == (1,)
    assert progress(cluster, "orders").term == 2
    second.close()
    first.close()


def test_the_lease_of_a_process_that_was_killed_is_free_at_once(cluster: Path) -> None:
    write_topic(cluster, "orders", {0: [order(1)]})
    table = declare(cluster, "orders")
    script = (
        "import sys; from lakehead.lake.jobs.declared_tables import DeclaredTables; "
        "DeclaredTables(sys.argv[1], lease_s=3600).catch_up(all_of_them=True, on_table=print)"
    )
    assert killed_job(script, str(cluster), failpoint="table_commit_prepared") == KILLED
    assert progress(cluster, "orders").until_ms > 0
    assert once(cluster)["orders"].error is None
    assert places(table) == Counter([(0, 0)])


def test_commands_keep_declared_tables(cluster: Path, command_line: CommandLine) -> None:
    at = ("--path", str(cluster), "--json")
    write_topic(cluster, "orders", {0: [order(1), order(2)]})
    write_topic(cluster, "plain", {0: [order(1)]})
    assert command_line("materialize", *at).out == ""
    declare(cluster, "orders", value_format="json")
    dry = json.loads(command_line("materialize", "orders", "--dry-run", *at).out)
    assert dry["bytes_to_read"] > 0
    done = json.loads(command_line("materialize", "orders", *at).out)
    assert (done["records"], done["records_behind"]) == (2, 0)
    replayed = json.loads(command_line("replay-dead-letters", "orders", *at).out)
    assert replayed["letters"] == 0
    rebuilt = json.loads(command_line("rebuild-table", "orders", *at).out)
    assert rebuilt["records"] == 2
    begun = json.loads(command_line("materialize", "orders", "--from", "earliest", *at).out)
    assert begun["records"] == 0
    for arguments, words in (
        (("materialize", "plain", "--follow"), "plain declares no table"),
        (("materialize", "orders", "--schema", "id int"), "set the topic's configs"),
        (("materialize", "orders", "--from", "yesterday"), "give a time as"),
        (("materialize", "--from", "earliest"), "--from is for one topic"),
        (("rebuild-table", "plain"), "plain declares no table"),
        (("replay-dead-letters", "nowhere"), "'nowhere' does not exist"),
    ):
        assert words in command_line.fails(*arguments, "--path", str(cluster))


def test_leases_are_renewed_and_tell_of_progress_while_they_are_held(cluster: Path) -> None:
    write_topic(cluster, "orders", {0: [order(1)]})
    declare(cluster, "orders")
    topic_id = store_reader(str(cluster)).open_catalog().topic("orders").topic_id
    leases = TableLeases.open(str(cluster), lease_s=1)
    leases.take(topic_id)
    leases.report(topic_id, (1,))
    while progress(cluster, "orders").term < 3:
        leases.check(topic_id)
    assert progress(cluster, "orders").offsets == (1,)
    leases.close()
    assert progress(cluster, "orders").until_ms == 0


def test_following_keeps_tables_fresh_and_a_broken_one_does_not_hold_up_others(
    cluster: Path,
) -> None:
    write_topic(cluster, "good", {0: [order(1)]})
    write_topic(cluster, "bad", {0: [order(1), b"{"]})
    good = declare(cluster, "good", value_format="json", freshness_ms="1000")
    bad = declare(cluster, "bad", value_format="json", freshness_ms="1000")
    with followed(cluster) as told:
        wait_until(lambda: any(one.error is not None for one in told))
        assert {one.topic for one in told if one.error is not None} == {"bad"}
        for number in range(3):
            write_topic(cluster, "good", {0: [order(number)]})
            wait_until(lambda: has_rows(good, number + 2))  # noqa: B023
        assert len(rows(bad)) == 1
        configure(cluster, "bad", {f"{PREFIX}on.error": "drop"})
        wait_until(lambda: any(one.topic == "bad" and one.result.dropped for one in told))


class PanicException(BaseException):
    """As libraries in Rust raise."""


@pytest.mark.parametrize(
    "kind", [PanicException, pytest.param(OverflowError, marks=pytest.mark.slow)]
)
def test_an_unexpected_exception_ends_the_turn_of_its_table_and_of_no_other(
    cluster: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[BaseException],
) -> None:
    """It is told with the table's name and a traceback in the log, shown by `lakehead tables`, and
    the table is tried again after a pause that grows."""
    tables = {}
    for topic in ("bad", "good"):
        write_topic(cluster, topic, {0: [order(1)]})
        tables[topic] = declare(cluster, topic, value_format="json", freshness_ms="1000")
    catch_up, is_mended = TableRun.catch_up, threading.Event()

    def defective(run: TableRun, *given: Any, **named: Any) -> None:
        if run._settings.topic == "bad" and not is_mended.is_set():
            raise kind("date value out of range")
        catch_up(run, *given, **named)

    monkeypatch.setattr(TableRun, "catch_up", defective)
    with followed(cluster) as told:
        wait_until(lambda: sum(one.topic == "bad" for one in told) >= 2)
        wait_until(tables["good"].exists)
        write_topic(cluster, "good", {0: [order(2)]})
        wait_until(lambda: has_rows(tables["good"], 2))
        expected = f"table of topic bad: unexpected {kind.__name__}: date value out of range"
        assert {one.topic for one in told if one.error is not None} == {"bad"}
        assert str(next(one.error for one in told if one.topic == "bad")).startswith(expected)
        logged = [record.exc_info for record in caplog.records if record.exc_info]
        assert logged, "there is a traceback, however it is written"
        assert "in defective" in "".join(traceback.format_exception(logged[0][1]))
        wait_until(lambda: problems(cluster)["bad"] is not None)
        assert problems(cluster)["good"] is None
        assert (problems(cluster)["bad"] or "").startswith(expected)
        is_mended.set()
        wait_until(lambda: has_rows(tables["bad"], 1))
        wait_until(lambda: problems(cluster)["bad"] is None)


def problems(cluster: Path) -> dict[str, str | None]:
    """What `lakehead tables` has as PROBLEM."""
    statuses = table_statuses(store_reader(str(cluster)).open_catalog(), now_ms=0)
    return {status.topic: status.error for status in statuses}


def test_the_tables_of_a_cluster_say_why_one_pauses_until_it_goes_on(cluster: Path) -> None:
    write_topic(cluster, "bad", {0: [order(1), b"{", order(3)]})
    declare(cluster, "bad", value_format="json")
    outcome = once(cluster)["bad"]
    problem = problems(cluster)["bad"] or ""
    assert problem == str(outcome.error)
    assert problem.startswith("topic bad, partition 0, offset 1: ")
    configure(cluster, "bad", {f"{PREFIX}on.error": "drop"})
    assert once(cluster)["bad"].error is None
    assert problems(cluster)["bad"] is None


@pytest.mark.parametrize("job", ["open_table", "look"])
def test_a_defect_in_the_upkeep_of_one_table_leaves_that_of_the_others(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    for topic in ("bad", "good"):
        write_topic(cluster, topic, {0: [order(1)]})
        declare(cluster, topic, value_format="json")
    once(cluster)
    real = getattr(table_maintenance, job)

    def defective(place: Any) -> Any:
        if "bad" in str(place):
            raise RuntimeError("no such thing")
        return real(place)

    monkeypatch.setattr(table_maintenance, job, defective)
    told: list[MaintenanceResult] = []
    tables = DeclaredTables(str(cluster))
    tables.maintain_files(told.append)
    tables.close()
    assert {one.topic for one in told if one.error is not None} == {"bad"}
    assert all("unexpected RuntimeError: no such thing" in str(one.error) for one in told)


def wait_until(condition: Any) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.02)
