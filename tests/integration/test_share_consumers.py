"""Share groups by clients that are not ours: librdkafka's share consumers, over a broker that is
killed, and Kafka's tools.
"""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.kafka_tools import Tools, require_kafka_tools
from tests.support.share_consumer_process import ShareConsumerProcess
from tests.support.share_group_configs import set_group_configs
from tests.support.traffic import QUICK_RECONNECT, create_topic
from tests.support.waiting import wait_until

DEADLINE_S = 120.0
COUNT = 2_000
FLAGS = (*HASTY, *("--group.share.heartbeat.interval.ms", "500"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), FLAGS)
    process.start()
    yield process
    process.kill()


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **QUICK_RECONNECT})
    for number in numbers:
        producer.produce(topic, str(number).encode())
    assert producer.flush(DEADLINE_S) == 0


def test_members_take_every_record_over_kills_of_the_broker(broker: BrokerProcess) -> None:
    topic = group = "killed"
    create_topic(broker.bootstrap, topic, 3)
    set_group_configs(broker.bootstrap, group)
    members = [ShareConsumerProcess(broker.bootstrap, group, topic) for _ in range(4)]
    step = COUNT // 4
    for start in range(0, COUNT, step):
        produce(broker.bootstrap, topic, range(start, start + step))
        if start:
            broker.kill()
            broker.start()

    def have_all() -> bool:
        return {value for member in members for value in member.values} >= set(range(COUNT))

    assert wait_until(have_all, DEADLINE_S)
    for member in members:
        member.close(DEADLINE_S)
    late = ShareConsumerProcess(broker.bootstrap, group, topic)
    produce(broker.bootstrap, topic, range(COUNT, COUNT + 1))
    assert wait_until(lambda: COUNT in late.values, DEADLINE_S)
    late.close(DEADLINE_S)
    assert set(late.values) == {COUNT}, "what was accepted is not delivered again"


def test_kafkas_tools_know_share_groups(broker: BrokerProcess) -> None:
    require_kafka_tools()
    topic = group = "tools"
    create_topic(broker.bootstrap, topic, 2)
    set_group_configs(broker.bootstrap, group)
    produce(broker.bootstrap, topic, range(50))
    tool = Tools(broker.bootstrap)
    taken = tool(
        "kafka-console-share-consumer",
        *("--topic", topic, "--group", group, "--max-messages", "50", "--timeout-ms", "60000"),
    )
    assert sorted(map(int, taken.split())) == list(range(50))
    groups = "kafka-share-groups"
    assert group in tool(groups, "--list").split()
    state = tool(groups, "--describe", "--group", group, "--state")
    assert "Empty" in state
    lines = tool(groups, "--describe", "--group", group, "--offsets").splitlines()
    rows = [line.split() for line in lines if line.startswith(group)]
    assert [(row[1], row[2], row[4]) for row in sorted(rows)] == [
        (topic, "0", "0"),
        (topic, "1", "0"),
    ]
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert "NEW-OFFSET" in tool(groups, *reset)
    again = tool(
        "kafka-console-share-consumer",
        *("--topic", topic, "--group", group, "--max-messages", "50", "--timeout-ms", "60000"),
    )
    assert sorted(map(int, again.split())) == list(range(50))
    assert "Successful" in tool(groups, "--delete-offsets", "--group", group, "--topic", topic)
    assert "successful" in tool(groups, "--delete", "--group", group)
    assert group not in tool(groups, "--list").split()
