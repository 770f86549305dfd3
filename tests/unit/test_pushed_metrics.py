"""Metrics of clients (KIP-714): who may push when, and that no client makes a node large."""

import asyncio
import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import cramjam
import pytest
import zstandard
from immutables import Map
from kio.schema.errors import ErrorCode
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    MetricsData,
)

from lakehead.broker.configs.client_metrics_configs import parse_client_metrics_configs
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import uuid_text
from lakehead.broker.telemetry import client_instances, client_telemetry
from lakehead.broker.telemetry.client_instances import ClientInstance, ClientInstances, Push
from lakehead.broker.telemetry.client_metrics import NAMES_MAX, WINDOW_S, ClientMetrics
from lakehead.broker.telemetry.client_telemetry import ClientTelemetry
from lakehead.broker.telemetry.metrics_data import (
    ELEMENTS_MAX,
    NAME_MAX,
    inflated,
    parsed,
    read_metrics,
    with_attributes,
)
from lakehead.broker.telemetry.subscriptions import ALL_METRICS, MetricsWanted

MAX_BYTES = 100_000
INTERVAL_MS = 1_000
PREFIX = "org.apache.kafka.producer."
CONFIGS: Map[str, Map[str, str]] = Map(
    {"push": Map({"metrics": PREFIX, "interval.ms": str(INTERVAL_MS), "match": "client_id=a.*"})}
)
CLIENT = {"client_id": "app"}
EVERYTHING = MetricsWanted(metrics=(ALL_METRICS,), interval_ms=1)


class SteppedClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


class Known:
    """Clients of a node, and the time of its clock."""

    def __init__(self, configs: Map[str, Map[str, str]] = CONFIGS) -> None:
        self.instances = ClientInstances(random.Random(1), MAX_BYTES)
        self.instances.update(configs)
        self.now_ms = 5_000.0

    def get(self, instance_id: UUID | None = None, client_id: str = "app") -> ClientInstance:
        return self.instances.get(instance_id, {"client_id": client_id}, self.now_ms)

    def push(
        self,
        instance: ClientInstance,
        *,
        subscription_id: int | None = None,
        is_terminating: bool = False,
        codec: int = 4,
        size: int = 10,
    ) -> ErrorCode:
        known = instance.subscription_id if subscription_id is None else subscription_id
        push = Push(
            instance_id=instance.instance_id,
            subscription_id=known,
            is_terminating=is_terminating,
            codec=codec,
            size=size,
        )
        try:
            self.instances.push(push, CLIENT, self.now_ms)
        except KafkaError as error:
            return error.code
        return ErrorCode.none


def test_a_client_gets_an_id_and_the_metrics_of_subscriptions_that_match() -> None:
    known = Known()
    first, second = known.get(), known.get()
    assert first.instance_id != second.instance_id
    assert first.wanted == MetricsWanted(metrics=(PREFIX,), interval_ms=INTERVAL_MS)
    other = known.get(client_id="zed")
    assert other.wanted == MetricsWanted(metrics=(), interval_ms=300_000)


def test_another_node_gives_a_client_the_same_subscription_id() -> None:
    here, there = Known(), Known()
    instance = here.get()
    assert there.push(instance) is ErrorCode.none
    assert here.get(client_id="other").subscription_id != instance.subscription_id


def test_a_push_before_the_interval_is_over_is_throttled() -> None:
    known = Known()
    instance = known.get()
    assert known.push(instance) is ErrorCode.none  # at once after the subscriptions
    known.now_ms += INTERVAL_MS / 2
    assert known.push(instance) is ErrorCode.throttling_quota_exceeded
    known.now_ms += INTERVAL_MS / 2
    assert known.push(instance) is ErrorCode.none
    assert known.instances.throttled_total == 1


def test_subscriptions_are_not_given_again_before_the_interval_is_over() -> None:
    known = Known()
    instance = known.get()
    with pytest.raises(KafkaError) as caught:
        known.get(instance.instance_id)
    assert caught.value.code is ErrorCode.throttling_quota_exceeded
    known.now_ms += INTERVAL_MS
    assert known.get(instance.instance_id) is instance


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"subscription_id": 7}, ErrorCode.unknown_subscription_id),
        ({"codec": 5}, ErrorCode.unsupported_compression_type),
        ({"codec": -1}, ErrorCode.unsupported_compression_type),
        ({"size": MAX_BYTES + 1}, ErrorCode.telemetry_too_large),
    ],
)
def test_a_wrong_push_gets_kafkas_error(wrong: dict[str, int], code: ErrorCode) -> None:
    known = Known()
    instance = known.get()
    assert known.push(instance, **wrong) is code  # type: ignore[arg-type]


def test_after_an_outdated_push_the_subscriptions_are_given_at_once() -> None:
    known = Known()
    instance = known.get()
    assert known.push(instance, subscription_id=7) is ErrorCode.unknown_subscription_id
    assert known.get(instance.instance_id).subscription_id == instance.subscription_id


