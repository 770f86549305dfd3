"""Refusals of a broker, as commands show them: with the next step."""

import pytest
from confluent_kafka import KafkaError

from lakehead.broker.cli.kafka_admin import _reason


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED),
            (
                "Topic authorization failed: the user needs the right ALTER of the topic "
                "(kafka-acls --add), or name another user by --command-config"
            ),
        ),
        (
            KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "The topic 't' does not exist."),
            "The topic 't' does not exist: see lakehead topics list",
        ),
        (
            KafkaError(KafkaError.INVALID_CONFIG, "Unknown topic config name: retention.msec"),
            "Unknown topic config name: retention.msec: did you mean retention.ms?",
        ),
        (
            KafkaError(KafkaError.TOPIC_ALREADY_EXISTS, "Topic 't' already exists."),
            "Topic 't' already exists.",
        ),
    ],
)
def test_a_refusal_says_what_to_do(error: KafkaError, shown: str) -> None:
    assert _reason(error, "ALTER", "of the topic") == shown
