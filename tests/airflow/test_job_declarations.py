"""Jobs as data: what commands, operators, forms and docs derive from one declaration."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from airflow.sdk import DAG

from lakehead.broker.cli.app import app
from lakehead.broker.settings import Settings
from lakehead.connectors.airflow.jobs import JOB_NAMES, job_named
from lakehead.connectors.airflow.operators.job import LakeheadJobOperator
from lakehead.connectors.airflow.operators.tables import (
    LakeheadBackfillOperator,
    LakeheadMaterializeOperator,
    LakeheadOptimizeOperator,
    LakeheadRebuildTableOperator,
    LakeheadReplayOperator,
    LakeheadVacuumOperator,
)
from lakehead.lake.jobs.table_jobs import TablesResult, VacuumOptions
from lakehead.lake.jobs.table_maintenance import RETENTION_HOURS
from lakehead.storage.compaction.object_compaction_plan import MergeRules, RebatchSettings
from lakehead.storage.errors import SettingsError
from lakehead.storage.garbage import SweepTimes
from lakehead.storage.jobs import FORMER_JOBS, MAINTENANCE_JOBS
from lakehead.storage.jobs.compact_objects import CompactObjectsOptions
from lakehead.storage.jobs.compact_topics import CompactTopicsResult
from lakehead.storage.jobs.job import JobIncomplete
from lakehead.storage.jobs.options import options_of, parsed
from lakehead.storage.jobs.sweep import SweepOptions
from lakehead.storage.jobs.verify import VerifyOptions, VerifyResult
from lakehead.storage.verification import Damage, Place, lost

pytestmark = pytest.mark.xdist_group("airflow")

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {"replay": "replay-dead-letters"}
"""The commands of jobs that have another name."""
PACKAGES = ("lakehead", "storage", "broker", "lake", "connectors", "dags", "docs")
PLACES = {
    "sweep": ("storage/jobs/sweep.py", "    margin_s: int = option(\n"),
    "materialize": ("lake/jobs/table_jobs.py", "    all_of_them: bool | None = option(\n"),
}
"""A job of storage and one of tables: the module, and the option before which one is added."""
OPTION = """    pace_mib: int = option(
        7, "Delete at most this much a second.", title="Pace, MiB/s", flag="--pace", metavar="MIB",
        least=1,
    )
"""
PROGRAM = """
import contextlib, inspect, io, json, runpy, sys
import lakehead.connectors.airflow.dag_settings as dag_settings
dags, make = [], dag_settings.lakehead_dag
def recorded(*args, **kwargs):
    dags.append(make(*args, **kwargs))
    return dags[-1]
dag_settings.lakehead_dag = recorded
[name] = sys.argv[1:]
runpy.run_path(f"dags/lakehead_{name}.py")
from lakehead.connectors.airflow.operators.job import LakeheadJobOperator
from lakehead.connectors.airflow.operators.tables import LakeheadMaterializeOperator
from lakehead.storage.jobs.options import parsed
from lakehead.connectors.airflow.jobs import job_named
from docs.generate import pages
[dag] = dags
param = dag.params.get_param("pace_mib")
operator = LakeheadJobOperator(task_id="t", job=name, options={"pace_mib": "3"})
job = job_named(name)
shown = io.StringIO()
with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
    from lakehead.broker.cli.app import app
    app([name, "--help"], prog_name="lakehead")
