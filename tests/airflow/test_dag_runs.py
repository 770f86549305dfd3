"""Each DAG by a real scheduler (`airflow standalone`), its effect looked at in bucket and table.

Slow: `make airflow-test`. One Airflow serves all tests; each has a cluster and a connection of its
own.
"""

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import lakehead
from lakehead.storage.jobs.cluster import in_cluster
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import ObjectStore
from tests.support.airflow_rig import AirflowClient, local_airflow
from tests.support.chromium import chromium, opened_page
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow"), pytest.mark.timeout(900)]

PARTITIONS = 2
JSON_TABLE = {"lakehead.table.enable": "true", "lakehead.table.value.format": "json"}
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowClient]:
    """An Airflow whose DAGs run when they are told to, one of them late from the beginning."""
    folder = tmp_path_factory.mktemp("airflow")
    write_topic(folder / "first", "first", {0: [b"{}"]})
    dags = (path.stem for path in (Path(__file__).parents[2] / "dags").glob("lakehead_*.py"))
    variable = {"schedules": dict.fromkeys(dags), "retries": 1, "retry_delay_s": 1}
    variable["deadline_minutes"] = {"lakehead_replay_dead_letters": 0}
    with local_airflow(
        folder / "one", "--path", str(folder / "first"), variable=variable
    ) as running:
        yield running.client()


@pytest.fixture
def conn_id(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W+", "_", request.node.name)


@pytest.fixture
def cluster(airflow: AirflowClient, tmp_path: Path, conn_id: str) -> Path:
    """A cluster with topic orders in ten small objects; the connection has the test's name."""
    root = tmp_path / "cluster"
    for number in range(10):
        write_orders(root, number * 20, 20)
    airflow.connect(conn_id, f"file:{root}")
    return root


def write_orders(root: Path, first: int, count: int) -> None:
    """Add orders by number, to both partitions."""
    values: dict[int, list[bytes]] = {0: [], 1: []}
    for number in range(first, first + count):
        values[number % PARTITIONS].append(json.dumps({"id": number}).encode())
    write_topic(root, "orders", values, partitions=PARTITIONS)


def state_of(root: Path) -> MetadataImage:
    async def look(_: ObjectStore, log: MetadataLog) -> MetadataImage:
        return log.state

    return in_cluster(f"file:{root}", "test", look)


def extents(root: Path, topic: str) -> int:
    state = state_of(root)
    return sum(len(state.streams[one].extents) for one in state.topics[topic].partitions)


def records(root: Path, topic: str) -> list[tuple[int, int, bytes]]:
    batches = lakehead.scan(f"file:{root}", topic, columns=["partition", "offset", "value"])
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows)


def ids(root: Path, topic: str = "orders") -> Counter[int]:
    return Counter(DeltaTable(root / "tables" / topic).to_pyarrow_table()["id"].to_pylist())


def objects(root: Path) -> set[Path]:
    return {path for path in (root / "data").rglob("*") if path.is_file()}


# ----------------------------------------------------------------------- what is done by schedule


def test_a_declared_topic_becomes_a_table(
    airflow: AirflowClient, cluster: Path, conn_id: str
) -> None:
    configure(cluster, "orders", JSON_TABLE)
    write_topic(cluster, "other", {0: [b"no table"]})
    dry = airflow.succeeds("lakehead_materialize", conn_id=conn_id, all_of_them=True, dry_run=True)
    assert airflow.states(dry)["materialize.work"] == {"skipped"}
    assert not (cluster / "tables").exists()
    run = airflow.succeeds("lakehead_materialize", conn_id=conn_id, all_of_them=True)
    assert ids(cluster) == Counter(range(200))
    assert len(airflow.tasks(run, "materialize.work")) == 1
    assert airflow.result(run, "materialize.summary")["records"] == 200
    again = airflow.succeeds("lakehead_materialize", conn_id=conn_id, all_of_them=True)
    assert airflow.result(again, "materialize.summary").get("records", 0) == 0
    assert ids(cluster) == Counter(range(200))


