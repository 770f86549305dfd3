"""What sensors wait for, judged on real clusters in a folder."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.connectors.airflow.conditions import (
    Condition,
    LagUnder,
    TableFresh,
    TopicOffset,
    TopicTime,
    Verdict,
    decoded,
    encoded,
    of_its_topic,
)
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import SettingsError, UnknownTopic
from lakehead.storage.format.partition_state import PartitionState
from tests.support.declared_topics import configure, delete_topic, trim
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.topic_writer import write_topic

TABLE = {"lakehead.table.enable": "true"}
NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=9)
COUNTS = st.integers(min_value=0, max_value=1 << 53)
OFFSETS = COUNTS | st.dictionaries(st.integers(0, 9).map(str), COUNTS, max_size=5)
CONDITIONS: st.SearchStrategy[Condition] = st.one_of(
    st.builds(TopicOffset, topic=NAMES, offsets=OFFSETS, in_table=st.booleans()),
    st.builds(
        TopicTime, topic=NAMES, timestamp_ms=COUNTS, partitions=st.sampled_from(("all", "any"))
    ),
    st.builds(TableFresh, topic=NAMES, seconds=st.floats(0, 1e9)),
    st.builds(LagUnder, topic=NAMES, records=COUNTS),
)


def judged(root: Path, condition: Condition, now_ms: int = 0) -> Verdict:
    return condition.verdict(store_reader(str(root)).open_catalog().state, now_ms)


@given(CONDITIONS)
def test_a_condition_survives_airflow_database(condition: Condition) -> None:
    stored = msgspec.json.decode(msgspec.json.encode(encoded(condition)))
    assert decoded(stored) == condition


@pytest.mark.parametrize(
    "condition",
    [
        TopicOffset(topic="orders", offsets=1),
        TopicOffset(topic="orders", offsets=1, in_table=True),
        TopicTime(topic="orders", timestamp_ms=0),
        TableFresh(topic="orders", seconds=1e9),
        LagUnder(topic="orders", records=1000),
    ],
    ids=["offset", "offset in table", "time", "fresh", "lag"],
)
def test_a_topic_made_again_meets_no_condition_of_the_first(
    tmp_path: Path, condition: Condition
) -> None:
    def made() -> None:
        write_topic(tmp_path, "orders", {0: [b"a"] * 10})
        configure(tmp_path, "orders", TABLE)

    made()
    state = store_reader(str(tmp_path)).open_catalog().state
    of_first = of_its_topic(condition, state)
    assert judged(tmp_path, of_first) == judged(tmp_path, condition)
    delete_topic(tmp_path, "orders")
    with pytest.raises(UnknownTopic, match="'orders' does not exist"):
        judged(tmp_path, of_first)
    made()
    with pytest.raises(UnknownTopic, match="'orders' was deleted and made again"):
        judged(tmp_path, of_first)
    judged(tmp_path, condition)


def test_a_condition_of_another_release_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="type"):
        decoded({"type": "moon_phase", "topic": "orders"})


def test_offsets_are_reached_partition_by_partition(tmp_path: Path) -> None:
    write_topic(tmp_path, "orders", {0: [b"a"] * 10, 1: [b"b"] * 5}, partitions=2)
    assert judged(tmp_path, TopicOffset(topic="orders", offsets=5)).is_met
    late = judged(tmp_path, TopicOffset(topic="orders", offsets=6))
    assert late == (
        False,
        "orders: 1 of 2 partitions are behind; partition 1 is at offset 5 of 6 in objects",
        {},
    )
    met = judged(tmp_path, TopicOffset(topic="orders", offsets={"0": 10}))
    assert met.is_met
    assert met.found == {"topic": "orders", "offsets": {"0": 10, "1": 5}}
    with pytest.raises(SettingsError, match="partition '2' of topic orders, which has"):
        judged(tmp_path, TopicOffset(topic="orders", offsets={"2": 1}))
    with pytest.raises(UnknownTopic, match="'order' does not exist"):
        judged(tmp_path, TopicOffset(topic="order", offsets=1))


def test_a_time_is_reached_when_all_partitions_have_it_or_any(tmp_path: Path) -> None:
    def at(*times: int) -> list[TestRecord]:
        return [TestRecord(offset=0, timestamp=time, value=b"x") for time in times]

    write_topic(tmp_path, "orders", {0: at(1000, 3000), 1: at(2000)}, partitions=2)
    write_topic(tmp_path, "orders", {0: at(2500)})  # late: the time is not undone
    for moment, everywhere, anywhere in (
        (2000, True, True),
        (3000, False, True),
        (3001,) + (False,) * 2,
    ):
        everyone = TopicTime(topic="orders", timestamp_ms=moment)
        anyone = TopicTime(topic="orders", timestamp_ms=moment, partitions="any")
        assert judged(tmp_path, everyone).is_met == everywhere, moment
        assert judged(tmp_path, anyone).is_met == anywhere, moment


def test_a_time_that_was_reached_stays_so_when_retention_removed_the_records(
    tmp_path: Path,
) -> None:
    cluster = LakeCluster(str(tmp_path))  # with the states that a broker's objects have
    cluster.create_topic("orders")
    for start, time in ((0, 1000), (10, 2000), (20, 3000)):
        records = [TestRecord(offset=start + n, timestamp=time) for n in range(10)]
        cluster.write({("orders", 0): [encode_batch(records)]}, state=PartitionState([]))
    for offset in (0, 10, 25, 30):
        cluster.trim("orders", 0, offset)
        assert judged(tmp_path, TopicTime(topic="orders", timestamp_ms=3000)).is_met, offset
        assert not judged(tmp_path, TopicTime(topic="orders", timestamp_ms=3001)).is_met


def test_a_table_is_fresh_and_without_lag_once_it_has_what_was_there(tmp_path: Path) -> None:
    write_topic(tmp_path, "orders", {0: [b"a"] * 10})
    with pytest.raises(SettingsError, match="declares no table: set lakehead"):
        judged(tmp_path, TableFresh(topic="orders", seconds=1))
    configure(tmp_path, "orders", TABLE)
    [object_] = store_reader(str(tmp_path)).open_catalog().state.objects.values()
    now_ms = object_.created_ms + 7000
    assert judged(tmp_path, TableFresh(topic="orders", seconds=7), now_ms).is_met
    stale = judged(tmp_path, TableFresh(topic="orders", seconds=6.9), now_ms)
    assert (stale.is_met, stale.text) == (
        False,
        "the table of orders is 7.0 s behind; wanted: 6.9 s",
    )
    assert not judged(tmp_path, LagUnder(topic="orders", records=10)).is_met
    assert judged(tmp_path, LagUnder(topic="orders", records=11)).is_met
    in_table = TopicOffset(topic="orders", offsets=10, in_table=True)
    assert judged(tmp_path, in_table).text.endswith("offset 0 of 10 in its table")
    tables = DeclaredTables(str(tmp_path), topics=["orders"])
    tables.catch_up(all_of_them=True, on_table=lambda outcome: None)
    tables.close()
    for condition in (
        TableFresh(topic="orders", seconds=0),
        LagUnder(topic="orders", records=1),
        in_table,
    ):
        verdict = judged(tmp_path, condition, now_ms)
        assert verdict.is_met, verdict.text
        assert verdict.found["offsets"] == {"0": 10}


def test_what_retention_removed_is_not_waited_for(tmp_path: Path) -> None:
    write_topic(tmp_path, "orders", {0: [b"a"] * 10})
    configure(tmp_path, "orders", TABLE)
    trim(tmp_path, "orders", 0, 10)
    assert judged(tmp_path, TableFresh(topic="orders", seconds=0), 1 << 50).is_met
    assert judged(tmp_path, TopicOffset(topic="orders", offsets=10)).is_met
