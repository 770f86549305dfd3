"""Kafka's own consumer and tools with consumer groups. `BROKER=kafka` runs it on Kafka."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.integration.test_consumer_protocol import Member, are_shared, by_broker
from tests.support.broker_process import HASTY, server_under_test
from tests.support.kafka_tools import Tools, require_kafka_tools
from tests.support.traffic import create_topic
from tests.support.waiting import wait_until

TOPIC, PARTITIONS, RECORDS = "watched", 6, 60
DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require_kafka_tools()
    limits = {"group.consumer.min.heartbeat.interval.ms": "500"}
    limits["group.consumer.heartbeat.interval.ms"] = "500"
    with server_under_test(
        tmp_path_factory.mktemp("tools"), *HASTY[:2], settings=limits
    ) as running:
        create_topic(running.bootstrap, TOPIC, PARTITIONS)
        producer = Producer({"bootstrap.servers": running.bootstrap})
        for number in range(RECORDS):
            producer.produce(TOPIC, str(number), partition=number % PARTITIONS)
        assert producer.flush(DEADLINE_S) == 0
        yield running.bootstrap


@pytest.fixture
def members(bootstrap: str) -> Iterator[tuple[Member, Member]]:
    both = (
        by_broker(bootstrap, "read", TOPIC, **{"client.id": "one"}),
        by_broker(bootstrap, "read", TOPIC, **{"client.id": "two", "group.instance.id": "i"}),
    )
    assert wait_until(lambda: are_shared(*both), DEADLINE_S)
    yield both
    for member in both:
        member.close()


def test_the_java_consumer_reads_in_a_consumer_group(bootstrap: str) -> None:
    tools = Tools(bootstrap)
    read = tools(
        *("kafka-console-consumer", "--topic", TOPIC, "--group", "java", "--from-beginning"),
        *("--command-property", "group.protocol=consumer"),
        *("--max-messages", str(RECORDS), "--timeout-ms", "60000"),
    )
    assert sorted(map(int, read.split())) == list(range(RECORDS))
    described = tools("kafka-consumer-groups", "--describe", "--group", "java")
    assert [line.split()[-4] for line in described.splitlines() if TOPIC in line] == (
        ["0"] * PARTITIONS
    ), described
    assert "Empty" in tools("kafka-consumer-groups", "--list", "--state", "Empty")
    tools("kafka-consumer-groups", "--group", "java", "--delete")


@pytest.mark.usefixtures("members")
def test_tools_show_a_consumer_group(bootstrap: str) -> None:
    tools = Tools(bootstrap)
    (listed,) = (
        line.split() for line in tools("kafka-groups", "--list").splitlines() if "read" in line
    )
    assert listed == ["read", "Consumer", "consumer"]
    group = ("kafka-consumer-groups", "--group", "read", "--describe")
    state = tools(*group, "--state").split()
    assert "uniform" in state
    assert "Stable" in state
    shown = tools(*group, "--members", "--verbose")
    heading = "CURRENT-EPOCH CURRENT-ASSIGNMENT TARGET-EPOCH TARGET-ASSIGNMENT"
    assert shown.split()[6:10] == heading.split()
    rows = [line.split()[-6:] for line in shown.splitlines() if line.startswith("read")]
    assert sorted(client for client, *_ in rows) == ["one", "two"]
    for _, count, epoch, current, target_epoch, target in rows:
        assert (count, epoch, current) == (str(PARTITIONS // 2), target_epoch, target)
    owned = [one for *_, current, _, _ in rows for one in current.split(":")[1].split(",")]
    assert sorted(owned) == [str(index) for index in range(PARTITIONS)]
    refused = tools("kafka-consumer-groups", "--group", "read", "--delete")
    assert "The group is not empty." in refused
