"""Operators on a real cluster in a folder: what they do, what they fail with, how they end."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lakehead.connectors.airflow.jobs import JOB_NAMES
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.jobs.table_lease import TableLeases
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.delta_table import open_table
from lakehead.storage.format.object_names import DataName
from tests.support.airflow_model import AirflowModel, Task
from tests.support.airflow_runs import connect
from tests.support.declared_topics import configure, delete_topic
from tests.support.topic_writer import write_topic

pytestmark = [
    pytest.mark.xdist_group("airflow"),
    pytest.mark.filterwarnings("ignore:Using `httpx` with"),  # of a library of Airflow's
]


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics in many small objects, the first of which has a table."""
    root = tmp_path_factory.mktemp("cluster")
    for number in range(12):
        values = [json.dumps({"id": number * 10 + one}).encode() for one in range(10)]
        write_topic(root, "orders", {0: values, 1: values}, partitions=2)
    write_topic(root, "other", {0: [b"x"]})
    table = {"lakehead.table.enable": "true", "lakehead.table.value.format": "json"}
    configure(root, "orders", {**table, "retention.ms": "-1"})
    return root


@pytest.fixture
def cluster(made_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster of the test's own."""
    shutil.copytree(made_once, tmp_path / "cluster")
    connect(monkeypatch, str(tmp_path / "cluster"))
    return tmp_path / "cluster"


_AIRFLOW = AirflowModel()
_RUNS = itertools.count()


@pytest.fixture(autouse=True)
def airflow(monkeypatch: pytest.MonkeyPatch) -> AirflowModel:
    """What operators take for Airflow, without events."""
    _AIRFLOW.events.clear()
    return _AIRFLOW.answers(monkeypatch)


def context() -> dict[str, Any]:
    """The context of the first try of a task."""
    return _AIRFLOW.begin(Task(dag_id="d", run_id=f"r{next(_RUNS)}", task_id="t"))


def job(name: str, **options: Any) -> Any:
    from lakehead.connectors.airflow.operators.job import LakeheadJobOperator

    more = {key: options.pop(key) for key in ("if_taken", "dry_run") if key in options}
    return LakeheadJobOperator(task_id=name, job=name, options=options, **more)


def run(name: str, **options: Any) -> Any:
    return job(name, **options).execute(context())


def rows(cluster: Path) -> list[int]:
    table = open_table(str(cluster / "tables" / "orders"))
    assert table is not None
    found: list[int] = table.handle.to_pyarrow_table(columns=["id"]).column("id").to_pylist()
    return sorted(found)


WANTED = sorted(2 * list(range(120)))


# --------------------------------------------------------------------------------- what they do


def test_a_cluster_is_kept_by_the_jobs_one_after_the_other(cluster: Path) -> None:
    found = run("verify")
    assert (found["objects"], found["records"], found["damages_count"]) == (13, 241, 0)
    done = run("compact_objects", count_min="2")
    assert (done["objects_before"], done["objects_after"]) == (24, 2)
    made = run("materialize", topics="orders")
    assert (made["records"], made["records_behind"], made["tables"]) == (240, 0, 1)
    assert rows(cluster) == WANTED
    assert run("materialize", all_of_them="true")["commits"] == 0
    assert run("optimize", topics=["orders"])["files_after"] == 1
    assert run("vacuum", topics=["orders"])["removed_files"] == 0
    copied = run("backup", target=f"{cluster}-copies", keep_last="1")
    assert (copied["backup"], copied["objects"], copied["copied_objects"]) == (0, 3, 3)
    configure(cluster, "orders", {"retention.ms": "1"})
    assert run("apply_retention")["records"] == 241
    assert run("sweep", grace_s=0)["objects"] == 15
    assert run("verify")["objects"] == 0
    assert rows(cluster) == WANTED


def test_a_sweep_after_a_rebuild_deletes_what_has_become_garbage_since(cluster: Path) -> None:
    """Objects that the rebuild left out stay while the copy of the old metadata is there."""
    run("rebuild_catalog", replace=True)
    younger = DataName(0, 1, 999_999).key
    (cluster / younger).parent.mkdir(parents=True, exist_ok=True)
    (cluster / younger).write_bytes(b"never committed")
    assert run("sweep", grace_s=0, margin_s=0)["objects"] == 1
    assert not (cluster / younger).exists()


@pytest.mark.parametrize("name", sorted(JOB_NAMES))
def test_a_dry_run_tells_and_changes_nothing(cluster: Path, name: str) -> None:
    run("materialize", all_of_them=True)
    before = sorted(str(one) for one in cluster.rglob("*") if "/meta/log/" not in str(one))
    options: dict[str, dict[str, Any]] = {
        "attest": {"topic": "orders"},
        "backfill": {"topic": "orders", "begin": "earliest"},
        "backup": {"target": f"{cluster}-copies"},
        "compact_objects": {"count_min": 2},
        "forget": {"topic": "orders", "keys": '["a key", "b"]'},
        "materialize": {"topics": "orders"},
        "optimize": {"topics": "orders"},
        "rebuild_table": {"topic": "orders"},
        "replay": {"topic": "orders"},
        "vacuum": {"topics": "orders"},
    }
    found = run(name, dry_run="True", **options.get(name, {}))
    assert found["planned"] >= (0 if name == "compact_topics" else 1)
    assert len(found["would_do"]) == min(found["planned"], 20)
    assert len(json.dumps(found)) < 8192
    assert sorted(str(one) for one in cluster.rglob("*") if "/meta/log/" not in str(one)) == before


def test_a_table_that_grew_makes_an_event_of_its_asset(cluster: Path) -> None:
    told = context()
    job("materialize", topics="orders").execute(told)
    uri = "lakehead://lakehead_default/tables/orders"
    offsets = {"0": [0, 120], "1": [0, 120]}
    extra = {"topic": "orders", "offsets": offsets, "records": 240}
    extra |= {"kind": "materialize", "rows": 240, "versions": [[1, 2]], "told_below": 2}
    [(named, found)] = told["outlet_events"].added
    assert found.pop("at_ms") > 0
    assert (named, found) == (uri, extra)
    _AIRFLOW.end(told)
    again = context()
    job("materialize", topics="orders").execute(again)
    assert again["outlet_events"].added == []


def came(name: str, **options: Any) -> list[tuple[str, dict[str, list[int]], int]]:
    """Run a job; the kind, offsets and rows of its events."""
    told = context()
    job(name, **options).execute(told)
    events = _AIRFLOW.end(told)
    return [(extra["kind"], extra["offsets"], extra["rows"]) for extra in events]


def test_each_job_that_writes_a_table_names_what_became_visible(cluster: Path) -> None:
    declared = {"lakehead.table.on.error": "dead_letter", "lakehead.table.schema": "id int"}
    configure(cluster, "orders", declared)
    assert came("backfill", topic="orders", begin="0:90,1:120") == []  # an empty table
    assert came("materialize", topics="orders") == [("materialize", {"0": [90, 120]}, 30)]
    assert came("backfill", topic="orders", begin="0:40,1:100") == [
        ("backfill", {"0": [40, 90], "1": [100, 120]}, 70)
    ]
    assert came("backfill", topic="orders", begin="0:40,1:100") == []
    good, bad = json.dumps({"id": 1}).encode(), json.dumps({"id": 1 << 40}).encode()
    write_topic(cluster, "orders", {0: [good, bad, good]}, partitions=2)
    assert came("materialize", topics="orders") == [("materialize", {"0": [120, 123]}, 2)]
    assert came("replay", topic="orders") == []
    configure(cluster, "orders", {"lakehead.table.schema": "id bigint"})
    write_topic(cluster, "orders", {0: [good]}, partitions=2)
    assert came("materialize", topics="orders") == [("materialize", {"0": [123, 124]}, 1)]
    assert came("replay", topic="orders") == [("replay", {}, 1)]
    everything = {"0": [0, 124], "1": [0, 120]}
    assert came("rebuild_table", topic="orders") == [("rebuild_table", everything, 244)]


def test_what_a_failed_task_committed_is_in_the_next_event(cluster: Path) -> None:
    """Of its next try, though that finds nothing to do; else of the task that commits next, with
    what a process outside of Airflow brought.
    """
    from airflow.sdk.exceptions import AirflowFailException

    configure(cluster, "orders", {"lakehead.table.schema": "id int"})
    write_topic(cluster, "orders", {0: [json.dumps({"id": 1 << 40}).encode()]}, partitions=2)
    first = context()
    with pytest.raises(AirflowFailException, match="offset 120"):
        job("materialize", topics="orders").execute(first)
    assert _AIRFLOW.end(first, "up_for_retry") == []
    configure(cluster, "orders", {"lakehead.table.schema": "id bigint"})
    with closing(DeclaredTables(str(cluster))) as tables:
        tables.catch_up(all_of_them=True, on_table=lambda _outcome: None)
    other = context()
    write_topic(cluster, "orders", {1: [b'{"id":1}']}, partitions=2)
    job("materialize", topics="orders").execute(other)
    events = [(extra["offsets"], extra["rows"]) for extra in _AIRFLOW.end(other)]
    assert events == [({"0": [120, 121], "1": [120, 121]}, 2)]
    second = _AIRFLOW.begin(first["ti"])
    job("materialize").execute(second)
    events = [(extra["offsets"], extra["rows"]) for extra in _AIRFLOW.end(second)]
    assert events == [({"0": [0, 120], "1": [0, 120]}, 240)]
    # Without another try, the next task has them.
    write_topic(cluster, "orders", {1: [b'{"id":1}', b"{"]}, partitions=2)
    third = context()
    with pytest.raises(AirflowFailException, match="offset 122"):
        job("materialize", topics="orders").execute(third)
    _AIRFLOW.end(third, "failed")
    configure(cluster, "orders", {"lakehead.table.on.error": "drop"})
    assert came("materialize", topics="orders") == [("materialize", {"1": [121, 123]}, 1)]


def test_an_event_of_a_table_that_begins_behind_retention_begins_there(cluster: Path) -> None:
    table = "lakehead.table.enable"  # what a table has not is kept
    configure(cluster, "orders", {"retention.ms": "1", table: "false"})
    run("apply_retention")
    configure(cluster, "orders", {"retention.ms": "-1", table: "true"})
    write_topic(cluster, "orders", {1: [b'{"id":1}'] * 3}, partitions=2)
    assert came("materialize", topics="orders") == [("materialize", {"1": [120, 123]}, 3)]


# --------------------------------------------------------------------------- what they fail with


def test_the_table_of_a_topic_made_again_is_left_as_it_is(cluster: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    run("materialize", topics="orders")
    delete_topic(cluster, "orders")
    write_topic(cluster, "orders", {0: [b'{"id":7}'], 1: []}, partitions=2)
    table = {"lakehead.table.enable": "true", "lakehead.table.value.format": "json"}
    configure(cluster, "orders", table)
    for name, options in (
        ("materialize", {"topics": "orders"}),
        ("replay", {"topic": "orders"}),
        ("backfill", {"topic": "orders", "begin": "earliest"}),
        ("rebuild_table", {"topic": "orders"}),
    ):
        with pytest.raises(AirflowFailException, match="earlier topic") as refused:
            run(name, **options)
        assert "without-history" in str(refused.value), name
        assert rows(cluster) == WANTED, name
    assert run("rebuild_table", topic="orders", without_history=True)["records"] == 1
    assert run("materialize", topics="orders")["records_behind"] == 0
    assert rows(cluster) == [7]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("verify", {"topic": "nope"}, "'nope' does not exist .*: check the topic's name"),
        ("verify", {"sample_percent": "many"}, "option sample_percent of job verify cannot be"),
        ("verify", {"topics": "orders"}, "no option 'topics': there are topic, sample_percent"),
        ("apply_retention", {"topics": ["nope"]}, "nope"),
        (
            "apply_retention",
            {"defaults": {"log.nope": "1"}},
            "log.nope is not a broker default",
        ),
        ("materialize", {"topics": "other"}, "other declares no table"),
        ("materialize", {"topics": "nope"}, "nope"),
        ("optimize", {"topics": "other"}, "other declares no table"),
        ("vacuum", {"topics": "orders", "retention_hours": 1}, "a table keeps 168 hours at least"),
        ("replay", {}, "option topic is missing"),
        ("replay", {"topic": "orders"}, "there is no table"),
        ("backfill", {"topic": "orders"}, "option begin is missing"),
        ("backfill", {"topic": "orders", "begin": "soon"}, "option begin .* cannot be 'soon'"),
        ("backfill", {"topic": "orders", "begin": "7:1"}, "no partition 7"),
        ("rebuild_catalog", {}, "the metadata in .* can be read"),
    ],
)
def test_what_no_retry_puts_right_fails_at_once(
    cluster: Path, name: str, options: dict[str, Any], words: str
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match=words) as caught:
        run(name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [{"job": "nope"}, {"runner": "nope"}, {"if_taken": "nope"}])
