"""A producer and what it noticed: `load.py BOOTSTRAP SECONDS`. A record each 10 ms, over all
partitions in turn; then all is read back.
"""

import json
import statistics
import sys
import threading
import uuid
from collections import Counter
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lakehead.storage.clock import SystemClock

PARTITIONS = 8


def main() -> None:
    """Run, and print the figures."""
    bootstrap, seconds = sys.argv[1], float(sys.argv[2])
    clock, topic = SystemClock(), f"aws-day-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0,
         "delivery.timeout.ms": 900_000, "retry.backoff.max.ms": 500}
    )  # fmt: skip
    sent: dict[str, float] = {}
    last = dict.fromkeys(range(PARTITIONS), clock.monotonic())
    gaps, waits, acknowledged = [0.0], [], []

    def delivered(error: Any, record: Any) -> None:
        if error is None:
            now, name = clock.monotonic(), record.key().decode()
            gaps.append(now - last[record.partition()])
            last[record.partition()] = now
            waits.append((now - sent[name]) * 1000)
            acknowledged.append(name)

    pause = threading.Event()
    began, number = clock.monotonic(), 0
    while clock.monotonic() - began < seconds:
        name = str(number)
        sent[name] = clock.monotonic()
        producer.produce(
            topic, key=name, value=b"x" * 256, partition=number % PARTITIONS, on_delivery=delivered
        )
        producer.poll(0)
        pause.wait(0.01)
        number += 1
    producer.flush(900)
    found = Counter(read(bootstrap, topic))
    cut = statistics.quantiles(waits, n=100)
    figures = {
        "acknowledged": len(acknowledged),
        "lost": sum(name not in found for name in acknowledged),
        "twice": sum(count > 1 for count in found.values()),
        "longest_gap_s": max(gaps),
        "p50_ms": cut[49],
        "p99_ms": cut[98],
    }
    print("FIGURES " + json.dumps(figures))


def read(bootstrap: str, topic: str) -> list[str]:
    """Return the keys of all records of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False,
         "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    keys: list[str] = []
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        record = consumer.poll(60)
        if record is None:
            raise TimeoutError("the topic cannot be read to its end")
        if record.error():
            ended.add(record.partition())
        else:
            keys.append((record.key() or b"").decode())
    consumer.close()
    return keys


if __name__ == "__main__":
    main()
