"""Runs one task of a DAG in this process, by the DAG's own file and its operator's own execute.

For the children of a fork server that has imported Airflow and the lake once (`day_imports`): a
worker of Airflow's LocalExecutor does the same for each task.
"""

import functools
import os
import signal
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DONE, AGAIN, FINAL, SKIPPED, BROKEN = 0, 10, 11, 12, 13
"""How a task ends: done; failed, to be tried again; failed for good; skipped; an error that is none
of Airflow's or Lakehead's.
"""


class TaskOrder(NamedTuple):
    """A task to run: `item` is that of a mapped one. It is killed at `failpoint`, if it gets there.
    `lease_s` is how long the lease of a table lasts.
    """

    dag_id: str
    task_id: str
    item: dict[str, Any] | None
    failpoint: str
    lease_s: float
    log: str


@functools.cache
def dags() -> dict[str, Any]:
    """Return the DAGs of dags/, by id, as a DAG processor reads them. Raises ValueError for a file
    that cannot be read.
    """
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(ROOT / "dags"))
    if bag.import_errors:
        raise ValueError(str(bag.import_errors))
    return dict(bag.dags)


class _Instance:
    """What operators ask of their task instance."""

    def xcom_push(self, key: str, value: Any) -> None:
        """Nobody pulls it here."""


class _Events(dict[Any, Any]):
    """What a task tells of its outlets: kept by none, but as long as it is JSON."""

    def __missing__(self, key: Any) -> "_Events":
        return self

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        import json

        json.dumps(extra)
        assert asset.uri.startswith("lakehead://")


def run_task(order: TaskOrder, answer: Connection) -> None:
    """Run it, and send how it ended and what it returned or said."""
    # What it prints is Airflow's log of the task.
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    _shorten_leases(order.lease_s)
    if order.failpoint:
        from lakehead.storage import failpoints

        failpoints._trigger = failpoints._Trigger(order.failpoint)
    from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

    status, said = DONE, None
    try:
        said = _execute(order)
    except AirflowSkipException as error:
        status, said = SKIPPED, str(error)
    except AirflowFailException as error:
        status, said = FINAL, str(error)
    except AirflowException as error:
        status, said = AGAIN, str(error)
    except BaseException:  # judged as broken
        status, said = BROKEN, traceback.format_exc()
    answer.send((status, said))


def _execute(order: TaskOrder) -> Any:
    dag = dags()[order.dag_id]
    operator = dag.get_task(order.task_id)
    if order.item is not None:
        operator = operator.unmap({"item": order.item})
    context = {
        "params": dag.params.dump(),
        "ti": _Instance(),
        "outlet_events": _Events(),
    }
    operator.render_template_fields(context)
    # As Airflow's runner does: it calls on_kill from within the signal's handler.
    signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
    return operator.execute(context)


def _shorten_leases(seconds: float) -> None:
    """A lease lasts as long in the day's time as it does in ours."""
    from lakehead.lake.jobs.declared_tables import DeclaredTables
    from lakehead.lake.jobs.table_lease import TableLeases

    functions: list[Any] = [DeclaredTables.__init__, TableLeases.open]
    for function in functions:
        getattr(function, "__func__", function).__kwdefaults__["lease_s"] = seconds
