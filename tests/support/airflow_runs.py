"""Runs DAGs as `dag.test()` does: by Airflow's own task runner and database, in this process."""

import functools
import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest


def connect(monkeypatch: pytest.MonkeyPatch, path: str, **fields: Any) -> None:
    """Have the connection `lakehead_default` name the cluster at `path`."""
    extra = {"path": path, **fields.pop("extra", {})}
    connection = {"conn_type": "lakehead", "extra": extra, **fields}
    monkeypatch.setenv("AIRFLOW_CONN_LAKEHEAD_DEFAULT", json.dumps(connection))


def with_supervisor(monkeypatch: pytest.MonkeyPatch, kind: str) -> threading.Event:
    """Have a supervisor above this process whose requests to Airflow's API server meet an error of
    a kind (`ErrorType`); return what its first request sets.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse

    is_requested = threading.Event()

    class Supervisor:
        """Responds as Airflow's: with an error that is not there, or by the error's frame."""

        def send(self, request: Any) -> Any:
            del request
            is_requested.set()
            response = ErrorResponse(error=ErrorType(kind))
            if kind == "CONNECTION_NOT_FOUND":
                return response
            raise AirflowRuntimeError(response)

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(), raising=False)
    return is_requested


@functools.cache
def _database() -> Path:
    """Make Airflow's database, once in a process; return the folder of DAGs, which stays empty."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    folder.mkdir(exist_ok=True)
    logging.disable(logging.INFO)
    try:
        initdb()
        manager: Any = DagBundlesManager
        manager().sync_bundles_to_db()
    finally:
        logging.disable(logging.NOTSET)
    return folder


def run_dag(dag: Any, conf: Mapping[str, Any] | None = None, *, beside: Sequence[Any] = ()) -> Any:
    """Run a DAG to its end, and return the run. Airflow knows the DAGs `beside` it, and no other
    ones.
    """
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    folder = _database()
    bag = BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder")
    for one in (dag, *beside):
        bag.bag_dag(one)
    sync_bag_to_db(bag, "dags-folder", None)
    return dag.test(run_conf=dict(conf or {}))


def states(run: Any) -> dict[tuple[str, int], str]:
    """Return the state of each task of a run, by task and map index."""
    return {(ti.task_id, ti.map_index): str(ti.state) for ti in run.get_task_instances()}


def result_of(run: Any, task_id: str, key: str = "return_value") -> Any:
    """Return what a task of a run left in XCom."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = XComModel.get_many(run_id=run.run_id, dag_ids=run.dag_id, task_ids=task_id, key=key)
        values = [XComModel.deserialize_value(one) for one in session.execute(query).scalars()]
    return values[0] if len(values) == 1 else values
