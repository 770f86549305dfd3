"""The cluster that is imported, as a client that is made of librdkafka sees it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
_TOPICS_AT_ONCE = 500
_END = "_PARTITION_EOF"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """A topic: its partitions, and the configs that are set on it."""

    name: str
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """The offset that a group has committed, with the text that it put there."""

    offset: int
    metadata: str


class SourceCluster:
    """Reads topics, positions of groups, and records one by one. Raises BrokerUnavailable,
    RequestRefused, SettingsError.
    """

    def __init__(self, bootstrap: str, config: Path | None) -> None:
        given: dict[str, Any] = {} if config is None else {**read_client_config(config)}
        self.settings = given | {"bootstrap.servers": bootstrap}
        """Those of its clients, by librdkafka's names."""
        self._admin = AdminClient(self.settings, logger=silent_logger())
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
        configs: dict[str, dict[str, str]] = {}
        for start in range(0, len(names), _TOPICS_AT_ONCE):
            configs |= self._configs(names[start : start + _TOPICS_AT_ONCE])
        return [
            SourceTopic(
                name=name,
                partitions=len(self._metadata.topics[name].partitions),
                configs=configs[name],
            )
            for name in names
        ]

    def _configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        found = {}
        futures = self._admin.describe_configs(resources, request_timeout=_RESPONSE_S)
        for resource, future in futures.items():
            try:
                entries = future.result(_RESPONSE_S)
            except KafkaException as error:
                raise RequestRefused(f"configs of topic {resource.name}: {_text(error)}") from None
            found[resource.name] = {
                name: str(entry.value)
                for name, entry in entries.items()
                if entry.source == own and entry.value is not None
            }
        return found

    def positions(self, topics: Sequence[str]) -> dict[str, dict[tuple[str, int], SourcePosition]]:
        """Return the committed offsets of every group that has some, of these topics."""
        try:
            listed = self._admin.list_consumer_groups(request_timeout=_RESPONSE_S).result().valid
            found = {}
            for group in listed:
                wanted = [ConsumerGroupTopicPartitions(group.group_id)]
                (future,) = self._admin.list_consumer_group_offsets(wanted).values()
                offsets = {
                    (one.topic, one.partition): SourcePosition(
                        offset=one.offset, metadata=one.metadata or ""
                    )
                    for one in future.result(_RESPONSE_S).topic_partitions
                    if one.topic in topics and one.offset >= 0
                }
                if offsets:
                    found[group.group_id] = offsets
        except KafkaException as error:
            raise RequestRefused(f"consumer groups: {_text(error)}") from None
        return found

    @contextmanager
    def partition(self, topic: str, partition: int) -> Iterator["SourcePartition"]:
        """Return a reader of the committed records of a partition."""
        consumer = Consumer(
            self.settings
            | {
                "group.id": "lakehead-import",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            },
            logger=silent_logger(),
        )
        try:
            yield SourcePartition(consumer, topic, partition)
        finally:
            consumer.close()


class SourcePartition:
    """The committed records of a partition (`SourceCluster.partition`)."""

    def __init__(self, consumer: Consumer, topic: str, partition: int) -> None:
        self._consumer = consumer
        self._topic = topic
        self._partition = partition

    def start(self) -> int:
        """Return the first offset."""
        place = TopicPartition(self._topic, self._partition)
        try:
            low, _ = self._consumer.get_watermark_offsets(place, timeout=_RESPONSE_S)
        except KafkaException as error:
            raise RequestRefused(f"{self._topic}-{self._partition}: {_text(error)}") from None
        return low

    def records(self, start: int) -> Iterator[list[KafkaRecord]]:
        """Yield the records from an offset on, some at a time."""
        self._consumer.assign([TopicPartition(self._topic, self._partition, start)])
        is_ended = False
        while not is_ended:
            found: list[KafkaRecord] = []
            for message in self._consumer.consume(_RECORDS_AT_ONCE, 1.0):
                error = message.error()
                if error is None:
                    found.append(_record(message))
                elif error.name() == _END:
                    is_ended = True
                else:
                    raise RequestRefused(f"{self._topic}-{self._partition}: {error.str()}")
            if found:
                yield found


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
