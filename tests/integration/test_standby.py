"""A standby beside a cluster that goes on writing: it serves the same records, takes nothing, and
becomes the cluster when its copy is promoted.
"""

import asyncio
import json
import random
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.process import free_port
from lakehead.storage.backup.restore import find_point
from lakehead.storage.object_store import FileStore
from tests.integration.test_lost_region import followed
from tests.support.backups import back_up, bring_back, promote
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.traffic import read_log
from tests.support.waiting import wait_until

with warnings.catch_warnings():  # it reads its schemas by functions that are to go
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as PythonPartition
    from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

PARTITIONS = 2
GROUP = "g"
Log = dict[int, list[tuple[int, bytes]]]


class Replication:
    """Replicates a folder into another in any order, as S3 does, until it is stopped. Objects whose
    keys are in `held` do not arrive.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self.held: Callable[[str], bool] = lambda _key: False
        self._source, self._target = source, target
        self._rng = random.Random(4)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(0.02):
            here, there = _files(self._source), _files(self._target)
            steps = sorted(here ^ there)
            self._rng.shuffle(steps)
            for name in steps:
                if name in here and not self.held(name):
                    self._copy(name)
                elif name not in here:
                    (self._target / name).unlink()

    def _copy(self, name: str) -> None:
        place = self._target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        arriving = self._target.parent / "arriving"
        with suppress(FileNotFoundError):  # it was deleted meanwhile
            shutil.copyfile(self._source / name, arriving)
            arriving.replace(place)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


def _files(folder: Path) -> set[str]:
    found = set()
    for one in folder.rglob("*"):
        name = str(one.relative_to(folder))
        if name.startswith(("data/", "wal/", "meta/", "backup/")) and one.is_file():
            found.add(name)
    return found


@contextmanager
def primary(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "old").mkdir()
    broker = BrokerProcess(tmp_path / "old", (*HASTY, "--wal", "object:"))
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", num_partitions=PARTITIONS)])["t"].result(20)
        yield broker
    finally:
        broker.kill()


@contextmanager
def standby(tmp_path: Path, copy: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "standby").mkdir()
    page = free_port()
    (tmp_path / "standby" / "page").write_text(str(page))
    flags = ("--standby", "true", "--store", f"file:{copy}", "--wal", "object:")
    broker = BrokerProcess(tmp_path / "standby", (*HASTY, *flags, "--metrics.port", str(page)))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def store_of(tmp_path: Path) -> Path:
    return next((tmp_path / "old").rglob("store"))


def produce(
    bootstrap: str, values: range, *, transactional: str = "", commits: bool = True
) -> None:
    settings: dict[str, str | int] = {"bootstrap.servers": bootstrap, "linger.ms": 1}
    if transactional:
        settings["transactional.id"] = transactional
    producer = Producer(settings)
    if transactional:
        producer.init_transactions(30)
        producer.begin_transaction()
    for number in values:
        producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
    producer.flush(30)
    if transactional and commits:
        producer.commit_transaction(30)
    elif transactional:
        producer.abort_transaction(30)


def commit(bootstrap: str, offsets: dict[int, int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [TopicPartition("t", partition, offset) for partition, offset in offsets.items()]
    (done,) = admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(GROUP, wanted)]
    ).values()
    done.result(30)


def committed(bootstrap: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)]).values()
    return {one.partition: one.offset for one in found.result(30).topic_partitions or ()}


def log_of(bootstrap: str, *, isolation: str = "read_committed") -> Log:
    """Read every record by assignment, with confluent-kafka; the consumer has a group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
    found: Log = {index: [] for index in range(PARTITIONS)}
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < PARTITIONS and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        error, partition = message.error(), message.partition()
        assert partition is not None
        if error is None:
            found[partition].append((message.offset() or 0, message.value() or b""))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(partition)
    consumer.close()
    return found


def caught_up(old: BrokerProcess, new: BrokerProcess) -> bool:
    return log_of(old.bootstrap) == log_of(new.bootstrap)


