"""Lineage: OpenLineage's names, and what its own provider makes of our operators.

The provider is no dependency of ours: `make airflow-test` has it.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lakehead.connectors.airflow.lineage import (
    connector_lineage,
    has_openlineage,
    table_dataset,
    table_lineage,
    topic_dataset,
)
from lakehead.connectors.runtime.settings import checked_settings
from lakehead.connectors.settings import ConnectorSettings
from tests.support.airflow_model import AirflowModel, Task
from tests.support.airflow_runs import connect, run_dag, states
from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic

pytestmark = [
    pytest.mark.xdist_group("airflow"),
    pytest.mark.filterwarnings("default"),  # Airflow's own
]
with_provider = pytest.mark.skipif(
    find_spec("openlineage") is None, reason="OpenLineage is not installed: run make airflow-test"
)

JSON_TABLE = {"lakehead.table.enable": "true", "lakehead.table.value.format": "json"}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster with ten orders for a table, which the default connection names with brokers."""
    root = tmp_path / "cluster"
    write_topic(root, "orders", {0: [b'{"id": 1}'] * 10})
    configure(root, "orders", JSON_TABLE)
    connect(monkeypatch, f"file:{root}", host="a:9092,b:9092")
    return root


def test_datasets_are_named_as_openlineage_names_them() -> None:
    path = "s3://lake/prod?region=eu-west-1"
    assert topic_dataset("orders", bootstrap_servers="a:9092, b:9092", path=path) == (
        "kafka://a:9092",
        "orders",
    )
    assert topic_dataset("orders", bootstrap_servers="", path=path) == (
        "lakehead://lake/prod",
        "orders",
    )
    assert topic_dataset("orders", bootstrap_servers="", path="file:/data/store").namespace == (
        "lakehead:///data/store"
    )
    assert table_dataset("s3://lake/prod/tables/orders?region=x") == (
        "s3://lake",
        "prod/tables/orders",
    )
    assert table_dataset("file:///data/tables/orders/") == ("file", "/data/tables/orders")
    assert table_dataset("/data/tables/orders") == ("file", "/data/tables/orders")


def connector(source: dict[str, Any], **sink: Any) -> ConnectorSettings:
    config = {"name": "c", "source": source, "sink": {"type": "topic", **sink}}
    return checked_settings(config, ConnectorSettings, "config")


