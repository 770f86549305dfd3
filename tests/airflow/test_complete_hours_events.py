"""Events of complete hours by a real Airflow: each hour once, as a partition of the asset."""

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehead.connectors.airflow.assets import complete_hour, hours_asset, sanitize_uri
from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.tables.complete_hours import HOUR_MS, hour_start
from tests.support.airflow_runs import connect, result_of, run_dag, states
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic

pytestmark = [
    pytest.mark.xdist_group("airflow"),
    pytest.mark.filterwarnings("default"),  # Airflow's own
]

BEGIN = "2026-11-01T00"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    connect(monkeypatch, str(tmp_path))
    return tmp_path


def fill(root: Path, topic: str, hours: Sequence[int]) -> None:
    """Write a record in the middle of each of these hours, and bring them into the table."""
    records = [
        TestRecord(
            offset=0,
            timestamp=hour_start(BEGIN) + hour * HOUR_MS + HOUR_MS // 2,
            value=json.dumps({"hour": hour}).encode(),
        )
        for hour in hours
    ]
    write_topic(root, topic, {0: records}, batch_records=1)
    configure(root, topic, {f"{PREFIX}enable": "true", f"{PREFIX}value.format": "json"})
    tables = DeclaredTables(str(root))
    tables.catch_up(all_of_them=True, on_table=lambda outcome: None)
    tables.close()


def producer(topic: str) -> Any:
    from airflow.sdk import DAG

    from lakehead.connectors.airflow.operators.complete_hours import CompleteHoursOperator

    with DAG(f"hours_of_{topic}", schedule=None) as dag:
        CompleteHoursOperator(
            task_id="hours", topic=topic, begin=BEGIN, lateness=timedelta(minutes=5), idle=None
        )
    return dag


def stored(topic: str) -> list[tuple[str, dict[str, Any]]]:
    """Return partition and extra of the events that Airflow has."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = (
            session.query(AssetEvent)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .filter(AssetModel.uri == hours_asset(topic).uri)
            .order_by(AssetEvent.id)
        )
        return [(str(one.partition_key), one.extra) for one in query]


def test_each_complete_hour_is_one_partition_of_the_asset(cluster: Path) -> None:
    fill(cluster, "orders", [0, 1, 2])
    assert result_of(run_dag(producer("orders")), "hours") == ["2026-11-01T00", "2026-11-01T01"]
    again = run_dag(producer("orders"))
    assert states(again) == {("hours", -1): "skipped"}, "no hour twice"
    fill(cluster, "orders", [3])
    assert result_of(run_dag(producer("orders")), "hours") == ["2026-11-01T02"]
    events = stored("orders")
    assert sorted(key for key, _ in events) == [
        "2026-11-01T00",
        "2026-11-01T01",
        "2026-11-01T02",
    ]
    extra = dict(events)["2026-11-01T01"]
    assert extra["topic"] == "orders"
    assert extra["hours"]["2026-11-01T01"]["offsets"] == {"0": [1, 2]}


def test_a_dag_of_hours_has_a_run_for_each(cluster: Path) -> None:
    from airflow.models.asset import AssetPartitionDagRun
    from airflow.sdk import DAG, PartitionedAssetTimetable, task
    from airflow.utils.session import create_session

    with DAG(
        "report_of_clicks",
        schedule=PartitionedAssetTimetable(assets=hours_asset("clicks")),
        is_paused_upon_creation=False,
    ) as report:

        @task
        def show() -> None:
            """Do nothing."""

        show()
    fill(cluster, "clicks", [0, 1, 2])
    run_dag(producer("clicks"), beside=[report])
    with create_session() as session:
        query = session.query(AssetPartitionDagRun).filter(
            AssetPartitionDagRun.target_dag_id == "report_of_clicks"
        )
        assert sorted(one.partition_key for one in query) == ["2026-11-01T00", "2026-11-01T01"]


def test_a_run_gets_what_the_event_says_of_its_hour() -> None:
    from types import SimpleNamespace

    extra = {
        "topic": "orders",
        "hours": {"2026-11-01T00": {"version": 3, "offsets": {"0": [0, 9]}}},
    }
    events = {hours_asset("orders"): [SimpleNamespace(extra=extra)]}
    assert complete_hour("2026-11-01T00", events) == {
        "topic": "orders",
        "hour": "2026-11-01T00",
        "version": 3,
        "offsets": {"0": [0, 9]},
    }
    assert complete_hour("2026-11-01T01", events) is None


def test_an_asset_of_hours_is_one_of_ours() -> None:
    from urllib.parse import urlsplit

    uri = urlsplit(hours_asset("orders").uri)
    assert sanitize_uri(uri) == uri
    with pytest.raises(ValueError, match="not an asset"):
        sanitize_uri(urlsplit("lakehead://a/tables/orders/days"))
