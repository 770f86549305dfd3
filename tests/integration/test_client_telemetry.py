"""Real clients push their metrics (KIP-714): by subscriptions, to the metrics page and a collector.

A process of its own, since the Java client pushes from Kafka's tools.
"""

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from bench.process import free_port
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.kafka_tools import Tools, require_kafka_tools, run
from tests.support.otlp_collector import Collector
from tests.support.waiting import wait_until

LIMIT_S = 60.0
TOKEN = "Bearer of-the-collector"


class MetricsCollector(Collector[ExportMetricsServiceRequest]):
    """A collector of clients' metrics."""

    def __init__(self) -> None:
        super().__init__(ExportMetricsServiceRequest, "metrics")

    def clients(self) -> set[str]:
        """The ids of clients whose metrics came."""
        return {
            one.value.string_value
            for request in list(self.requests)
            for resource in request.resource_metrics
            for one in resource.resource.attributes
            if one.key == "client_id"
        }


class Rig:
    def __init__(self, folder: Path, collector: MetricsCollector) -> None:
        self.collector = collector
        self._page = free_port()
        flags = ("--metrics.port", str(self._page), "--telemetry.otlp.endpoint", collector.url)
        self.broker = BrokerProcess(folder, (*HASTY, *flags))
        self.tools = Tools(self.broker.bootstrap)

    def page(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/metrics", timeout=30) as page:
            found: str = page.read().decode()
            return found

    def shows(self, *texts: str) -> bool:
        page = self.page()
        return all(text in page for text in texts)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    require_kafka_tools()
    collector = MetricsCollector()
    rig = Rig(tmp_path_factory.mktemp("telemetry"), collector)
    with pytest.MonkeyPatch.context() as patch, collector.serving():
        patch.setenv("LAKEHEAD_TELEMETRY_OTLP_HEADERS", f"Authorization={TOKEN}")
        rig.broker.start()
        try:
            yield rig
        finally:
            rig.broker.kill()


def test_librdkafka_pushes_what_is_subscribed_to_and_stops_when_it_is_not(rig: Rig) -> None:
    subscription = ("kafka-client-metrics", "--name", "librdkafka")
    rig.tools(
        *subscription,
        *("--alter", "--interval", "200", "--metrics", "org.apache.kafka.producer."),
        *("--match", "client_software_name=confluent.*,client_id=app-[0-9]"),
    )
    producer = Producer({"bootstrap.servers": rig.broker.bootstrap, "client.id": "app-7"})
    outside = Producer({"bootstrap.servers": rig.broker.bootstrap, "client.id": "other"})
    for client in (producer, outside):
        client.produce("pushed", b"x")
        assert client.flush(LIMIT_S) == 0
    sent = 'lakehead_client_increase_total{metric="org.apache.kafka.producer.connection.creation'
    assert wait_until(lambda: rig.shows(sent, "lakehead_client_values_total{metric="), LIMIT_S)
    assert "org.apache.kafka.consumer." not in rig.page()
    assert wait_until(lambda: "app-7" in rig.collector.clients(), LIMIT_S)
    assert "other" not in rig.collector.clients()
    assert rig.collector.tokens == {TOKEN}

    rig.tools(*subscription, "--delete")
    assert rig.tools("kafka-client-metrics", "--list").strip() == ""
    assert wait_until(lambda: rig.shows("lakehead_telemetry_subscriptions 0.0"), LIMIT_S)


def test_the_java_client_pushes_and_says_when_it_ends(rig: Rig) -> None:
    rig.tools(
        *("kafka-client-metrics", "--alter", "--name", "java", "--interval", "100"),
        *("--metrics", "*", "--match", "client_software_name=apache-kafka-java"),
    )
    done = run(
        *("kafka-producer-perf-test", "--topic", "perf", "--num-records", "500"),
        *("--record-size", "100", "--throughput", "200"),
        *("--producer-props", f"bootstrap.servers={rig.broker.bootstrap}", "client.id=java-1"),
    )
    assert done.returncode == 0, done.stderr
    name = 'lakehead_client_increase_total{metric="org.apache.kafka.producer.record.send.total"}'
    assert wait_until(lambda: rig.shows(name), LIMIT_S)

    def pushed() -> float:
        (line,) = (one for one in rig.page().splitlines() if one.startswith(name))
        return float(line.split()[-1])

    # The last push, at the end, has the rest, unless the client ends before it has arrived.
    assert wait_until(lambda: pushed() >= 400, LIMIT_S)
    assert pushed() <= 500
    assert wait_until(lambda: "java-1" in rig.collector.clients(), LIMIT_S)
    assert "lakehead_telemetry_not_forwarded_total 0.0" in rig.page()


def test_wrong_configs_are_refused_with_kafkas_words(rig: Rig) -> None:
    alter = ("kafka-client-metrics", "--alter", "--name", "bad")
    assert "interval must be between 100 and 3600000" in rig.tools.refused(
        *alter, "--interval", "5"
    )
    assert "Illegal client matching pattern: nope=1" in rig.tools.refused(
        *alter, "--match", "nope=1"
    )
    assert "bad" not in rig.tools("kafka-client-metrics", "--list")
