"""Real clients keep to their quotas, and Kafka's tools set them: bytes per second of producers and
consumers within a tenth, throttle times as Kafka's own.

`BROKER=kafka` runs it on Kafka.
"""

import asyncio
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.process import ServerProcess
from lakehead.broker.protocol.api import schema
from tests.support.broker_process import HASTY, server_under_test
from tests.support.kafka_tools import Tools, require_kafka_tools, run
from tests.support.node_client import Client, close_clients
from tests.support.repetitions import repetitions
from tests.support.wire import Batch

KIB = 1 << 10
RATE = 400 * KIB
WINDOW_S = 10.0
"""A client that begins may use so many seconds' worth of its quota at once."""
MEASURED_S = repetitions(30, 12)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    require_kafka_tools()
    with server_under_test(tmp_path_factory.mktemp("quotas"), *HASTY) as running:
        yield running


@pytest.fixture(scope="module")
def tools(server: ServerProcess) -> Tools:
    made = Tools(server.bootstrap)
    for topic in ("t", "filled", "measured"):
        made("kafka-topics", "--create", "--topic", topic, "--partitions", "1")
    return made


def set_quota(tools: Tools, client_id: str, quotas: str) -> None:
    tools(
        *("kafka-configs", "--alter", "--entity-type", "clients", "--entity-name", client_id),
        *("--add-config", quotas),
    )


def test_tools_set_show_and_remove_quotas_of_each_level(tools: Tools) -> None:
    levels = [
        (("--entity-type", "users", "--entity-name", "ann"), "user-principal 'ann'"),
        (("--entity-type", "users", "--entity-default"), "the default user-principal"),
        (("--entity-type", "clients", "--entity-name", "app"), "client-id 'app'"),
        (
            (
                *("--entity-type", "users", "--entity-name", "ann"),
                *("--entity-type", "clients", "--entity-default"),
            ),
            "user-principal 'ann', the default client-id",
        ),
    ]
    for entity, shown in levels:
        added = ("--alter", "--add-config", "producer_byte_rate=123456,request_percentage=200")
        tools("kafka-configs", *entity, *added)
        described = tools("kafka-configs", *entity, "--describe")
        assert f"Quota configs for {shown} are" in described
        assert "producer_byte_rate=123456.0" in described
        removed = ("--alter", "--delete-config", "producer_byte_rate,request_percentage")
        tools("kafka-configs", *entity, *removed)
        assert "producer_byte_rate" not in tools("kafka-configs", *entity, "--describe")


@pytest.mark.slow
def test_a_producer_keeps_to_its_quota(server: ServerProcess, tools: Tools) -> None:
    set_quota(tools, "producer", f"producer_byte_rate={RATE}")
    throttled: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "client.id": "producer",
            "linger.ms": 5,
            "batch.size": 64 * KIB,
            "queue.buffering.max.kbytes": 2 * KIB,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    sent = 0
    value = bytes(10 * KIB)

    def delivered(error: object, _message: object) -> None:
        nonlocal sent
        assert error is None
        sent += len(value)

    def produce_until(end: float) -> None:
        while time.monotonic() < end:
            try:
                producer.produce("t", value, on_delivery=delivered)
            except BufferError:
                producer.poll(0.01)
            producer.poll(0)

    produce_until(time.monotonic() + WINDOW_S + 2)  # what the window allows at once is gone
    began, before = time.monotonic(), sent
    produce_until(began + MEASURED_S)
    rate = (sent - before) / (time.monotonic() - began)
    producer.purge()
    assert rate == pytest.approx(RATE, rel=0.1)
    assert throttled