def test_small_objects_become_large_ones_and_the_old_ones_go(
    airflow: AirflowClient, cluster: Path, conn_id: str
) -> None:
    before, small = records(cluster, "orders"), extents(cluster, "orders")
    airflow.succeeds("lakehead_compact_objects", conn_id=conn_id, count_min=4)
    assert extents(cluster, "orders") < small
    assert records(cluster, "orders") == before
    held = objects(cluster)
    airflow.succeeds("lakehead_sweep", conn_id=conn_id, grace_s=0)
    assert objects(cluster) < held
    assert records(cluster, "orders") == before
    report = airflow.succeeds("lakehead_verify", conn_id=conn_id)
    assert airflow.result(report, "verify.summary")["damages_count"] == 0


def test_of_each_key_the_newest_stays(airflow: AirflowClient, cluster: Path, conn_id: str) -> None:
    for number in range(5):
        keyed = [
            TestRecord(offset=n, key=f"k{n % 3}".encode(), value=f"{number}/{n}".encode())
            for n in range(30)
        ]
        write_topic(cluster, "newest", {0: keyed})
    configure(
        cluster,
        "newest",
        {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    )
    airflow.succeeds("lakehead_compact_topics", conn_id=conn_id, topics=["newest"])
    left = records(cluster, "newest")
    assert len(left) < 150
    assert {(0, 147, b"4/27"), (0, 148, b"4/28"), (0, 149, b"4/29")} <= set(left)


def test_old_records_go_but_not_those_that_the_table_waits_for(
    airflow: AirflowClient, cluster: Path, conn_id: str
) -> None:
    old = [
        TestRecord(offset=n, value=json.dumps({"id": n}).encode(), timestamp=1000)
        for n in range(50)
    ]
    for topic in ("plain", "tabled"):
        write_topic(cluster, topic, {0: old})
        configure(cluster, topic, {"retention.ms": str(DAY_MS)})
    configure(cluster, "tabled", JSON_TABLE)
    airflow.succeeds("lakehead_apply_retention", conn_id=conn_id)
    assert records(cluster, "plain") == []
    assert len(records(cluster, "tabled")) == 50
    airflow.succeeds("lakehead_materialize", conn_id=conn_id, all_of_them=True)
    airflow.succeeds("lakehead_apply_retention", conn_id=conn_id)
    assert records(cluster, "tabled") == []
    assert ids(cluster, "tabled") == Counter(range(50))


def test_files_of_a_table_are_kept(airflow: AirflowClient, cluster: Path, conn_id: str) -> None:
    configure(cluster, "orders", JSON_TABLE)
    for number in range(3):
        write_orders(cluster, 200 + 20 * number, 20)
        airflow.succeeds("lakehead_materialize", conn_id=conn_id, all_of_them=True)
    table = cluster / "tables/orders"
    small = len(DeltaTable(table).file_uris())
    run = airflow.succeeds("lakehead_table_upkeep", conn_id=conn_id, all_of_them=True)
    assert len(DeltaTable(table).file_uris()) < small
    assert ids(cluster) == Counter(range(260))
    assert {"optimize.summary", "vacuum.summary"} <= airflow.states(run).keys()


def test_damage_is_told_with_its_place(airflow: AirflowClient, cluster: Path, conn_id: str) -> None:
    broken = max(objects(cluster), key=lambda path: path.stat().st_size)
    content = bytearray(broken.read_bytes())
    content[60] ^= 0xFF
    broken.write_bytes(content)
    run = airflow.trigger("lakehead_verify", conn_id=conn_id, topic="orders")
    assert airflow.ended(run) == "failed"
    [summary] = airflow.tasks(run, "verify.summary")
    assert summary["try_number"] == 1  # another try would find the same
    said = airflow.log(run, summary)
    assert "damage was found: topic orders, partition" in said
    assert broken.name in said


# ---------------------------------------------------------------------------- what is done by hand


def test_a_table_is_compared_with_its_topic(
    airflow: AirflowClient, cluster: Path, conn_id: str
) -> None:
    configure(cluster, "orders", JSON_TABLE)
    airflow.succeeds("lakehead_materialize", conn_id=conn_id, all_of_them=True)
    run = airflow.succeeds("lakehead_attest", conn_id=conn_id, topic="orders")
    assert airflow.result(run, "attest.summary")["rows"] == 200


def test_a_backfill_is_shown_and_approved_first(
    airflow: AirflowClient, cluster: Path, conn_id: str
) -> None:
    configure(cluster, "orders", JSON_TABLE)
    backfill = partial(airflow.decided, "lakehead_backfill", conn_id=conn_id, topic="orders")
    backfill("Approve", begin="0:90,1:90")
    airflow.succeeds("lakehead_materialize", conn_id=conn_id, all_of_them=True)
    assert ids(cluster) == Counter(range(180, 200))

    refused, shown = backfill("Reject")
    assert re.search(r"offsets to add:? 180\b", shown)
    assert "orders from earliest" in shown or airflow.version < (3, 1)
    assert airflow.states(refused)["backfill"] == {"skipped"}
    assert ids(cluster) == Counter(range(180, 200))

    backfill("Approve")
    assert ids(cluster) == Counter(range(200))


def test_dead_letters_are_replayed_when_it_is_approved(
    airflow: AirflowClient, cluster: Path, conn_id: str
) -> None:
    large = json.dumps({"id": 1 << 40}).encode()
    write_topic(cluster, "wide", {0: [b'{"id": 1}', large, b"{"]})
    letters = {**JSON_TABLE, "lakehead.table.on.error": "dead_letter"}
    configure(cluster, "wide", {**letters, "lakehead.table.schema": "id int"})
    airflow.succeeds("lakehead_materialize", conn_id=conn_id, all_of_them=True)
    assert ids(cluster, "wide") == Counter([1])
    configure(cluster, "wide", {"lakehead.table.schema": "id bigint"})
    write_topic(cluster, "wide", {0: [b'{"id": 2}']})
    airflow.succeeds("lakehead_materialize", conn_id=conn_id, all_of_them=True)
    run, shown = airflow.decided(
        "lakehead_replay_dead_letters", "Approve", conn_id=conn_id, topic="wide"
    )
    assert re.search(r"letters:? 2", shown)
    if airflow.version >= (3, 1):
        missed = f"deadline missed: {run.dag_id}, run {run.run_id}"
        assert wait_until(lambda: missed in airflow.log_file.read_text(), 120)
    assert ids(cluster, "wide") == Counter([1, 2, 1 << 40])
    assert airflow.result(run, "replay")["replayed"] == 1


def test_keys_are_forgotten_when_it_is_approved(
    airflow: AirflowClient, cluster: Path, conn_id: str
) -> None:
    keyed = [
        TestRecord(offset=n, key=f"k {n % 3}".encode(), value=json.dumps({"id": n}).encode())
        for n in range(30)
    ]
    write_topic(cluster, "people", {0: keyed})
    configure(cluster, "people", JSON_TABLE)
    airflow.succeeds("lakehead_materialize", conn_id=conn_id, all_of_them=True)
    forget = partial(
        airflow.decided, "lakehead_forget", conn_id=conn_id, topic="people", keys=["k 1"]
    )
    refused, shown = forget("Reject")
    assert re.search(r"records:? 10\b", shown)
    assert airflow.states(refused)["forget"] == {"skipped"}
    assert len(records(cluster, "people")) == 30
    run, _ = forget("Approve", requested_by="the office")
    assert airflow.result(run, "forget")["records"] == 10
    kept = [n for n in range(30) if n % 3 != 1]
    assert [offset for _, offset, _ in records(cluster, "people")] == kept
    assert ids(cluster, "people") == Counter(kept)
    certificate = json.loads((cluster / "forget/0000000001/certificate.json").read_text())
    assert certificate["request"]["requested_by"] == "the office"
    assert certificate["records"] == 10


def test_a_plan_that_was_not_approved_is_not_done(
    airflow: AirflowClient, cluster: Path, conn_id: str
) -> None:
    if airflow.version >= (3, 1):
        pytest.skip("Airflow 3.1 and newer have approvals by a person, and no param for a digest")
    configure(cluster, "orders", JSON_TABLE)
    conf = {"conn_id": conn_id, "topic": "orders", "approved_plan": "0123456789abcdef"}
    run = airflow.trigger("lakehead_backfill", **conf)
    assert airflow.ended(run) == "failed"
    [approve] = airflow.tasks(run, "approve")
    assert approve["try_number"] == 1
    assert "are other ones than in the approved plan" in airflow.log(run, approve)
    assert airflow.states(run)["backfill"] == {"upstream_failed"}


# ------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("dag_id", "conf", "extra", "words"),
    [
        (
            "lakehead_compact_objects",
            {"conn_id": "nowhere"},
            None,
            "there is no connection nowhere: add",
        ),
        ("lakehead_compact_objects", {}, {}, "extra has no path: set it to the cluster's store"),
        ("lakehead_verify", {}, {"path": "/nothing/is/here"}, "there is no cluster in"),
        (
            "lakehead_apply_retention",
            {"topics": ["nope"]},
            {"path": ""},
            "check the topic's name, or create",
        ),
        (
            "lakehead_replay_dead_letters",
            {"topic": "orders"},
            {"path": ""},
            "lakehead.table.enable",
        ),
    ],
    ids=["connection", "path", "place", "topic", "table"],
)
def test_what_cannot_be_is_said_with_the_next_step(
    airflow: AirflowClient,
    cluster: Path,
    dag_id: str,
    conf: dict[str, Any],
    extra: dict[str, str] | None,
    words: str,
    conn_id: str,
) -> None:
    if extra is not None:
        wrong = f"{conn_id}-wrong"
        airflow.connect(wrong, extra.get("path", "") or (f"file:{cluster}" if extra else ""))
        conf = {"conn_id": wrong, **conf}
    run = airflow.trigger(dag_id, **conf)
    assert airflow.ended(run) == "failed"
    [failed] = [one for one in airflow.tasks(run) if one["state"] == "failed"]
    assert failed["try_number"] == 1
    assert words in airflow.log(run, failed)