def test_without_the_provider_there_is_no_lineage(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("lakehead.connectors.airflow.lineage.import_module", absent)
    tables = {"orders": "/tables/orders"}
    assert (
        table_lineage(path="/s", bootstrap_servers="", tables=tables, rows={}, bytes_written={})
        is None
    )
    settings = connector({"type": "files", "path": "/in"}, topic="files")
    assert connector_lineage(settings, bootstrap_servers="a:9092", records=1) is None
    assert has_openlineage() == (find_spec("openlineage") is not None)


def names(lineage: Any) -> tuple[list[tuple[str, str]], list[tuple[str, str, int | None]]]:
    """The inputs, and the outputs with their rows."""
    return (
        [(one.namespace, one.name) for one in lineage.inputs],
        [
            (one.namespace, one.name, facet.rowCount if facet else None)
            for one in lineage.outputs
            for facet in [(one.outputFacets or {}).get("outputStatistics")]
        ],
    )


@with_provider
@pytest.mark.parametrize(
    ("source", "sink", "inputs", "outputs"),
    [
        (
            {"type": "files", "path": "s3://bucket/in?region=x"},
            {"topic": "t"},
            [("s3://bucket", "in")],
            [("kafka://a:9092", "t", 7)],
        ),
        (
            {"type": "delta", "path": "/tables/x", "key": ["id"]},
            {"topic": "t"},
            [("file", "/tables/x")],
            [("kafka://a:9092", "t", 7)],
        ),
        (
            {"type": "topic", "topics": ["x"]},
            {"topic": "{topic}-copy"},
            [("kafka://a:9092", "x")],
            [("kafka://a:9092", "x-copy", 7)],
        ),
        (
            {"type": "topic", "topics": ["x", "y"]},
            {"topic": "{topic}", "kafka": {"bootstrap": {"servers": "b:9092"}}},
            [("kafka://a:9092", "x"), ("kafka://a:9092", "y")],
            [("kafka://b:9092", "x", None), ("kafka://b:9092", "y", None)],
        ),
    ],
    ids=["files", "delta", "topic", "topics to another cluster"],
)
def test_a_connector_s_topic_comes_from_its_source(
    source: dict[str, Any], sink: dict[str, Any], inputs: Any, outputs: Any
) -> None:
    settings = connector(source, **sink)
    found = connector_lineage(settings, bootstrap_servers="a:9092,z:9092", records=7)
    assert names(found) == (inputs, outputs)


def extracted(operator: Any, context: Any) -> Any:
    """What the provider takes from an operator whose task has succeeded."""
    from types import SimpleNamespace

    from airflow.providers.openlineage.extractors.manager import (  # type: ignore[import-not-found]
        ExtractorManager,
    )
    from airflow.utils.state import TaskInstanceState

    run = SimpleNamespace(run_id="r")
    return ExtractorManager().extract_metadata(
        run, operator, TaskInstanceState.SUCCESS, context["ti"]
    )


@with_provider
def test_a_table_that_a_task_was_at_comes_from_its_topic(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if there was nothing new: a run without datasets would cut the line in the graph."""
    from lakehead.connectors.airflow.operators.job import LakeheadJobOperator
    from lakehead.connectors.airflow.operators.mapped import (
        LakeheadPlanOperator,
        LakeheadWorkOperator,
    )
    from lakehead.connectors.airflow.operators.tables import (
        LakeheadMaterializeOperator,
        LakeheadRebuildTableOperator,
    )

    airflow = AirflowModel().answers(monkeypatch)

    def lineage(operator: Any) -> Any:
        context = airflow.begin(Task(dag_id="d", run_id="r", task_id=operator.task_id))
        operator.execute(context)
        airflow.end(context)
        return names(extracted(operator, context))

    def of_table(rows: int) -> Any:
        table = str(cluster.parent / "cluster/tables/orders")
        return [("kafka://a:9092", "orders")], [("file", table, rows)]

    def materialize() -> Any:
        return LakeheadMaterializeOperator(task_id="m", topic="orders")

    assert lineage(materialize()) == of_table(10)
    assert lineage(materialize()) == of_table(0)
    plan = LakeheadPlanOperator(task_id="p", job="materialize", options={"all_of_them": True})
    write_topic(cluster, "orders", {0: [b'{"id": 2}'] * 5})
    context: Any = airflow.begin(Task(dag_id="d", run_id="r", task_id="p"))
    [item] = plan.execute(context)
    work = LakeheadWorkOperator(task_id="w", job="materialize", item=item)
    assert lineage(work) == of_table(5)
    assert lineage(LakeheadRebuildTableOperator(task_id="b", topic="orders")) == of_table(15)
    assert lineage(LakeheadJobOperator(task_id="c", job="compact_objects")) == ([], [])
    assert "non-valid metadata" not in caplog.text


@with_provider
@pytest.mark.slow
def test_openlineage_gets_the_datasets_of_a_run(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the provider's listener, which forks, in a run of a DAG; into a file."""
    from airflow.sdk import DAG, task

    from lakehead.connectors.airflow.assets import table_asset, topic_asset
    from lakehead.connectors.airflow.operators.tables import LakeheadMaterializeOperator

    said = tmp_path / "events.json"
    transport = {"type": "file", "log_file_path": str(said), "append": True}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    with DAG("lineage", schedule=None) as dag:

        @task(inlets=[table_asset("orders")], outlets=[topic_asset("alarms")])
        def read() -> None:
            pass

        LakeheadMaterializeOperator(task_id="table", topic="orders") >> read()
    assert set(states(run_dag(dag)).values()) == {"success"}
    events = [json.loads(line) for line in said.read_text().splitlines()]
    found = {
        event["job"]["name"]: tuple(
            [(one["namespace"], one["name"]) for one in event[kind]]
            for kind in ("inputs", "outputs")
        )
        for event in events
        if event["eventType"] == "COMPLETE"
    }
    table = ("file", str(cluster / "tables/orders"))
    assert found["lineage.table"] == ([("kafka://a:9092", "orders")], [table])
    assert found["lineage.read"] == ([table], [("kafka://a:9092", "alarms")])
