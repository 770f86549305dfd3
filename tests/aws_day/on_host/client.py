"""A client of the cluster on one of its hosts: the first user, over SASL_SSL.

`wait BOOTSTRAP CLUSTER SECONDS` until the cluster responds. `load BOOTSTRAP CLUSTER SECONDS`
produces a record each 10 ms, over all partitions in turn; then all is read back. The secrets
CLUSTER/tls and CLUSTER/first-admin have the authority and the password: the host's role may read
them.
"""

import json
import statistics
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

import boto3
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lakehead.storage.clock import SystemClock

PARTITIONS = 8
_USER = "admin"
_CLOCK = SystemClock()
_PAUSE = threading.Event()


def settings(bootstrap: str, cluster: str) -> dict[str, Any]:
    """Return what every client here needs."""
    secrets = boto3.client("secretsmanager")
    tls, admin = (
        json.loads(secrets.get_secret_value(SecretId=f"{cluster}/{one}")["SecretString"])
        for one in ("tls", "first-admin")
    )
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": _USER,
        "sasl.password": admin["password"],
        "ssl.ca.pem": tls["ca"],
    }


def wait(client: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """Wait until the cluster responds to the user."""
    began = _CLOCK.monotonic()
    while True:
        try:
            brokers = AdminClient(dict(client)).list_topics(timeout=5).brokers
        except KafkaException:
            if _CLOCK.monotonic() - began > seconds:
                raise
            _PAUSE.wait(1)
        else:
            return {"brokers": len(brokers)}


def load(client: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """Produce, read back, and return what the client noticed."""
    topic = f"aws-day-{uuid.uuid4()}"
    admin = AdminClient(dict(client))
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    producer = Producer(
        {**client, "enable.idempotence": True, "linger.ms": 0,
         "delivery.timeout.ms": 900_000, "retry.backoff.max.ms": 500}
    )  # fmt: skip
    sent: dict[str, float] = {}
    last = dict.fromkeys(range(PARTITIONS), _CLOCK.monotonic())
    gaps, waits, acknowledged = [0.0], [], []

    def delivered(error: Any, record: Any) -> None:
        if error is None:
            now, name = _CLOCK.monotonic(), record.key().decode()
            gaps.append(now - last[record.partition()])
            last[record.partition()] = now
            waits.append((now - sent[name]) * 1000)
            acknowledged.append(name)

    began, number = _CLOCK.monotonic(), 0
    while _CLOCK.monotonic() - began < seconds:
        name = str(number)
        sent[name] = _CLOCK.monotonic()
        producer.produce(
            topic, key=name, value=b"x" * 256, partition=number % PARTITIONS, on_delivery=delivered
        )
        producer.poll(0)
        _PAUSE.wait(0.01)
        number += 1
    producer.flush(900)
    found = Counter(read(client, topic))
    cut = statistics.quantiles(waits, n=100)
    return {
        "acknowledged": len(acknowledged),
        "lost": sum(name not in found for name in acknowledged),
        "twice": sum(count > 1 for count in found.values()),
        "longest_gap_s": max(gaps),
        "p50_ms": cut[49],
        "p99_ms": cut[98],
    }


def read(client: Mapping[str, Any], topic: str) -> list[str]:
    """Return the keys of all records of a topic."""
    consumer = Consumer(
        {**client, "group.id": topic, "enable.auto.commit": False, "enable.partition.eof": True}
    )
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


def main() -> None:
    """Do what the arguments say, and print the figures."""
    what, bootstrap, cluster, seconds = sys.argv[1:]
    figures = {"wait": wait, "load": load}[what](settings(bootstrap, cluster), float(seconds))
    print("FIGURES " + json.dumps(figures))


if __name__ == "__main__":
    main()
