"""The DAG files as a DAG processor sees them: quick, whole, and as a deployment sets them."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow import __version__

from lakehead.connectors.airflow.dag_settings import job_form
from lakehead.connectors.airflow.features import DEADLINES

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "dags").glob("*.py"))
PARSE_S_MAX = 1.6 if __version__.startswith("3.0.") else 0.8
"""Seconds of CPU for twelve DAGs, on a machine that runs other tests beside. Airflow 3.0 imports
its API with an operator.
"""
HEAVY = {
    *("adbc_driver_manager", "boto3", "confluent_kafka", "deltalake", "duckdb", "lakehead.broker"),
    *("numba", "numpy", "obstore", "pandas", "polars", "pyarrow", "pyspark"),
}
SCHEDULED = {
    "lakehead_compact_objects",
    "lakehead_compact_topics",
    "lakehead_materialize",
    "lakehead_apply_retention",
    "lakehead_sweep",
    "lakehead_table_upkeep",
    "lakehead_verify",
}
BY_HAND = {
    "lakehead_attest",
    "lakehead_backfill",
    "lakehead_backup",  # until the Variable names its target
    "lakehead_forget",
    "lakehead_replay_dead_letters",
}

# What a run may be given, and what of it is refused.
CONFS: list[tuple[str, dict[str, Any], str]] = [
    ("lakehead_compact_objects", {"target_mib": 64, "dry_run": True}, ""),
    ("lakehead_compact_objects", {"target_mib": 0}, "target_mib"),
    ("lakehead_compact_objects", {"runner": "abacus"}, "runner"),
    ("lakehead_materialize", {"topics": ["orders", "1_000"]}, ""),
    ("lakehead_materialize", {"topics": "orders"}, "topics"),
    ("lakehead_apply_retention", {"conn_id": ""}, "conn_id"),
    ("lakehead_sweep", {"grace_s": 0}, ""),
    ("lakehead_sweep", {"grace_s": -1}, "grace_s"),
    ("lakehead_verify", {"sample_percent": 101}, "sample_percent"),
    ("lakehead_backup", {"target": "s3://copies/orders", "keep_last": 7}, ""),
    ("lakehead_backup", {"keep_last": 0}, "keep_last"),
    ("lakehead_backfill", {"topic": "orders"}, ""),
    ("lakehead_backfill", {}, "topic"),
    ("lakehead_attest", {"topic": "orders", "sample_percent": 5}, ""),
    ("lakehead_attest", {}, "topic"),
    ("lakehead_forget", {"topic": "orders", "keys": ["a b", "hex:00"]}, ""),
    ("lakehead_forget", {"keys": ["a"]}, "topic"),
    ("lakehead_replay_dead_letters", {"topic": ""}, "topic"),
]

# What the Variable may say, and what of it is an import error.
VARIABLES: list[tuple[dict[str, Any], str]] = [
    (
        {
            "schedules": {"lakehead_compact_objects": None, "lakehead_verify": "@daily"},
            "params": {
                "lakehead_compact_objects": {"target_mib": 64},
                "lakehead_backup": {"target": "s3://copies/orders"},
            },
            "deadline_minutes": {"lakehead_compact_objects": 5, "lakehead_apply_retention": None},
            "deadline_callback": "lakehead.connectors.airflow.deadlines.log_missed_deadline",
            "conn_id": "other",
            "pool": "lake",
            "owner": "platform",
            "tags": ["prod"],
            "retries": 5,
        },
        "",
    ),
    ({"schedule": {}}, "unknown field `schedule`"),
    ({"retries": "many"}, "Expected `int`, got `str` - at `$.retries`"),
    ({"params": {"lakehead_compact_objects": {"size": 1}}}, "has no param 'size'"),
]

pytestmark = pytest.mark.xdist_group("airflow")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process of its own found (tests.support.dag_report)."""
    home = tmp_path_factory.mktemp("airflow")
    asked = {
        "confs": [[dag_id, conf] for dag_id, conf, _ in CONFS],
        "variables": [json.dumps(variable) for variable, _ in VARIABLES],
    }
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.dag_report", str(ROOT / "dags"), str(home / "said")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")}
        | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",  # Airflow 3.1 has them in each bag
            "PYTHONPATH": str(ROOT),
        },
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads((home / "said").read_text())
    return found


def test_every_file_is_one_dag_of_its_name(report: dict[str, Any]) -> None:
    assert report["errors"] == {}
    assert {dag_id: dag["file"] for dag_id, dag in report["dags"].items()} == {
        path.stem: path.name for path in FILES
    }
    assert set(report["dags"]) == SCHEDULED | BY_HAND


