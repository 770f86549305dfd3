"""A topic with configs, its producer and its reader, by confluent-kafka."""

import time

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from bench.process import ServerProcess

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
THE_BROKER = ""
"""In place of a topic: the one broker of the cluster."""
SECONDS_MAX = 20.0


def make_topic(server: ServerProcess, name: str, **configs: str) -> str:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    topic = NewTopic(name, num_partitions=1, replication_factor=1, config=named)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([topic])[name].result(SECONDS_MAX)
    return name


def set_config(server: ServerProcess, topic: str, name: str, value: str | None) -> None:
    """Set a config of a topic, or (THE_BROKER) of the broker; None resets it."""
    kind = AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE
    entry = ConfigEntry(name, value, incremental_operation=kind)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    place = ConfigResource.Type.TOPIC
    if topic == THE_BROKER:
        place = ConfigResource.Type.BROKER
        topic = str(next(iter(admin.list_topics(timeout=SECONDS_MAX).brokers)))
    resource = ConfigResource(place, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)


class Produced:
    """Produces records one batch each; notes what is answered."""

    def __init__(self, server: ServerProcess, codec: str = "none") -> None:
        self.answers: list[tuple[KafkaError | None, Message]] = []
        self._producer = Producer(
            {
                "bootstrap.servers": server.bootstrap,
                "compression.type": codec,
                "message.max.bytes": 4_000_000,
                "linger.ms": 0,
            }
        )

    def __call__(self, topic: str, timestamp: int = 0, value: bytes = b"v") -> KafkaError | None:
        """Produce a record; return its error."""

        def note(error: KafkaError | None, message: Message) -> None:
            self.answers.append((error, message))

        self._producer.produce(topic, value, partition=0, timestamp=timestamp, on_delivery=note)
        assert self._producer.flush(SECONDS_MAX) == 0
        return self.answers[-1][0]


def consume(server: ServerProcess, topic: str, count: int) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "readers",
            "check.crcs": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Message] = []
    until = time.monotonic() + SECONDS_MAX
    while len(messages) < count and time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            messages.append(message)
    consumer.close()
    assert len(messages) == count
    return messages
