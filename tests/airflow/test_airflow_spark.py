"""Jobs on Spark: in the task's own session, and as an application of spark-submit."""

import json
import os
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lakehead.connectors.airflow.spark_application import FIGURES
from lakehead.connectors.airflow.spark_secrets import executor_properties, submit_arguments
from tests.support.airflow_model import AirflowModel, Task
from tests.support.airflow_runs import connect
from tests.support.topic_writer import write_topic

pytestmark = [
    pytest.mark.xdist_group("airflow"),
    pytest.mark.filterwarnings("ignore:Using `httpx` with"),  # of a library of Airflow's
]

ROOT = Path(__file__).resolve().parents[2]
SECRETS = {"AWS_SECRET_ACCESS_KEY": " a\\b=c#d"}


def test_credentials_are_in_a_file_for_one_user_while_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--verbose pyspark-shell")
    with executor_properties(SECRETS) as name, submit_arguments(name):
        assert name is not None
        assert stat.S_IMODE(Path(name).stat().st_mode) == 0o600
        assert Path(name).read_text() == ("spark.executorEnv.AWS_SECRET_ACCESS_KEY=\\ a\\\\b=c#d\n")
        told = os.environ["PYSPARK_SUBMIT_ARGS"]
        assert told == f"--load-spark-defaults --properties-file {name} --verbose pyspark-shell"
        assert SECRETS["AWS_SECRET_ACCESS_KEY"] not in told
    assert not Path(name).exists()
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--verbose pyspark-shell"
    with executor_properties({}) as none, submit_arguments(none):
        assert none is None


@pytest.mark.skipif(
    find_spec("airflow.providers.apache") is not None, reason="the Spark provider is installed"
)
def test_without_the_spark_provider_a_dag_says_what_to_install() -> None:
    from airflow.sdk import DAG
    from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException

    from lakehead.connectors.airflow.operators.mapped import lakehead_job

    with (
        pytest.raises(AirflowOptionalProviderFeatureException, match="pip install apache-airflow"),
        DAG("submits", schedule=None),
    ):
        lakehead_job("compact_objects", runner="spark_submit")


def _cluster(root: Path) -> None:
    for _ in range(12):
        write_topic(root, "orders", {0: [b"x"] * 10})


@pytest.mark.slow
def test_a_job_in_the_task_s_own_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lakehead.connectors.airflow.operators.job import LakeheadJobOperator

    _cluster(tmp_path)
    connect(monkeypatch, str(tmp_path), extra={"storage": {"AWS_REGION": "eu"}})
    more: dict[str, Any] = {"runner": "spark", "spark_master": "local[1]"}
    compact = LakeheadJobOperator(
        task_id="c", job="compact_objects", options={"count_min": 2}, **more
    )
    airflow = AirflowModel()
    in_task: Any = airflow.begin(Task(dag_id="d", run_id="r", task_id="c"))
    assert compact.execute(in_task)["objects_after"] == 1
    verify = LakeheadJobOperator(task_id="v", job="verify", **more)
    in_task = airflow.begin(Task(dag_id="d", run_id="r", task_id="v"))
    assert verify.execute(in_task)["records"] == 120


@pytest.mark.slow
def test_the_application_that_is_submitted(tmp_path: Path) -> None:
    _cluster(tmp_path)

    def submitted(**told: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, "-m", "lakehead.connectors.airflow.spark_application"),
                json.dumps({"path": str(tmp_path), **told}),
            ],
            cwd=ROOT,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},  # as spark-submit is given it
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    done = submitted(job="compact_objects", options={"count_min": 2})
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1].removeprefix(FIGURES))
    assert (figures["objects_before"], figures["objects_after"]) == (12, 1)
    wrong = submitted(job="verify", options={"topic": "nope"})
    assert wrong.returncode == 1
    assert wrong.stdout.splitlines()[-1].startswith("UnknownTopic: topic 'nope' does not exist")
