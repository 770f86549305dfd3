"""Shared by the parts: topics, leaders, waiting, and producers with a record of each response."""

import itertools
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.checker.history import History, Outcome
from tests.support.traffic import ProducerThread

ANSWER_S = 60.0
BULK_BYTES, BULK_QUEUE = 100_000, 500
CLIENT: Mapping[str, str | int | float] = {
    "enable.idempotence": True,
    "linger.ms": 2,
    "message.timeout.ms": 120_000,
    "log_level": 0,
}
"""librdkafka's defaults, but for these."""
PLAINTEXT: Mapping[str, str | int | float] = MappingProxyType({})
"""A client without security needs nothing beside the address."""
PATIENCE: Mapping[str, str | int | float] = {"socket.timeout.ms": 2000, "request.timeout.ms": 1500}
"""A paused node keeps its connections open: only its clients' patience ends their wait."""


def steady_producer(
    bootstrap: str,
    topic: str,
    *,
    partitions: int,
    history: History,
    records_per_s: float,
    config: Mapping[str, str | int | float] | None = None,
) -> ProducerThread:
    """A producer at a rate over all partitions, not started."""
    return ProducerThread(
        topic,
        bootstrap,
        topic,
        partitions=partitions,
        history=history,
        config={**CLIENT, **(config or {})},
        queued_max=100_000,
        records_per_s=records_per_s,
    )


def fill(
    bootstrap: str,
    topic: str,
    partitions: Sequence[int],
    size: int,
    client: Mapping[str, str | int | float] = PLAINTEXT,
) -> int:
    """Send `size` bytes to these partitions, in turn; return the number of bytes taken."""
    producer = Producer({"bootstrap.servers": bootstrap, **CLIENT, **client, "linger.ms": 20})
    value, count = os.urandom(BULK_BYTES), size // BULK_BYTES
    for number in range(count):
        while len(producer) > BULK_QUEUE:
            producer.poll(0.05)
        producer.produce(topic, value=value, partition=partitions[number % len(partitions)])
    assert producer.flush(ANSWER_S) == 0, "not everything was taken"
    return count * BULK_BYTES


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values are below."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def make_topic(
    bootstrap: str,
    topic: str,
    partitions: int,
    client: Mapping[str, str | int | float] = PLAINTEXT,
) -> None:
    """Create a topic and wait until each of its partitions has a leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **client})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1)
    admin.create_topics([new], operation_timeout=ANSWER_S)[topic].result(ANSWER_S)

    def are_led() -> bool:
        return len(leaders(bootstrap, topic, client)) == partitions

    wait_for(are_led, ANSWER_S, f"leaders of {topic}")


def leaders(
    bootstrap: str, topic: str, client: Mapping[str, str | int | float] = PLAINTEXT
) -> dict[int, int]:
    """The node that leads each partition, of those that have one."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **client})
    found = admin.list_topics(topic, timeout=10).topics[topic].partitions
    return {p: metadata.leader for p, metadata in found.items() if metadata.leader >= 0}


def wait_for(condition: Callable[[], bool], within_s: float, what: str) -> float:
    """Wait for a condition; return the seconds it took. Raises TimeoutError, which names `what`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > within_s:
            raise TimeoutError(f"{what}: not within {within_s:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began


def pauses(history: History, begun: float, ended: float) -> dict[int, tuple[float, float]]:
    """By partition: the longest time without an acknowledgement that touches a time span, and when
    it ended.
    """
    times: dict[int, list[float]] = defaultdict(list)
    for send in list(history.sends.values()):
        if send.outcome is Outcome.OK:
            times[send.partition].append(send.ended)
    return {
        partition: max(
            (
                (after - before, after)
                for before, after in itertools.pairwise(sorted([*answered, ended]))
                if after >= begun and before <= ended
            ),
            default=(ended - begun, ended),
        )
        for partition, answered in times.items()
    }
