"""A table knows its topic by id: one that was deleted and made again never continues its rows."""

import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_due import LogLost
from lakehead.lake.jobs.table_rebuild import HistoryOnlyInTable, RebuildResult
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.lake.jobs.table_status import TableStatus, table_statuses
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.delta_table import CommitConflict, app_id, open_table
from lakehead.lake.tables.merge_engine import done_app, plan_merge, planned_app
from lakehead.lake.tables.owner import OWNER, OtherTopic, owner_txn
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.maintenance.rules import held_by_table
from tests.support.broker_process import BrokerProcess
from tests.support.declared_topics import configure, delete_topic, trim
from tests.support.record_batches import TestRecord
from tests.support.topic_clients import make_topic, set_config
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until

TOPIC = "people"
MODES = {
    "append": {"mode": "append"},
    "upsert": {"mode": "upsert", "keys": "id"},
    "history": {"mode": "upsert", "keys": "id", "scd": "2"},
}


def write(root: Path, mode: str, names: list[str], *, topic: str = TOPIC, bad: int = 0) -> None:
    """Records of three keys, and values that are none. The topic is declared if it is new."""
    values = [b'{"id": %d, "name": "%s"}' % (n % 3, name.encode()) for n, name in enumerate(names)]
    values += [b"{"] * bad
    records = [
        TestRecord(offset=0, timestamp=1, key=b"%d" % (n % 3), value=value, headers=())
        for n, value in enumerate(values)
    ]
    write_topic(root, topic, {0: records})
    declared = {
        "enable": "true",
        "value.format": "json",
        "on.error": "dead_letter",
        "freshness.ms": "1000",
    }
    declared |= {"schema": "id bigint, name string"} | MODES[mode]
    configure(root, topic, {f"lakehead.table.{name}": text for name, text in declared.items()})


def catch_up(root: Path, topic: str = TOPIC) -> TableOutcome:
    told: list[TableOutcome] = []
    tables = DeclaredTables(str(root), topics=[topic], workers=1)
    tables.catch_up(all_of_them=True, on_table=told.append)
    tables.close()
    return told[0]


def rebuild(root: Path, topic: str = TOPIC, **options: Any) -> RebuildResult:
    tables = DeclaredTables(str(root), topics=[topic], workers=1)
    try:
        return tables.rebuild(topic, **options)
    finally:
        tables.close()


def status(root: Path) -> TableStatus:
    (one,) = table_statuses(store_reader(str(root)).open_catalog(), SystemClock().now_ms())
    return one


def names(root: Path, *, current: bool = False) -> list[str]:
    rows = DeltaTable(root / "tables" / TOPIC).to_pyarrow_table().to_pylist()
    return sorted(row["name"] for row in rows if not current or row.get("_is_current", True))


def told_to_hold(root: Path) -> int:
    state = store_reader(str(root)).open_catalog().state
    return held_by_table(state, state.topics[TOPIC], 0)


def id_of(root: Path, topic: str = TOPIC) -> str:
    return store_reader(str(root)).open_catalog().topic(topic).topic_id


def without_owner(table: Path) -> None:
    """Have a table be as it was made before topics were recorded."""
    for entry in (table / "_delta_log").glob("*.json"):
        lines = entry.read_text().splitlines()
        kept = [one for one in lines if json.loads(one).get("txn", {}).get("appId") != OWNER]
        entry.write_text("\n".join(kept) + "\n")


