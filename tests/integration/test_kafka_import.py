"""`lakehead import`: a cluster's topics come with their offsets, whatever is killed.

With `BROKER=kafka` the source is Apache Kafka.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lakehead.storage.failpoints import KILLED
from lakehead.storage.jobs.job import run_job
from lakehead.storage.jobs.verify import JOB as VERIFY
from tests.support.broker_process import KEEPING, BrokerProcess, server_under_test
from tests.support.template_process import lakehead_command
from tests.support.traffic import new_consumer
from tests.support.waiting import wait_until

PARTITIONS = 2
Seen = dict[tuple[int, int], tuple[object, ...]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster with a topic of all kinds of records, and a group that is in the middle of it."""
    folder = tmp_path_factory.mktemp("source")
    with server_under_test(folder, settings=KEEPING) as server:
        fill(server.bootstrap)
        yield server.bootstrap


def fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(
        "t", num_partitions=PARTITIONS, replication_factor=1, config={"retention.ms": "-1"}
    )
    admin.create_topics([topic])["t"].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "gzip"})
    for number in range(3000):
        producer.produce(
            "t",
            value=None if number % 50 == 7 else b"%d" % number,
            key=None if number % 3 else b"k%d" % (number % 11),
            partition=number % PARTITIONS,
            timestamp=1_700_000_000_000 + number * 7 % 1000,
            headers=[("name", b"%d" % number), ("none", None)] if number % 5 == 0 else None,
        )
    producer.flush()
    for end in ("commit", "abort", "commit", "abort"):
        one = Producer({"bootstrap.servers": bootstrap, "transactional.id": "x"})
        one.init_transactions(30)
        one.begin_transaction()
        for number in range(10):
            one.produce("t", f"{end} {number}".encode(), partition=number % PARTITIONS)
        one.flush()
        (one.commit_transaction if end == "commit" else one.abort_transaction)(30)
    gone = admin.delete_records([TopicPartition("t", 1, 100)])
    for future in gone.values():
        future.result(30)
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    wanted = [TopicPartition("t", 0, 700), TopicPartition("t", 1, 1511)]
    try:
        assert wait_until(lambda: has_committed(member, wanted), 60)
    finally:
        member.close()


def has_committed(member: Consumer, wanted: list[TopicPartition]) -> bool:
    """Commit offsets; return false where the coordinator is not there yet."""
    try:
        done = member.commit(offsets=wanted, asynchronous=False)
    except KafkaException:
        return False
    return all(one.error is None for one in done)


def everything(bootstrap: str) -> tuple[Seen, dict[int, tuple[int, int]]]:
    """Each committed record, and the bounds of the partitions."""
    consumer = new_consumer(
        bootstrap, {"enable.partition.eof": True, "isolation.level": "read_committed"}
    )
    found: Seen = {}
    try:
        places = [TopicPartition("t", number) for number in range(PARTITIONS)]
        bounds = {one.partition: consumer.get_watermark_offsets(one) for one in places}
        consumer.assign([TopicPartition("t", one, low) for one, (low, _) in bounds.items()])
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            for message in consumer.consume(500, 1.0):
                error = message.error()
                if error is not None:
                    assert error.name() == "_PARTITION_EOF"
                    ended.add(message.partition() or 0)
                    continue
                headers = message.headers()
                found[message.partition() or 0, message.offset() or 0] = (
                    *(message.key(), message.value(), message.timestamp()[1]),
                    None if headers is None else tuple(headers),
                )
    finally:
        consumer.close()
    return found, bounds


def is_led(bootstrap: str) -> bool:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = admin.list_topics("t", timeout=10).topics["t"].partitions
    return len(partitions) == PARTITIONS and all(one.leader >= 0 for one in partitions.values())


def positions(bootstrap: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (asked,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("g")]).values()
    return {one.partition: one.offset for one in asked.result(30).topic_partitions}


def run_import(source: str, folder: Path, *flags: str, failpoint: str = "") -> str:
    done = lakehead_command(
        *("import", source, "--path", str(folder), "--offsets-partitions", "4", "--json", *flags),
        failpoint=failpoint,
    )
    assert done.returncode == (KILLED if failpoint else 0), done.stderr
    return done.stdout


def store_of(folder: Path) -> Path:
    return next(folder.rglob("meta")).parent


@pytest.mark.parametrize(
    "failpoints",
    [
        (),
        pytest.param(
            (
                *("import_topics_made", "import_begun", "import_records_appended:2"),
                *("import_topics_uploaded", "import_positions_uploaded", "import_access_made"),
            ),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_records_offsets_and_positions_are_those_of_the_source(
    source: str, tmp_path: Path, failpoints: tuple[str, ...]
) -> None:
    broker = BrokerProcess(tmp_path)
    place = tmp_path / "data"
    for failpoint in failpoints:
        run_import(source, place, failpoint=failpoint)
    (row,) = map(json.loads, run_import(source, place).splitlines())
    assert row["partitions"] == PARTITIONS
    assert row["left_out"] is None
    assert json.loads(run_import(source, place))["records"] == 0  # nothing new
    compared = [json.loads(line) for line in run_import(source, place, "--verify").splitlines()]
    assert [one["same"] for one in compared] == [True] * PARTITIONS
    assert sum(one["records"] for one in compared) > 2800
    assert run_job(VERIFY, str(store_of(place))).damages == ()
    before, bounds = everything(source)
    broker.start()
    try:
        assert wait_until(lambda: is_led(broker.bootstrap), 30)
        after, now = everything(broker.bootstrap)
        assert after == before
        assert now == bounds
        assert positions(broker.bootstrap) == positions(source) == {0: 700, 1: 1511}
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("t", b"next", partition=0)
        producer.flush(30)
        later, _ = everything(broker.bootstrap)
        assert later.keys() - before.keys() == {(0, bounds[0][1])}
    finally:
        broker.stop()
    refused = lakehead_command("import", source, "--path", str(place))
    assert refused.returncode == 1
    assert "before its nodes start for the first time" in refused.stderr
