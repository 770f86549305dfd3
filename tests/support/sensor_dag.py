"""Runs a DAG of sensors by dag.test(), in a process of its own: `HOME STORE`. Writes records while
they wait; its last line is what became of the tasks, in JSON.
"""

import json
import os
import sys
from pathlib import Path

SOURCE = """
from pathlib import Path

from airflow.sdk import DAG, task

from lakehead.connectors.airflow.sensors import TopicOffsetSensor

with DAG("sensors", schedule=None) as dag:
    # dag.test() runs one task after the other, so each sensor writes what the next one waits for.
    @task
    def write():
        import threading

        from tests.support.topic_writer import write_topic

        threading.Timer(2, write_topic, (Path({store!r}), "orders", {{0: [b"x"] * 5}})).start()

    common = {{"topic": "orders", "poke_interval": 0.1, "timeout": 60}}
    deferred = TopicOffsetSensor(task_id="deferred", offsets=15, deferrable=True, **common)
    poking = TopicOffsetSensor(task_id="poking", offsets="{{{{ 15 }}}}", deferrable=False, **common)
    rescheduled = TopicOffsetSensor(
        task_id="rescheduled", offsets=20, mode="reschedule", deferrable=False, **common
    )
    write() >> deferred >> poking >> write.override(task_id="write_more")() >> rescheduled
"""


def main() -> None:
    """Run it."""
    home, store = Path(sys.argv[1]), sys.argv[2]
    (home / "dags").mkdir()
    (home / "dags" / "sensors.py").write_text(SOURCE.format(store=store))
    connection = {"conn_type": "lakehead", "extra": {"path": store}}
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW_CONN_LAKEHEAD_DEFAULT": json.dumps(connection),
    }
    from airflow.utils.db import initdb

    initdb()
    sys.path.insert(0, str(home / "dags"))
    from importlib import import_module

    run = import_module("sensors").dag.test()
    found = {"states": {one.task_id: one.state for one in run.get_task_instances()}}
    for name in ("poking", "deferred", "rescheduled"):
        instance = run.get_task_instance(name)
        found[name] = instance.xcom_pull(task_ids=name)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