@pytest.mark.slow
def test_a_consumer_keeps_to_its_quota(server: ServerProcess, tools: Tools) -> None:
    size = int(RATE * (WINDOW_S + MEASURED_S + 10))
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 5})
    for _ in range(size // (10 * KIB)):
        while True:
            try:
                producer.produce("filled", bytes(10 * KIB))
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()
    set_quota(tools, "consumer", f"consumer_byte_rate={RATE}")
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "client.id": "consumer",
            "group.id": "quota",
            "message.max.bytes": 256 * KIB,
            "fetch.max.bytes": 256 * KIB,
            "max.partition.fetch.bytes": 256 * KIB,
            "queued.max.messages.kbytes": 256,
        }
    )
    consumer.assign([TopicPartition("filled", 0, 0)])

    def consumed_until(end: float) -> int:
        read = 0
        while time.monotonic() < end:
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                read += len(message.value() or b"")
        return read

    try:
        consumed_until(time.monotonic() + WINDOW_S + 2)
        began = time.monotonic()
        read = consumed_until(began + MEASURED_S)
        assert read / (time.monotonic() - began) == pytest.approx(RATE, rel=0.1)
    finally:
        consumer.close()


@pytest.mark.slow
def test_kafkas_perf_tool_keeps_to_its_quota_and_another_client_does_not_notice(
    server: ServerProcess, tools: Tools
) -> None:
    set_quota(tools, "perf", f"producer_byte_rate={2 * RATE}")
    records = int(2 * RATE * (WINDOW_S + 30) / KIB)
    began = time.monotonic()
    done = run(
        *("kafka-producer-perf-test", "--topic", "measured", "--num-records", str(records)),
        *("--record-size", str(KIB), "--throughput", "-1", "--producer-props"),
        *(f"bootstrap.servers={server.bootstrap}", "client.id=perf", "linger.ms=5"),
    )
    assert done.returncode == 0, done.stderr
    lasted = time.monotonic() - began
    # All but the window's worth takes its time.
    assert records * KIB - 2 * RATE * WINDOW_S == pytest.approx(2 * RATE * lasted, rel=0.15)


SCRIPT = [(0.0, 30), (0.0, 60), (0.0, 30), (1.5, 5), (0.0, 200), (0.4, 1)]
"""Pauses in seconds, and KiB of one batch each, at 10 KiB per second."""


async def test_throttle_times_of_a_scripted_producer_are_kafkas(
    server: ServerProcess, tools: Tools
) -> None:
    """The throttle time is what brings the rate of the window down to the quota."""
    set_quota(tools, "scripted", f"producer_byte_rate={10 * KIB}")
    port = int(server.bootstrap.rpartition(":")[2])
    loop = asyncio.get_running_loop()
    recorded: list[tuple[float, int]] = []
    try:
        for pause_s, kib in SCRIPT:
            client = await Client.connect_to(port)  # one that is muted does not hold the script
            client.client_id = "scripted"
            await asyncio.sleep(pause_s)
            batch = Batch(values=(bytes(kib * KIB),)).encode()
            client.produce(batch)
            response = await client.receive()
            now = loop.time()
            recorded.append((now, kib * KIB + 200))
            first = recorded[0][0]
            window_s = WINDOW_S + (now - first) - int(now - first)
            excess = sum(size for _, size in recorded) / (10 * KIB) - window_s
            throttle_s = response.throttle_time.total_seconds()
            assert throttle_s == pytest.approx(max(0.0, excess), abs=0.35)
    finally:
        await close_clients()


async def test_a_request_that_all_may_send_is_not_held_by_a_muted_neighbour(
    server: ServerProcess, tools: Tools
) -> None:
    set_quota(tools, "greedy", f"producer_byte_rate={KIB}")
    port = int(server.bootstrap.rpartition(":")[2])
    try:
        greedy, modest = await Client.connect_to(port), await Client.connect_to(port)
        greedy.client_id, modest.client_id = "greedy", "modest"
        greedy.produce(Batch(values=(bytes(100 * KIB),)).encode())
        assert (await greedy.receive()).throttle_time.total_seconds() > 60
        greedy.send(18, 0, schema(18, 0).request_class())
        for _ in range(20):
            await modest.ask(18, 0, schema(18, 0).request_class())
    finally:
        await close_clients()
