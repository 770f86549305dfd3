"""Two schedulers and two triggerers on one PostgreSQL: each run once, each commit in one event,
pools kept, and what is left when one of them is killed is done by the other.

Slow: `make airflow-test`.
"""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from deltalake import DeltaTable

from lakehead.lake.tables.delta_table import open_table
from lakehead.lake.tables.table_history import commits_since
from tests.changes.postgres import postgres_programs, running_postgres
from tests.support.airflow_parts import Parts, airflow_parts
from tests.support.airflow_rig import ROOT, AirflowClient, Run
from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("airflow"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(postgres_programs() is None, reason="PostgreSQL is not installed"),
    pytest.mark.skipif(
        find_spec("psycopg2") is None or find_spec("asyncpg") is None,
        reason="psycopg2 and asyncpg are not installed: run make airflow-test",
    ),
]

TOPICS = ("orders", "clicks", "lines")
RECORDS = 50
CONSUMERS = ("reader", "watcher")
POOL = "lakehead"
SLOTS = 2
CONSUMING = """
import json
import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task

from lakehead.connectors.airflow.assets import new_data, table_asset, watched_table


def consumer(name, asset):
    with DAG(name, schedule=[asset]) as dag:

        @task(retries=3, retry_delay=timedelta(seconds=1))
        def note(triggering_asset_events, run_id):
            notes = Path(os.environ["AIRFLOW_HOME"], "notes", name)
            notes.mkdir(parents=True, exist_ok=True)
            note = run_id.replace("/", "-")
            part = notes.parent / f"{name}-{note}.part"  # nothing reads a note that is not whole
            part.write_text(json.dumps(new_data(triggering_asset_events)))
            part.rename(notes / note)

        note()
    return dag


reader = consumer("reader", table_asset("orders"))
watcher = consumer("watcher", watched_table("orders", poll_interval=1))
"""


class Rig(NamedTuple):
    """An Airflow, its folder, and the cluster that it keeps, with the number of each topic's
    records.
    """

    parts: Parts
    airflow: AirflowClient
    home: Path
    cluster: Path
    produced: list[int]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("schedulers")
    cluster, dags = folder / "cluster", folder / "dags"
    for topic in TOPICS:
        write_orders(cluster, topic, 0)
        table = {"lakehead.table.enable": "true", "lakehead.table.value.format": "json"}
        configure(cluster, topic, {**table, "retention.ms": "-1"})
    dags.mkdir()
    for path in (ROOT / "dags").glob("lakehead_*.py"):
        (dags / path.name).write_text(path.read_text())
    (dags / "consumers.py").write_text(CONSUMING)
    by_hand = [path.stem for path in dags.glob("lakehead_*.py")]
    schedules = dict.fromkeys(by_hand) | {"lakehead_compact_objects": "* * * * *"}
    variable = {"schedules": schedules, "retries": 3, "retry_delay_s": 1, "pool": POOL}
    home = folder / "airflow"
    with (
        running_postgres() as database,
        airflow_parts(home, cluster, database=database, dags=dags, variable=variable) as running,
    ):
        parts, airflow = running
        airflow.ask("/api/v2/pools", {"name": POOL, "slots": SLOTS})
        known = {*by_hand, *CONSUMERS}
        assert wait_until(lambda: dags_of(airflow) == known, 300), dags_of(airflow)
        yield Rig(parts, airflow, home, cluster, [RECORDS])


def write_orders(cluster: Path, topic: str, first: int) -> None:
    values = [json.dumps({"id": n}).encode() for n in range(first, first + RECORDS)]
    write_topic(cluster, topic, {0: values[::2], 1: values[1::2]}, partitions=2)


def produce(rig: Rig) -> None:
    """Add records to each topic."""
    for topic in TOPICS:
        write_orders(rig.cluster, topic, rig.produced[0])
    rig.produced[0] += RECORDS


def dags_of(airflow: AirflowClient) -> set[str]:
    return {one["dag_id"] for one in airflow.ask("/api/v2/dags?limit=100")["dags"]}


def runs_of(airflow: AirflowClient, dag_id: str) -> list[dict[str, Any]]:
    found = airflow.ask(f"/api/v2/dags/{dag_id}/dagRuns?limit=1000")
    return list(found["dag_runs"])


def tasks_of(airflow: AirflowClient) -> list[dict[str, Any]]:
    return list(airflow.ask("/api/v2/dags/~/dagRuns/~/taskInstances?limit=1000")["task_instances"])


def ids(cluster: Path, topic: str) -> Counter[int]:
    return Counter(DeltaTable(cluster / "tables" / topic).to_pyarrow_table()["id"].to_pylist())


def events(airflow: AirflowClient, topic: str) -> list[dict[str, Any]]:
    """The extras of the events of a table's asset, the oldest first."""
    found = airflow.ask("/api/v2/assets/events?limit=1000&order_by=timestamp")["asset_events"]
    uri = f"lakehead://lakehead_default/tables/{topic}"
    return [one["extra"] for one in found if one["uri"] == uri]


def check(rig: Rig) -> None:
    """Each record is in its table once, each commit in one event that has its offsets, and the
    reader has read each record once; the watcher too, or again after a triggerer's end.
    """
    for topic in TOPICS:
        assert ids(rig.cluster, topic) == Counter(range(rig.produced[0]))
        table = open_table(str(rig.cluster / "tables" / topic))
        assert table is not None
        extras = events(rig.airflow, topic)
        versions = [
            v for extra in extras for first, end in extra["versions"] for v in range(first, end)
        ]
        assert sorted(versions) == [one.version for one in commits_since(table, -1)]
        offsets = offsets_of(extras)
        assert (len(offsets), set(offsets.values())) == (rig.produced[0], {1})
    assert set(offsets_of(noted(rig, "reader")).values()) == {1}


def noted(rig: Rig, dag_id: str) -> list[dict[str, Any]]:
    """The extras that a consumer was started with."""
    files = (rig.home / "notes" / dag_id).glob("*")
    return [extra for file in files for extra in json.loads(file.read_text())]


def offsets_of(extras: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    return Counter(
        (partition, offset)
        for extra in extras
        for partition, (first, end) in extra["offsets"].items()
        for offset in range(first, end)
    )


def is_settled(rig: Rig) -> bool:
    """Return true if the consumers have read what the table has, and no run is left to be done."""
    if any(len(offsets_of(noted(rig, one))) < rig.produced[0] for one in CONSUMERS):
        return False
    left = rig.airflow.ask("/api/v2/dags/~/dagRuns?limit=1000&state=queued&state=running")
    return all(one["dag_id"] == "lakehead_compact_objects" for one in left["dag_runs"])


def most_at_once(tasks: list[dict[str, Any]]) -> int:
    """How many tasks ran at once, by what Airflow says of them."""
    times = [one for one in tasks if one["start_date"] and one["end_date"]]
    moments = [(datetime.fromisoformat(one["start_date"]), 1) for one in times]
    moments += [(datetime.fromisoformat(one["end_date"]), -1) for one in times]
    running = most = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    return most


def test_two_schedulers_run_each_job_once(rig: Rig) -> None:
    """Runs of several DAGs at once, while records come and files are merged."""
    airflow = rig.airflow
    produce(rig)
    runs = [airflow.trigger("lakehead_materialize", all_of_them=True)]
    runs += [airflow.trigger("lakehead_compact_objects", count_min=2)]
    airflow.succeeded(runs[0], 600)
    produce(rig)
    runs += [airflow.trigger("lakehead_materialize", all_of_them=True)]
    runs += [airflow.trigger("lakehead_table_upkeep", all_of_them=True)]
    for run in runs:
        airflow.succeeded(run, 600)
    airflow.succeeds("lakehead_materialize", all_of_them=True)  # tables that upkeep had at its turn
    assert wait_until(lambda: is_settled(rig), 300)
    check(rig)
    assert set(offsets_of(noted(rig, "watcher")).values()) == {1}
    tasks = tasks_of(airflow)
    assert {one["try_number"] for one in tasks if one["state"] == "success"} == {1}
    assert most_at_once([one for one in tasks if one["pool"] == POOL]) <= SLOTS
    dates = [one["logical_date"] for one in runs_of(airflow, "lakehead_compact_objects")]
    assert max(Counter(filter(None, dates)).values(), default=1) == 1


def test_what_a_killed_scheduler_leaves_is_done_by_the_other(rig: Rig) -> None:
    """It ends with its tasks, as a machine, a pod or a unit of systemd does."""
    airflow = rig.airflow
    produce(rig)
    run = airflow.trigger("lakehead_materialize", all_of_them=True)
    work = airflow.awaited(run, "materialize.work", "running")
    above = {one.pid for one in psutil.Process(work["pid"]).parents()}
    [killed] = [one for one in ("scheduler-1", "scheduler-2") if rig.parts.pid(one) in above]
    rig.parts.kill(killed)
    assert wait_until(lambda: is_tried_again(rig, run), 300)
    airflow.succeeded(run, 600)
    rig.parts.start(killed)
    produce(rig)
    airflow.succeeds("lakehead_materialize", all_of_them=True)  # and what was left to another one
    assert wait_until(lambda: is_settled(rig), 300)
    check(rig)


def is_tried_again(rig: Rig, run: Run) -> bool:
    return any(one["try_number"] > 1 for one in rig.airflow.tasks(run, "materialize.work"))


def test_what_a_killed_triggerer_watched_is_watched_by_the_other(rig: Rig) -> None:
    for killed in ("triggerer-1", "triggerer-2"):
        rig.parts.kill(killed)
        produce(rig)
        rig.airflow.succeeds("lakehead_materialize", all_of_them=True)
        assert wait_until(lambda: is_settled(rig), 300)
        rig.parts.start(killed)
    check(rig)