def test_parsing_is_quick_and_imports_nothing_heavy(report: dict[str, Any]) -> None:
    assert report["seconds"] < PARSE_S_MAX
    parts = [name.split(".") for name in report["modules"]]
    assert {".".join(part[: 2 if part[0] == "lakehead" else 1]) for part in parts} & HEAVY == set()


def test_dags_say_what_they_are(report: dict[str, Any]) -> None:
    for dag_id, dag in report["dags"].items():
        assert len(dag["doc"].splitlines()) > 5, dag_id
        assert "lakehead" in dag["tags"], dag_id
        assert len(dag["tags"]) > 1, dag_id
        assert dag["owners"] == ["lakehead"], dag_id
        assert sorted(dag["described"]) == sorted(dag["params"]), dag_id
        for name in dag["params"].keys() - {"conn_id"}:
            assert f"`{name}`" in dag["doc"], f"{dag_id} does not explain {name}"


def test_dags_and_their_settings_are_documented() -> None:
    page = (ROOT / "docs" / "airflow.md").read_text()
    assert [path.stem for path in FILES if f"| `{path.stem}` |" not in page] == []
    settings = (ROOT / "connectors/airflow/dag_settings.py").read_text()
    [variable] = [
        node
        for node in ast.parse(settings).body
        if isinstance(node, ast.ClassDef) and node.name == "DagSettings"
    ]
    keys = [
        node.target.id
        for node in variable.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    table = page.split("| Key | Default | Meaning |")[1].split("```")[0]
    assert [key for key in keys if f"`{key}`" not in table] == []
    assert len(keys) > 5


def test_dags_run_one_at_a_time_and_have_deadlines(report: dict[str, Any]) -> None:
    for dag_id, dag in report["dags"].items():
        assert dag["max_active_runs"] == 1, dag_id
        assert dag["catchup"] is False, dag_id
        assert len(dag["deadlines"]) == DEADLINES.is_there, dag_id
        assert dag["retries"] == [2], dag_id
    assert {one for one, dag in report["dags"].items() if dag["schedule"]} == SCHEDULED


def test_what_is_done_by_hand_is_shown_and_approved_first(report: dict[str, Any]) -> None:
    for dag_id, last in (
        ("lakehead_backfill", "backfill"),
        ("lakehead_forget", "forget"),
        ("lakehead_replay_dead_letters", "replay"),
    ):
        assert report["dags"][dag_id]["tasks"] == {
            "plan": [],
            "approve": ["plan"],
            last: ["approve"],
        }


@pytest.mark.parametrize("case", range(len(CONFS)), ids=lambda case: str(CONFS[case][:2]))
def test_params_are_checked(report: dict[str, Any], case: int) -> None:
    refused = CONFS[case][2]
    said = report["confs"][case]
    assert (refused in said and said != "") if refused else said == ""


def test_the_variable_goes_before_the_files(report: dict[str, Any]) -> None:
    said = report["variables"][0]
    assert said["errors"] == {}
    compact, retain = (
        said["dags"]["lakehead_compact_objects"],
        said["dags"]["lakehead_apply_retention"],
    )
    assert compact["schedule"] is None
    assert said["dags"]["lakehead_verify"]["schedule"] == "@daily"
    assert said["dags"]["lakehead_backup"]["schedule"] == "20 * * * *"
    assert retain["schedule"] == report["dags"]["lakehead_apply_retention"]["schedule"]
    assert compact["deadlines"] == (["0:05:00"] if DEADLINES.is_there else [])
    assert retain["deadlines"] == []
    assert (compact["owners"], compact["pools"], compact["retries"]) == (
        ["platform"],
        ["lake"],
        [5],
    )
    assert compact["tags"] == ["lakehead", "prod", "storage"]
    assert compact["values"]["target_mib"] == 64
    assert {dag["values"]["conn_id"] for dag in said["dags"].values()} == {"other"}


@pytest.mark.parametrize("case", range(1, len(VARIABLES)))
def test_a_variable_that_makes_no_sense_is_an_import_error(
    report: dict[str, Any], case: int
) -> None:
    errors = report["variables"][case]["errors"]
    assert "lakehead_compact_objects.py" in errors
    assert VARIABLES[case][1] in errors["lakehead_compact_objects.py"]


def test_an_option_with_the_name_of_a_method_of_mappings_gets_its_value() -> None:
    import jinja2

    template = jinja2.Environment().from_string(job_form("forget").options["keys"])
    assert template.render(params={"keys": ["a b"]}) == '["a b"]'


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_dag_files_are_wiring(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
    allowed = (
        "airflow.sdk",
        "airflow.providers.",
        "lakehead.connectors.airflow.",
        "datetime",
        "lakehead.lake.",
    )
    assert [name for name in imported if not name.startswith(allowed)] == []
    plain = (ast.Import, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try)
    assert [type(node) for node in ast.walk(tree) if isinstance(node, plain)] == []
