"""Clients that are not ours write and read, in every codec, and share topics with each other.

`BROKER=kafka` runs the same against Apache Kafka.
"""

import functools
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.process import ServerProcess
from tests.support.broker_process import HASTY, KEEPING, BrokerProcess, server_under_test
from tests.support.foreign_clients import CODECS, DEADLINE_S, ITEMS, PIP_CLIENTS, ForeignClient
from tests.support.kafka_tools import require_kafka_tools, run
from tests.support.traffic import create_topic
from tests.support.waiting import wait_until

PARTITIONS = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("clients")
    with server_under_test(folder, *HASTY, settings=KEEPING) as running:
        yield running


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", PIP_CLIENTS, ids=lambda client: client.name)
def test_what_one_client_writes_the_others_read(
    server: ServerProcess, writer: ForeignClient, codec: str
) -> None:
    if codec not in writer.codecs:
        pytest.skip(f"{writer.name} has no {codec} on this machine")
    topic = f"{writer.name}-{codec}"
    create_topic(server.bootstrap, topic, 1)
    writer.write(server.bootstrap, topic, codec)
    for reader in PIP_CLIENTS:
        if codec in reader.codecs:
            assert reader.read(server.bootstrap, topic) == list(ITEMS), reader.name


def kcat(server: ServerProcess, *arguments: str, stdin: str = "") -> str:
    program = shutil.which("kcat")
    if program is None:
        pytest.skip("kcat is not installed")
    command = [program, "-b", server.bootstrap, "-X", "broker.address.family=v4", *arguments]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", CODECS)
def test_kcat(server: ServerProcess, codec: str) -> None:
    topic = f"kcat-{codec}"
    create_topic(server.bootstrap, topic, PARTITIONS)
    lines = [f"key{number}:value {number}" for number in range(500)]
    kcat(server, "-P", "-t", topic, "-K:", "-z", codec, stdin="\n".join(lines) + "\n")
    read = kcat(server, "-C", "-t", topic, "-K:", "-e", "-q", "-o", "beginning")
    assert sorted(read.splitlines()) == sorted(lines)
    listed = json.loads(kcat(server, "-L", "-J", "-t", topic))
    assert len(listed["topics"][0]["partitions"]) == PARTITIONS
    assert kcat(server, "-Q", "-t", f"{topic}:0:0").strip().endswith("offset 0")
    assert len(kcat(server, "-C", "-t", topic, "-p0", "-o", "-3", "-e", "-q").splitlines()) == 3


def test_kafkas_own_tools(server: ServerProcess) -> None:
    require_kafka_tools()
    at = ("--bootstrap-server", server.bootstrap)
    created = run("kafka-topics", *at, "--create", "--topic", "java", "--partitions", "3")
    assert created.returncode == 0, created.stderr
    assert "java" in run("kafka-topics", *at, "--list").stdout.splitlines()
    described = run("kafka-topics", *at, "--describe", "--topic", "java").stdout
    assert "PartitionCount: 3" in described
    lines = [f"line {number}" for number in range(1000)]
    produced = run("kafka-console-producer", *at, "--topic", "java", stdin="\n".join(lines) + "\n")
    assert produced.returncode == 0, produced.stderr
    consumed = run(
        *("kafka-console-consumer", *at, "--topic", "java", "--from-beginning"),
        *("--group", "java-group", "--max-messages", "1000", "--timeout-ms", "20000"),
    )
    assert sorted(consumed.stdout.splitlines()) == sorted(lines), consumed.stderr
    ends = run("kafka-get-offsets", *at, "--topic", "java").stdout.splitlines()
    assert sum(int(line.rpartition(":")[2]) for line in ends) == 1000
    groups = run("kafka-consumer-groups", *at, "--describe", "--group", "java-group").stdout
    assert [line.split()[5] for line in groups.splitlines() if " java " in line] == ["0"] * 3


class Member:
    """A subscribed consumer in a thread: what it was assigned and what it read, until stopped."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.assigned: set[int] = set()
        self.values: list[bytes] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 300,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _assign(self, _: Consumer, places: list[TopicPartition]) -> None:
        self.assigned = {place.partition for place in places}

    def _revoke(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        self.assigned = set()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is None or message.error() is not None:
                continue
            value = message.value()
            assert isinstance(value, bytes)
            self.values.append(value)
            self._consumer.commit(message=message, asynchronous=True)
        self._consumer.close()

    def has_read(self, numbers: set[int]) -> bool:
        return {int(value) for value in self.values} >= numbers

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def send(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0


def test_a_group_balances_commits_and_resumes_after_a_restart(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        topic, at = "shared", broker.bootstrap
        create_topic(at, topic, PARTITIONS)
        send(at, topic, range(300))
        first, second = Member(at, topic, "team"), Member(at, topic, "team")
        everything = set(range(PARTITIONS))
        assert wait_until(
            lambda: (
                first.assigned | second.assigned == everything
                and bool(first.assigned)
                and bool(second.assigned)
                and not first.assigned & second.assigned
            ),
            DEADLINE_S,
        ), "the group does not balance"
        assert wait_until(lambda: len(first.values) + len(second.values) >= 300, DEADLINE_S)
        second.stop()
        assert wait_until(lambda: first.assigned == everything, DEADLINE_S), "no second balance"
        first.stop()
        broker.kill()
        broker.start()
        send(at, topic, range(300, 600))
        third = Member(at, topic, "team")
        assert wait_until(lambda: len(third.values) >= 300, DEADLINE_S)
        third.stop()
        assert {int(value) for value in third.values} == set(range(300, 600))
        assert len(third.values) == 300, "committed records came again"
    finally:
        broker.kill()


def test_members_outlive_a_kill_of_the_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        topic, at = "outlived", broker.bootstrap
        create_topic(at, topic, PARTITIONS)
        member = Member(at, topic, "survivors")
        for life in range(3):
            send(at, topic, range(life * 100, life * 100 + 100))
            assert wait_until(
                functools.partial(member.has_read, set(range(life * 100 + 100))), DEADLINE_S
            ), f"life {life}: {len(member.values)} read"
            broker.kill()
            broker.start()
        member.stop()
    finally:
        broker.kill()


def test_an_unknown_topic_is_created_when_written_to(server: ServerProcess) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})
    producer.produce("made-on-the-way", b"value")
    assert producer.flush(DEADLINE_S) == 0
    metadata = AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(timeout=10)
    assert "made-on-the-way" in metadata.topics
