"""Requests of commands to a broker, by confluent-kafka's admin client."""

import difflib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from lakehead.broker.configs.topic_configs import TOPIC_CONFIGS
from lakehead.connectors.kafka_client_config import read_client_config
from lakehead.storage.errors import BrokerUnavailable, RequestRefused, SettingsError

_CONNECT_S = 5.0
_CONNECTS = 4
"""Times that long, for a broker that takes the connection and is slow to respond."""
_RESPONSE_S = 30.0


def silent_logger() -> logging.Logger:
    """Return where a client's chatter about connections goes; what matters comes as errors."""
    logger = logging.getLogger("lakehead.client")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


class KafkaAdmin:
    """The cluster at `bootstrap` (HOST:PORT), reached with a client's settings in `config` (a file
    of Kafka's `name=value` lines), for listeners with TLS or SASL. Raises BrokerUnavailable,
    RequestRefused where the login is refused, and SettingsError; its methods raise RequestRefused.
    """

    def __init__(self, bootstrap: str, config: Path | None = None) -> None:
        self._errors: list[KafkaError] = []
        try:
            given: dict[str, Any] = {} if config is None else {**read_client_config(config)}
            given |= {"bootstrap.servers": bootstrap, "error_cb": self._errors.append}
            self._client = AdminClient(given, logger=silent_logger())
        except OSError as error:
            raise SettingsError(f"cannot read {config}: {error.strerror}") from None
        except (KafkaException, ValueError) as error:
            raise SettingsError(f"{config}: {_text(error)}") from None
        for _ in range(_CONNECTS):
            try:
                self._client.list_topics(timeout=_CONNECT_S)
            except KafkaException:
                self._client.poll(0)  # has the client report its errors
            else:
                return
            for reported in self._errors:
                if reported.name() in ("_AUTHENTICATION", "_SSL"):
                    raise RequestRefused(f"{bootstrap}: {reported.str()}")
            if self._errors:
                break
        raise BrokerUnavailable(
            f"no broker responds at {bootstrap}: start one with `lakehead start`, "
            "or give another address with --bootstrap-server; a listener with TLS or SASL "
            "needs --command-config"
        )

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._client.list_topics(timeout=_RESPONSE_S).topics)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the high watermarks of a topic's partitions."""
        found = self._client.list_topics(topic, timeout=_RESPONSE_S).topics[topic]
        if found.error is not None:
            raise _refused(topic, found.error, "DESCRIBE")
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, number): latest for number in found.partitions}
        ends: dict[int, int] = {}
        for place, future in self._client.list_offsets(wanted).items():
            try:
                ends[place.partition] = future.result(_RESPONSE_S).offset
            except KafkaException as failure:
                raise _refused(topic, failure.args[0], "DESCRIBE") from None
        return ends

    def lags(self, topic: str, partition: int) -> dict[str, int]:
        """Return how many offsets each consumer group that has committed one for the partition is
        behind its high watermark.
        """
        end = self.end_offsets(topic)[partition]
        try:
            groups = self._client.list_consumer_groups(request_timeout=_RESPONSE_S).result().valid
            requests = {
                group.group_id: self._client.list_consumer_group_offsets(
                    [
                        ConsumerGroupTopicPartitions(
                            group.group_id, [TopicPartition(topic, partition)]
                        )
                    ],
                    request_timeout=_RESPONSE_S,
                )[group.group_id]
                for group in groups
            }
            offsets = {
                group: future.result(_RESPONSE_S).topic_partitions[0].offset
                for group, future in requests.items()
            }
        except KafkaException as failure:
            raise RequestRefused(
                f"consumer groups: {_reason(failure.args[0], 'DESCRIBE', 'of the groups')}"
            ) from None
        return {group: end - offset for group, offset in offsets.items() if offset >= 0}

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic."""
        with _sent(name):
            topic = NewTopic(
                name, num_partitions=partitions, replication_factor=1, config=dict(configs)
            )
            made = self._client.create_topics([topic], request_timeout=_RESPONSE_S)
        self._settle(made, name, "CREATE")

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        with _sent(name):
            gone = self._client.delete_topics([name], request_timeout=_RESPONSE_S)
        self._settle(gone, name, "DELETE")

    def alter_configs(self, name: str, configs: Mapping[str, str | None]) -> None:
        """Set configs of a topic; None: its default again (KIP-339)."""
        entries = [
            ConfigEntry(
                key,
                "" if value is None else value,
                incremental_operation=AlterConfigOpType.DELETE
                if value is None
                else AlterConfigOpType.SET,
            )
            for key, value in configs.items()
        ]
        with _sent(name):
            resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
            done = self._client.incremental_alter_configs([resource], request_timeout=_RESPONSE_S)
        self._settle({name: done[resource]}, name, "ALTER_CONFIGS")

    def create_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic, so that it has `total`."""
        with _sent(name):
            more = NewPartitions(name, total)
            made = self._client.create_partitions([more], request_timeout=_RESPONSE_S)
        self._settle(made, name, "ALTER")

    @staticmethod
    def _settle(futures: Mapping[str, Any], name: str, right: str) -> None:
        try:
            futures[name].result()  # it ends with the request
        except KafkaException as failure:
            raise _refused(name, failure.args[0], right) from None


@contextmanager
def _sent(topic: str) -> Iterator[None]:
    """Send a request about a topic within the block. Raises SettingsError for values that the
    client does not send: a number out of its bounds, a text that is not UTF-8.
    """
    try:
        yield
    except (ValueError, OverflowError) as error:
        reason = str(error).partition("): ")[2] or str(error)
        raise SettingsError(f"topic {topic}: {reason}") from None


_UNAUTHORIZED = frozenset(
    {
        *("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"),
        "CLUSTER_AUTHORIZATION_FAILED",
    }
)


def _refused(topic: str, error: KafkaError, right: str) -> RequestRefused:
    return RequestRefused(f"topic {topic}: {_reason(error, right, 'of the topic')}")


def _reason(error: KafkaError, right: str, of: str) -> str:
    """Return a refusal in words, with the next step; `right` is the operation that it takes."""
    words = error.str().removeprefix("Broker: ")
    if error.name() in _UNAUTHORIZED:
        return (
            f"{words.rstrip('.')}: the user needs the right {right} {of} (kafka-acls --add), or "
            "name another user by --command-config"
        )
    if error.name() == "UNKNOWN_TOPIC_OR_PART":
        return f"{words.rstrip('.')}: see lakehead topics list"
    _, is_unknown, name = words.partition("Unknown topic config name: ")
    return words + near_config(name) if is_unknown else words


def near_config(name: str) -> str:
    """Return a hint at the config of topics whose name is like an unknown one; empty: none is."""
    near = difflib.get_close_matches(name, TOPIC_CONFIGS, n=1, cutoff=0.8)
    return f": did you mean {near[0]}?" if near else ""


def _text(error: Exception) -> str:
    cause = error.args[0] if error.args else error
    return cause.str() if isinstance(cause, KafkaError) else str(cause)
