"""A standby of a large copy: 1,000 topics of ten partitions, and a group for each. What is printed
are times, memory and processor time.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.process import free_port
from tests.integration.test_lost_region import followed, next_backup
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.waiting import wait_until

TOPICS = int(os.environ.get("TOPICS", "1000"))
PARTITIONS = 10
CREATED_AT_ONCE = 100
WATCHED_S = 20.0
CHANGED = 20
"""Partitions that get a record each second."""
LAG_MAX_S = 15.0


def fill(bootstrap: str) -> None:
    """Create topics, put a record into each partition, and commit an offset for each group."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [f"t{number}" for number in range(TOPICS)]
    for first in range(0, TOPICS, CREATED_AT_ONCE):
        some = [NewTopic(one, num_partitions=PARTITIONS) for one in names[first:][:CREATED_AT_ONCE]]
        for made in admin.create_topics(some, request_timeout=60).values():
            made.result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for name in names:
        for index in range(PARTITIONS):
            producer.produce(name, b"x" * 100, partition=index)
        producer.poll(0)
    assert producer.flush(120) == 0
    for name in names:
        wanted = [ConsumerGroupTopicPartitions(f"g-{name}", [TopicPartition(name, 0, 1)])]
        (done,) = admin.alter_consumer_group_offsets(wanted).values()
        done.result(60)


def touch(bootstrap: str, second: int) -> None:
    """Put a record into some partitions, others each second."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(CHANGED):
        at = second * CHANGED + number
        producer.produce(f"t{at % TOPICS}", b"%d" % second, partition=at % PARTITIONS)
    assert producer.flush(60) == 0


def health(folder: Path) -> dict[str, float]:
    port = int((folder / "page").read_text())
    with urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as response:
        found: dict[str, float] = json.load(response)["copy"]
    return found


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(one for one in status.splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


@pytest.mark.slow
def test_a_standby_of_many_partitions_follows_closely(tmp_path: Path) -> None:
    pace = ("--upload.age.ms", "1000", "--metadata.checkpoint.entries", "1000")
    old = BrokerProcess(_folder(tmp_path, "old"), (*HASTY, *pace, "--wal", "object:"))
    target = tmp_path / "copy" / "store"
    folder = _folder(tmp_path, "standby")
    page = free_port()
    (folder / "page").write_text(str(page))
    new = BrokerProcess(
        folder,
        (
            "--store",
            f"file:{target}",
            "--standby",
            "true",
            "--metadata.poll.max.ms",
            "1000",
            "--metrics.port",
            str(page),
        ),
    )
    old.start()
    try:
        fill(old.bootstrap)
        source = next((tmp_path / "old").rglob("store"))
        with followed(source, target, interval_s=1) as process:
            first = next_backup(process)
            begun = time.monotonic()
            new.start()
            started_s = time.monotonic() - begun
            pid = new.server.process.pid
            assert wait_until(lambda: positions(new.bootstrap) == 1, 60)
            print(
                f"{TOPICS * PARTITIONS} partitions, {first['objects']} objects: started in "
                f"{started_s:.2f} s with {processor_s(pid):.2f} s of processor time, "
                f"{memory_mb(pid):.0f} MB"
            )
            for name, change in (("idle", None), ("written to", touch)):
                lags, used_s = watched(folder, pid, old.bootstrap, change)
                print(
                    f"{name}: {used_s / WATCHED_S * 100:.1f} % of a core, lag at most "
                    f"{max(lags):.1f} s, {memory_mb(pid):.0f} MB"
                )
                assert max(lags) < LAG_MAX_S
    finally:
        old.kill()
        if new.is_running:
            new.stop()


def _folder(tmp_path: Path, name: str) -> Path:
    (tmp_path / name).mkdir()
    return tmp_path / name


def positions(bootstrap: str) -> int:
    """Return the committed offset of the last group."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [ConsumerGroupTopicPartitions(f"g-t{TOPICS - 1}")]
    (found,) = admin.list_consumer_group_offsets(wanted).values()
    return int((found.result(30).topic_partitions or [])[0].offset)


def watched(
    folder: Path, pid: int, bootstrap: str, change: Callable[[str, int], None] | None
) -> tuple[list[float], float]:
    """Return the lags of a standby, once a second, and its processor time meanwhile (s)."""
    lags, before, begun = [], processor_s(pid), time.monotonic()
    for second in range(int(WATCHED_S)):
        if change is not None:
            change(bootstrap, second)
        until = begun + second + 1
        wait_until(lambda: time.monotonic() >= until, 2)  # noqa: B023
        lags.append(health(folder)["lag_s"])
    return lags, processor_s(pid) - before