FATAL = """
import os, sys
from confluent_kafka import KafkaException, Producer

one = Producer({"bootstrap.servers": sys.argv[1], "enable.idempotence": True})
one.produce("t", b"no", partition=0)
other = Producer({"bootstrap.servers": sys.argv[1], "transactional.id": "x"})
for begin in (lambda: one.flush(30), lambda: other.init_transactions(30)):
    try:
        begin()
    except KafkaException as error:
        print(error.args[0].fatal(), error.args[0].name(), flush=True)
os._exit(0)
"""
"""A program with producers that end by a fatal error, and raise it even when they are collected."""


def refused_produce(bootstrap: str) -> KafkaError:
    """Produce one record, and return the error of its delivery."""
    errors: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        errors.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 20_000})
    producer.produce("t", b"no", partition=0, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert errors[0] is not None
    return errors[0]


def check_refusals(bootstrap: str) -> None:
    """Each client gets an error at once, and does not send its request again."""
    begun = time.monotonic()
    plain = refused_produce(bootstrap)
    assert plain.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, plain
    fatal = subprocess.run(
        [sys.executable, "-c", FATAL, bootstrap],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert fatal.stdout.split() == [
        *("True", "CLUSTER_AUTHORIZATION_FAILED"),
        *("True", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ], fatal.stderr
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("u", num_partitions=1)])["u"].result(20)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException) as refused:
        admin.delete_topics(["t"])["t"].result(20)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": "other"})
    member.subscribe(["t"])
    message = member.poll(20)
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    member.close()
    assigned = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    with pytest.raises(KafkaException) as refused:
        assigned.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    assigned.close()
    python_producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=False)
    with pytest.raises(TopicAuthorizationFailedError):
        python_producer.send("t", b"no", partition=0).get(20)
    python_producer.close()
    assert time.monotonic() - begun < 40, "a client retried"


