"""Kafka's own tools administer topics, configs and groups. `BROKER=kafka` runs it on Kafka."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.process import ServerProcess
from tests.support.broker_process import HASTY, server_under_test
from tests.support.kafka_tools import Tools, require_kafka_tools


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    require_kafka_tools()
    with server_under_test(tmp_path_factory.mktemp("admin"), *HASTY) as running:
        yield running


@pytest.fixture
def tools(server: ServerProcess) -> Tools:
    return Tools(server.bootstrap)


def test_topics_are_created_changed_and_deleted(tools: Tools) -> None:
    topics = ("kafka-topics", "--topic", "life")
    tools(*topics, "--create", "--partitions", "2", "--config", "retention.ms=3600000")
    described = tools(*topics, "--describe")
    assert "PartitionCount: 2" in described
    assert "retention.ms=3600000" in described
    tools(*topics, "--alter", "--partitions", "5")
    described = tools(*topics, "--describe")
    assert "PartitionCount: 5" in described
    assert described.count("Leader: ") == 5
    tools("kafka-console-producer", "--topic", "life", stdin="one\ntwo\n")
    tools(*topics, "--delete")
    assert "life" not in tools("kafka-topics", "--list").split()


def test_what_is_wrong_with_a_topic_is_said(tools: Tools) -> None:
    create = ("kafka-topics", "--create", "--topic")
    tools(*create, "taken")
    assert "already exists" in tools.refused(*create, "taken")
    assert "Unknown topic config name: nope" in tools.refused(*create, "x", "--config", "nope=1")
    bad_value = tools.refused(*create, "x", "--config", "retention.ms=soon")
    assert "Invalid value soon for configuration retention.ms" in bad_value
    assert "Topic" in tools.refused(*create, "a b")
    assert "eplication factor" in tools.refused(*create, "x", "--replication-factor", "9")
    assert "x" not in tools("kafka-topics", "--list").split()


def test_configs_are_set_shown_and_reset(tools: Tools) -> None:
    tools("kafka-topics", "--create", "--topic", "configured")
    configs = ("kafka-configs", "--entity-type", "topics", "--entity-name", "configured")
    tools(*configs, "--alter", "--add-config", "max.message.bytes=5000,cleanup.policy=compact")
    shown = tools(*configs, "--describe")
    assert "max.message.bytes=5000" in shown
    assert "DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact" in shown
    everything = tools(*configs, "--describe", "--all")
    assert "segment.bytes=" in everything
    tools(*configs, "--alter", "--delete-config", "max.message.bytes")
    assert "max.message.bytes" not in tools(*configs, "--describe")
    brokers = ("kafka-configs", "--entity-type", "brokers", "--describe", "--all")
    assert "message.max.bytes=" in tools(*brokers)


def test_records_are_deleted_from_the_start(tools: Tools, tmp_path: Path) -> None:
    tools("kafka-topics", "--create", "--topic", "trimmed", "--partitions", "1")
    lines = "".join(f"{number}\n" for number in range(30))
    tools("kafka-console-producer", "--topic", "trimmed", stdin=lines)
    asked = {"version": 1, "partitions": [{"topic": "trimmed", "partition": 0, "offset": 10}]}
    offsets = tmp_path / "offsets.json"
    offsets.write_text(json.dumps(asked))
    answer = tools("kafka-delete-records", "--offset-json-file", str(offsets))
    assert "low_watermark: 10" in answer
    assert "trimmed:0:10" in tools("kafka-get-offsets", "--topic", "trimmed", "--time", "-2")
    assert "trimmed:0:30" in tools("kafka-get-offsets", "--topic", "trimmed", "--time", "-1")


def test_groups_are_described_reset_and_deleted(tools: Tools) -> None:
    tools("kafka-topics", "--create", "--topic", "read", "--partitions", "1")
    lines = "".join(f"{number}\n" for number in range(30))
    tools("kafka-console-producer", "--topic", "read", stdin=lines)
    tools(
        *("kafka-console-consumer", "--topic", "read", "--group", "readers"),
        *("--from-beginning", "--max-messages", "30", "--timeout-ms", "20000"),
    )
    groups = ("kafka-consumer-groups", "--group", "readers")
    assert _offset_of_readers(tools(*groups, "--describe")) == "30"
    tools(*groups, "--topic", "read", "--reset-offsets", "--to-offset", "7", "--execute")
    assert _offset_of_readers(tools(*groups, "--describe")) == "7"
    assert "Successful" in tools(*groups, "--delete-offsets", "--topic", "read")
    assert "readers" in tools("kafka-consumer-groups", "--list").split()
    assert "Empty" in tools("kafka-consumer-groups", "--list", "--state")
    tools(*groups, "--delete")
    assert "readers" not in tools("kafka-consumer-groups", "--list").split()


def _offset_of_readers(described: str) -> str:
    return next(line for line in described.splitlines() if "readers" in line).split()[3]


@pytest.mark.parametrize(
    ("formatter", "marks"),
    [
        ("OffsetsMessageFormatter", ('"group":"watched"', '"topic":"watch"', '"offset":3')),
        ("GroupMetadataMessageFormatter", ('"group":"watched"', '"protocolType":"consumer"')),
    ],
)
def test_kafkas_formatters_read_the_records_of_groups(
    tools: Tools, formatter: str, marks: tuple[str, ...]
) -> None:
    tools("kafka-console-producer", "--topic", "watch", stdin="a\nb\nc\n")
    tools(
        *("kafka-console-consumer", "--topic", "watch", "--group", "watched"),
        *("--from-beginning", "--max-messages", "3", "--timeout-ms", "20000"),
    )
    shown = tools(
        *("kafka-console-consumer", "--topic", "__consumer_offsets", "--from-beginning"),
        *("--formatter", f"org.apache.kafka.tools.consumer.{formatter}"),
        *("--timeout-ms", "4000"),
    )
    assert any(all(mark in line for mark in marks) for line in shown.split("}}}"))
