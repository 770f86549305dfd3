"""Triggers run for real, on clusters in a folder to which records are written meanwhile."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lakehead.connectors.airflow.asset_events import growth
from lakehead.connectors.airflow.conditions import Condition, LagUnder, TopicOffset, encoded
from lakehead.connectors.airflow.triggers import ClusterLook
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.store_reader import store_reader
from tests.support.airflow_runs import with_supervisor
from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic

pytestmark = [
    pytest.mark.xdist_group("airflow"),
    pytest.mark.filterwarnings("default"),  # Airflow's own
]

POLL_S = 0.02
CONN = "lakehead_default"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster's store, which the default connection names."""
    connection = {"conn_type": "lakehead", "extra": {"path": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKEHEAD_DEFAULT", json.dumps(connection))
    return tmp_path


class Kept:
    """The state of one asset, as Airflow keeps it."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._noted: asyncio.Queue[dict[str, int]] = asyncio.Queue()

    async def next(self) -> dict[str, int]:
        """The offsets that are noted next."""
        return await self._noted.get()

    async def aget(self, key: str) -> Any:
        return self.values.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = json.loads(json.dumps(value))
        self._noted.put_nowait(self.values[key].get("offsets", {}))


def rebuilt(trigger: Any) -> Any:
    """The trigger as another process has it: by what is in Airflow's database."""
    from airflow.models.trigger import Trigger

    _, kwargs = trigger.serialize()
    found = type(trigger)(**Trigger._decrypt_kwargs(Trigger.encrypt_kwargs(kwargs)))
    assert type(found).hash(*found.serialize()) == type(found).hash(*trigger.serialize())
    assert found.serialize() == trigger.serialize()
    return found


def condition_trigger(condition: Condition, conn: str = CONN) -> Any:
    from lakehead.connectors.airflow.triggers import ConditionTrigger

    return rebuilt(ConditionTrigger(conn, encoded(condition), POLL_S))


def growth_trigger(records: int, kept: Kept | None = None) -> Any:
    from lakehead.connectors.airflow.triggers import GrowthTrigger

    trigger = rebuilt(GrowthTrigger(CONN, "orders", records, POLL_S))
    trigger.asset_state_store = kept
    return trigger


async def fired(trigger: Any) -> Any:
    """The payload of the one event that a trigger fires."""
    async with asyncio.timeout(30):
        [event] = [event async for event in trigger.run()]
    return event.payload


async def write(root: Path, count: int, partition: int = 0) -> None:
    await asyncio.to_thread(write_topic, root, "orders", {partition: [b"x"] * count}, partitions=2)


async def test_a_trigger_fires_when_the_records_are_there(cluster: Path) -> None:
    await write(cluster, 10)
    trigger = condition_trigger(TopicOffset(topic="orders", offsets={"0": 12, "1": 1}))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(fired(trigger))
        await write(cluster, 5)
        assert not waiting.done()
        await write(cluster, 1, partition=1)
    assert waiting.result() == {"found": {"topic": "orders", "offsets": {"0": 15, "1": 1}}}


async def test_what_cannot_come_true_ends_the_wait_with_one_line(
    cluster: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(cluster, 10)
    empty = {"conn_type": "lakehead", "extra": {"path": str(tmp_path_factory.mktemp("empty"))}}
    monkeypatch.setenv("AIRFLOW_CONN_EMPTY", json.dumps(empty))
    monkeypatch.setenv("AIRFLOW_CONN_PATHLESS", json.dumps({"conn_type": "lakehead"}))
    offset = TopicOffset(topic="orders", offsets=1)
    for trigger, said in (
        (condition_trigger(TopicOffset(topic="nope", offsets=1)), "'nope' does not exist"),
        (condition_trigger(LagUnder(topic="orders", records=1)), "lakehead.table.enable=true"),
        (condition_trigger(offset, "nonesuch"), "there is no connection nonesuch: add one"),
        (condition_trigger(offset, "empty"), "connection empty: there is no cluster in"),
        (condition_trigger(offset, "pathless"), "connection pathless: extra has no path"),
    ):
        payload = await fired(trigger)
        assert said in payload["error"]
        assert payload["is_final"]
        assert "\n" not in payload["error"]


async def test_a_connection_that_does_not_come_at_this_moment_is_waited_for(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a triggerer starts beside the API server: no deferred sensor fails for good."""
    await write(cluster, 10)
    monkeypatch.delenv("AIRFLOW_CONN_LAKEHEAD_DEFAULT")
    is_requested = with_supervisor(monkeypatch, "API_SERVER_ERROR")
    async with asyncio.TaskGroup() as group:
        trigger = condition_trigger(TopicOffset(topic="orders", offsets={"0": 10}))
        waiting = group.create_task(fired(trigger))
        await asyncio.to_thread(is_requested.wait, 30)
        connection = {"conn_type": "lakehead", "extra": {"path": str(cluster)}}
        monkeypatch.setenv("AIRFLOW_CONN_LAKEHEAD_DEFAULT", json.dumps(connection))
    assert waiting.result() == {"found": {"topic": "orders", "offsets": {"0": 10, "1": 0}}}


async def events(trigger: Any) -> AsyncGenerator[dict[str, Any], None]:
    async for event in trigger.run():
        yield event.payload


async def test_growth_is_told_with_its_offsets_and_across_restarts(cluster: Path) -> None:
    await write(cluster, 10)
    kept = Kept()
    first = events(growth_trigger(3, kept))
    async with asyncio.timeout(30):
        began = asyncio.ensure_future(anext(first))
        # What was there before the watch is not told, and is noted so.
        assert await kept.next() == {"0": 10, "1": 0}
        await write(cluster, 2)
        await write(cluster, 2, partition=1)
        told = await began
        assert told == growth("orders", {"0": 10}, [12, 2])
        assert told == {"topic": "orders", "offsets": {"0": [10, 12], "1": [0, 2]}, "records": 4}
        # The event may be lost with this triggerer: it was not noted yet, and is told again.
        await first.aclose()
        second = events(growth_trigger(3, kept))
        assert await anext(second) == told
        noted = asyncio.ensure_future(anext(second))
        assert await kept.next() == {"0": 12, "1": 2}
        noted.cancel()
        await asyncio.wait([noted])
        await write(cluster, 3)  # while no triggerer runs
        third = events(growth_trigger(3, kept))
        assert (await anext(third))["offsets"] == {"0": [12, 15]}
        await third.aclose()


async def test_all_of_a_topic_that_is_made_under_watch_is_told(cluster: Path) -> None:
    await asyncio.to_thread(write_topic, cluster, "other", {0: [b"x"]})

    async def looks() -> AsyncGenerator[ClusterLook, None]:
        for _ in range(2):
            catalog = await asyncio.to_thread(store_reader(str(cluster)).open_catalog)
            yield ClusterLook(catalog.state, 0)
            await write(cluster, 4)

    [event] = [event async for event in growth_trigger(1).filter_shared_stream(looks())]
    assert event.payload["offsets"] == {"0": [0, 4]}


def written(root: Path, begin: int | None = None) -> ClusterLook:
    """Have the table what lies in objects, or begin at an offset; then look."""
    tables = DeclaredTables(str(root))
    with closing(tables):
        if begin is None:
            tables.catch_up(all_of_them=True, on_table=lambda _outcome: None)
        else:
            tables.begin("orders", at={0: begin, 1: 0})
    return look_at(root)


def look_at(root: Path) -> ClusterLook:
    return ClusterLook(store_reader(str(root)).open_catalog().state, 0)


async def test_a_watcher_tells_each_commit_of_a_table_once(cluster: Path) -> None:
    """Backfill and what came while no triggerer ran included, and again only what may be lost."""
    from lakehead.connectors.airflow.triggers import TableGrowthTrigger

    kept = Kept()

    async def told(*looks: ClusterLook) -> list[tuple[str, dict[str, list[int]], int]]:
        """What a triggerer fires that sees these looks, and then dies."""
        trigger = rebuilt(TableGrowthTrigger(CONN, "orders", 2, POLL_S))
        trigger.asset_state_store = kept

        async def seen() -> AsyncGenerator[ClusterLook, None]:
            for look in looks:
                yield look

        fired = [one.payload async for one in trigger.filter_shared_stream(seen())]
        return [(one["kind"], one["offsets"], one["rows"]) for one in fired]

    await asyncio.to_thread(write_topic, cluster, "orders", {0: [b'{"a":1}'] * 10}, partitions=2)
    declared = {"lakehead.table.enable": "true", "lakehead.table.value.format": "json"}
    await asyncio.to_thread(configure, cluster, "orders", declared)
    begun = await asyncio.to_thread(written, cluster, 6)
    level = await asyncio.to_thread(written, cluster)
    # What the table had before the watch is not told, and is noted so.
    assert await told(level, level) == []
    await asyncio.to_thread(write_topic, cluster, "orders", {1: [b'{"a":1}']}, partitions=2)
    level = await asyncio.to_thread(written, cluster)
    assert await told(begun, level) == []  # one record is not enough
    filled = await asyncio.to_thread(written, cluster, 4)
    came = [("materialize", {"1": [0, 1]}, 1), ("backfill", {"0": [4, 6]}, 2)]
    assert await told(filled) == came  # the triggerer dies before it has noted that
    assert await told(filled, filled, filled) == came
    assert await told(filled) == []


async def test_triggers_of_a_connection_share_one_poll(cluster: Path) -> None:
    """By Airflow's own manager of shared streams, as its triggerer does."""
    from airflow.triggers.shared_stream import SharedStreamManager

    await write(cluster, 10)
    wanted = [TopicOffset(topic="orders", offsets={"0": offset}) for offset in (11, 12, 20)]
    triggers = [condition_trigger(one) for one in wanted]
    [key] = {trigger.shared_stream_key() for trigger in triggers}
    manager = SharedStreamManager()

    async def served(number: int, trigger: Any) -> Any:
        stream = manager.subscribe(trigger_id=number, trigger=trigger, key=key)
        [event] = [event async for event in trigger.filter_shared_stream(stream)]
        await manager.unsubscribe(number, key)
        return event.payload

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        served_ = [group.create_task(served(n, trigger)) for n, trigger in enumerate(triggers)]
        await asyncio.sleep(0)
        await write(cluster, 5)
        assert (await served_[1])["found"]["offsets"]["0"] == 15
        assert not served_[2].done()
        await write(cluster, 5)
    assert [task.result()["found"]["offsets"]["0"] for task in served_] == [15, 15, 20]