def check_python_reader(bootstrap: str, log: Log, position: dict[int, int]) -> None:
    """A kafka-python consumer that assigns its partitions begins where its group is."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=GROUP,
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    places = [PythonPartition("t", index) for index in range(PARTITIONS)]
    consumer.assign(places)
    found: Log = {index: [] for index in range(PARTITIONS)}
    wanted = {
        index: [one for one in records if one[0] >= position[index]]
        for index, records in log.items()
    }
    deadline = time.monotonic() + 30
    while found != wanted and time.monotonic() < deadline:
        for place, records in consumer.poll(500).items():
            found[place.partition] += [(one.offset, one.value) for one in records]
    assert found == wanted
    with pytest.raises(GroupAuthorizationFailedError):
        consumer.commit()
    consumer.close()


def check_page(tmp_path: Path) -> None:
    """Probes pass, and say that it is a standby, and how far behind."""
    port = int((tmp_path / "standby" / "page").read_text())
    for probe in ("/live", "/ready", "/health"):
        with urlopen(f"http://127.0.0.1:{port}{probe}") as response:
            found = json.load(response)
        assert found["status"] == "standby"
        assert found["copy"]["entries_behind"] == 0
        assert 0 <= found["copy"]["lag_s"] < 120
    with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = response.read().decode().splitlines()
    values = dict(line.split() for line in lines if line.startswith("lakehead_standby_"))
    assert float(values["lakehead_standby_entries_behind"]) == 0
    assert float(values["lakehead_standby_newest_record_timestamp_ms"]) > 1e12


def check_deleted_records(old: str, new: str) -> None:
    """Records that are deleted in the cluster, and with them objects, are out of range here."""
    admin = AdminClient({"bootstrap.servers": old})
    admin.delete_records([TopicPartition("t", 0, 100)])[TopicPartition("t", 0)].result(30)
    consumer = Consumer({"bootstrap.servers": new, "group.id": "r", "auto.offset.reset": "error"})
    place = TopicPartition("t", 0, 5)
    assert wait_until(lambda: consumer.get_watermark_offsets(place, timeout=10)[0] == 100, 30)
    consumer.assign([place])
    message = consumer.poll(30)
    assert message is not None
    error = message.error()
    assert error is not None
    assert "out of range" in error.str().lower()
    consumer.close()


@pytest.mark.parametrize("kind", ["backup", pytest.param("prefix", marks=pytest.mark.slow)])
def test_a_standby_serves_what_is_copied_and_becomes_the_cluster(tmp_path: Path, kind: str) -> None:
    copy = tmp_path / "copy" / "store"
    with primary(tmp_path) as old:
        produce(old.bootstrap, range(200))
        produce(old.bootstrap, range(200, 240), transactional="x")
        produce(old.bootstrap, range(240, 280), transactional="x", commits=False)
        commit(old.bootstrap, {0: 10, 1: 20})
        source = store_of(tmp_path)
        following: AbstractContextManager[object]
        if kind == "backup":
            back_up(source, copy)
            following = followed(source, copy)
        else:
            copy.mkdir(parents=True)
            following = replicated(source, copy)
        with following, standby(tmp_path, copy) as new:
            assert wait_until(lambda: caught_up(old, new), 60)
            assert committed(new.bootstrap) == {0: 10, 1: 20}
            everything = log_of(new.bootstrap, isolation="read_uncommitted")
            assert sum(map(len, everything.values())) == 280
            produce(old.bootstrap, range(300, 500))
            commit(old.bootstrap, {0: 50, 1: 60})
            assert wait_until(lambda: caught_up(old, new), 60), new.log
            assert wait_until(lambda: committed(new.bootstrap) == {0: 50, 1: 60}, 60)
            log = log_of(new.bootstrap)
            check_python_reader(new.bootstrap, log, {0: 50, 1: 60})
            check_refusals(new.bootstrap)
            check_page(tmp_path)
            assert log_of(new.bootstrap) == log, "nothing was written"
            if kind == "prefix":
                check_deleted_records(old.bootstrap, new.bootstrap)
        if kind == "backup":
            with standby_again(tmp_path, copy) as new:
                old.kill()
                shutil.rmtree(tmp_path / "old")
                check_promotion(new, copy, log)


@contextmanager
def replicated(source: Path, copy: Path) -> Iterator[Replication]:
    replication = Replication(source, copy)
    try:
        assert wait_until(lambda: bool(_files(copy)) and _files(copy) >= _files(source), 30)
        yield replication
    finally:
        replication.stop()


@contextmanager
def standby_again(tmp_path: Path, copy: Path) -> Iterator[BrokerProcess]:
    shutil.rmtree(tmp_path / "standby")
    before = _files(copy)
    with standby(tmp_path, copy) as broker:
        assert _files(copy) == before, "a standby writes nothing"
        yield broker


def check_promotion(
    new: BrokerProcess, copy: Path, log: Log, make_cluster: Callable[[Path], object] = bring_back
) -> None:
    """The standby turns into a node that takes writes, under a consumer that goes on reading."""
    reader = Consumer(
        {"bootstrap.servers": new.bootstrap, "group.id": "r", "auto.offset.reset": "error"}
    )
    ends = {index: records[-1][0] + 1 for index, records in log.items()}
    reader.assign([TopicPartition("t", index, end) for index, end in ends.items()])
    assert reader.poll(1) is None
    make_cluster(copy)

    def is_taken() -> bool:
        errors: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": new.bootstrap, "message.timeout.ms": 5_000})
        producer.produce("t", b"after", partition=0, on_delivery=lambda one, _: errors.append(one))
        producer.flush(10)
        return errors[0] is None  # an error does not compare with None

    assert wait_until(is_taken, 60), new.log
    first: list[bytes] = []
    deadline = time.monotonic() + 60
    while not first and time.monotonic() < deadline:
        message = reader.poll(1)
        if message is not None and message.error() is None:
            first.append(message.value() or b"")
    reader.close()
    assert first == [b"after"]
    after = log_of(new.bootstrap)
    assert {index: after[index][: len(records)] for index, records in log.items()} == log
    assert committed(new.bootstrap) == {0: 50, 1: 60}
    member = Consumer({"bootstrap.servers": new.bootstrap, "group.id": GROUP})
    member.subscribe(["t"])
    message = None
    while message is None and time.monotonic() < deadline:
        message = member.poll(1)
    assert message is not None
    assert message.error() is None
    assert message.offset() in {50, 60}
    member.close()
    assert read_log(new.bootstrap, "t", PARTITIONS)[0][-1][1] == b"after"
    assert new.stop() == 0
    new.start()
    assert wait_until(is_taken, 60), "started as a standby, it is a full node still"


@pytest.mark.slow
def test_a_standby_of_a_replicated_prefix_becomes_the_cluster_in_place(tmp_path: Path) -> None:
    """The last objects of the lost cluster arrive after the promotion, and change nothing."""
    copy = tmp_path / "copy" / "store"
    copy.mkdir(parents=True)
    with primary(tmp_path) as old:
        produce(old.bootstrap, range(200))
        commit(old.bootstrap, {0: 50, 1: 60})
        source = store_of(tmp_path)
        with replicated(source, copy), standby(tmp_path, copy) as new:
            assert wait_until(lambda: caught_up(old, new) and is_uploaded(copy), 60)
            assert wait_until(lambda: committed(new.bootstrap) == {0: 50, 1: 60}, 60)
            assert wait_until(lambda: _files(copy) == _files(source), 60)
        with standby_again(tmp_path, copy) as new:
            log = log_of(new.bootstrap)
            produce(old.bootstrap, range(200, 240))
            assert wait_until(lambda: len(_files(source)) > len(_files(copy)), 30)
            old.kill()

            def promote_then_deliver(place: Path) -> None:
                promote(place)
                for name in sorted(_files(source) - _files(place)):
                    (place / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source / name, place / name)
                shutil.rmtree(tmp_path / "old")

            check_promotion(new, copy, log, promote_then_deliver)


def test_what_has_not_arrived_holds_reads_back_and_later_they_go_on(tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "store"
    copy.mkdir(parents=True)
    with primary(tmp_path) as old:
        produce(old.bootstrap, range(100))
        with replicated(store_of(tmp_path), copy) as replication, standby(tmp_path, copy) as new:
            assert wait_until(lambda: caught_up(old, new) and is_uploaded(copy), 60)
            before = log_of(new.bootstrap)
            known = _files(store_of(tmp_path))
            replication.held = lambda key: key.startswith(("data/", "wal/")) and key not in known
            produce(old.bootstrap, range(100, 200))
            entries = len(known)
            assert wait_until(lambda: len(_files(copy)) > entries, 30), "entries arrive"
            ahead = Consumer(
                {"bootstrap.servers": new.bootstrap, "group.id": "r", "auto.offset.reset": "error"}
            )
            ahead.assign([TopicPartition("t", 0, before[0][-1][0] + 10)])  # it read the cluster
            assert ahead.poll(1) is None
            for _ in range(3):
                assert log_of(new.bootstrap) == before
            assert ahead.poll(1) is None, "it waits, and is not reset"
            replication.held = lambda _key: False
            assert wait_until(lambda: caught_up(old, new), 60), new.log
            message = ahead.poll(30)
            assert message is not None
            assert message.error() is None
            assert message.offset() == before[0][-1][0] + 10
            ahead.close()


def is_uploaded(copy: Path) -> bool:
    """Return true if every record is in an object that stays, as the newest entry says."""
    state = asyncio.run(find_point(FileStore(copy))).state
    streams = [state.stream(one) for one in state.topics["t"].partitions]
    return not any(
        extent.object_key.startswith("wal/") for one in streams for extent in one.extents
    )
