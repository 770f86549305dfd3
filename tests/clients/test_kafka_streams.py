"""An application of Kafka Streams: join, sum, windows and suppression, each record exactly once.

It is killed in the middle and started again without its state, which it restores from its changelog
topics. Run by `make clients`, which fetches Kafka's jars.
"""

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.apache_kafka.jars import streams_jars_directory
from bench.apache_kafka.tools import QUICK_START
from bench.maven import MissingTool
from bench.process import ServerProcess
from tests.support.broker_process import HASTY, KEEPING, server_under_test
from tests.support.traffic import create_topic
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.skipif("CLIENTS" not in os.environ, reason="run by make clients"),
    pytest.mark.timeout(600),
]
PARTITIONS = 2
CUSTOMERS = 20
ORDERS = 4_000
START_MS = 1_700_000_000_000
WINDOW_MS = 10_000
STEP_MS = 37
CLOSING = 2 * ORDERS * STEP_MS
SOURCE = Path(__file__).with_name("StreamsApp.java")


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the application, without its arguments."""
    try:
        jars = f"{streams_jars_directory()}/*"
    except MissingTool as error:
        pytest.skip(f"Kafka Streams cannot be had: {error}")
    folder = tmp_path_factory.mktemp("streams")
    subprocess.run(["javac", "-cp", jars, "-d", str(folder), str(SOURCE)], check=True, timeout=120)
    log_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return ["java", *QUICK_START, log_level, "-cp", f"{folder}:{jars}", "StreamsApp"]


@contextmanager
def running(command: list[str], server: ServerProcess, state: Path) -> Iterator[None]:
    """Run the application; kill it at the end, and remove its state."""
    process = subprocess.Popen([*command, server.bootstrap, str(state)])
    try:
        yield
        assert process.poll() is None, "the application ended by itself"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(state, ignore_errors=True)


def region(customer: int) -> str:
    return f"region-{customer % 3}"


def order(number: int) -> tuple[int, int, int]:
    """Customer, amount and time of an order."""
    return number % CUSTOMERS, number * 7 % 101, START_MS + number * STEP_MS


def send(producer: Producer, topic: str, key: str, value: str, time_ms: int) -> None:
    """Send a record into the partition that the number at the key's end says."""
    partition = int(re.findall(r"\d+", key)[-1]) % PARTITIONS
    producer.produce(topic, value, key, partition=partition, timestamp=time_ms)


def send_customers(producer: Producer) -> None:
    for customer in range(CUSTOMERS):
        send(producer, "customers", f"c{customer}", region(customer), START_MS - 1)
    assert producer.flush(30) == 0


def send_orders(producer: Producer, numbers: range) -> None:
    for number in numbers:
        customer, amount, time_ms = order(number)
        send(producer, "orders", f"c{customer}", str(amount), time_ms)
    assert producer.flush(30) == 0


def close_windows(producer: Producer) -> None:
    """Move the time of each partition on, by an order of a customer that there is not."""
    for partition in range(PARTITIONS):
        send(producer, "orders", f"closing-{partition}", "0", START_MS + CLOSING)
    assert producer.flush(30) == 0


def committed(server: ServerProcess, topic: str) -> list[tuple[str, str]]:
    """Keys and values of committed records, up to the last stable offsets of now."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found, open_partitions = [], set(range(PARTITIONS))
    try:
        consumer.assign([TopicPartition(topic, n, 0) for n in open_partitions])
        while open_partitions:
            message = consumer.poll(30)
            assert message is not None, "nothing for 30 s"
            if message.error():
                open_partitions.discard(message.partition())
            else:
                key, value = message.key(), message.value()
                assert key is not None
                assert value is not None
                found.append((key.decode(), value.decode()))
    finally:
        consumer.close()
    return found


def expected_counts() -> Counter[str]:
    counts: Counter[str] = Counter()
    for number in range(ORDERS):
        customer, _, time_ms = order(number)
        counts[f"c{customer}@{time_ms // WINDOW_MS * WINDOW_MS}"] += 1
    return counts


def test_a_streams_application_that_is_killed_counts_each_record_once(
    tmp_path: Path, application: list[str]
) -> None:
    with server_under_test(tmp_path, *HASTY, settings=KEEPING) as server:
        for topic in ("orders", "customers", "enriched", "totals", "counts"):
            create_topic(server.bootstrap, topic, PARTITIONS)
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        send_customers(producer)
        send_orders(producer, range(ORDERS // 2))
        with running(application, server, tmp_path / "state"):
            # Killed while it works: what it does not find committed is done again.
            assert wait_until(lambda: len(committed(server, "enriched")) > ORDERS // 10, 120)
        send_orders(producer, range(ORDERS // 2, ORDERS))
        close_windows(producer)
        counts = expected_counts()
        with running(application, server, tmp_path / "state"):
            assert wait_until(lambda: len(committed(server, "enriched")) >= ORDERS, 180)
            assert wait_until(lambda: len(committed(server, "counts")) >= len(counts), 60)
        enriched = [
            (f"c{customer}", f"{region(customer)} {amount}")
            for customer, amount, _ in map(order, range(ORDERS))
        ]
        assert Counter(committed(server, "enriched")) == Counter(enriched)
        assert dict(committed(server, "counts")) == {key: str(n) for key, n in counts.items()}
        assert len(committed(server, "counts")) == len(counts)
        totals: Counter[str] = Counter()
        for customer, amount, _ in map(order, range(ORDERS)):
            totals[region(customer)] += amount
        assert dict(committed(server, "totals")) == {key: str(n) for key, n in totals.items()}