def test_params_that_cannot_be_start_nothing(airflow: AirflowClient) -> None:
    from urllib.error import HTTPError

    with pytest.raises(HTTPError, match="400"):
        airflow.trigger("lakehead_compact_objects", target_mib=0)


# ------------------------------------------------------------------------------------ the web page


@pytest.mark.skipif(chromium() is None, reason="there is no Chromium: apt-get install chromium")
def test_the_web_page_shows_the_dags_green(
    airflow: AirflowClient, cluster: Path, conn_id: str, tmp_path: Path
) -> None:
    configure(cluster, "orders", JSON_TABLE)
    run = airflow.succeeds("lakehead_materialize", conn_id=conn_id, all_of_them=True)
    with opened_page(tmp_path / "profile") as page:
        page.call("Network.setCookie", name="_token", value=airflow.token, url=airflow.url)
        page.open(f"{airflow.url}/dags")
        page.wait("document.body.innerText.includes('lakehead_verify')", 90)
        assert "12 Dags" in page.text()
        assert "import error" not in page.text().lower()
        page.open(f"{airflow.url}/dags/{run.dag_id}/runs/{run.run_id}")
        page.wait("document.body.innerText.includes('materialize.summary')", 90)
        page.wait("document.body.innerText.toLowerCase().includes('success')", 90)
        assert "Failed" not in page.text()
    shutil.rmtree(tmp_path / "profile", ignore_errors=True)
