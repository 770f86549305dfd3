"""Each DAG once by a real scheduler, those by hand with their decision: on every Airflow.

Slow: `make airflow-versions`. The runs are started together, on one cluster, as a busy Airflow has
them; test_dag_runs.py looks at each DAG more closely.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

import lakehead
from tests.support.airflow_rig import AirflowClient, Run, local_airflow
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow"), pytest.mark.timeout(1800)]

RUN_S = 900.0
TABLE = {"lakehead.table.enable": "true", "lakehead.table.value.format": "json"}
DAGS = {path.stem for path in (Path(__file__).parents[2] / "dags").glob("lakehead_*.py")}
BY_HAND = ("lakehead_backfill", "lakehead_forget", "lakehead_replay_dead_letters")
FIRST = "lakehead_materialize"
LAST = "lakehead_attest"
BACKUP = "lakehead_backup"


def made_cluster(root: Path) -> None:
    """Topic people with three keys, in ten small objects, and its table declared; and a topic of
    records that are older than its retention.
    """
    for number in range(10):
        keyed = [
            TestRecord(offset=n, key=f"k{n % 3}".encode(), value=json.dumps({"id": n}).encode())
            for n in range(number * 9, number * 9 + 9)
        ]
        write_topic(root, "people", {0: keyed})
    configure(root, "people", TABLE | {"retention.ms": "-1"})
    write_topic(root, "old", {0: [TestRecord(offset=0, timestamp=1000, value=b"v")]})


def test_each_dag_does_its_work(tmp_path: Path) -> None:
    root = tmp_path / "cluster"
    made_cluster(root)
    variable = {"schedules": dict.fromkeys(DAGS), "retries": 3, "retry_delay_s": 2}
    place = tmp_path / "one"
    with local_airflow(place, "--path", str(root), variable=variable) as running:
        airflow = running.client()
        print("Airflow", airflow.version)
        airflow.succeeded(airflow.trigger(FIRST, all_of_them=True), RUN_S)
        runs = [airflow.trigger(one) for one in DAGS - {FIRST, LAST, BACKUP, *BY_HAND}]
        runs.append(airflow.trigger(BACKUP, target=str(tmp_path / "copies")))
        decided(airflow, runs)
        for run in runs:
            airflow.succeeded(run, RUN_S)
        attested = airflow.trigger(LAST, topic="people")
        airflow.succeeded(attested, RUN_S)
        assert airflow.result(attested, "attest.summary")["rows"] == 60
    kept = [n for n in range(90) if n % 3 != 1]
    assert lakehead.scan(f"file:{root}", "old").read_all().num_rows == 0
    batches = lakehead.scan(f"file:{root}", "people", columns=["offset"])
    assert [row["offset"] for batch in batches for row in batch.to_pylist()] == kept
    table = DeltaTable(root / "tables/people").to_pyarrow_table()
    assert Counter(table["id"].to_pylist()) == Counter(kept)
    certificate = json.loads((root / "forget/0000000001/certificate.json").read_text())
    assert certificate["records"] == 30


def decided(airflow: AirflowClient, runs: list[Run]) -> None:
    """Have the DAGs by hand plan, and approve what they show."""
    confs = {dag_id: {"topic": "people"} for dag_id in BY_HAND}
    confs["lakehead_forget"]["keys"] = ["k1"]  # type: ignore[assignment]
    for dag_id, conf in confs.items():
        run, _ = airflow.decided(dag_id, "Approve", **conf)
        print(dag_id, airflow.states(run), flush=True)
        runs.append(run)
