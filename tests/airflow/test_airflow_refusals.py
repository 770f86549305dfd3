"""A store that says no: wrong credentials, and a bucket that is not there; and one that is away."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from bench.s3_server import S3Server
from tests.support.airflow_model import AirflowModel, Task
from tests.support.airflow_runs import connect
from tests.support.lake_cluster import LakeCluster

pytestmark = [
    pytest.mark.xdist_group("airflow"),
    pytest.mark.filterwarnings("ignore:Using `httpx` with"),  # of a library of Airflow's
]

WRONG = {"AWS_SECRET_ACCESS_KEY": "n0t-th1s-0ne"}


def test_wrong_credentials_fail_at_once_with_what_to_do(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from lakehead.connectors.airflow.hooks import LakeheadHook
    from lakehead.connectors.airflow.operators.job import LakeheadJobOperator

    path = f"s3://{s3_server.bucket}/cluster"
    LakeCluster(path).create_topic("orders")
    connect(monkeypatch, path)
    assert LakeheadHook().test_connection()[0]
    connect(monkeypatch, path, extra={"storage": WRONG})
    is_well, words = LakeheadHook().test_connection()
    assert not is_well
    assert "n0t-th1s-0ne" not in words
    context: Any = AirflowModel().begin(Task(dag_id="d", run_id="r", task_id="verify"))
    with pytest.raises(AirflowFailException, match="check the connection's storage settings"):
        LakeheadJobOperator(task_id="verify", job="verify").execute(context)


def test_a_bucket_that_is_not_there(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from lakehead.connectors.airflow.hooks import LakeheadHook

    connect(monkeypatch, "s3://nowhere-at-all/cluster")
    is_well, words = LakeheadHook().test_connection()
    assert not is_well
    assert "nowhere-at-all" in words


def sensor(**more: Any) -> Any:
    """A sensor of a topic that has what it waits for."""
    from lakehead.connectors.airflow.sensors import TopicOffsetSensor

    return TopicOffsetSensor(task_id="a", topic="orders", offsets=0, poke_interval=0.05, **more)


def deferred_to(waiting: Any, context: Any) -> Any:
    """The trigger that waits for a sensor."""
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(context)
    return deferred.value.trigger


async def fired(trigger: Any) -> Any:
    """The payload of the one event that a trigger fires."""
    async with asyncio.timeout(60):
        [event] = [event async for event in trigger.run()]
    return event.payload


@pytest.mark.parametrize("mode", ["poke", "reschedule", "deferred"])
def test_a_sensor_waits_for_a_store_that_does_not_respond(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    path = f"s3://{s3_server.bucket}/away-{mode}"
    LakeCluster(path).create_topic("orders")
    context: Any = {"task_state_store": _Kept(), "ti": SimpleNamespace(try_number=1)}
    waiting = sensor(deferrable=True) if mode == "deferred" else sensor(mode=mode)
    with socket.socket() as closed:  # bound, and not listening
        closed.bind(("127.0.0.1", 0))
        away = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed.getsockname()[1]}"}
        connect(monkeypatch, path, extra={"storage": away})
        assert not waiting.poke(context).is_done
        trigger = deferred_to(waiting, context) if mode == "deferred" else None
    connect(monkeypatch, path)
    if trigger is None:
        assert waiting.poke(context).is_done
    else:
        assert asyncio.run(fired(trigger))["found"]["topic"] == "orders"


def test_a_sensor_with_wrong_credentials_fails_at_once(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from lakehead.connectors.airflow.conditions import encoded
    from lakehead.connectors.airflow.triggers import ConditionTrigger

    path = f"s3://{s3_server.bucket}/refused"
    LakeCluster(path).create_topic("orders")
    connect(monkeypatch, path, extra={"storage": WRONG})
    with pytest.raises(AirflowFailException, match="check the connection's storage settings"):
        sensor().poke({})
    trigger = ConditionTrigger("lakehead_default", encoded(sensor().condition()), 0.05)
    payload = asyncio.run(fired(trigger))
    assert payload["is_final"]
    assert "check the connection's storage settings" in payload["error"]


class _Kept(dict[str, Any]):
    """Airflow's store of a task's state."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value
