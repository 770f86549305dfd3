"""Says what Airflow makes of DAG files, as JSON: `python -m tests.support.dag_report FOLDER TO`.

Of standard input: {"confs": [[dag id, conf], ...], "variables": [text, ...]}. A process of its own,
so that what is measured and imported is what a DAG processor would, and in a fresh home.
"""

import copy
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VARIABLE = "AIRFLOW_VAR_LAKEHEAD_DAGS"


def main() -> None:
    asked = json.load(sys.stdin)
    import airflow.sdk  # noqa: F401

    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # before Airflow 3.2
        from airflow.models.dagbag import DagBag  # type: ignore[no-redef]

    with tempfile.TemporaryDirectory() as empty:
        loaded(DagBag, empty)  # a DAG processor has imported what Airflow itself needs for it
    before = set(sys.modules)
    began = time.process_time()
    bag = loaded(DagBag, sys.argv[1])
    seconds = time.process_time() - began
    report: dict[str, Any] = {
        "seconds": seconds,
        "modules": sorted(set(sys.modules) - before),
        "errors": errors(bag),
        "dags": {dag_id: shown(dag) for dag_id, dag in bag.dags.items()},
        "confs": [refusal(bag.dags[dag_id], conf) for dag_id, conf in asked["confs"]],
        "variables": [],
    }
    for text in asked["variables"]:
        os.environ[VARIABLE] = text
        other = loaded(DagBag, sys.argv[1])
        dags = {dag_id: shown(dag) for dag_id, dag in other.dags.items()}
        report["variables"].append({"errors": errors(other), "dags": dags})
    Path(sys.argv[2]).write_text(json.dumps(report))


def loaded(bag_of: Any, folder: str) -> Any:
    return bag_of(dag_folder=folder, safe_mode=True)


def errors(bag: Any) -> dict[str, str]:
    return {Path(path).name: text for path, text in bag.import_errors.items()}


def refusal(dag: Any, conf: dict[str, Any]) -> str:
    """What is wrong with a run's params; nothing if they will do."""
    from airflow.providers.common.compat.sdk import ParamValidationError

    params = copy.deepcopy(dag.params)
    try:
        params.update(conf)
        params.validate()
    except ParamValidationError as error:
        return str(error).splitlines()[0]
    return ""


def alerts(dag: Any) -> list[Any]:
    """The deadlines of a DAG: none in Airflow 3.0, one in 3.1, a list in later ones."""
    found = getattr(dag, "deadline", None) or []
    return found if isinstance(found, list) else [found]


def value(param: Any) -> Any:
    return param.value if param.has_value else None


def shown(dag: Any) -> dict[str, Any]:
    return {
        "file": Path(dag.fileloc).name,
        "doc": dag.doc_md or "",
        "tags": sorted(dag.tags),
        "owners": sorted({task.owner for task in dag.tasks}),
        "pools": sorted({task.pool for task in dag.tasks}),
        "retries": sorted({task.retries for task in dag.tasks}),
        "params": {name: dag.params.get_param(name).schema for name in dag.params},
        "values": {name: value(dag.params.get_param(name)) for name in dag.params},
        "described": [name for name in dag.params if dag.params.get_param(name).description],
        "schedule": dag.schedule,
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "deadlines": [str(alert.interval) for alert in alerts(dag)],
        "callbacks": [alert.callback.path for alert in alerts(dag)],
        "tasks": {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks},
    }


if __name__ == "__main__":
    main()
