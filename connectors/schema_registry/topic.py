"""The topic of the schemas: made if it is not there, and looked at before it is used."""

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from lakehead.storage.errors import SettingsError


def silent_logger() -> logging.Logger:
    """Return where a client's chatter about connections goes; what matters comes as errors."""
    logger = logging.getLogger("lakehead.client")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def prepare_topic(
    client: Mapping[str, str], topic: str, *, replication_factor: int, timeout_s: float
) -> None:
    """Make the topic if there is none. Raises SettingsError for one that would lose schemas."""
    settings: dict[str, Any] = {**client, "logger": silent_logger()}
    admin = AdminClient(settings)
    try:
        found = admin.list_topics(timeout=timeout_s).topics.get(topic)
        if found is None:
            _create(admin, topic, replication_factor, timeout_s)
            found = admin.list_topics(topic, timeout=timeout_s).topics[topic]
        if len(found.partitions) > 1:
            raise SettingsError(
                f"topic {topic} has {len(found.partitions)} partitions and needs one, since the "
                "order of schemas is what decides: name another with --topic"
            )
        _check_policy(admin, topic, timeout_s)
    except (KafkaException, TimeoutError) as error:
        raise SettingsError(
            f"topic {topic} at {client['bootstrap.servers']} cannot be made ready: "
            f"{_reason(error)}; is a broker there, and may this user create and write the topic?"
        ) from None


def _create(admin: AdminClient, topic: str, replication_factor: int, timeout_s: float) -> None:
    made = NewTopic(
        topic,
        num_partitions=1,
        replication_factor=replication_factor,
        config={"cleanup.policy": "compact"},
    )
    try:
        admin.create_topics([made], request_timeout=timeout_s)[topic].result(timeout_s + 1)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another registry was quicker
            raise


def _check_policy(admin: AdminClient, topic: str, timeout_s: float) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    asked: Mapping[Any, Any] = admin.describe_configs([resource], request_timeout=timeout_s)
    policy = asked[resource].result(timeout_s + 1)["cleanup.policy"].value
    if policy != "compact":
        raise SettingsError(
            f"topic {topic} has cleanup.policy={policy}, which deletes schemas that are in use: "
            "set it to compact"
        )


def _reason(error: Exception) -> str:
    first = error.args[0] if error.args else None
    return first.str() if isinstance(first, KafkaError) else "no answer in time"