def test_a_terminating_push_is_never_throttled_and_is_the_last() -> None:
    known = Known()
    instance = known.get()
    assert known.push(instance) is ErrorCode.none
    assert known.push(instance, is_terminating=True) is ErrorCode.none
    known.now_ms += 10 * INTERVAL_MS
    assert known.push(instance) is ErrorCode.invalid_request


@pytest.mark.parametrize("instance_id", [None, UUID(int=0), UUID(int=1)])
def test_a_push_without_an_id_is_refused(instance_id: UUID | None) -> None:
    push = Push(instance_id=instance_id, subscription_id=0, is_terminating=False, codec=0, size=1)
    with pytest.raises(KafkaError) as caught:
        Known().instances.push(push, CLIENT, 0)
    assert caught.value.code is ErrorCode.invalid_request


def test_a_changed_subscription_counts_at_the_next_request() -> None:
    known = Known()
    instance = known.get()
    assert known.push(instance) is ErrorCode.none
    known.instances.update(CONFIGS.set("push", CONFIGS["push"].set("metrics", "*")))
    assert known.push(instance) is ErrorCode.unknown_subscription_id
    assert known.get(instance.instance_id).wanted.metrics == (ALL_METRICS,)


def test_a_client_is_found_by_its_instance_id() -> None:
    known = Known()
    instance = known.get()
    match = f"client_instance_id={uuid_text(instance.instance_id)}"
    known.instances.update(Map({"one": Map({"metrics": "x", "match": match})}))
    assert known.get(instance.instance_id).wanted.metrics == ("x",)
    assert known.get().wanted.metrics == ()


def test_the_clients_that_are_known_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_instances, "INSTANCES_MAX", 50)
    known = Known()
    first = known.get()
    for _ in range(200):
        known.get()
    assert len(known.instances) == 50
    assert known.get(first.instance_id) is not first


def test_a_pattern_that_explodes_and_a_long_attribute_cost_nothing() -> None:
    configs = parse_client_metrics_configs({"match": "client_id=(a+)+b", "metrics": "*"})
    known = Known(Map({"push": Map({k: v for k, v in configs.items() if v is not None})}))
    assert known.get(client_id="a" * 200).wanted.metrics == ()
    assert known.get(client_id="a" * 30_000 + "b").wanted.metrics == ()
    assert known.get(client_id="aab").wanted.metrics == (ALL_METRICS,)


# Payloads.


def payload(**values: float) -> MetricsData:
    """Gauges by these names."""
    data = MetricsData()
    for name, value in values.items():
        metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
        metric.gauge.data_points.add(as_double=value)
    return data


def counted(name: str, value: int, temporality: int = AGGREGATION_TEMPORALITY_DELTA) -> MetricsData:
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    metric.sum.is_monotonic = True
    metric.sum.aggregation_temporality = temporality
    metric.sum.data_points.add(as_int=value)
    return data


PACK: dict[int, Callable[[bytes], Any]] = {
    0: bytes,
    1: cramjam.gzip.compress,
    2: cramjam.snappy.compress_raw,
    3: cramjam.lz4.compress,
    4: zstandard.ZstdCompressor().compress,
}
"""Compressors, by codec."""


@pytest.mark.parametrize("codec", range(5))
def test_a_payload_is_read_in_every_codec(codec: int) -> None:
    plain = payload(up=2.5).SerializeToString()
    packed = bytes(PACK[codec](plain))
    found = read_metrics(parsed(inflated(packed, codec, MAX_BYTES)), EVERYTHING)
    assert found.values["up"].largest == 2.5


@pytest.mark.parametrize("size", [MAX_BYTES + 1, 100 * MAX_BYTES])
@pytest.mark.parametrize("codec", [1, 3, 4])
def test_a_payload_that_inflates_beyond_the_limit_is_refused(codec: int, size: int) -> None:
    with pytest.raises(KafkaError) as caught:
        inflated(bytes(PACK[codec](bytes(size))), codec, MAX_BYTES)
    assert caught.value.code is ErrorCode.telemetry_too_large
    assert len(inflated(bytes(PACK[codec](bytes(MAX_BYTES))), codec, MAX_BYTES)) == MAX_BYTES


@pytest.mark.parametrize("codec", range(5))
def test_a_damaged_payload_is_an_invalid_record(codec: int) -> None:
    with pytest.raises(KafkaError) as caught:
        parsed(inflated(b"\x05\xffnot metrics", codec, MAX_BYTES))
    assert caught.value.code is ErrorCode.invalid_record


def test_a_payload_of_too_many_elements_is_refused() -> None:
    hostile = memoryview(b"\x0a\x00" * (ELEMENTS_MAX + 1))
    with pytest.raises(KafkaError) as caught:
        read_metrics(parsed(hostile), EVERYTHING)
    assert caught.value.code is ErrorCode.invalid_record


def test_only_what_was_subscribed_to_is_taken() -> None:
    wanted = MetricsWanted(metrics=("a.", "b."), interval_ms=1)
    data = payload(**{"a.x": 1.0, "b.y": 2.0, "c.z": 3.0, "a." + "n" * NAME_MAX: 4.0})
    found = read_metrics(data, wanted)
    assert set(found.values) == {"a.x", "b.y"}
    assert found.left_out == 2


def test_increases_are_summed_up_and_other_numbers_averaged() -> None:
    shown = ClientMetrics()
    for _ in range(3):
        shown.add(read_metrics(counted("sent", 5), EVERYTHING), 0.0)
        shown.add(
            read_metrics(counted("total", 9, AGGREGATION_TEMPORALITY_CUMULATIVE), EVERYTHING), 0.0
        )
    shown.add(read_metrics(payload(lag=4.0), EVERYTHING), 0.0)
    shown.add(read_metrics(payload(lag=8.0), EVERYTHING), 0.0)
    assert shown.increases == {"sent": 15.0}
    assert (shown.values["lag"].count, shown.values["lag"].total) == (2, 12.0)
    assert (shown.values["total"].count, shown.values["total"].total) == (3, 27.0)
    assert dict(shown.largest(0.0)) == {"lag": 8.0, "total": 9.0}


def test_the_largest_value_is_one_of_late() -> None:
    shown = ClientMetrics()
    shown.add(read_metrics(payload(lag=8.0), EVERYTHING), 0.0)
    shown.add(read_metrics(payload(lag=3.0), EVERYTHING), WINDOW_S)
    assert dict(shown.largest(WINDOW_S)) == {"lag": 8.0}
    assert dict(shown.largest(2 * WINDOW_S)) == {"lag": 3.0}
    assert dict(shown.largest(3 * WINDOW_S)) == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_a_value_that_would_spoil_a_sum_is_left_out(value: float) -> None:
    shown = ClientMetrics()
    shown.add(read_metrics(payload(lag=value), EVERYTHING), 0.0)
    assert not shown.values


def test_clients_do_not_decide_how_many_series_there_are() -> None:
    shown = ClientMetrics()
    for number in range(NAMES_MAX + 50):
        shown.add(read_metrics(payload(**{f"m{number}": 1.0}), EVERYTHING), 0.0)
    assert len(shown.values) == NAMES_MAX
    assert shown.left_out_total == 50
    shown.add(read_metrics(payload(m0=1.0), EVERYTHING), 0.0)
    assert shown.values["m0"].count == 2


def test_a_forwarded_push_says_which_client_it_is_of() -> None:
    data = payload(up=1.0)
    data.resource_metrics[0].resource.attributes.add(key="client_id").value.string_value = "forged"
    data.resource_metrics[0].resource.attributes.add(key="kept").value.string_value = "yes"
    sent = with_attributes(data, {"client_id": "app"}, MAX_BYTES)
    assert sent is not None
    attributes = MetricsData.FromString(sent).resource_metrics[0].resource.attributes
    assert [(one.key, one.value.string_value) for one in attributes] == [
        ("kept", "yes"),
        ("client_id", "app"),
    ]


def test_attributes_do_not_make_a_forwarded_push_large() -> None:
    data = parsed(memoryview(b"\x0a\x00" * 10_000))
    assert with_attributes(data, {"client_id": "a" * 256}, MAX_BYTES) is None


async def test_pushes_that_wait_to_be_read_are_bounded() -> None:
    """Payloads at the limit come from many clients at once: a few wait, the others are throttled,
    and all is taken in the end.
    """
    telemetry = ClientTelemetry(
        lambda: CONFIGS, SteppedClock(), random.Random(2), MAX_BYTES, forwarder=None
    )
    packed = cramjam.snappy.compress_raw(random.Random(1).randbytes(MAX_BYTES * 9 // 10))
    results: list[ErrorCode] = []

    async def push() -> None:
        instance = telemetry.subscriptions_of(None, CLIENT)
        one = Push(
            instance_id=instance.instance_id,
            subscription_id=instance.subscription_id,
            is_terminating=False,
            codec=2,
            size=len(packed),
        )
        try:
            await telemetry.push(one, bytes(packed), CLIENT)
        except KafkaError as error:
            results.append(error.code)

    async with asyncio.TaskGroup() as pushes:
        for _ in range(20):
            pushes.create_task(push())
    read = client_telemetry.WAITING_PUSHES
    assert results.count(ErrorCode.throttling_quota_exceeded) == 20 - read
    assert results.count(ErrorCode.invalid_record) == read  # random bytes are no metrics
    assert telemetry.refused_total == 20