made = pages()
print(json.dumps({
    "param": [param.value, param.description, param.schema],
    "options": dict(dag.get_task(f"{name}.plan").options),
    "doc": "`pace_mib`" in dag.doc_md,
    "value": parsed(job.name, job.options, operator.options).pace_mib,
    "help": "--pace" in shown.getvalue() and "Delete at most this much" in shown.getvalue(),
    "cli": "`--pace MIB`" in made["cli.md"],
    "page": f"| `{name}` | `pace_mib` | `--pace` | `7` |" in made["jobs.md"],
    "operator": "pace_mib" in inspect.signature(LakeheadMaterializeOperator.__init__).parameters,
}))
"""


@pytest.mark.parametrize("job", PLACES)
def test_an_option_is_added_in_one_file(job: str, tmp_path: Path) -> None:
    """Then the command, operators, the DAG's form and documentation, and both pages have it."""
    for name in PACKAGES:
        kept = shutil.ignore_patterns("__pycache__", "images", "*.so")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=kept, symlinks=True)
    place, before = PLACES[job]
    text = (tmp_path / place).read_text()
    assert text.count(before) == 1
    (tmp_path / place).write_text(text.replace(before, OPTION + before))
    kept_env = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, job],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        env=kept_env
        | {"AIRFLOW_HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path), "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["options"]["pace_mib"] == "{{ params['pace_mib'] }}"
    value, description, schema = found["param"]
    assert (value, description) == (7, "Delete at most this much a second.")
    assert (schema["type"], schema["minimum"], schema["title"]) == ("integer", 1, "Pace, MiB/s")
    assert found["value"] == 3
    assert [name for name in ("doc", "help", "cli", "page") if not found[name]] == []
    assert found["operator"] == (job == "materialize")


def test_declared_defaults_are_those_of_the_work() -> None:
    compact, sweep, times = CompactObjectsOptions(), SweepOptions(), SweepTimes()
    assert (compact.rules(), compact.rebatch()) == (MergeRules(), RebatchSettings())
    assert (sweep.grace_s * 1000, sweep.margin_s * 1000) == (times.grace_ms, times.margin_ms)


@pytest.mark.parametrize("name", JOB_NAMES)
def test_every_option_is_explained(name: str) -> None:
    job = job_named(name)
    assert job.name == name
    for one in options_of(job.options):
        assert one.info.help.endswith("."), one.name
        assert one.info.title or not one.info.in_form, one.name
        assert one.info.metavar or one.choices or one.plain_type is bool or not one.info.flag


@pytest.mark.parametrize("name", [name for name in JOB_NAMES if name != "backfill"])
def test_a_job_has_a_command_of_its_name(name: str) -> None:
    job = job_named(name)
    assert job.name == name
    commands: Any = typer.main.get_command(app)
    command = commands.commands[COMMANDS.get(name, name.replace("_", "-"))]
    assert command.help == inspect.cleandoc(job.help)
    flags = {flag for one in command.params for flag in one.opts}
    assert {one.info.flag for one in options_of(job.options) if one.info.flag} <= flags


def test_a_part_in_maintenance_has_its_own_labels_and_the_interval_of_a_setting() -> None:
    parts = [job_named(name).maintenance for name in MAINTENANCE_JOBS]
    assert [name for name in JOB_NAMES if job_named(name).maintenance] == sorted(MAINTENANCE_JOBS)
    labels = [label for part in parts if part for label in part.figures]
    assert len(set(labels)) == len(labels) == 7
    for part in parts:
        assert part is not None
        assert {one.name for one in fields(part.empty)} >= set(part.figures.values())
        assert not part.interval or hasattr(Settings(), part.interval.replace(".", "_"))


def test_a_job_of_tables_keeps_what_their_maintenance_keeps() -> None:
    assert VacuumOptions().retention_hours == RETENTION_HOURS


def test_failures_of_tables_are_named_with_their_topics() -> None:
    failed = [(f"t{number}", SettingsError(f"{number}")) for number in range(5)]
    with pytest.raises(SettingsError) as caught:
        TablesResult(failed=tuple(failed)).plus(TablesResult()).check()
    assert str(caught.value) == "topic t0: 0; topic t1: 1; topic t2: 2 (and 2 more tables)"


def test_a_table_has_one_row_that_of_the_later_result() -> None:
    one = TablesResult(found={"tables": 1}, rows={"a": {"due": True}, "b": {"due": False}})
    both = one.plus(TablesResult(found={"tables": 2}, rows={"a": {"due": False}}))
    assert both.rows == {"a": {"due": False}, "b": {"due": False}}
    assert both.found == {"tables": 3}


@pytest.mark.parametrize(
    "kind",
    [
        LakeheadMaterializeOperator,
        LakeheadOptimizeOperator,
        LakeheadVacuumOperator,
        LakeheadReplayOperator,
        LakeheadBackfillOperator,
        LakeheadRebuildTableOperator,
    ],
)
def test_an_operator_of_tables_takes_the_options_of_its_job(kind: Any) -> None:
    shown = inspect.signature(kind.__init__).parameters
    needed = {"topic": "t"} if shown["topic"].default is inspect.Parameter.empty else {}
    job = job_named(kind(task_id="t", **needed).job)
    options = {one.name: one for one in options_of(job.options) if not one.info.is_of_command}
    assert set(shown) - {"self", "topic", "kwargs"} == set(options) - {"topic"}
    for name in options.keys() - {"topic", "begin"}:
        assert shown[name].default == options[name].default
        assert kind(task_id="t", **needed, **{name: "{{ x }}"}).options[name] == "{{ x }}"


def test_parameters_of_an_operator_come_from_its_dag_or_are_missed() -> None:
    with DAG("d", schedule=None, default_args={"engine": "spark", "topics": ["a"]}):
        table = LakeheadMaterializeOperator(task_id="t")
        one = LakeheadMaterializeOperator(task_id="u", topic="b")
        backfill = LakeheadBackfillOperator(task_id="v", topic="b")
        with pytest.raises(TypeError, match="missing keyword argument 'topic'"):
            LakeheadReplayOperator(task_id="w")
    assert table.options == {"topics": ["a"], "engine": "spark"}
    assert one.options == {"topics": "b", "engine": "spark"}
    assert backfill.options == {"topic": "b", "begin": "earliest", "engine": "spark"}


@pytest.mark.parametrize(("former", "name"), FORMER_JOBS.items())
def test_the_name_that_a_job_had_a_release_ago_is_taken(former: str, name: str) -> None:
    assert LakeheadJobOperator(task_id="t", job=former).job == name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sample_percent": 101}, "option sample_percent of job verify cannot be 101"),
        ({"sample_percent": "0"}, "option sample_percent of job verify cannot be '0'"),
        ({"seed": "x"}, "option seed of job verify cannot be 'x'"),
        ({"sample": 1}, "no option 'sample': there are topic, sample_percent, seed"),
    ],
)
def test_a_value_that_cannot_be_is_refused_wherever_it_comes_from(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        parsed("verify", VerifyOptions, given)


def test_options_that_are_left_empty_have_their_defaults() -> None:
    given = {"topic": "", "sample_percent": None, "seed": "7"}
    assert parsed("verify", VerifyOptions, given) == VerifyOptions(seed=7)


def damage(offset: int) -> Damage:
    place = Place(stream_id=1, topic="t", partition=0, start_offset=offset, end_offset=offset + 1)
    return lost(place, f"data/{offset}")


def test_results_add_up_by_their_fields() -> None:
    one = VerifyResult(objects=1, bytes=2, damages=(damage(5),))
    more = VerifyResult(objects=3, damages=(damage(4),), failures=("x",))
    both = one.plus(more)
    assert both == more.plus(one)
    assert (both.objects, both.bytes, both.failures) == (4, 2, ("x",))
    assert [found.place.start_offset for found in both.damages] == [4, 5]
    empty = VerifyResult()
    assert {name.name for name in fields(empty)} >= set(empty.as_fields()) - {"damages_count"}
    assert empty.plus(one) == one


def test_a_job_that_failed_in_part_says_so() -> None:
    CompactTopicsResult(partitions=3).check()
    failed = CompactTopicsResult(failures=("a-0: lost", "b-1: lost", "c-2: lost"))
    with pytest.raises(JobIncomplete, match=r"^left as it is: a-0: lost; and 2 more$"):
        failed.check()
