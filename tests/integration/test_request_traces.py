"""Requests of chosen clients are traced to a collector, and those of others are not."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.otlp_collector import Collector
from tests.support.waiting import wait_until

LIMIT_S = 30.0
TOKEN = "Bearer of-the-collector"


class TraceCollector(Collector[ExportTraceServiceRequest]):
    def __init__(self) -> None:
        super().__init__(ExportTraceServiceRequest, "traces")

    def spans(self, api: str) -> list[Span]:
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if span.name == api
        ]

    def clients(self) -> set[str]:
        return {
            one.value.string_value
            for span in self.spans("Produce")
            for one in span.attributes
            if one.key == "messaging.client.id"
        }


def trace(bootstrap: str, clients: str) -> None:
    """Set which clients are traced, while the broker runs."""
    entry = ConfigEntry("trace.client.ids", clients, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "0", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)


def produce(bootstrap: str, client_id: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id})
    producer.produce("orders", b"value")
    assert producer.flush(LIMIT_S) == 0


def test_requests_of_chosen_clients_have_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = TraceCollector()
    monkeypatch.setenv("LAKEHEAD_TRACE_OTLP_HEADERS", f"Authorization={TOKEN}")
    broker = BrokerProcess(tmp_path, (*HASTY, "--trace.otlp.endpoint", collector.url))
    with collector.serving():
        broker.start()
        try:
            produce(broker.bootstrap, "before")
            trace(broker.bootstrap, "till, another")

            def is_traced() -> bool:
                produce(broker.bootstrap, "till")
                produce(broker.bootstrap, "other")
                return bool(collector.spans("Produce"))

            assert wait_until(is_traced, LIMIT_S)
        finally:
            broker.kill()
    assert collector.tokens == {TOKEN}
    assert collector.clients() == {"till"}
    span = collector.spans("Produce")[0]
    assert [event.name for event in span.events] == ["appended", "durable"]
    times = [
        span.start_time_unix_nano,
        *(event.time_unix_nano for event in span.events),
        span.end_time_unix_nano,
    ]
    assert times == sorted(times)
    assert {one.key: one.value.int_value for one in span.attributes}["kafka.correlation_id"] > 0