@pytest.mark.parametrize("mode", MODES)
def test_a_topic_made_again_does_not_continue_the_rows_of_its_namesake(
    tmp_path: Path, mode: str
) -> None:
    write(tmp_path, mode, [f"old{n}" for n in range(30)], bad=1)
    assert catch_up(tmp_path).error is None
    old = names(tmp_path)
    delete_topic(tmp_path, TOPIC)
    write(tmp_path, mode, ["new0", "new1"], bad=1)

    outcome = catch_up(tmp_path)
    assert isinstance(outcome.error, OtherTopic)
    assert "lakehead rebuild-table people --without-history" in str(outcome.error)
    assert "lakehead.table.path" in str(outcome.error)
    assert "\n" not in str(outcome.error)
    assert outcome.lag.records == 3, "nothing of it is in the table"
    assert names(tmp_path) == old
    assert told_to_hold(tmp_path) == 0, "retention waits"
    shown = status(tmp_path)
    assert shown.error == str(outcome.error)
    assert shown.records_behind == 3
    tables = DeclaredTables(str(tmp_path), topics=[TOPIC])
    with pytest.raises(OtherTopic):
        tables.begin(TOPIC, at=None)
    with pytest.raises(SettingsError, match=r"was deleted|scd=2"):
        tables.replay(TOPIC)
    tables.close()
    with pytest.raises(HistoryOnlyInTable, match=rf"{len(old) + 1} rows of .* earlier topic"):
        rebuild(tmp_path)
    assert names(tmp_path) == old

    result = rebuild(tmp_path, without_history=True)
    assert (result.records, result.rows_left_out) == (2, len(old) + 1)
    assert names(tmp_path) == ["new0", "new1"]
    assert DeltaTable(tmp_path / "tables/people__dlq").to_pyarrow_dataset().count_rows() == 1
    write(tmp_path, mode, ["newer0"], bad=1)
    outcome = catch_up(tmp_path)
    assert (outcome.error, outcome.lag.records) == (None, 0)
    assert "newer0" in names(tmp_path)
    assert (
        names(tmp_path, current=True)
        == {
            "append": ["new0", "new1", "newer0"],
            "upsert": ["new1", "newer0"],
            "history": ["new1", "newer0"],
        }[mode]
    )
    assert (told_to_hold(tmp_path), status(tmp_path).error) == (5, None)


def test_a_round_of_spark_that_was_planned_for_the_earlier_topic_is_used_up(tmp_path: Path) -> None:
    """Its MERGE may come after the rebuild: the lease that it has is of the earlier topic."""
    write(tmp_path, "upsert", ["old"])
    catch_up(tmp_path)
    place, earlier = str(tmp_path / "tables" / TOPIC), id_of(tmp_path)
    table = open_table(place)
    assert table is not None
    number = plan_merge(table, {(earlier, 0): 5}, {})
    late = open_table(place)
    delete_topic(tmp_path, TOPIC)
    write(tmp_path, "upsert", ["new"])
    rebuild(tmp_path, without_history=True)
    now = open_table(place)
    assert now is not None
    assert late is not None
    assert now.txn_version(done_app(earlier)) == number, "delta-spark skips a MERGE of this number"
    assert now.txn_version(planned_app(earlier)) == number + 1
    with pytest.raises(CommitConflict):
        plan_merge(late, {(earlier, 0): 5}, {})
    assert (catch_up(tmp_path).error, names(tmp_path)) == (None, ["new"])


def test_another_place_is_a_way_out_that_keeps_the_old_table(tmp_path: Path) -> None:
    write(tmp_path, "upsert", ["old"])
    catch_up(tmp_path)
    delete_topic(tmp_path, TOPIC)
    write(tmp_path, "upsert", ["new"])
    configure(tmp_path, TOPIC, {"lakehead.table.path": str(tmp_path / "tables/elsewhere")})
    outcome = catch_up(tmp_path)
    assert (outcome.error, outcome.lag.records) == (None, 0)
    assert names(tmp_path) == ["old"]


def test_a_table_that_no_topic_declares_is_refused_alike(tmp_path: Path) -> None:
    settings = MaterializeSettings(
        path=str(tmp_path), topic=TOPIC, table=str(tmp_path / "tables/t"), value_format="raw"
    )
    write_topic(tmp_path, TOPIC, {0: [b"old"] * 3})
    assert materialize(settings).records == 3
    delete_topic(tmp_path, TOPIC)
    write_topic(tmp_path, TOPIC, {0: [b"new"] * 5})
    with pytest.raises(OtherTopic, match="--table"):
        materialize(settings)
    assert DeltaTable(tmp_path / "tables/t").to_pyarrow_dataset().count_rows() == 3


