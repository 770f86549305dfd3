"""Spans of requests have bounds, whatever their clients send."""

import random

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from lakehead.broker.configs.entries import BrokerValues
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.frame import RequestHeader
from lakehead.broker.telemetry.otlp_forwarder import OtlpForwarder
from lakehead.broker.telemetry.request_traces import EVENTS_MAX, TEXT_MAX, RequestTraces
from lakehead.storage.clock import SystemClock
from lakehead.storage.latency import LatencyHistogram


def no_configs() -> BrokerValues:
    raise NotImplementedError


def test_a_span_keeps_its_first_events_and_the_beginning_of_a_long_client_id() -> None:
    forwarder = OtlpForwarder("http://localhost:4318/v1/traces", "", "trace", "traces")
    traces = RequestTraces(0, no_configs, SystemClock(), random.Random(1), forwarder)
    header = RequestHeader(1, 12, 7, "c" * 32_000, 0, schema(1, 12))
    request = traces.begin(LatencyHistogram(), "Fetch", header, "127.0.0.1")
    for _ in range(EVENTS_MAX + 5):
        request.note("waits for records")
    request.stop()
    (span,) = traces._spans
    assert isinstance(span, Span)
    assert (len(span.events), span.dropped_events_count) == (EVENTS_MAX, 5)
    texts = {one.key: one.value.string_value for one in span.attributes}
    assert texts["messaging.client.id"] == "c" * TEXT_MAX