def test_what_is_wrong_in_a_dag_is_told_when_it_is_read(given: dict[str, Any]) -> None:
    from lakehead.connectors.airflow.operators.job import LakeheadJobOperator

    with pytest.raises(ValueError, match=f"{next(iter(given))} is 'nope': use "):
        LakeheadJobOperator(task_id="x", **{"job": "verify", **given})


def test_damage_fails_the_task_with_its_place(cluster: Path) -> None:
    victim = next(one for one in sorted((cluster / "data").rglob("*")) if one.is_file())
    data = bytearray(victim.read_bytes())
    data[60] ^= 1
    victim.write_bytes(bytes(data))
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(
        AirflowFailException, match=r"damage was found: topic o\w+, partition 0, offsets"
    ):
        run("verify")


@pytest.fixture
def taken(cluster: Path) -> Iterator[None]:
    """Another writer has the table of orders."""
    leases = TableLeases.open(str(cluster))
    leases.take(store_reader(str(cluster)).open_catalog().topic("orders").topic_id)
    yield
    leases.close()


@pytest.mark.parametrize("name", ["materialize", "optimize", "vacuum"])
def test_a_table_that_another_writes_is_left_to_it(
    cluster: Path, name: str, request: pytest.FixtureRequest
) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

    run("materialize", topics="orders")
    request.getfixturevalue("taken")
    with pytest.raises(AirflowSkipException, match=r"orders is written by .*: left to it"):
        run(name, topics="orders")
    with pytest.raises(AirflowException, match="a later try may find it free") as caught:
        run(name, topics="orders", if_taken="retry")
    assert not isinstance(caught.value, AirflowFailException | AirflowSkipException)


