"""The time until an acknowledged record is in its table: 20 MB/s of JSON over five declared tables,
a real broker, a real producer (librdkafka), `lakehead materialize --follow` as a separate process;
from uploads (block WAL), and from WAL objects too (`--tail wal`).

From a record's acknowledgement to the time of the Delta commit whose progress covers it, for one
record in a hundred, after a warm-up. At the end every table must hold each acknowledged record
once.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Message, Producer

from bench.figures import Figure
from bench.lake._topics import documents
from bench.lake._usage import ProcessWatch
from bench.lakehead_server import ROOT, lakehead_server
from bench.process import ServerProcess, log_tail
from bench.workloads import PARTITIONS, RunFailed, create_topic

PART = "freshness"
TABLES = 5
VALUE_SIZE = 1024
RATE = 20e6
SAMPLED_EACH = 100
WARM_UP_SECONDS = 2.0
"""Until its records are in the tables: processes have started, tables are made."""
CATCH_UP_SECONDS = 60.0
GOAL_P50_S, GOAL_P95_S = 5.0, 10.0
DECLARED = {
    "lakehead.table.enable": "true",
    "lakehead.table.value.format": "json",
    "lakehead.table.schema": "id bigint, customer bigint, city string, note string",
    "lakehead.table.freshness.ms": "1000",
}
Place = tuple[str, int]
_PROGRESS = re.compile(r"lakehead:[^:]+:(\d+)")
"""A partition's progress in a table, and no other name of an application."""