def test_dead_letters_of_a_topic_that_was_deleted_are_not_continued(tmp_path: Path) -> None:
    """Also where the table of rows is gone, so that it is made again without them."""
    write(tmp_path, "append", ["old"], bad=2)
    catch_up(tmp_path)
    (tmp_path / "tables" / TOPIC).rename(tmp_path / "away")
    delete_topic(tmp_path, TOPIC)
    write(tmp_path, "append", ["new"], bad=1)
    assert isinstance(catch_up(tmp_path).error, OtherTopic)
    assert DeltaTable(tmp_path / "tables/people__dlq").to_pyarrow_dataset().count_rows() == 2
    with pytest.raises(HistoryOnlyInTable, match="2 rows of"):
        rebuild(tmp_path)
    rebuild(tmp_path, without_history=True)
    assert catch_up(tmp_path).lag.records == 0
    assert DeltaTable(tmp_path / "tables/people__dlq").to_pyarrow_dataset().count_rows() == 1


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("history", ["own", "earlier", "both"])
def test_a_table_from_before_topics_were_recorded_is_judged_by_its_progress(
    tmp_path: Path, history: str, is_checkpointed: bool
) -> None:
    write(tmp_path, "append", ["old"])
    catch_up(tmp_path)
    place = tmp_path / "tables" / TOPIC
    if history != "own":
        delete_topic(tmp_path, TOPIC)
        write(tmp_path, "append", ["new", "new"])
    if history == "both":  # as it was done before: rows of both in one table
        table = open_table(str(place))
        assert table is not None
        txns = {app_id(id_of(tmp_path), 0): 1}
        table.commit([], txns, modified_ms=1, commit_info={})
    without_owner(place)
    if is_checkpointed:
        DeltaTable(place).create_checkpoint()
        for entry in (place / "_delta_log").glob("*.json"):
            if entry.name != f"{DeltaTable(place).version():020}.json":
                entry.unlink()
    table = open_table(str(place))
    assert table is not None
    assert table.txn_version(OWNER) == -1
    if history == "own":
        write(tmp_path, "append", ["newer"])
        assert catch_up(tmp_path).error is None
        assert names(tmp_path) == ["newer", "old"]
        assert DeltaTable(place).transaction_version(OWNER) == owner_txn(id_of(tmp_path))[OWNER]
        return
    outcome = catch_up(tmp_path)
    assert isinstance(outcome.error, OtherTopic)
    assert (outcome.lag.records, status(tmp_path).records_behind) == (2, 2)
    assert told_to_hold(tmp_path) == 0
    rebuild(tmp_path, without_history=True)
    assert names(tmp_path) == ["new", "new"]
    assert catch_up(tmp_path).error is None


def test_a_table_with_more_than_its_topic_ever_had_is_not_called_level(tmp_path: Path) -> None:
    """A store that was put back to an older copy gives the same offsets to other records."""
    write(tmp_path, "append", ["a", "b", "c"])
    catch_up(tmp_path)
    table = open_table(str(tmp_path / "tables" / TOPIC))
    assert table is not None
    table.commit([], {app_id(id_of(tmp_path), 0): 99}, modified_ms=1, commit_info={})
    outcome = catch_up(tmp_path)
    assert isinstance(outcome.error, LogLost)
    assert "up to offset 99, and the topic ends at 3" in str(outcome.error)
    assert (outcome.lag.records, told_to_hold(tmp_path)) == (3, 0)
    shown = status(tmp_path)
    assert (shown.error, shown.records_behind) == (str(outcome.error), 3)
    rebuild(tmp_path)
    assert catch_up(tmp_path).error is None
    assert names(tmp_path) == ["a", "b", "c"]


