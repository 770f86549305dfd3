"""Groups of every client that is not ours: two members share the partitions, commit, and resume
where they were after the broker was killed.
"""

import contextlib
import shutil
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import KafkaError as KafkaErrorCode

from tests.support.broker_process import BrokerProcess
from tests.support.traffic import create_topic
from tests.support.waiting import wait_until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError

PARTITIONS = 4
DEADLINE_S = 60.0


class Member(Protocol):
    """One member of a group, running until stopped."""

    def numbers(self) -> list[int]: ...

    def stop(self) -> None: ...


class ThreadedMember:
    """A member in a thread that reads and commits until it is stopped, then closes.

    A commit that a rebalance refuses is tried again, after the last record too: what was read and
    never committed would rightly come again.
    """

    def __init__(
        self,
        read: Callable[[], list[int]],
        commit: Callable[[], bool],
        close: Callable[[], None],
    ) -> None:
        self._read = read
        self._commit = commit
        self._close = close
        self._numbers: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        is_committed = True
        try:
            while not (self._stop.is_set() and is_committed):
                numbers = self._read()
                if numbers or not is_committed:
                    is_committed = self._commit()
                self._numbers += numbers
        finally:
            self._close()

    def numbers(self) -> list[int]:
        return list(self._numbers)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


def confluent_member(bootstrap: str, topic: str, group: str) -> ThreadedMember:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])

    def read() -> list[int]:
        messages = [m for m in consumer.consume(50, 0.1) if m.error() is None]
        return [int(message.value() or b"") for message in messages]

    def commit() -> bool:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            # Nothing to commit: the partitions went to another member, which reads them again.
            return bool(error.args[0].code() == KafkaErrorCode._NO_OFFSET)
        return True

    return ThreadedMember(read, commit, consumer.close)


def kafka_python_member(bootstrap: str, topic: str, group: str) -> ThreadedMember:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6000,
        heartbeat_interval_ms=300,
    )
    # A leader of its kind that learns of partitions after it has joined joins again, and stays out
    # of the group if a poll ends between its assignment and the answer to it (3.0.12).
    assert consumer.partitions_for_topic(topic)

    def read() -> list[int]:
        records = consumer.poll(100, max_records=50)
        return [int(record.value) for batch in records.values() for record in batch]

    def commit() -> bool:
        try:
            consumer.commit()
        except KafkaError:
            return False
        return True

    return ThreadedMember(read, commit, consumer.close)


class KcatMember:
    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._output: list[str] = []
        settings = ("auto.offset.reset=earliest", "auto.commit.interval.ms=100")
        quick = ("session.timeout.ms=6000", "heartbeat.interval.ms=300")
        flags = [flag for setting in (*settings, *quick) for flag in ("-X", setting)]
        self._process = subprocess.Popen(
            ["kcat", "-b", bootstrap, *flags, "-u", "-q", "-G", group, topic],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._output.append(line)
        self._process.stdout.close()

    def numbers(self) -> list[int]:
        return [int(line) for line in list(self._output)]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        self._thread.join(DEADLINE_S)


MEMBERS: dict[str, Callable[[str, str, str], Member]] = {
    "confluent": confluent_member,
    "kafka-python": kafka_python_member,
    "kcat": KcatMember,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path)
    process.start()
    yield process
    process.kill()


def send(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0


def seen(members: list[Member]) -> set[int]:
    return {number for member in members for number in member.numbers()}


@pytest.mark.parametrize("client", MEMBERS)
def test_members_share_commit_and_resume(broker: BrokerProcess, client: str) -> None:
    if client == "kcat" and shutil.which("kcat") is None:
        pytest.skip("kcat is not installed: apt-get install kcat")
    topic, group, at = f"shared-by-{client}", f"team-{client}", broker.bootstrap
    start = MEMBERS[client]
    create_topic(at, topic, PARTITIONS)
    with contextlib.ExitStack() as running:

        def joined() -> Member:
            member = start(at, topic, group)
            running.callback(member.stop)
            return member

        _share_commit_and_resume(broker, topic, joined)


def _share_commit_and_resume(
    broker: BrokerProcess, topic: str, joined: Callable[[], Member]
) -> None:
    at, sent = broker.bootstrap, 0
    members = [joined(), joined()]

    def both_read_something_new() -> bool:
        nonlocal sent
        before = [len(member.numbers()) for member in members]
        send(at, topic, range(sent, sent + 40))
        sent += 40
        wanted = set(range(sent))
        assert wait_until(lambda: seen(members) >= wanted, DEADLINE_S), "records are missing"
        return all(len(m.numbers()) > count for m, count in zip(members, before, strict=True))

    assert wait_until(both_read_something_new, DEADLINE_S), "one member has all partitions"
    for member in members:
        member.stop()
    broker.kill()
    broker.start()
    send(at, topic, range(sent, sent + 40))
    new = set(range(sent, sent + 40))
    third = joined()
    assert wait_until(lambda: set(third.numbers()) >= new, DEADLINE_S), "it does not resume"
    third.stop()
    assert set(third.numbers()) == new, "committed records came again"
