"""What befalls DAG runs: killed tasks, dead workers, runs at once, and the end of the Airflow.

Slow: `make airflow-test`.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable

from lakehead.lake.tables.delta_table import open_table
from lakehead.lake.tables.table_history import commits_since
from lakehead.storage.jobs.cluster import in_cluster
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store import ObjectStore
from tests.support.airflow_rig import (
    ROOT,
    AirflowClient,
    LocalAirflow,
    Run,
    local_airflow,
    processes_of,
)
from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow"), pytest.mark.timeout(900)]

RECORDS = 200_000
"""So many that a table of them takes the better part of a second: time to be stopped in."""
SIGTERM_PENDING = 1 << (signal.SIGTERM - 1)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    folder = tmp_path_factory.mktemp("airflow")
    values = [json.dumps({"id": n, "words": f"order {n} " * 10}).encode() for n in range(RECORDS)]
    for partition in range(4):
        part = {partition: values[partition::4]}
        write_topic(folder / "large", "orders", part, partitions=4, batch_records=2000)
    table = {"lakehead.table.enable": "true", "lakehead.table.value.format": "json"}
    configure(folder / "large", "orders", {**table, "retention.ms": "-1"})
    dags = (path.stem for path in (ROOT / "dags").glob("lakehead_*.py"))
    variable = {"schedules": dict.fromkeys(dags), "retries": 2, "retry_delay_s": 1}
    with local_airflow(
        folder / "one", "--path", str(folder / "large"), variable=variable
    ) as process:
        yield process


@pytest.fixture(scope="module")
def airflow(running: LocalAirflow) -> AirflowClient:
    return running.client()


@pytest.fixture
def cluster(running: LocalAirflow) -> Path:
    """A cluster whose table has nothing yet: the one of all, its table in another place."""
    tables = running.folder.with_name("tables")
    table = tables / f"table-{len(list(tables.glob('*')))}"
    table.mkdir(parents=True)
    configure(large(running), "orders", {"lakehead.table.path": f"file:{table}"})
    return table


def large(running: LocalAirflow) -> Path:
    return running.folder.with_name("large")


def ids(table: Path) -> Counter[int]:
    return Counter(DeltaTable(table).to_pyarrow_table(columns=["id"])["id"].to_pylist())


EVERY = Counter(range(RECORDS))


def stopped_in_the_middle(airflow: AirflowClient, table: Path) -> tuple[Run, psutil.Process]:
    """Start a run, and stop the process of its work once that has the table's lease, before it has
    committed anything.
    """
    log = table.parents[1] / "large" / "meta" / "log"
    known = set(log.iterdir())
    run = airflow.trigger("lakehead_materialize", all_of_them=True)
    process = psutil.Process(airflow.awaited(run, "materialize.work", "running")["pid"])
    assert wait_until(lambda: set(log.iterdir()) != known, 120)
    process.suspend()
    assert airflow.tasks(run, "materialize.work")[0]["state"] == "running"
    assert not (table / "_delta_log").exists() or not ids(table)
    return run, process


def lease_until_ms(table: Path) -> int:
    async def look(_: ObjectStore, log: MetadataLog) -> int:
        return log.state.tables[log.state.topics["orders"].topic_id].until_ms

    return in_cluster(f"file:{table.parents[1]}/large", "test", look)


def is_told_to_end(process: psutil.Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending.split()[1], 16) & SIGTERM_PENDING)


def kill_task(task: psutil.Process) -> None:
    task.send_signal(signal.SIGKILL)


def kill_worker(task: psutil.Process) -> None:
    """Of the executor: the process that watches the task's and tells how it is; and the task, as
    when the machine is gone.
    """
    worker = task.parent()
    assert worker is not None
    worker.send_signal(signal.SIGKILL)
    task.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("kill", [kill_task, kill_worker])
def test_a_run_that_is_killed_in_the_middle_is_tried_again(
    airflow: AirflowClient, cluster: Path, kill: Callable[[psutil.Process], None]
) -> None:
    run, task = stopped_in_the_middle(airflow, cluster)
    kill(task)
    airflow.succeeded(run, 600)
    [work] = airflow.tasks(run, "materialize.work")
    assert work["try_number"] > 1
    assert ids(cluster) == EVERY


def jvms(task: psutil.Process) -> list[psutil.Process]:
    """The JVMs of a task's Spark; the one that only prepares its command is none."""
    found = []
    for one in task.children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if one.name() == "java" and "org.apache.spark.deploy.SparkSubmit" in one.cmdline():
                found.append(one)
    return found


