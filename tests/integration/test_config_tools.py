"""Kafka's own tools show and change what brokers, groups and clients have.

`BROKER=kafka` runs it on Kafka.
"""

import os
from collections.abc import Iterator

import pytest

from tests.support.broker_process import HASTY, server_under_test
from tests.support.kafka_tools import Tools, require_kafka_tools

NODE_ID = "1" if os.environ.get("BROKER") == "kafka" else "0"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    require_kafka_tools()
    with server_under_test(tmp_path_factory.mktemp("configs"), *HASTY) as running:
        yield Tools(running.bootstrap)


def test_brokers_are_configured_while_they_run(tools: Tools) -> None:
    every = ("kafka-configs", "--entity-type", "brokers", "--entity-default")
    tools(*every, "--alter", "--add-config", "message.max.bytes=2000000,log.retention.ms=60000")
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=2000000" in tools(*every, "--describe")
    one = ("kafka-configs", "--entity-type", "brokers", "--entity-name", NODE_ID)
    shown = tools(*one, "--describe", "--all")
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=60000" in shown
    assert "advertised.listeners=PLAINTEXT://127.0.0.1:" in shown
    refused = tools.refused(*one, "--alter", "--add-config", "num.partitions=9")
    assert "Cannot update these configs dynamically" in refused


def test_groups_and_clients_are_configured(tools: Tools) -> None:
    group = ("kafka-configs", "--entity-type", "groups", "--entity-name", "team")
    tools(*group, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    assert "consumer.session.timeout.ms=50000" in tools(*group, "--describe")
    user = ("kafka-configs", "--entity-type", "users", "--entity-name", "ann")
    tools(*user, "--alter", "--add-config", "producer_byte_rate=1024")
    everyone = tools("kafka-configs", "--entity-type", "users", "--describe")
    assert "Quota configs for user-principal 'ann' are producer_byte_rate=1024.0" in everyone


def test_the_cluster_is_described(tools: Tools) -> None:
    quorum = tools("kafka-metadata-quorum", "describe", "--status")
    assert f"LeaderId:               {NODE_ID}" in quorum
    assert "Feature: transaction.version" in tools("kafka-features", "describe")
