"""An operator or the sensors of Airflow's provider, in a process and an Airflow home of its own.

`python -m tests.terraform.recording.airflow_programs job STORE JOB OPTIONS | look STORE`
"""

import json
import os
import sys
import tempfile


def job(name: str, options: str) -> None:
    """Execute the operator of a job."""
    from airflow.sdk import Context
    from airflow.sdk.execution_time.context import OutletEventAccessors

    from lakehead.connectors.airflow.operators.job import LakeheadJobOperator

    operator = LakeheadJobOperator(task_id=name, job=name, options=json.loads(options))
    operator.execute(Context(outlet_events=OutletEventAccessors()))


def look() -> None:
    """Try the connection, and look as sensors do."""
    from lakehead.connectors.airflow.hooks import LakeheadHook
    from lakehead.connectors.airflow.sensors import TableFreshSensor, TopicOffsetSensor

    is_well, words = LakeheadHook().test_connection()
    if not is_well:
        raise SystemExit(words)
    TopicOffsetSensor(task_id="offset", topic="orders", offsets=1).poke({})
    TableFreshSensor(task_id="fresh", topic="orders", within=3600).poke({})


def main() -> None:
    """Do what the arguments say."""
    kind, store, *rest = sys.argv[1:]
    connection = {"conn_type": "lakehead", "extra": {"path": store}}
    os.environ["AIRFLOW_CONN_LAKEHEAD_DEFAULT"] = json.dumps(connection)
    with tempfile.TemporaryDirectory(prefix="lakehead-airflow-") as home:
        os.environ["AIRFLOW_HOME"] = home
        os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
        os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{home}/airflow.db"
        if kind == "job":
            job(*rest)
        else:
            look()


if __name__ == "__main__":
    main()
