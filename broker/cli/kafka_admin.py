"""What commands ask of a broker, as any Kafka client would: by confluent-kafka's admin client."""

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lakehead.storage.errors import SettingsError

_CONNECT_S = 5.0
_ANSWER_S = 30.0


def silent_logger() -> logging.Logger:
    """Return where a client's chatter about connections goes; what matters comes as errors."""
    logger = logging.getLogger("lakehead.client")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


class KafkaAdmin:
    """The cluster at `bootstrap` (HOST:PORT). Errors are SettingsError, one line."""

    def __init__(self, bootstrap: str) -> None:
        self._client = AdminClient({"bootstrap.servers": bootstrap}, logger=silent_logger())
        try:
            self._client.list_topics(timeout=_CONNECT_S)
        except KafkaException:
            raise SettingsError(
                f"no broker answers at {bootstrap}: start one with `lakehead start`, "
                "or give another address with --bootstrap-server"
            ) from None

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._client.list_topics(timeout=_ANSWER_S).topics)

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic."""
        topic = NewTopic(
            name, num_partitions=partitions, replication_factor=1, config=dict(configs)
        )
        self._settle(self._client.create_topics([topic], request_timeout=_ANSWER_S), name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        self._settle(self._client.delete_topics([name], request_timeout=_ANSWER_S), name)

    @staticmethod
    def _settle(futures: Mapping[str, Any], name: str) -> None:
        try:
            futures[name].result(_ANSWER_S)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            raise SettingsError(f"topic {name}: {error.str()}") from None
