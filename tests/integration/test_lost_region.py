"""A region is lost: the store of a cluster under load is deleted, and a restored cluster goes on.

A followed backup is seconds behind. Lost is only what was acknowledged after the last backup:
records up to there are there once, each at its offset, and groups go on where they were.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lakehead.storage.backup.restore import find_point
from lakehead.storage.jobs.job import run_job
from lakehead.storage.jobs.verify import JOB as VERIFY
from lakehead.storage.object_store import FileStore
from tests.support.backups import back_up, bring_back
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.template_process import ForkedPython, job_environment, lakehead_command
from tests.support.traffic import read_log
from tests.support.waiting import wait_until

PARTITIONS = 3
GROUP = "g"
WALS = {"object": ("--wal", "object:"), "block": ()}
Place = tuple[int, int]


class Load:
    """A producer and a consumer of a group, in threads of their own, until they are stopped."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[Place, bytes] = {}
        self.acknowledged_at: dict[Place, float] = {}
        self.committed: dict[int, int] = {}
        self._is_over = threading.Event()
        self._bootstrap = bootstrap
        self._threads = [threading.Thread(target=one) for one in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 1}
        )
        number = 0
        while not self._is_over.is_set():
            if len(producer) < 200:
                number += 1
                producer.produce("t", b"%d" % number, on_delivery=self._delivered)
            producer.poll(0.001)
        producer.purge()
        producer.flush(5)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            place = (message.partition(), message.offset())
            self.acknowledged[place] = message.value()  # type: ignore[index,assignment]
            self.acknowledged_at[place] = time.monotonic()  # type: ignore[index]

    def _consume(self) -> None:
        consumer = group_consumer(self._bootstrap, self._has_committed)
        while not self._is_over.is_set():
            if consumer.consume(100, 0.2):
                # A commit that waits for its response would wait for a broker that was killed.
                consumer.commit(asynchronous=True)
        consumer.close()

    def _has_committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        if error is None:
            self.committed |= {one.partition: one.offset for one in places if one.error is None}

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def group_consumer(
    bootstrap: str, on_commit: Callable[[KafkaError | None, list[TopicPartition]], None]
) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "on_commit": on_commit,
        }
    )
    consumer.subscribe(["t"])
    return consumer


def committed(bootstrap: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (asked,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)]).values()
    return {one.partition: one.offset for one in asked.result(30).topic_partitions}


