"""Clients of three zones: a producer of known records, and consumers that read in their zone."""

import threading
from collections import defaultdict

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

LIMIT_S = 60.0
PARTITIONS = 6
TOPIC = "t"


def produce(servers: str, numbers: range) -> None:
    """Produce each number to every partition, durably."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "enable.idempotence": True})
    for number in numbers:
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, b"%d" % number, partition=partition)
        producer.poll(0)
    assert producer.flush(LIMIT_S) == 0


class ZoneReader:
    """A consumer that reads every partition from its beginning, in a thread, until it is closed.
    `found` are the values of each partition, in order.
    """

    def __init__(self, servers: str, rack: str, isolation: str = "read_committed") -> None:
        self.found: dict[int, list[bytes]] = defaultdict(list)
        self.errors: list[KafkaError] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"{rack}-{isolation}",
                "client.rack": rack,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 100,
                "topic.metadata.refresh.interval.ms": 1000,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, one, 0) for one in range(PARTITIONS)])
        self._is_over = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._is_over:
            for message in self._consumer.consume(500, timeout=0.1):
                error, value, partition = message.error(), message.value(), message.partition()
                if error is not None:
                    self.errors.append(error)
                elif value is not None and partition is not None:
                    self.found[partition].append(value)

    def has(self, count: int) -> bool:
        return all(len(self.found[one]) >= count for one in range(PARTITIONS))

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self._consumer.close()


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]
