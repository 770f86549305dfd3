"""`airflow dags test`, as its users run it, ends with status 0 where the work is done.

Slow: `make airflow-test`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic

ROOT = Path(__file__).resolve().parents[2]
DAGS = sorted(path.stem for path in (ROOT / "dags").glob("lakehead_*.py"))
ATTEST = "lakehead_attest"
BY_HAND = {ATTEST, "lakehead_backfill", "lakehead_forget", "lakehead_replay_dead_letters"}
RUN_S_MAX = 540

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An Airflow with a database of its own, and a connection to a cluster with a table."""
    home, cluster = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("cluster")
    write_topic(cluster, "orders", {0: [b'{"id":%d}' % n for n in range(20)] + [b"{"]})
    table = {"enable": "true", "value.format": "json", "on.error": "dead_letter"}
    configure(cluster, "orders", {f"lakehead.table.{name}": set_ for name, set_ in table.items()})
    connection = {"conn_type": "lakehead", "extra": {"path": str(cluster)}}
    made = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW_CONN_LAKEHEAD_DEFAULT": json.dumps(connection),
        "PYTHONPATH": str(ROOT),
    }
    ended = airflow(made, "db", "migrate")
    assert ended.returncode == 0, ended.stdout
    return made


def airflow(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "airflow", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )


@pytest.mark.parametrize("dag_id", sorted(DAGS, key=lambda one: (one in BY_HAND, one == ATTEST)))
def test_a_dag_that_is_tried_ends_well(environment: dict[str, str], dag_id: str) -> None:
    """Those by hand come last, and attest after backfill, which has made the table; their approval
    is passed over.
    """
    conf = {"topic": "orders"} | ({"keys": ["a key"]} if dag_id == "lakehead_forget" else {})
    more = ["--conf", json.dumps(conf), "--mark-success-pattern", "approve"]
    if dag_id == "lakehead_backup":
        more = ["--conf", json.dumps({"target": f"{environment['AIRFLOW_HOME']}/copies"})]
    elif dag_id not in BY_HAND:
        more = []
    ended = airflow(environment, "dags", "test", dag_id, *more)
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert "state=success" in ended.stdout or "successful" in ended.stdout


def test_a_dag_whose_work_fails_ends_badly(environment: dict[str, str]) -> None:
    more = ["--conf", '{"topic": "unknown"}', "--mark-success-pattern", "approve"]
    ended = airflow(environment, "dags", "test", "lakehead_backfill", *more)
    assert ended.returncode == 1
    assert "DagRun failed" in ended.stdout
