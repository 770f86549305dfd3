"""Out again: MirrorMaker 2 of Apache Kafka copies topics, configs and groups' positions from
Lakehead to Apache Kafka, as docs/migrate-from-kafka.md says.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from bench.apache_kafka.jars import mirror_maker_jars_directory
from bench.apache_kafka.server import kafka_server
from bench.apache_kafka.tools import QUICK_START
from bench.maven import MissingTool
from bench.process import ServerProcess
from tests.support.broker_process import BrokerProcess
from tests.support.traffic import new_consumer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 600
SMALL = """
replication.factor = 1
offset-syncs.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
config.storage.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
refresh.topics.interval.seconds = 2
refresh.groups.interval.seconds = 2
emit.checkpoints.interval.seconds = 2
sync.group.offsets.interval.seconds = 2
"""
"""One broker, and no waiting."""
WAIT_S = 240


def page_settings(source: str, target: str) -> str:
    """Return the properties file of the page, with these addresses."""
    page = (ROOT / "docs" / "migrate-from-kafka.md").read_text()
    found = re.search(r"```properties\n(clusters.*?)```", page, re.DOTALL)
    assert found is not None
    text = found[1].replace("lakehead-1:9092", source).replace("kafka-1:9092", target)
    assert source in text
    assert target in text
    return text


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of Lakehead and of Apache Kafka."""
    (tmp_path / "kafka").mkdir()
    try:
        mirror_maker_jars_directory()
        kafka = kafka_server(tmp_path / "kafka", {"log.retention.ms": "-1"})
    except MissingTool as missing:
        pytest.skip(str(missing))
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        with kafka:
            yield broker.bootstrap, kafka.bootstrap
    finally:
        broker.stop()


def fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic("orders", 2, 1, config={"retention.ms": "-1", "max.message.bytes": "2000000"})
    admin.create_topics([topic])["orders"].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    for number in range(RECORDS):
        producer.produce(
            "orders",
            value=None if number % 50 == 7 else b"%d" % number,
            key=b"k%d" % (number % 11),
            partition=number % 2,
            timestamp=1_700_000_000_000 + number,
            headers=[("name", b"%d" % number)],
        )
    assert producer.flush(60) == 0


def commit(bootstrap: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reports"})
    try:
        wanted = [TopicPartition("orders", 0, 200), TopicPartition("orders", 1, 300)]
        consumer.commit(offsets=wanted, asynchronous=False)
    finally:
        consumer.close()


def records(bootstrap: str) -> list[list[tuple[object, ...]]]:
    """Key, value, timestamp and headers of each record, by partition."""
    consumer = new_consumer(bootstrap, {"enable.partition.eof": True})
    found: list[list[tuple[object, ...]]] = [[], []]
    try:
        consumer.assign([TopicPartition("orders", number, 0) for number in range(2)])
        ended: set[int] = set()
        while len(ended) < 2:
            for message in consumer.consume(500, 1.0):
                partition = message.partition() or 0
                if message.error() is not None:
                    ended.add(partition)
                    continue
                found[partition].append(
                    (message.key(), message.value(), message.timestamp()[1], message.headers())
                )
    finally:
        consumer.close()
    return found


def has_all(bootstrap: str) -> bool:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    if "orders" not in admin.list_topics(timeout=30).topics:
        return False
    return sum(map(len, records(bootstrap))) == RECORDS


def positions(bootstrap: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [ConsumerGroupTopicPartitions("reports")]
    (future,) = admin.list_consumer_group_offsets(wanted).values()
    return {one.partition: one.offset for one in future.result(60).topic_partitions}


def config(bootstrap: str, name: str) -> str | None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, "orders")
    entries = admin.describe_configs([resource])[resource].result(60)
    return str(entries[name].value)


def test_topics_configs_and_positions_go_to_apache_kafka(
    clusters: tuple[str, str], tmp_path: Path
) -> None:
    source, target = clusters
    fill(source)
    commit(source)
    file = tmp_path / "mirror.properties"
    file.write_text(page_settings(source, target) + SMALL)
    mirror = ServerProcess(
        "MirrorMaker",
        [
            *("java", *QUICK_START, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
            *("-cp", f"{mirror_maker_jars_directory()}/*"),
            *("org.apache.kafka.connect.mirror.MirrorMaker", str(file)),
        ],
        port=0,
        log=tmp_path / "mirror.log",
    )
    mirror.spawn()
    try:
        assert wait_until(lambda: has_all(target), WAIT_S)
        assert records(target) == records(source)
        assert config(target, "max.message.bytes") == "2000000"
        # The group goes on where it was, or before, never behind a record that it has not had.
        assert wait_until(lambda: len(positions(target)) == 2, WAIT_S)
        found = positions(target)
        assert 0 < found[0] <= 200
        assert 0 < found[1] <= 300
    finally:
        mirror.stop()
