"""Traces of requests: one span each, from the whole request to its response, sent to a collector by
OTLP.

Requests are traced on demand, by the ids of their clients. A span has the correlation id of its
request, by which it is found beside the client's own log, and events for the steps of the request.
Spans wait for a second at most, bounded in number; those beyond are dropped and counted. A client
decides how long its id is, and how often a fetch looks at what there is: both are cut off.
"""

import asyncio
import random
from collections.abc import Callable

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from lakehead.broker.configs.entries import BrokerValues
from lakehead.broker.protocol.frame import RequestHeader
from lakehead.broker.telemetry.otlp_forwarder import OtlpForwarder
from lakehead.storage.clock import Clock
from lakehead.storage.latency import LatencyHistogram, Timing

SPANS_MAX = 4_096
"""Spans that may wait to be sent."""
EVENTS_MAX = 32
"""Events of a span; it counts those beyond."""
TEXT_MAX = 256
"""Characters of an attribute."""
INTERVAL_S = 1.0
"""Between two messages to the collector, and between two looks at the ids of traced clients."""
TRACED_CLIENTS = "trace.client.ids"
_EVERY_CLIENT = "*"
_NS_PER_S = 1_000_000_000


class RequestTraces:
    """The traces of one node. `configs` returns the present configs of this broker."""

    def __init__(
        self,
        node_id: int,
        configs: Callable[[], BrokerValues],
        clock: Clock,
        rng: random.Random,
        forwarder: OtlpForwarder,
    ) -> None:
        self.clock = clock
        self.rng = rng
        self.forwarder = forwarder
        self.dropped_total: int = 0
        """Spans that were dropped, because too many waited."""
        self._configs = configs
        self._clients: frozenset[str] = frozenset()
        self._spans: list[Span] = []
        self._resource = Resource(
            attributes=[
                _text("service.name", "lakehead"),
                _text("service.instance.id", str(node_id)),
            ]
        )

    def is_traced(self, client_id: str | None) -> bool:
        """Return true if the requests of a client are traced."""
        clients = self._clients
        return bool(clients) and (client_id in clients or _EVERY_CLIENT in clients)

    def begin(
        self, latency: LatencyHistogram, api: str, header: RequestHeader, client_host: str
    ) -> "TracedRequest":
        """Return the timing of a request that begins now."""
        span = Span(
            trace_id=self.rng.randbytes(16),
            span_id=self.rng.randbytes(8),
            name=api,
            kind=Span.SPAN_KIND_SERVER,
            start_time_unix_nano=self.clock.now_ms() * 1_000_000,
            attributes=[
                _text("messaging.system", "kafka"),
                _text("messaging.client.id", header.client_id or ""),
                _text("client.address", client_host),
                _number("kafka.correlation_id", header.correlation_id),
                _number("kafka.api.version", header.version),
            ],
        )
        return TracedRequest(latency, self, span)

    def end(self, span: Span) -> None:
        """Keep a span whose request has its response, until it is sent."""
        if len(self._spans) < SPANS_MAX:
            self._spans.append(span)
        else:
            self.dropped_total += 1

    async def run(self) -> None:
        """Follow the configs and send spans, until this is cancelled."""
        while True:
            value = self._configs().value(TRACED_CLIENTS) or ""
            self._clients = frozenset(filter(None, map(str.strip, value.split(","))))
            self._send()
            await asyncio.sleep(INTERVAL_S)

    def _send(self) -> None:
        spans, self._spans = self._spans, []
        if spans:
            of_node = ResourceSpans(resource=self._resource, scope_spans=[ScopeSpans(spans=spans)])
            message = ExportTraceServiceRequest(resource_spans=[of_node])
            self.forwarder.offer(message.SerializeToString())


class TracedRequest(Timing):
    """A request with a span."""

    __slots__ = ("_span", "_traces")

    def __init__(self, latency: LatencyHistogram, traces: RequestTraces, span: Span) -> None:
        super().__init__(latency, traces.clock)
        self._traces = traces
        self._span = span

    def note(self, event: str) -> None:
        """Add an event that happens now to the span."""
        if len(self._span.events) < EVENTS_MAX:
            self._span.events.append(Span.Event(name=event, time_unix_nano=self._now_ns()))
        else:
            self._span.dropped_events_count += 1

    def stop(self) -> None:
        """End the span: the response is given to the socket now."""
        super().stop()
        self._span.end_time_unix_nano = self._now_ns()
        self._traces.end(self._span)

    def _now_ns(self) -> int:
        """Return the time by the monotonic clock since the begin, which is by the wall clock."""
        return self._span.start_time_unix_nano + int(self.passed_s() * _NS_PER_S)


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value[:TEXT_MAX]))


def _number(key: str, value: int) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(int_value=value))