class Acknowledged:
    """Acknowledged records: their number for each partition, and the times of some of them."""

    def __init__(self) -> None:
        self.counts: dict[Place, int] = defaultdict(int)
        self.times: dict[Place, list[tuple[int, float]]] = defaultdict(list)
        self.failure = ""

    def take(self, error: object, message: Message) -> None:
        """A delivery report."""
        if error is not None:
            self.failure = self.failure or str(error)
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert isinstance(topic, str)
        assert isinstance(partition, int)
        assert isinstance(offset, int)
        self.counts[topic, partition] += 1
        if offset % SAMPLED_EACH == 0:
            self.times[topic, partition].append((offset, time.time()))


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`."""
    seconds = 15.0 if quick else 90.0
    uploaded = _measure(folder / "block", seconds, "uploads", (), ())
    tail = _measure(folder / "object", seconds, "tail", ("--wal", "object:"), ("--tail", "wal"))
    return [*uploaded, *tail]


def _measure(
    folder: Path, seconds: float, name: str, of_server: Sequence[str], of_follower: Sequence[str]
) -> list[Figure]:
    topics = [f"documents{number}" for number in range(TABLES)]
    folder.mkdir()
    with lakehead_server(folder, "--upload.age.ms", "1000", *of_server) as server:
        for topic in topics:
            create_topic(server, topic, DECLARED)
        with ProcessWatch() as watch, Follower(folder, of_follower):
            acknowledged = Acknowledged()
            _produce(server, topics, WARM_UP_SECONDS, acknowledged)
            _wait_visible(folder, acknowledged)
            acknowledged.times.clear()
            _produce(server, topics, seconds, acknowledged)
            visible = _wait_visible(folder, acknowledged)
    delays = sorted(
        next(when for last, when in visible[place] if last >= offset) - acknowledged_at
        for place, samples in acknowledged.times.items()
        for offset, acknowledged_at in samples
    )
    _check_exactly_once(folder, topics, acknowledged)
    size = sum(acknowledged.counts.values()) * VALUE_SIZE
    rate = size / 1e6 / (seconds + WARM_UP_SECONDS)
    return [
        Figure(part=PART, name=f"{name}: rate", value=rate, unit="MB/s"),
        _delay(f"{name}: p50", delays[len(delays) // 2], GOAL_P50_S),
        _delay(f"{name}: p95", delays[len(delays) * 95 // 100], GOAL_P95_S),
        _delay(f"{name}: longest", delays[-1], None),
        *watch.figures(PART, name, size),
    ]


def _delay(name: str, value: float, goal: float | None) -> Figure:
    name = f"acknowledged to visible, {name}"
    return Figure(part=PART, name=name, value=value, unit="s", goal=goal, more_is_better=False)


class Follower:
    """`lakehead materialize --follow` for as long as a `with` runs."""

    def __init__(self, folder: Path, flags: Sequence[str] = ()) -> None:
        self._folder = folder
        self._flags = flags
        self._log = folder / "materialize.log"

    def __enter__(self) -> None:
        command = [sys.executable, "-m", "lakehead", "materialize", "--follow"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--path", str(self._folder / "data"), *self._flags],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __exit__(self, *_: object) -> None:
        ended = self._process.poll()
        if ended is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
        else:
            print(f"materialize ended with status {ended}:\n{log_tail(self._log)}")


def _produce(
    server: ServerProcess, topics: Sequence[str], seconds: float, acknowledged: Acknowledged
) -> None:
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "acks": "all",
            "linger.ms": 20,
            "batch.size": 256 * 1024,
            "log_level": 3,
        }
    )
    values = documents(4096, VALUE_SIZE)
    began = time.monotonic()
    for number in range(int(seconds * RATE / VALUE_SIZE)):
        producer.produce(
            topics[number % TABLES],
            values[number % len(values)],
            partition=number // TABLES % PARTITIONS,
            on_delivery=acknowledged.take,
        )
        if number % 100 == 0:
            ahead = began + number * VALUE_SIZE / RATE - time.monotonic()
            producer.poll(max(ahead, 0))
    if producer.flush(120) or acknowledged.failure:
        raise RunFailed(f"producing: {acknowledged.failure or 'not all is acknowledged in time'}")


def _wait_visible(folder: Path, acknowledged: Acknowledged) -> dict[Place, list[tuple[int, float]]]:
    """Wait until all is in the tables; return, for each partition, the last offset that each commit
    brought, and when.
    """
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while True:
        visible = _commits(folder, {topic for topic, _ in acknowledged.counts})
        behind = [
            place
            for place, count in acknowledged.counts.items()
            if not visible[place] or visible[place][-1][0] < count - 1
        ]
        if not behind:
            return visible
        if time.monotonic() > deadline:
            log = log_tail(folder / "materialize.log")
            raise RunFailed(f"not in their tables after {CATCH_UP_SECONDS} s: {behind}\n{log}")
        time.sleep(0.5)


def _commits(folder: Path, topics: set[str]) -> dict[Place, list[tuple[int, float]]]:
    found: dict[Place, list[tuple[int, float]]] = defaultdict(list)
    for topic in topics:
        for path in sorted(_table(folder, topic).glob("_delta_log/*.json")):
            for line in path.read_text().splitlines():
                mark = json.loads(line).get("txn")
                if mark and (progress := _PROGRESS.fullmatch(mark["appId"])):
                    partition = int(progress[1])
                    found[topic, partition].append((mark["version"], path.stat().st_mtime))
    return found


def _table(folder: Path, topic: str) -> Path:
    return folder / "data" / "tables" / topic


def _check_exactly_once(folder: Path, topics: Sequence[str], acknowledged: Acknowledged) -> None:
    from deltalake import DeltaTable

    for topic in topics:
        rows = DeltaTable(_table(folder, topic)).to_pyarrow_table(columns=["_partition", "_offset"])
        counts = rows.group_by("_partition").aggregate(
            [("_offset", "count"), ("_offset", "count_distinct"), ("_offset", "max")]
        )
        for row in counts.to_pylist():
            wanted = acknowledged.counts[topic, row["_partition"]]
            if {row["_offset_count"], row["_offset_count_distinct"], row["_offset_max"] + 1} != {
                wanted
            }:
                raise RunFailed(f"{topic}: {row}, acknowledged {wanted}")
