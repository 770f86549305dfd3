"""The records of a topic, read by an ordinary Kafka client, for tests."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakehead.storage.clock import Clock

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_REQUEST_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of a topic. `timestamp` is in milliseconds since the epoch."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_topic(
    bootstrap_servers: str, topic: str, clock: Clock, *, at_least: int, timeout_s: float
) -> list[Record]:
    """Return the committed records of a topic up to its end, by partition and offset; read on
    until there are `at_least` so many.

    Raises TimeoutError with how many there are, KeyError for a topic that is not there.
    """
    from confluent_kafka import Consumer

    until = clock.monotonic() + timeout_s
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "lakehead.broker.testing",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # an empty response marks the end of a partition
            "allow.auto.create.topics": False,
            "log_level": 0,
        }
    )
    found: list[Record] = []
    try:
        ends = _begin(consumer, topic)
        while ends or len(found) < at_least:
            message = consumer.poll(min(0.1, max(0.0, until - clock.monotonic())))
            if message is None:
                if clock.monotonic() >= until:
                    raise TimeoutError(
                        f"topic {topic} has {len(found)} records after {timeout_s:g} s, not "
                        f"{at_least}" + (f"; partitions {sorted(ends)} did not end" * bool(ends))
                    )
            elif message.error() is not None:
                ends.discard(message.partition())  # its end; other errors the client waits out
            else:
                found.append(_record(message))
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


def _begin(consumer: "Consumer", topic: str) -> set[int]:
    """Read from the beginning of every partition; return these."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    described = consumer.list_topics(topic, timeout=_REQUEST_TIMEOUT_S).topics[topic]
    if not described.partitions:
        raise KeyError(f"the topic does not exist: {topic}")
    consumer.assign(
        [TopicPartition(topic, number, OFFSET_BEGINNING) for number in described.partitions]
    )
    return set(described.partitions)


def _record(message: Any) -> Record:
    return Record(
        partition=message.partition(),
        offset=message.offset(),
        timestamp=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )
