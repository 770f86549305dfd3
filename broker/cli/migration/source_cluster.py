"""The cluster that is imported: its topics, the positions of its groups, and its records one by
one, as a client that is made of librdkafka sees them.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
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

from lakehead.broker.api.topic_rules import METADATA_TOPIC
from lakehead.broker.cli.kafka_admin import silent_logger
from lakehead.broker.cli.migration import source_tokens
from lakehead.broker.cli.migration.source_brokers import (
    Incarnation,
    ListedTopic,
    Place,
    SourceBrokers,
)
from lakehead.broker.cli.migration.source_tokens import SourceTokens
from lakehead.connectors.kafka_client_config import read_client_config
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import (
    BrokerUnavailable,
    LakeheadError,
    RequestRefused,
    SettingsError,
)
from lakehead.storage.format.records import KafkaRecord
from lakehead.storage.metadata.state import INTERNAL_TOPICS

_RESPONSE_S = 30.0
_SILENT_MAX_S = 60
"""Longest wait for a record or the end of a partition: a client of librdkafka waits for a source
that is away without end.
"""
_RECORDS_AT_ONCE, _BYTES_AT_ONCE = 2000, 8 * 1024 * 1024
_TOPICS_AT_ONCE = 500
_GROUPS_AT_ONCE = 100
_END = "_PARTITION_EOF"
_UNREACHED = frozenset(
    {"_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE", "REQUEST_TIMED_OUT"}
    | {"COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"}
)
"""Names of errors after which another try may help."""
_NO_POSITIONS = frozenset({"GROUP_ID_NOT_FOUND", "INVALID_GROUP_ID", "UNSUPPORTED_VERSION"})
"""Names of errors of groups that have no committed offsets: share groups, and those that ended."""
OWN_TOPICS = INTERNAL_TOPICS | {METADATA_TOPIC}
"""Topics in which a cluster keeps its own state: those of another one mean nothing here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """A topic: its partitions, and the configs that are set on it."""

    topic: Incarnation
    partitions: int
    configs: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its name."""
        return self.topic.name

    @property
    def places(self) -> list[Place]:
        """Its partitions, in order."""
        return [Place(self.topic, number) for number in range(self.partitions)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """The offset that a group has committed, with the text that it put there."""

    offset: int
    metadata: str


class SourceCluster:
    """Reads topics with their configs, positions of groups, and records one by one. Raises
    BrokerUnavailable, RequestRefused, SettingsError.
    """

    def __init__(self, bootstrap: str, config: Path | None, rng: random.Random) -> None:
        given: dict[str, Any] = {}
        try:
            if config is not None:
                given = {**read_client_config(config)}
        except OSError as error:
            raise SettingsError(f"cannot read {config}: {error.strerror}") from None
        given["bootstrap.servers"] = bootstrap
        mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", ""))
        tokens = None
        if mechanism.upper() == source_tokens.MECHANISM:
            tokens = SourceTokens(given, SystemClock())
        self.brokers = SourceBrokers(given, tokens, rng)
        """Its brokers, for requests that librdkafka does not give."""
        self._settings = given
        if tokens is not None:
            own = {k: v for k, v in given.items() if not k.startswith("sasl.oauthbearer.")}
            self._settings = own | {"oauth_cb": tokens.callback}
        self._config = config
        self._topic_configs: dict[str, dict[str, str]] = {}

    @cached_property
    def _admin(self) -> AdminClient:
        # Made after `brokers` have logged in: that shows sooner and better why it is refused.
        try:
            return AdminClient(self._settings, logger=silent_logger())
        except (KafkaException, ValueError) as error:
            raise SettingsError(f"{self._config}: {_text(error)}") from None

    async def topics(self, wanted: Sequence[str], *, is_quick: bool = False) -> list[SourceTopic]:
        """Return the wanted topics that are there now; without any, all that are not internal. A
        quick list may have the configs of the last one.
        """
        listed = await self.brokers.topics()
        names = [name for name in wanted if name in listed] if wanted else _public(listed)
        configs = self._topic_configs if is_quick else {}
        unknown = [name for name in names if name not in configs]
        for start in range(0, len(unknown), _TOPICS_AT_ONCE):
            some = unknown[start : start + _TOPICS_AT_ONCE]
            configs |= await asyncio.to_thread(self._configs, some)
        self._topic_configs = configs
        return [
            SourceTopic(
                topic=listed[name].topic,
                partitions=len(listed[name].leaders),
                configs=configs[name],
            )
            for name in names
            if name in configs
        ]

    def _configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        found = {}
        futures = self._admin.describe_configs(resources, request_timeout=_RESPONSE_S)
        for resource, future in futures.items():
            try:
                entries = _response(f"configs of topic {resource.name}", future)
            except KafkaException as error:
                if _name(error) == "UNKNOWN_TOPIC_OR_PART":
                    continue  # deleted meanwhile
                raise _error(f"configs of topic {resource.name}", error) from None
            found[resource.name] = {
                name: str(entry.value)
                for name, entry in entries.items()
                if entry.source == own and entry.value is not None
            }
        return found

    async def positions(
        self, topics: Collection[str]
    ) -> dict[str, dict[tuple[str, int], SourcePosition]]:
        """Return the committed offsets of every group that has some, of these topics."""
        groups = await self.brokers.groups()
        return await asyncio.to_thread(self._positions, groups, topics)

    def _positions(
        self, names: Sequence[str], topics: Collection[str]
    ) -> dict[str, dict[tuple[str, int], SourcePosition]]:
        found = {}
        for start in range(0, len(names), _GROUPS_AT_ONCE):
            requests = {
                name: self._admin.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(name)], request_timeout=_RESPONSE_S
                )[name]
                for name in names[start : start + _GROUPS_AT_ONCE]
            }
            for name, future in requests.items():
                try:
                    committed = _response(f"consumer group {name}", future).topic_partitions
                except KafkaException as error:
                    if _name(error) in _NO_POSITIONS:
                        continue
                    raise _error(f"consumer group {name}", error) from None
                offsets = {
                    (one.topic, one.partition): SourcePosition(
                        offset=one.offset, metadata=one.metadata or ""
                    )
                    for one in committed
                    if one.topic in topics and one.offset >= 0
                }
                if offsets:
                    found[name] = offsets
        return found

    @contextmanager
    def partition(self, place: Place) -> Iterator["SourcePartition"]:
        """Return a reader of the committed records of a partition."""
        consumer = Consumer(
            self._settings
            | {
                "group.id": "lakehead-import",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "queued.max.messages.kbytes": 16 * 1024,
            },
            logger=silent_logger(),
        )
        try:
            yield SourcePartition(consumer, place)
        finally:
            consumer.close()


class SourcePartition:
    """The committed records of a partition (`SourceCluster.partition`)."""

    def __init__(self, consumer: Consumer, place: Place) -> None:
        self._consumer = consumer
        self._place = place

    async def records(self, start: int, end: int) -> AsyncGenerator[list[KafkaRecord], None]:
        """Yield the records from an offset up to another one, some megabytes at a time. Raises
        RequestRefused, BrokerUnavailable.
        """
        found = self._polled(start)
        while (some := await asyncio.to_thread(next, found, None)) is not None:
            yield [one for one in some if one.offset < end]
            if some[-1].offset >= end - 1:
                return

    def _polled(self, start: int) -> Iterator[list[KafkaRecord]]:
        place = self._place
        self._consumer.assign([TopicPartition(place.topic.name, place.partition, start)])
        is_ended = False
        found: list[KafkaRecord] = []
        size = silent_s = 0
        while not is_ended:
            message = self._consumer.poll(1.0)
            if message is None:
                silent_s += 1
                if silent_s >= _SILENT_MAX_S:
                    raise BrokerUnavailable(f"{place}: no response within {_SILENT_MAX_S} s")
                continue
            silent_s = 0
            error = message.error()
            if error is None:
                record = _record(message)
                found.append(record)
                size += len(record.key or b"") + len(record.value or b"")
            elif error.name() == _END:
                is_ended = True
            else:
                raise RequestRefused(f"{place}: {error.str()}")
            if found and (is_ended or size >= _BYTES_AT_ONCE or len(found) >= _RECORDS_AT_ONCE):
                yield found
                found, size = [], 0


def _response(subject: str, future: Any) -> Any:
    """Return the response to a request. Raises KafkaException, and BrokerUnavailable if none comes:
    the time of librdkafka is not always over first.
    """
    try:
        return future.result(_RESPONSE_S)
    except TimeoutError:
        raise BrokerUnavailable(f"{subject}: no response within {_RESPONSE_S:.0f} s") from None


def _public(listed: Mapping[str, ListedTopic]) -> list[str]:
    return sorted(
        name for name, one in listed.items() if not (one.is_internal or name.startswith("__"))
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


def _error(subject: str, error: KafkaException) -> LakeheadError:
    text = f"{subject}: {_text(error)}"
    return BrokerUnavailable(text) if _name(error) in _UNREACHED else RequestRefused(text)


def _name(error: KafkaException) -> str:
    cause = error.args[0] if error.args else None
    return cause.name() if isinstance(cause, KafkaError) else ""


def _text(error: Exception) -> str:
    cause = error.args[0] if error.args else error
    return cause.str() if isinstance(cause, KafkaError) else str(cause)
