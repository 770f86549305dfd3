"""Jobs mapped over their items, in runs of Airflow's own task runner."""

import json
from pathlib import Path
from typing import Any

import pytest

from lakehead.lake.tables.delta_table import open_table
from tests.support.airflow_runs import connect, result_of, run_dag, states
from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic

pytestmark = [
    pytest.mark.xdist_group("airflow"),
    pytest.mark.filterwarnings("ignore:Using `httpx` with"),  # of a library of Airflow's
]

XCOM_BYTES_MAX = 2048


def cluster(root: Path, topics: int) -> None:
    for topic in range(topics):
        for number in range(8):
            write_topic(root, f"t{topic}", {0: [json.dumps({"id": number}).encode()]})
        table = {"lakehead.table.enable": "true", "lakehead.table.value.format": "json"}
        configure(root, f"t{topic}", {**table, "retention.ms": "-1"})


def test_plan_work_and_summary_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import DAG

    from lakehead.connectors.airflow.operators.mapped import lakehead_job

    cluster(tmp_path, topics=3)
    connect(monkeypatch, str(tmp_path))
    with DAG("mapped", schedule=None, params={"count": 2}) as dag:
        compact = lakehead_job(
            "compact_objects", options={"count_min": "{{ params.count }}"}, max_tasks=2
        )
        nothing = lakehead_job("compact_topics")
        _ = compact >> nothing
    run = run_dag(dag)

    found = states(run)
    assert set(found.values()) == {"success", "skipped"}
    assert [one for one, state in found.items() if state == "skipped"] == [
        ("compact_topics.work", -1)
    ]
    assert {index for task, index in found if task == "compact_objects.work"} == {0}
    [item] = result_of(run, "compact_objects.plan")
    assert item["units"] == 3
    assert len(json.dumps(item)) < XCOM_BYTES_MAX
    summed = result_of(run, "compact_objects.summary")
    assert (summed["objects_before"], summed["objects_after"]) == (24, 3)
    assert result_of(run, "compact_topics.summary") == {"planned": 0}


def test_a_retry_repeats_the_item_that_failed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two tables has no place to be; then it has one, and its item is tried again."""
    from airflow.sdk import DAG

    from lakehead.connectors.airflow.operators.mapped import lakehead_job

    cluster(tmp_path, topics=2)
    connect(monkeypatch, str(tmp_path))
    blocked = tmp_path / "tables" / "t1"
    blocked.parent.mkdir()
    blocked.write_text("no folder")
    log = tmp_path / "tries"

    def put_right(context: Any) -> None:
        blocked.unlink()
        log.write_text(str(context["ti"].map_index))

    with DAG("retried", schedule=None) as dag:
        lakehead_job(
            "materialize",
            options={"all_of_them": True},
            retries=1,
            retry_delay=0,
            on_retry_callback=put_right,
        )
    run = run_dag(dag)

    assert set(states(run).values()) == {"success"}
    assert log.read_text() == "1"
    tries = {ti.map_index: ti.try_number for ti in run.get_task_instances()}
    assert (tries[0], tries[1]) == (1, 2)
    items: list[dict[str, Any]] = result_of(run, "materialize.plan")
    assert [item["label"] for item in items] == [f"t{n}: 8 records behind" for n in range(2)]
    assert result_of(run, "materialize.summary")["records"] == 16
    for topic in range(2):
        table = open_table(str(tmp_path / "tables" / f"t{topic}"))
        assert table is not None
        assert len(table.handle.to_pyarrow_table()) == 8


@pytest.mark.slow
def test_a_try_that_fails_after_its_commit_leaves_its_event_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Airflow's own database: one event, of the second try; then one of what another brings."""
    from airflow.models.asset import AssetEvent
    from airflow.sdk import DAG
    from airflow.sdk.exceptions import AirflowException
    from airflow.utils.session import create_session

    from lakehead.connectors.airflow.operators.job import LakeheadJobOperator

    class FailsOnce(LakeheadJobOperator):
        def execute(self, context: Any) -> Any:
            done = super().execute(context)
            if context["ti"].try_number == 1:
                raise AirflowException("after the commit")
            write_topic(tmp_path, "t0", {0: [b'{"id": 1}']})
            return done

    cluster(tmp_path, topics=1)
    connect(monkeypatch, str(tmp_path))
    common: dict[str, Any] = {"job": "materialize", "options": {"all_of_them": True}}
    with DAG("told", schedule=None) as dag:
        first = FailsOnce(task_id="first", retries=1, retry_delay=0, **common)
        _ = first >> LakeheadJobOperator(task_id="second", **common)
    run = run_dag(dag)

    assert set(states(run).values()) == {"success"}
    with create_session() as session:
        events = session.query(AssetEvent).filter_by(source_run_id=run.run_id).all()
        found = {one.source_task_id: one.extra for one in events}
    assert len(events) == 2
    assert found["first"]["offsets"] == {"0": [0, 8]}
    assert found["second"]["offsets"] == {"0": [8, 9]}
    assert found["first"]["versions"][-1][1] <= found["second"]["versions"][0][0]
