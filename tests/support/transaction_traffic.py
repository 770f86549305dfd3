"""Readers of topics with transactions, by librdkafka."""

import time

from confluent_kafka import Consumer, Producer, TopicPartition

LIMIT_S = 60.0


def settle(bootstrap: str, transactional_id: str) -> None:
    """Wait until the last transaction of an id, which was ended, is so in every partition: its
    producer is told before that. Whoever is the producer now is fenced.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(LIMIT_S)


def read_all(
    bootstrap: str, topic: str, partitions: int, level: str = "read_committed"
) -> list[str]:
    """Return every value up to the end, sorted, as this isolation level sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": level,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    values, ends, deadline = list[str](), set[int | None](), time.monotonic() + LIMIT_S
    while len(ends) < partitions:
        assert time.monotonic() < deadline, f"{len(values)} values, and no end in {LIMIT_S} s"
        for message in consumer.consume(100, 0.2):
            if message.error():
                ends.add(message.partition())
            else:
                values.append((message.value() or b"").decode())
    consumer.close()
    return sorted(values)