# ------------------------------------------------------------------------------- how they end


class _Ends:
    """Progress, at whose first news the task is asked to end: where a signal would come in."""

    ask: Callable[[], None]

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, _done: int, _total: int) -> None:
        type(self).ask()


@pytest.mark.parametrize("name", ["materialize", "compact_objects", "verify"])
def test_a_task_that_is_asked_to_end_does_and_another_try_goes_on(
    cluster: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    given: dict[str, dict[str, Any]] = {
        "materialize": {"topics": "orders"},
        "compact_objects": {"count_min": 2},
    }
    options = given.get(name, {})
    task = job(name, **options)
    with monkeypatch.context() as patched:
        patched.setattr("lakehead.connectors.airflow.operators.base.ProgressLines", _Ends)
        _Ends.ask = task.on_kill
        with pytest.raises(AirflowException, match="was cancelled") as caught:
            task.execute(context())
        task.on_kill()  # a second signal, when nothing runs any more
    assert not isinstance(caught.value, AirflowFailException)
    state = store_reader(str(cluster)).open_catalog().state
    assert all(not table.until_ms for table in state.tables.values())
    run(name, **options)
    if name == "materialize":
        assert rows(cluster) == WANTED
    assert run("verify")["damages_count"] == 0


def test_what_was_asked_to_end_before_it_began_does_not_begin(cluster: Path) -> None:
    from airflow.sdk.exceptions import AirflowException

    task = job("materialize", topics="orders")
    task.on_kill()
    with pytest.raises(AirflowException, match="was cancelled"):
        task.execute(context())
    assert open_table(str(cluster / "tables" / "orders")) is None


@pytest.mark.parametrize("name", ["optimize", "vacuum"])
@pytest.mark.parametrize("options", [{"all_of_them": True}, {"topics": ["a", "b", "c"]}])
def test_a_table_that_cannot_be_read_fails_its_own_item_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    """Of three tables the second is damaged: the plan has all, and the others are kept."""
    from airflow.sdk.exceptions import AirflowException

    from lakehead.connectors.airflow.operators.mapped import (
        LakeheadPlanOperator,
        LakeheadWorkOperator,
    )

    connect(monkeypatch, str(tmp_path))
    for topic in "abc":
        write_topic(tmp_path, topic, {0: [b'{"id":1}']})
        table = {"lakehead.table.enable": "true", "lakehead.table.value.format": "json"}
        configure(tmp_path, topic, {**table, "retention.ms": "-1"})
    run("materialize", all_of_them=True)
    for log in (tmp_path / "tables" / "b" / "_delta_log").glob("*.json"):
        log.write_text("{")
    plan: Any = LakeheadPlanOperator(task_id="plan", job=name, options=options)
    items = plan.execute(context())
    assert len(items) == 3
    work: list[Any] = [
        LakeheadWorkOperator(task_id="work", job=name, options=options, item=item) for item in items
    ]
    assert work[0].execute(context())["tables"] == 1
    with pytest.raises(AirflowException, match="topic b"):
        work[1].execute(context())
    assert work[2].execute(context())["tables"] == 1
    with pytest.raises(AirflowException, match="topic b"):
        run(name, **options)


@pytest.mark.parametrize("options", [{"all_of_them": True}, {"topics": ["a", "b", "c"]}])
def test_a_declaration_that_cannot_be_fails_its_own_item_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """As an earlier release may have taken it. OPTIMIZE and VACUUM of all leave such a table."""
    from airflow.sdk.exceptions import AirflowException

    from lakehead.connectors.airflow.operators.mapped import (
        LakeheadPlanOperator,
        LakeheadWorkOperator,
    )

    connect(monkeypatch, str(tmp_path))
    for topic in "abc":
        write_topic(tmp_path, topic, {0: [b'{"id":1}']})
        configure(tmp_path, topic, {"lakehead.table.enable": "true"})
    configure(tmp_path, "b", {"lakehead.table.value.format": "xml"})
    for name in ("materialize", "optimize", "vacuum"):
        plan: Any = LakeheadPlanOperator(task_id="plan", job=name, options=options)
        done, failed = 0, []
        for item in plan.execute(context()):
            work: Any = LakeheadWorkOperator(task_id="work", job=name, options=options, item=item)
            try:
                done += work.execute(context())["tables"]
            except AirflowException as error:
                failed.append(str(error))
        assert done == 2, name
        if name == "materialize" or "topics" in options:
            [words] = failed
            assert "topic b: lakehead.table.value.format is one of" in words
            with pytest.raises(AirflowException, match="topic b"):
                run(name, **options)
        else:
            assert not failed