def test_a_follower_lets_a_rebuild_do_what_its_refusal_says(tmp_path: Path) -> None:
    write(tmp_path, "upsert", ["old"])
    catch_up(tmp_path)
    delete_topic(tmp_path, TOPIC)
    write(tmp_path, "upsert", ["new"])
    refused, level, stopped = threading.Event(), threading.Event(), threading.Event()

    def tell(outcome: TableOutcome) -> None:
        (refused if outcome.error is not None else level).set()

    tables = DeclaredTables(str(tmp_path), topics=[TOPIC])
    follower = threading.Thread(target=tables.follow, args=(stopped, tell))
    follower.start()
    try:
        assert refused.wait(60)
        other = DeclaredTables(str(tmp_path), topics=[TOPIC], wait_s=60)
        assert other.rebuild(TOPIC, without_history=True).records == 1
        other.close()
        write(tmp_path, "upsert", ["newer"])
        assert level.wait(60), "it goes on by itself"
    finally:
        stopped.set()
        follower.join()
        tables.close()
    assert names(tmp_path) == ["newer"]


@pytest.mark.parametrize("seed", range(3))
def test_level_tables_hold_every_record_of_their_topic_and_no_other(
    tmp_path: Path, seed: int
) -> None:
    """Whatever is done to a topic and its table, in any order."""
    chance = random.Random(seed)
    records: list[str] = []
    start = number = made = 0
    write(tmp_path, "append", [])
    for _ in range(14):
        step = chance.choice(["write", "write", "again", "trim", "rebuild", "catch_up", "catch_up"])
        if step == "write":
            new = [f"{made}.{number + n}" for n in range(chance.randrange(1, 4))]
            number += len(new)
            records += new
            write(tmp_path, "append", new)
        elif step == "again":
            delete_topic(tmp_path, TOPIC)
            records, start, made = [], 0, made + 1
            write(tmp_path, "append", [])
        elif step == "trim" and start < len(records):
            start = min(start + 1, told_to_hold(tmp_path))  # as retention does
            trim(tmp_path, TOPIC, 0, start)
        elif step == "rebuild":
            before = names(tmp_path) if (tmp_path / "tables" / TOPIC).exists() else []
            is_lost = bool(Counter(before) - Counter(records[start:]))
            try:
                rebuild(tmp_path)
            except HistoryOnlyInTable:
                assert is_lost
                if chance.random() < 0.5:
                    rebuild(tmp_path, without_history=True)
            else:
                assert not is_lost
        outcome = catch_up(tmp_path)
        assert outcome.error is None or isinstance(outcome.error, OtherTopic)
        assert (outcome.lag.records == 0) == (outcome.error is None or start == len(records))
        if outcome.error is None:
            held = Counter(names(tmp_path))
            assert not Counter(records[start:]) - held
            assert not held - Counter(records)


def test_retention_waits_for_a_table_that_is_declared_at_another_place(tmp_path: Path) -> None:
    """What the old table held, the new one does not hold yet."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        (root,) = tmp_path.rglob("store")
        configs = {"lakehead_table_enable": "true", "retention_ms": "1000"}
        make_topic(broker.server, TOPIC, **configs)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for _ in range(5):
            producer.produce(TOPIC, b"value", timestamp=SystemClock().now_ms())
        producer.flush(60)
        assert wait_until(lambda: catch_up(root).lag.records == 0 and told_to_hold(root) == 5, 60)
        set_config(broker.server, TOPIC, "lakehead.table.freshness.ms", "5000")
        assert told_to_hold(root) == 5, "the place is the same"
        set_config(broker.server, TOPIC, "lakehead.table.path", str(tmp_path / "elsewhere"))
        assert told_to_hold(root) == 0
        outcome = catch_up(root)
        assert outcome.error is None
        assert outcome.table == str(tmp_path / "elsewhere")
        assert told_to_hold(root) == 5
        set_config(broker.server, TOPIC, "lakehead.table.path", None)
        assert told_to_hold(root) == 0
    finally:
        broker.kill()
