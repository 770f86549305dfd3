"""What a DAG that uses all of the provider costs whoever parses it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("airflow")

ROOT = Path(__file__).resolve().parents[2]
PARSE_S_MAX = 0.5
PROGRAM = """
import sys, time
from airflow.sdk import DAG, Asset, AssetAlias, AssetWatcher, BaseHook, BaseOperator, TaskGroup
from airflow.sdk import BaseSensorOperator, Context, TriggerRule, XComArg
import airflow.sdk.exceptions, airflow.sdk.log
known, began = set(sys.modules), time.process_time()
from lakehead.connectors.airflow.jobs import JOB_NAMES
from lakehead.connectors.airflow.operators.job import LakeheadJobOperator
from lakehead.connectors.airflow.operators.mapped import lakehead_job
from lakehead.connectors.airflow.operators.tables import (
    LakeheadBackfillOperator, LakeheadMaterializeOperator, LakeheadOptimizeOperator,
    LakeheadRebuildTableOperator, LakeheadReplayOperator, LakeheadVacuumOperator,
)
from lakehead.connectors.airflow.sensors import LagSensor
with DAG("all", schedule=None):
    for job in JOB_NAMES:
        LakeheadJobOperator(task_id=f"one_{job}", job=job)
        lakehead_job(job, options={"topic": "{{ params.topic }}"})
    LakeheadMaterializeOperator(task_id="a")
    LakeheadOptimizeOperator(task_id="b")
    LakeheadVacuumOperator(task_id="c")
    LakeheadReplayOperator(task_id="d", topic="t")
    LakeheadBackfillOperator(task_id="e", topic="t")
    LakeheadRebuildTableOperator(task_id="f", topic="t")
    LagSensor(task_id="g", topic="t", under=1)
print(time.process_time() - began)
parts = {tuple(name.split(".")) for name in set(sys.modules) - known}
print(*sorted({".".join(part[: 2 if part[0] == "lakehead" else 1]) for part in parts}))
"""
HEAVY = {
    *("boto3", "confluent_kafka", "delta", "deltalake", "lakehead.broker"),
    *("numba", "numpy", "obstore", "pandas", "pyarrow", "pyspark"),
}


def test_parsing_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seconds, modules = done.stdout.splitlines()[-2:]
    assert not HEAVY & set(modules.split())
    assert float(seconds) < PARSE_S_MAX
