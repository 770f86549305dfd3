"""A client outside of the guests: numbered records written and read back over what happens."""

from __future__ import annotations

import time

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TOPIC = "boot"
PARTITIONS = 8
_CALL_S = 20.0
_PAUSE_S = 0.5


class RecordsFailed(Exception):
    """Records are lost, or the cluster does not answer. The message says which."""


class Records:
    """Writes and reads. Guests are emulated and slow, so everything is given minutes. It goes on
    where `after` has stopped.
    """

    def __init__(
        self, bootstrap: str, *, after: Records | None = None, deadline_s: float = 900.0
    ) -> None:
        self._settings: dict[str, str | int | float] = {
            "bootstrap.servers": bootstrap,
            "socket.timeout.ms": 60_000,
            "reconnect.backoff.ms": 500,
            "reconnect.backoff.max.ms": 1000,
            "log_level": 0,
        }
        self._deadline_s = deadline_s
        self._acknowledged: set[int] = after._acknowledged if after else set()
        self._next: int = after._next if after else 0

    def wait_for_brokers(self, count: int) -> None:
        """Return when Metadata names so many brokers."""
        admin = AdminClient(dict(self._settings))
        deadline, found = time.monotonic() + self._deadline_s, "no answer"
        while time.monotonic() < deadline:
            try:
                brokers = admin.list_topics(timeout=_CALL_S).brokers
            except KafkaException as error:
                found = str(error)
            else:
                if len(brokers) == count:
                    return
                found = f"brokers {sorted(brokers)}"
            time.sleep(_PAUSE_S)
        raise RecordsFailed(f"{count} brokers were expected: {found}")

    def create_topic(self) -> None:
        """Make the topic."""
        admin = AdminClient(dict(self._settings))
        topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)
        admin.create_topics([topic], operation_timeout=_CALL_S)[TOPIC].result(self._deadline_s)

    def leaders(self) -> set[int]:
        """Return the nodes that lead partitions of the topic."""
        partitions = AdminClient(dict(self._settings)).list_topics(TOPIC, _CALL_S).topics[TOPIC]
        return {partition.leader for partition in partitions.partitions.values()}

    def write(self, count: int) -> None:
        """Write the next records to every partition. Each has to be acknowledged in the end."""
        producer = Producer(
            self._settings
            | {
                "acks": "all",
                "enable.idempotence": True,
                "delivery.timeout.ms": int(self._deadline_s * 1000),
            }
        )
        failed: list[str] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._acknowledged.add(int(message.value() or b""))
            else:
                failed.append(str(error))

        for _ in range(count):
            partition, value = self._next % PARTITIONS, str(self._next)
            producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)
            self._next += 1
        left = producer.flush(self._deadline_s)
        if left or failed:
            raise RecordsFailed(f"{left} records without an answer, refused: {failed[:3]}")

    def check(self) -> int:
        """Read everything; each acknowledged record has to be there once. Return how many are."""
        found: list[int] = []
        consumer = Consumer(self._settings | {"group.id": "boot", "enable.auto.commit": False})
        try:
            ends = {number: self._end(consumer, number) for number in range(PARTITIONS)}
            consumer.assign([TopicPartition(TOPIC, number, 0) for number in ends])
            deadline = time.monotonic() + self._deadline_s
            while len(found) < sum(ends.values()) and time.monotonic() < deadline:
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    found.append(int(message.value() or b""))
        finally:
            consumer.close()
        lost = self._acknowledged - set(found)
        if lost or len(found) != len(set(found)):
            raise RecordsFailed(
                f"{len(lost)} acknowledged records are not there, such as {sorted(lost)[:5]}; "
                f"{len(found) - len(set(found))} are there twice"
            )
        return len(found)

    def _end(self, consumer: Consumer, number: int) -> int:
        deadline = time.monotonic() + self._deadline_s
        while True:
            try:
                _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, number), _CALL_S)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
            else:
                return int(end)
