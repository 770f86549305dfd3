"""A store that says no: wrong credentials, and a bucket that is not there."""

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
