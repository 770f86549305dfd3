"""Sensors, poked and deferred, and the assets that go with them."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehead.connectors.airflow.asset_events import events_extra, growth
from lakehead.connectors.airflow.assets import new_data, sanitize_uri, table_asset, watched_table
from lakehead.connectors.airflow.conditions import decoded
from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import UnknownTopic
from tests.support.airflow_runs import with_supervisor
from tests.support.declared_topics import configure, delete_topic
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.xdist_group("airflow"),
    pytest.mark.filterwarnings("default"),  # Airflow's own
]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster's store with records of a topic, which the default connection names."""
    connection = {"conn_type": "lakehead", "extra": {"path": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKEHEAD_DEFAULT", json.dumps(connection))
    records = [TestRecord(offset=0, timestamp=1_000_000, value=b"x")] * 10
    write_topic(tmp_path, "orders", {0: records})
    return tmp_path


def sensors(**more: Any) -> dict[str, Any]:
    """One of each, which is done at once."""
    from lakehead.connectors.airflow import sensors

    moment = datetime(1970, 1, 1, 0, 16, 40, tzinfo=UTC)
    return {
        "offsets": sensors.TopicOffsetSensor(
            task_id="offsets", topic="orders", offsets={0: "10"}, **more
        ),
        "time": sensors.TopicTimeSensor(task_id="time", topic="orders", timestamp=moment, **more),
        "fresh": sensors.TableFreshSensor(
            task_id="fresh", topic="orders", within=timedelta(days=1), **more
        ),
        "lag": sensors.LagSensor(task_id="lag", topic="orders", under="11", **more),
    }


@pytest.mark.parametrize("deferrable", [False, True])
def test_what_is_there_is_not_waited_for(cluster: Path, deferrable: bool) -> None:
    configure(cluster, "orders", {"lakehead.table.enable": "true"})
    for name, sensor in sensors(deferrable=deferrable).items():
        held = 10 if name in {"offsets", "time"} else 0
        assert sensor.execute({}) == {"topic": "orders", "offsets": {"0": held}}, name


def test_a_deferred_sensor_goes_on_with_what_its_trigger_found(cluster: Path) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

    from lakehead.connectors.airflow.sensors import TopicOffsetSensor

    sensor = TopicOffsetSensor(
        task_id="a", topic="orders", offsets=12, deferrable=True, poke_interval=3, timeout=60
    )
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    assert deferred.value.method_name == "execute_complete"
    assert deferred.value.timeout == timedelta(seconds=60)
    _, kwargs = deferred.value.trigger.serialize()
    assert kwargs["poll_interval"] == 3
    assert kwargs["condition"]["offsets"] == 12
    found = {"topic": "orders", "offsets": {"0": 12}}
    assert sensor.execute_complete({}, {"found": found}) == found
    with pytest.raises(AirflowFailException, match="gone"):
        sensor.execute_complete({}, {"error": "gone", "is_final": True})
    with pytest.raises(AirflowException, match="slow") as passing:
        sensor.execute_complete({}, {"error": "slow", "is_final": False})
    assert not isinstance(passing.value, AirflowFailException)


@pytest.mark.parametrize("mode", ["poke", "reschedule", "deferred"])
def test_a_sensor_does_not_go_on_to_a_topic_that_is_made_again(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Its offsets are reached there, by other records. Another try waits for the new topic."""
    from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

    from lakehead.connectors.airflow.sensors import TopicOffsetSensor

    more: dict[str, Any] = {"deferrable": True} if mode == "deferred" else {"mode": mode}

    def sensor() -> Any:
        return TopicOffsetSensor(task_id="a", topic="orders", offsets=12, **more)

    class Store(dict[str, Any]):
        """Airflow's store of a task's state."""

        def set(self, key: str, value: Any) -> None:
            self[key] = json.loads(json.dumps(value))

    context: Any = {"task_state_store": Store(), "ti": SimpleNamespace(try_number=1)}
    first, condition = sensor(), None
    if mode == "deferred":
        with pytest.raises(TaskDeferred) as deferred:
            first.execute(context)
        condition = decoded(deferred.value.trigger.serialize()[1]["condition"])
    else:
        assert not first.poke(context).is_done
        assert not (sensor() if mode == "reschedule" else first).poke(context).is_done
    delete_topic(cluster, "orders")
    write_topic(cluster, "orders", {0: [b"y"] * 12})
    if condition is not None:
        state = store_reader(str(cluster)).open_catalog().state
        with pytest.raises(UnknownTopic, match="deleted and made again"):
            condition.verdict(state, 0)
    else:
        with pytest.raises(AirflowFailException, match="deleted and made again"):
            (sensor() if mode == "reschedule" else first).poke(context)
    context["ti"].try_number = 2
    assert sensor().poke(context).is_done


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("TopicOffsetSensor", {"offsets": "ten"}, "offsets has 'ten': give a whole number"),
        ("TopicOffsetSensor", {"offsets": {3: 1}}, "partition '3' of topic orders"),
        ("TopicOffsetSensor", {"offsets": 1, "topic": "order"}, "'order' does not exist"),
        ("TopicTimeSensor", {"timestamp": "noon"}, "timestamp is 'noon': give a time such as"),
        ("TopicTimeSensor", {"timestamp": "2026-01-01"}, "has no time zone"),
        ("LagSensor", {"under": 1}, "declares no table: set lakehead.table.enable=true"),
        ("LagSensor", {"under": 1, "lakehead_conn_id": "x"}, "there is no connection x"),
    ],
)
def test_what_cannot_be_waited_for_fails_at_once(
    cluster: Path, kind: str, arguments: dict[str, Any], said: str
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from lakehead.connectors.airflow import sensors

    sensor = getattr(sensors, kind)(task_id="a", **{"topic": "orders"} | arguments)
    with pytest.raises(AirflowFailException, match=said) as failed:
        sensor.execute({})
    assert "\n" not in str(failed.value)


def test_a_sensor_waits_for_a_connection_that_does_not_come_at_this_moment(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakehead.connectors.airflow.sensors import TopicOffsetSensor

    write_topic(cluster, "orders", {0: [b"x"]})
    sensor = TopicOffsetSensor(task_id="a", topic="orders", offsets=1, mode="poke")
    with monkeypatch.context() as away:
        away.delenv("AIRFLOW_CONN_LAKEHEAD_DEFAULT")
        with_supervisor(away, "API_SERVER_ERROR")
        assert not sensor.poke({}).is_done
    assert sensor.poke({}).is_done


def test_assets_are_named_by_connection_and_topic() -> None:
    from airflow.sdk import AssetWatcher

    from lakehead.connectors.airflow.assets import topic_asset

    assert topic_asset("orders").uri == "lakehead://lakehead_default/topics/orders"
    assert table_asset("orders", "prod").uri == "lakehead://prod/tables/orders"
    watched = watched_table("orders", "prod", records=100)
    assert (watched.name, watched.uri) == (f"{table_asset('orders', 'prod').uri}/watched/100",) * 2
    [watcher] = watched.watchers
    assert isinstance(watcher, AssetWatcher)
    assert watcher.trigger.serialize()[1]["records"] == 100


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("lakehead://c/topics/a", "lakehead://c/topics/a"),
        ("lakehead://c/tables/a/?x=1#y", "lakehead://c/tables/a"),
        ("lakehead://c/topics", None),
        ("lakehead:///topics/a", None),
        ("lakehead://c/queues/a", None),
        ("lakehead://c/topics/a/b", None),
        ("lakehead://c/tables/a/watched/100/", "lakehead://c/tables/a/watched/100"),
        ("lakehead://c/tables/a/watched/", None),
        ("lakehead://c/tables//watched/1", None),
        ("lakehead://c/tables/a/seen/1", None),
    ],
)
def test_uris_of_assets_are_checked(uri: str, kept: str | None) -> None:
    from urllib.parse import urlsplit

    if kept is None:
        with pytest.raises(ValueError, match="is not an asset of Lakehead: write lakehead://"):
            sanitize_uri(urlsplit(uri))
    else:
        assert sanitize_uri(urlsplit(uri)).geturl() == kept


def test_events_say_what_came_by_partition() -> None:
    assert growth("orders", {"0": 5, "1": 7}, [9, 7, 2]) == {
        "topic": "orders",
        "offsets": {"0": [5, 9], "2": [0, 2]},
        "records": 6,
    }
    assert events_extra("orders", {}) == {"topic": "orders", "offsets": {}, "records": 0}


def test_each_event_that_started_a_run_is_read_once() -> None:
    """By Airflow's own listing: an event of a table is there by its asset, and by the alias."""
    from airflow.sdk.execution_time.comms import AssetEventDagRunReferenceResult
    from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor

    def event(uri: str, extra: dict[str, Any], *aliases: str) -> AssetEventDagRunReferenceResult:
        source = dict.fromkeys(f"source_{name}" for name in ("task_id", "dag_id", "run_id"))
        return AssetEventDagRunReferenceResult.model_validate(
            {
                **source,
                "source_map_index": None,
                "asset": {"name": uri, "uri": uri, "extra": {}},
                "extra": extra,
                "source_aliases": [{"name": alias} for alias in aliases],
                "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
            }
        )

    table, watched = table_asset("orders"), watched_table("orders")
    told = [events_extra("orders", {"0": (n, n + 2)}) for n in (0, 2, 4)]
    listed = TriggeringAssetEventsAccessor.build(
        [
            event(table.uri, told[0], "lakehead_tables"),
            event(table.uri, told[1], "lakehead_tables"),
            event(watched.uri, {"from_trigger": True, "payload": told[2]}),
            event("s3://else/where", {"rows": 1}),
        ]
    )
    assert new_data(listed) == told


@pytest.mark.slow
def test_sensors_wait_in_a_dag(cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """By dag.test(): one waits in its trigger, one pokes, one is rescheduled, and records come
    meanwhile.
    """
    home = tmp_path_factory.mktemp("home")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.sensor_dag", str(home), str(cluster)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    said = json.loads(ended.stdout.splitlines()[-1])
    assert set(said["states"].values()) == {"success"}
    assert said["poking"] == said["deferred"] == {"topic": "orders", "offsets": {"0": 15}}
    assert said["rescheduled"] == {"topic": "orders", "offsets": {"0": 20}}
