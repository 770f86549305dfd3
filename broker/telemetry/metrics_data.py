"""Reads what clients push: OpenTelemetry's MetricsData (OTLP 1, in Protobuf), compressed.

Blocking, for a thread: a push may have `telemetry.max.bytes`, compressed or not, and a value is
read in a microsecond or so.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from kio.schema.errors import ErrorCode
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, MetricsData

from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.telemetry.client_metrics import PushedMetrics, Values
from lakehead.broker.telemetry.subscriptions import MetricsWanted
from lakehead.storage.format.compression import BufferTooSmall, inflate_into

NAME_MAX = 200
"""Bytes of a metric's name; a longer one is left out."""
ELEMENTS_MAX = 50_000
"""Resources, scopes, metrics and values that one push may have in all. The default size of a push
has room for a fifth of it.
"""
VALUE_MAX = 2.0**63
"""A value beyond it, such as infinity, would spoil a sum for good: it is left out."""
_ATTRIBUTE_COST = 24
"""Bytes of an attribute beside its name and its value, at most."""
_FIRST_SIZE = 64 << 10


def inflated(payload: bytes, codec: int, max_bytes: int) -> memoryview:
    """Return a payload decompressed. Raises KafkaError of TELEMETRY_TOO_LARGE when it has more than
    `max_bytes`, of INVALID_RECORD when it is not in this codec.
    """
    source = memoryview(payload)
    if codec == 0:
        return source
    size = min(max(_FIRST_SIZE, 4 * len(source)), max_bytes + 1)
    while True:
        target = memoryview(bytearray(size))
        try:
            found = inflate_into(codec, source, target)
        except ValueError as error:
            raise KafkaError(ErrorCode.invalid_record, str(error)) from None
        except BufferTooSmall:
            found = size + 1
        if found <= min(size, max_bytes):
            return target[:found]
        if size > max_bytes:
            raise KafkaError(ErrorCode.telemetry_too_large)
        size = max_bytes + 1


def parsed(payload: memoryview) -> MetricsData:
    """Return a payload as a message. Raises KafkaError of INVALID_RECORD."""
    data = MetricsData()
    try:
        data.ParseFromString(bytes(payload))
    except DecodeError:
        raise KafkaError(ErrorCode.invalid_record, "not OpenTelemetry's MetricsData") from None
    return data


def read_metrics(data: MetricsData, wanted: MetricsWanted) -> PushedMetrics:
    """Return the metrics of a push that were subscribed to. Raises KafkaError of INVALID_RECORD for
    one with too many elements.
    """
    found, elements = PushedMetrics(), _Elements()
    for metric in _metrics(data, elements):
        name = metric.name
        points = _points(metric)
        if points is None or len(name.encode()) > NAME_MAX or not wanted.includes(name):
            found.left_out += 1
            continue
        is_increase = (
            metric.HasField("sum")
            and metric.sum.is_monotonic
            and metric.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
        )
        for value in _numbers(elements.counted(points)):
            if not is_increase:
                found.values.setdefault(name, Values()).add(value)
            elif value >= 0:
                found.increases[name] = found.increases.get(name, 0.0) + value
    return found


class _Elements:
    """Counts the elements of a push, up to ELEMENTS_MAX."""

    def __init__(self) -> None:
        self._count = 0

    def counted(self, elements: Any) -> Any:
        self._count += len(elements)
        if self._count > ELEMENTS_MAX:
            raise KafkaError(ErrorCode.invalid_record, f"more than {ELEMENTS_MAX} elements")
        return elements


def _metrics(data: MetricsData, elements: _Elements) -> Iterator[Any]:
    for resource in elements.counted(data.resource_metrics):
        for scope in elements.counted(resource.scope_metrics):
            yield from elements.counted(scope.metrics)


def _points(metric: Any) -> Any:
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind in {"sum", "gauge"} else None


def _numbers(points: Any) -> Iterator[float]:
    """Yield the values that can be summed up: an average of nothing is not a number."""
    for point in points:
        value = float(point.as_int if point.WhichOneof("value") == "as_int" else point.as_double)
        if abs(value) <= VALUE_MAX:
            yield value


def with_attributes(data: MetricsData, attributes: Mapping[str, str], most: int) -> bytes | None:
    """Return a push as an ExportMetricsServiceRequest, which has the same form, with attributes
    that say which client it is of. Those that the client gives by the same names are replaced.
    None: it would have more than `most` bytes.
    """
    added = sum(
        len(name) + len(value.encode()) + _ATTRIBUTE_COST for name, value in attributes.items()
    )
    if data.ByteSize() + len(data.resource_metrics) * added > most:
        return None
    for resource in data.resource_metrics:
        known = resource.resource.attributes
        kept = [one for one in known if one.key not in attributes]
        del known[:]
        known.extend(kept)
        for name, value in attributes.items():
            known.append(KeyValue(key=name, value=AnyValue(string_value=value)))
    encoded: bytes = data.SerializeToString()
    return encoded
