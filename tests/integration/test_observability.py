"""The page of a running node: metrics by name, and health that says when the store is failing."""

import json
import random
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from bench.process import free_port
from bench.s3_server import running_server
from lakehead.broker.observability.metrics import METRICS, SUBJECTS
from lakehead.storage.encryption.key_file import add_key
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

SMALL = (
    *("--wal.size", "64m", "--cache.size", "16m", "--offsets.topic.num.partitions", "2"),
    *("--maintain.tables", "true"),
    *("--audit.topic", "audit"),
)
LINE = re.compile(r"^(\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(?!le=)\b(\w+)="([^"]*)"')
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


class Page:
    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def metrics(self) -> dict[str, dict[str, float]]:
        """Values by name and label; the label is empty where there is none."""
        found: dict[str, dict[str, float]] = {}
        with urllib.request.urlopen(f"{self._address}/metrics", timeout=10) as answer:
            for name, labels, value in LINE.findall(answer.read().decode()):
                label = "".join(text for _, text in LABEL.findall(labels))
                found.setdefault(name, {})[label] = float(value)
        return found

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/health")[1])
        return found

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a path."""
        try:
            with urllib.request.urlopen(f"{self._address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def probes(self) -> dict[str, int]:
        """Statuses of the probes."""
        return {path: self.get(path)[0] for path in ("/live", "/ready", "/health")}


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[tuple[BrokerProcess, Page]]:
    port = free_port()
    broker = BrokerProcess(folder, (*SMALL, "--metrics.port", str(port), *flags))
    broker.start()
    try:
        yield broker, Page(port)
    finally:
        broker.kill()


def produce(broker: BrokerProcess, *, wait_s: float = 30) -> int:
    """Produce some records; return how many are not acknowledged when the time is up."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 60_000})
    for number in range(100):
        producer.produce("orders", f"{number}" * 100)
    return producer.flush(wait_s)


@pytest.mark.parametrize("wal", ["block", "object"])
def test_every_metric_of_a_node_is_on_its_page(tmp_path: Path, wal: str) -> None:
    flags = ("--upload.age.ms", "100", *(("--wal", "object:") if wal == "object" else ()))
    if wal == "object":
        add_key(tmp_path / "keys", "first", rng=random.Random(1))
        flags += ("--encryption.key.provider", "file")
        flags += ("--encryption.key.file", str(tmp_path / "keys"))
    with running(tmp_path, *flags) as (broker, page):
        assert produce(broker) == 0
        assert wait_until(lambda: page.metrics()["lakehead_uploads_total"][""] > 0, 20)
        found = page.metrics()
    expected = {
        metric.name + suffix
        for metric in METRICS
        for suffix in SUFFIXES[metric.kind]
        if wal == "object"
        or not (metric.doc.startswith("Object WAL") or metric in SUBJECTS["Encryption at rest"])
        # No client has pushed any, or committed, and no listener has TLS.
        if metric.label not in {"metric", "group", "listener"}
        if not metric.doc.startswith("Standby")
    }
    assert set(found) == expected
    assert found["lakehead_store_calls_total"]["put"] > 0
    assert found["lakehead_store_bytes_total"]["put"] > 10_000
    assert found["lakehead_store_call_seconds_count"] == found["lakehead_store_calls_total"]
    assert found["lakehead_request_seconds_count"]["Produce"] >= 1
    assert 0 < found["lakehead_request_seconds_sum"]["Produce"] < 60
    assert found["lakehead_wal_append_seconds_count"][""] >= 1
    assert found["lakehead_store_cost_dollars_total"][""] > 0
    assert found["lakehead_metadata_entries"][""] > 0
    assert found["lakehead_wal_capacity_bytes"][""] > 0
    if wal == "object":
        assert found["lakehead_wal_puts_total"][""] > 0
        assert found["lakehead_wal_appended_bytes_total"][""] > 10_000
        assert found["lakehead_data_keys_made_total"][""] == 1
        assert found["lakehead_data_keys_cached"][""] >= 1
        assert found["lakehead_data_keys_unwrap_failures_total"][""] == 0


def test_a_path_that_is_not_a_probe_is_not_found(tmp_path: Path) -> None:
    with running(tmp_path) as (_, page):
        # A node listens a moment before it takes part in its cluster and is ready.
        passing = {"/live": 200, "/ready": 200, "/health": 200}
        assert wait_until(lambda: page.probes() == passing, 20)
        for path in ("/healthz", "/readyz", "/status", "/metrics/", "/health/x"):
            status, body = page.get(path)
            assert (status, body) == (404, "/metrics /live /ready /health\n"), path


def test_health_says_when_the_store_is_failing_and_when_it_is_back(
    tmp_path: Path, s3_process: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(tmp_path / "s3" / "buckets") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        flags = ("--store", f"{server.uri}/cluster", "--upload.age.ms", "100")
        with running(tmp_path, *flags) as (broker, page):
            assert produce(broker) == 0
            assert wait_until(lambda: page.metrics()["lakehead_uploads_total"][""] > 0, 30)
            assert page.health() == {"status": "ok", "troubles": []}
            server.stop()
            before = page.metrics()["lakehead_uploads_total"][""]
            assert produce(broker) == 0, "the block WAL takes what the store does not"
            assert wait_until(lambda: page.health()["status"] == "degraded", 30)
            (trouble,) = page.health()["troubles"]
            assert "object store is failing" in trouble
            # Between two tries of a call the node is well for a moment.
            degraded = {"/live": 200, "/ready": 200, "/health": 503}
            assert wait_until(lambda: page.probes() == degraded, 30)
            assert page.metrics()["lakehead_store_failures_total"]["put"] > 0
            server.start()
            assert wait_until(lambda: page.health()["status"] == "ok", 60)
            assert wait_until(lambda: page.metrics()["lakehead_uploads_total"][""] > before, 30)


def test_a_cluster_on_the_page_of_each_of_its_nodes(tmp_path: Path) -> None:
    flags = ("--wal", "object:", "--store", f"file:{tmp_path}/store")
    with ExitStack() as stack:
        pages, brokers = [], []
        for node_id in (0, 1):
            folder = tmp_path / str(node_id)
            folder.mkdir()
            given = (*flags, "--node.id", str(node_id), "--num.partitions", "4")
            broker, page = stack.enter_context(running(folder, *given))
            brokers.append(broker)
            pages.append(page)
        assert wait_until(lambda: all(alive(page) == 2 for page in pages), 30)
        assert produce(brokers[0]) == 0
        # A node that a busy machine held up gets its share a little later.
        assert wait_until(lambda: of_each(pages, "lakehead_partitions_led") == [2, 2], 30)
        assert of_each(pages, "lakehead_partitions_unled") == [0, 0]
        assert of_each(pages, "lakehead_controller") == [1, 0]
        assert brokers[1].stop() == 0
        assert wait_until(lambda: pages[0].metrics()["lakehead_partitions_led"][""] == 4, 30)
        assert wait_until(lambda: alive(pages[0]) == 1, 30)


def of_each(pages: list[Page], metric: str) -> list[float]:
    return [page.metrics()[metric][""] for page in pages]


def alive(page: Page) -> float:
    return page.metrics()["lakehead_cluster_nodes"]["alive"]
