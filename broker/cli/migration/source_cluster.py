"""The cluster that is imported, as a client of Kafka sees it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource, ConfigSource
from confluent_kafka.admin._resource import ResourceType

from lakehead.broker.cli.kafka_admin import silent_logger
from lakehead.connectors.kafka_client_config import read_client_config
from lakehead.storage.errors import BrokerUnavailable, RequestRefused
from lakehead.storage.format.records import KafkaRecord

_RESPONSE_S = 30.0
_RECORDS_AT_ONCE = 2000
_END = "_PARTITION_EOF"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """A topic: its partitions, and the configs that are set on it."""

    name: str
    partitions: int
    configs: Mapping[str, str]


class SourceCluster:
    """Reads topics, committed records and positions of groups. Raises BrokerUnavailable,
    RequestRefused, SettingsError.
    """

    def __init__(self, bootstrap: str, config: Path | None) -> None:
        given: dict[str, Any] = {} if config is None else {**read_client_config(config)}
        self._given = given | {"bootstrap.servers": bootstrap}
        self._admin = AdminClient(self._given, logger=silent_logger())
        try:
            self._metadata = self._admin.list_topics(timeout=_RESPONSE_S)
        except KafkaException as error:
            raise BrokerUnavailable(f"no broker responds at {bootstrap}: {_text(error)}") from None

    def topics(self, wanted: Sequence[str]) -> list[SourceTopic]:
        """Return the wanted topics; without any, all that are not internal."""
        names = list(wanted) or sorted(
            name for name in self._metadata.topics if not name.startswith("__")
        )
        for name in names:
            if name not in self._metadata.topics:
                raise RequestRefused(f"the source has no topic {name}")
        return [
            SourceTopic(
                name=name,
                partitions=len(self._metadata.topics[name].partitions),
                configs=self._configs(name),
            )
            for name in names
        ]

    def _configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        future = self._admin.describe_configs([resource], request_timeout=_RESPONSE_S)[resource]
        try:
            entries = future.result(_RESPONSE_S)
        except KafkaException as error:
            raise RequestRefused(f"configs of topic {topic}: {_text(error)}") from None
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {
            name: str(entry.value)
            for name, entry in entries.items()
            if entry.source == own and entry.value is not None
        }

    def positions(self, topics: Sequence[str]) -> dict[str, dict[tuple[str, int], int]]:
        """Return the committed offsets of every group that has some, of these topics."""
        try:
            listed = self._admin.list_consumer_groups(request_timeout=_RESPONSE_S).result().valid
            found = {}
            for group in listed:
                wanted = [ConsumerGroupTopicPartitions(group.group_id)]
                (future,) = self._admin.list_consumer_group_offsets(wanted).values()
                offsets = {
                    (one.topic, one.partition): one.offset
                    for one in future.result(_RESPONSE_S).topic_partitions
                    if one.topic in topics and one.offset >= 0
                }
                if offsets:
                    found[group.group_id] = offsets
        except KafkaException as error:
            raise RequestRefused(f"consumer groups: {_text(error)}") from None
        return found

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition, and the end of what is committed."""
        consumer = self._consumer()
        try:
            low, high = consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=_RESPONSE_S
            )
        except KafkaException as error:
            raise RequestRefused(f"{topic}-{partition}: {_text(error)}") from None
        finally:
            consumer.close()
        return low, high

    def records(self, topic: str, partition: int, start: int) -> Iterator[list[KafkaRecord] | int]:
        """Yield the committed records of a partition from an offset on, some at a time, and at last
        the offset up to which all is read.
        """
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(topic, partition, start)])
            while True:
                found: list[KafkaRecord] = []
                end = -1
                for message in consumer.consume(_RECORDS_AT_ONCE, 1.0):
                    error = message.error()
                    if error is None:
                        found.append(_record(message))
                    elif error.name() == _END:
                        end = message.offset() or 0
                    else:
                        raise RequestRefused(f"{topic}-{partition}: {error.str()}")
                if found:
                    yield found
                if end >= 0:
                    yield end
                    return
        finally:
            consumer.close()

    def _consumer(self) -> Consumer:
        return Consumer(
            self._given
            | {
                "group.id": "lakehead-import",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            },
            logger=silent_logger(),
        )


def _record(message: Any) -> KafkaRecord:
    kind, timestamp = message.timestamp()
    return KafkaRecord(
        message.offset(),
        -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


def _text(error: KafkaException) -> str:
    cause = error.args[0] if error.args else error
    return cause.str() if isinstance(cause, KafkaError) else str(cause)