def has_worker(jvm: psutil.Process) -> bool:
    try:
        return bool(jvm.children())
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("at", ["start", "work"])
@pytest.mark.parametrize("kill", ["jvm", "task"])
def test_a_run_on_spark_that_is_killed_is_tried_again(
    airflow: AirflowClient, cluster: Path, kill: str, at: str
) -> None:
    """The JVM or the task, as it starts Spark or once that has a worker for its items."""
    on_spark = {"runner": "spark", "spark_master": "local[1]"}
    run = airflow.trigger("lakehead_materialize", all_of_them=True, **on_spark)
    task = psutil.Process(airflow.awaited(run, "materialize.work", "running")["pid"])
    assert wait_until(lambda: jvms(task) != [], 120)
    if at == "work":
        assert wait_until(lambda: any(map(has_worker, jvms(task))), 120)
    started = jvms(task)
    for process in [task] if kill == "task" else started:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    airflow.succeeded(run, 600)
    assert not any(one.is_running() for one in started)
    [work] = airflow.tasks(run, "materialize.work")
    assert work["try_number"] > 1
    if kill == "jvm":
        assert "Spark" in reason(airflow.log(run, work, 1))
    assert ids(cluster) == EVERY
    table = open_table(str(cluster))
    assert table is not None
    commits = {one.version: one.at_ms for one in commits_since(table, -1)}
    found = airflow.ask("/api/v2/assets/events?limit=1000")["asset_events"]
    extras = [one["extra"] for one in found if one["extra"].get("at_ms") in commits.values()]
    versions = [v for one in extras for first, end in one["versions"] for v in range(first, end)]
    assert sorted(versions) == sorted(commits)
    assert sum(one["records"] for one in extras) == RECORDS


def reason(log: str) -> str:
    """The error that a try ended with, which is one line of ours."""
    [line] = [line for line in log.splitlines() if "a retry resumes" in line]
    return line


def test_a_task_that_is_told_to_end_gives_its_lease_back(
    airflow: AirflowClient, cluster: Path
) -> None:
    """Marked as failed in the web page: the lease is free at once, not when it runs out."""
    run, task = stopped_in_the_middle(airflow, cluster)
    assert lease_until_ms(cluster) > 0
    [work] = airflow.tasks(run, "materialize.work")
    airflow.ask(
        f"{run.path}/taskInstances/materialize.work/{work['map_index']}",
        {"new_state": "failed"},
        method="PATCH",
    )
    assert wait_until(lambda: is_told_to_end(task), 120)
    task.resume()
    assert wait_until(lambda: not task.is_running() or task.status() == "zombie", 60)
    assert lease_until_ms(cluster) == 0
    again = airflow.succeeds("lakehead_materialize", all_of_them=True)
    assert airflow.result(again, "materialize.summary").get("tables_taken", 0) == 0
    assert ids(cluster) == EVERY


def test_two_runs_at_once_and_maintenance_elsewhere_add_each_record_once(
    airflow: AirflowClient, running: LocalAirflow, cluster: Path
) -> None:
    """The second run waits for the first; `lakehead maintain` on another machine does not."""
    runs = [airflow.trigger("lakehead_materialize", all_of_them=True) for _ in range(2)]
    compacting = airflow.trigger("lakehead_compact_objects", count_min=2, target_mib=1)
    path = str(large(running))
    elsewhere = subprocess.run(
        [sys.executable, "-m", "lakehead", "maintain", "--path", path, "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert elsewhere.returncode == 0, elsewhere.stderr
    states = [airflow.ended(run, 600) for run in [*runs, compacting]]
    assert states == ["success", "success", "success"]
    airflow.succeeds("lakehead_materialize", all_of_them=True)  # what was left to the other one
    assert ids(cluster) == EVERY


def test_the_same_folder_is_not_taken_twice(running: LocalAirflow, airflow: AirflowClient) -> None:
    path = str(large(running))
    with local_airflow(running.folder, "--path", path) as second:
        assert second.process.wait(60) == 1
        assert "another one runs in" in second.said.read_text()
    assert airflow.ask("/api/v2/monitor/health")["scheduler"]["status"] == "healthy"


def test_nothing_is_left_when_it_is_killed(running: LocalAirflow, airflow: AirflowClient) -> None:
    """The last of this file: it ends the Airflow of all.

    A part that does not take the signal of an orderly end does not live on either.
    """
    home = running.folder / "airflow"
    (scheduler,) = (
        one
        for one in psutil.process_iter(["cmdline"])
        if "scheduler" in (one.info["cmdline"] or ()) and str(home) in one.environ().values()
    )
    scheduler.suspend()
    running.process.kill()
    assert wait_until(lambda: processes_of(home) == [], 60), processes_of(home)