def begin_at_zero(bootstrap: str) -> None:
    """Create the topic, and commit offset 0 of each partition: a group that finds no offset, or
    one out of range, fails by `auto.offset.reset`.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", num_partitions=PARTITIONS)])["t"].result(20)
    commit(bootstrap, dict.fromkeys(range(PARTITIONS), 0))


def commit(bootstrap: str, offsets: dict[int, int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [TopicPartition("t", partition, offset) for partition, offset in offsets.items()]
    (asked,) = admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(GROUP, wanted)]
    ).values()
    asked.result(30)


@contextmanager
def followed(source: Path, target: Path, *, interval_s: float = 0.3) -> Iterator[ForkedPython]:
    """`lakehead backup --follow`, until the end."""
    command = [sys.executable, "-m", "lakehead", "backup", str(target), "--path", str(source)]
    with ForkedPython(
        [*command, "--follow", "--interval", str(interval_s), "--json"],
        jobs=True,
        text=True,
        env=job_environment(),
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=60)


def covers(target: Path, places: Mapping[Place, bytes]) -> bool:
    """Return true if the newest backup has these places."""
    state = asyncio.run(find_point(FileStore(target))).state
    ends = [state.stream(one).end_offset for one in state.topics["t"].partitions]
    return all(offset < ends[partition] for partition, offset in places)


def next_backup(process: ForkedPython) -> dict[str, object]:
    assert process.stdout is not None
    found: dict[str, object] = json.loads(process.stdout.readline())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("wal", WALS)
def test_what_a_followed_backup_had_is_there_when_the_store_is_gone(
    tmp_path: Path, wal: str
) -> None:
    (tmp_path / "old").mkdir()
    broker = BrokerProcess(tmp_path / "old", (*HASTY, *WALS[wal]))
    broker.start()
    load = None
    target = tmp_path / "backup"
    try:
        begin_at_zero(broker.bootstrap)
        load = Load(broker.bootstrap)
        running = load
        store = next((tmp_path / "old").rglob("store"))
        assert wait_until(lambda: len(running.committed) == PARTITIONS, 60)
        with followed(store, target) as process:
            last = next_backup(process)
            assert wait_until(lambda: len(running.acknowledged) > 2000, 60)
            surely, commits = dict(running.acknowledged), dict(running.committed)
            for _ in range(3):  # one of them began after that
                last = next_backup(process)
            while wal == "block" and not covers(target, surely):  # what is uploaded by now
                last = next_backup(process)
            assert bool(last["without_the_logs_of"]) == (wal == "block")
            broker.kill()
        load.stop()
        shutil.rmtree(tmp_path / "old")
        begun = time.monotonic()
        bring_back(target, tmp_path / "new" / store.relative_to(tmp_path / "old"))
        new = BrokerProcess(tmp_path / "new", (*HASTY, *WALS[wal]))
        new.start()
        try:
            print(f"restored and started in {time.monotonic() - begun:.2f} s")
            log = read_log(new.bootstrap, "t", PARTITIONS)
            found = {
                (partition, offset): value
                for partition, records in log.items()
                for offset, value in records
            }
            assert found.items() >= surely.items()
            both = found.keys() & running.acknowledged.keys()
            assert all(found[place] == running.acknowledged[place] for place in both)
            ends = {partition: len(records) for partition, records in log.items()}
            now = committed(new.bootstrap)
            assert now.keys() == set(range(PARTITIONS))
            for partition, offset in now.items():
                assert offset <= ends[partition]
                assert wal == "block" or offset >= commits[partition]
            again = Load(new.bootstrap)
            try:
                assert wait_until(
                    lambda: any(again.committed.get(one, 0) > ends[one] for one in ends),
                    PROGRESS_S,
                )
            finally:
                again.stop()
            assert min(offset for _, offset in again.acknowledged) >= min(ends.values())
        finally:
            new.stop()
        assert run_job(VERIFY, str(next((tmp_path / "new").rglob("store")))).damages == ()
    finally:
        if load is not None:
            load.stop()
        broker.kill()


PROGRESS_S = 180.0
"""A group that was behind catches up within this time, beside other slow tests too: it commits each
hundred records.
"""
SERVED_S = 14.0
"""A cluster under load runs for so long before it is lost: longer than an upload waits."""


@pytest.mark.slow
@pytest.mark.parametrize("wal", WALS)
def test_a_standby_goes_on_as_the_cluster_when_the_region_is_lost(tmp_path: Path, wal: str) -> None:
    """With the default age of uploads, and a backup each second. What is printed are the recovery
    point and the recovery time, without the time in which an operator decides.
    """
    (tmp_path / "old").mkdir()
    (tmp_path / "standby").mkdir()
    target = tmp_path / "copy" / "store"
    flags = (*HASTY, "--upload.age.ms", "10000", *WALS[wal])
    old = BrokerProcess(tmp_path / "old", flags)
    new = BrokerProcess(
        tmp_path / "standby", (*flags, "--store", f"file:{target}", "--standby", "true")
    )
    load = None
    old.start()
    try:
        begin_at_zero(old.bootstrap)
        load = Load(old.bootstrap)
        with followed(next((tmp_path / "old").rglob("store")), target, interval_s=1) as process:
            next_backup(process)
            new.start()
            until = time.monotonic() + SERVED_S
            assert wait_until(lambda: time.monotonic() > until, SERVED_S + 5)
            served = read_log(new.bootstrap, "t", PARTITIONS, deadline_s=PROGRESS_S)
            positions = committed(new.bootstrap)
            old.kill()
            lost_at = time.monotonic()
        load.stop()
        shutil.rmtree(tmp_path / "old")
        promoting_at = time.monotonic()
        promote(target)
        first_at = first_acknowledged(new.bootstrap)
        log = read_log(new.bootstrap, "t", PARTITIONS, deadline_s=PROGRESS_S)
        assert {index: log[index][: len(some)] for index, some in served.items()} == served
        found = {(index, offset): value for index, some in log.items() for offset, value in some}
        missing = [
            load.acknowledged_at[place]
            for place, value in load.acknowledged.items()
            if found.get(place) != value
        ]
        point_s = lost_at - min(missing, default=lost_at)
        print(
            f"{wal} WAL: recovery point {point_s:.1f} s, {len(missing)} of "
            f"{len(load.acknowledged)} records; recovery time {first_at - promoting_at:.2f} s"
        )
        now = committed(new.bootstrap)
        assert all(now[index] >= offset for index, offset in positions.items())
        assert all(offset <= len(log[index]) for index, offset in now.items())
        again = Load(new.bootstrap)
        try:
            ends = {index: len(some) for index, some in log.items()}
            assert wait_until(
                lambda: any(again.committed.get(one, 0) > ends[one] for one in ends), PROGRESS_S
            )
        finally:
            again.stop()
    finally:
        if load is not None:
            load.stop()
        old.kill()
        if new.is_running:
            new.stop()
    assert run_job(VERIFY, str(target)).damages == ()


def promote(target: Path) -> None:
    """`lakehead restore --in-place`."""
    command = [sys.executable, "-m", "lakehead", "restore", str(target), "--in-place", "--json"]
    settings = {"env": job_environment(), "stdout": subprocess.DEVNULL}
    with ForkedPython(command, jobs=True, **settings) as process:
        assert process.wait(PROGRESS_S) == 0


def first_acknowledged(bootstrap: str) -> float:
    """Produce until a record is acknowledged; return the time."""
    taken: list[float] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is None:
            taken.append(time.monotonic())

    def is_taken() -> bool:
        producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 2000})
        producer.produce("t", b"after", partition=0, on_delivery=delivered)
        producer.flush(5)
        return bool(taken)

    assert wait_until(is_taken, PROGRESS_S)
    return taken[0]


def test_an_offset_that_is_committed_beyond_the_records_becomes_the_end(tmp_path: Path) -> None:
    """Records come and go between two looks at partitions: the group must not pass over the next
    ones.
    """
    (tmp_path / "old").mkdir()
    broker = BrokerProcess(tmp_path / "old", (*HASTY, "--wal", "object:"))
    broker.start()
    try:
        begin_at_zero(broker.bootstrap)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(100):
            producer.produce("t", b"%d" % number, partition=0)
        producer.flush()
        commit(broker.bootstrap, {0: 150, 1: 0, 2: 7})
        store = next((tmp_path / "old").rglob("store"))
        back_up(store, tmp_path / "backup")
    finally:
        broker.kill()
    restored = bring_back(
        tmp_path / "backup", tmp_path / "new" / store.relative_to(tmp_path / "old")
    )
    assert restored.corrections == 2
    new = BrokerProcess(tmp_path / "new", (*HASTY, "--wal", "object:"))
    new.start()
    try:
        assert committed(new.bootstrap) == {0: 100, 1: 0, 2: 0}
    finally:
        new.stop()


def test_the_prefix_of_a_cluster_that_runs_is_not_promoted(tmp_path: Path) -> None:
    """Its node responds, so the command names it, and fences nothing."""
    broker = BrokerProcess(tmp_path, (*HASTY, "--wal", "object:"))
    broker.start()
    try:
        first_acknowledged(broker.bootstrap)
        store = next(tmp_path.rglob("store"))
        refused = lakehead_command("restore", str(store), "--in-place", "--replicated", "--yes")
        assert refused.returncode == 1
        (line,) = refused.stderr.strip().splitlines()
        assert f"node 0 responds at {broker.bootstrap}" in line
        assert "--force" in line
        replacing = ("rebuild-catalog", "--path", str(store), "--replace", "--yes")
        refused = lakehead_command(*replacing)
        assert refused.returncode == 1
        assert f"node 0 responds at {broker.bootstrap}: stop every node" in refused.stderr
        first_acknowledged(broker.bootstrap)
        broker.kill()
        assert lakehead_command(*replacing).returncode == 0
        broker.start()
        first_acknowledged(broker.bootstrap)
    finally:
        broker.stop()
