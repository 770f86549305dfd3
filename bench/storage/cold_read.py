"""A cold read of 4 GB while producing: a real broker process, and librdkafka on both sides.

First the data is produced, uploaded and pushed out of the log cache. Then a producer at a steady
rate measures its delivery times, alone, and again while a consumer in another process reads
everything from the start: in one process the two would wait for each other's interpreter.
The broker's memory is sampled all the time and compared with the bound of its settings.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.figures import Figure
from bench.lakehead_server import lakehead_server
from bench.process import ServerProcess
from bench.workloads import PARTITIONS, RunFailed, create_topic

PART = "cold read"
MIB, GIB = 1 << 20, 1 << 30
COLD, HOT = "bench-cold", "bench-hot"
VALUE_SIZE = 16 * 1024
FOREGROUND_MB_PER_S = 5.0
FOREGROUND_VALUE = bytes(4096)
SETTLE_S = 12.0
"""Longer than upload.age.ms: the produced data is uploaded."""
CACHE = 64 * MIB
BLOCK_CACHE, INDEX_CACHE, IN_FLIGHT, WAL_PENDING = 64 * MIB, 16 * MIB, 32 * MIB, 32 * MIB
FETCH_BYTES = 16 * MIB
FLAGS = (
    *("--cache.size", str(CACHE), "--upload.size", str(CACHE // 2)),
    *("--block.cache.size", str(BLOCK_CACHE), "--index.cache.size", str(INDEX_CACHE)),
    *("--cold.read.size", str(IN_FLIGHT), "--wal.pending.size", str(WAL_PENDING)),
    *("--fetch.max.bytes", str(FETCH_BYTES), "--wal.size", str(512 * MIB)),
)
COPIES = 2 * FETCH_BYTES + 128 * MIB
"""Responses being written, frames being read, objects being written; and freed frames that the
allocator keeps, because the broker configures it to keep some.
"""
BOUND = CACHE + BLOCK_CACHE + INDEX_CACHE + IN_FLIGHT + WAL_PENDING + COPIES
READ_SECONDS_MAX = 600.0
CONNECTED_S = 1.0
"""Deliveries of a producer that is new count after this: the first ones wait for connections."""


class MemoryWatch(threading.Thread):
    """Samples the resident memory of a process and its children."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.process = psutil.Process(pid)
        self.peak = 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.05):
            try:
                family = [self.process, *self.process.children(recursive=True)]
                self.peak = max(self.peak, sum(one.memory_info().rss for one in family))
            except psutil.NoSuchProcess:
                return

    def stop(self) -> None:
        self._over.set()
        self.join()


class Foreground(threading.Thread):
    """Produces at a steady rate until it is stopped, and keeps how long each delivery took."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(daemon=True)
        self.times_ms: list[float] = []
        self.failure = ""
        self._over = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": server.bootstrap, "acks": "all", "linger.ms": 2, "log_level": 3}
        )

    def run(self) -> None:
        interval = len(FOREGROUND_VALUE) / (FOREGROUND_MB_PER_S * MIB)
        began = due = time.monotonic()
        while not self._over.is_set():
            sent = time.monotonic()

            def delivered(error: object, _: object, sent: float = sent) -> None:
                self.failure = self.failure or ("" if error is None else str(error))
                if sent > began + CONNECTED_S:
                    self.times_ms.append((time.monotonic() - sent) * 1000)

            self._producer.produce(HOT, FOREGROUND_VALUE, on_delivery=delivered)
            due += interval
            self._producer.poll(max(0.0, due - time.monotonic()))
        self._producer.flush(30)

    def stop(self) -> float:
        """Stop and return the 99th percentile in milliseconds."""
        self._over.set()
        self.join()
        if self.failure:
            raise RunFailed(f"the foreground producer: {self.failure}")
        return sorted(self.times_ms)[len(self.times_ms) * 99 // 100]


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`."""
    size = 512 * MIB if quick else 4 * GIB
    with lakehead_server(folder, *FLAGS) as server:
        create_topic(server, COLD, {})
        create_topic(server, HOT, {})
        watch = MemoryWatch(server.process.pid)
        idle = watch.process.memory_info().rss
        _fill(server, size)
        watch.start()
        alone = Foreground(server)
        alone.start()
        time.sleep(5 if quick else 30)
        alone_ms = alone.stop()
        beside = Foreground(server)
        beside.start()
        with multiprocessing.get_context("spawn").Pool(1) as processes:
            seconds = processes.apply(_read_all, (server.bootstrap, size))
        beside_ms = beside.stop()
        watch.stop()
    return [
        Figure(part=PART, name="bytes read back", value=size / GIB, unit="GB"),
        Figure(part=PART, name="rate", value=size / MIB / seconds, unit="MB/s"),
        Figure(
            part=PART,
            name="p99 of producing meanwhile",
            value=beside_ms,
            unit="ms",
            peer="alone",
            peer_value=alone_ms,
            goal=2.0,
            more_is_better=False,
        ),
        Figure(
            part=PART,
            name="memory above the idle broker's",
            value=(watch.peak - idle) / MIB,
            unit="MB",
            peer="bound by settings",
            peer_value=BOUND / MIB,
            goal=1.0,
            more_is_better=False,
        ),
    ]


def _fill(server: ServerProcess, size: int) -> None:
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "acks": "all", "batch.size": MIB, "log_level": 3}
    )
    value = os.urandom(VALUE_SIZE)
    for number in range(size // VALUE_SIZE):
        while True:
            try:
                producer.produce(COLD, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(120):
        raise RunFailed("filling the topic took too long")
    time.sleep(SETTLE_S)


def _read_all(bootstrap: str, size: int) -> float:
    """Read the cold topic from its start to its end; return the seconds."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-cold",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 64 * 1024,
            "log_level": 3,
        }
    )
    consumer.assign([TopicPartition(COLD, number, 0) for number in range(PARTITIONS)])
    began = time.monotonic()
    left = size // VALUE_SIZE
    while left > 0:
        for message in consumer.consume(1000, timeout=1.0):
            if message.error() is not None:
                raise RunFailed(f"reading back: {message.error()}")
            left -= 1
        if time.monotonic() - began > READ_SECONDS_MAX:
            raise RunFailed(f"{left} records are missing after {READ_SECONDS_MAX:.0f} s")
    consumer.close()
    return time.monotonic() - began
