"""Scans and SQL read a topic while its records are produced, expire and are swept away."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import lakehead
from lakehead.lake.errors import DataLoss
from lakehead.storage.clock import SystemClock
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.waiting import wait_until

SECONDS = int(os.environ.get("READ_SECONDS", "30"))
FLAGS = (
    *HASTY,
    *("--log.retention.check.interval.ms", "300", "--maintenance.interval.ms", "200"),
    *("--maintain.tables", "false", "--upload.object.size", "1m"),
)
KEPT_BYTES = 1 << 20
QUERY = (
    "SELECT count(*) n, min(offset) lo, max(offset) hi, "
    "sum(CAST(trim(CAST(value AS STRING)) AS BIGINT)) s FROM `t`"
)


class World:
    """A broker whose topic `t` holds, at each offset, that offset as text and some bytes."""

    def __init__(self, folder: Path) -> None:
        self.broker = BrokerProcess(folder, FLAGS)
        self.ended = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.until = 0.0

    @property
    def store(self) -> str:
        return str(self.broker.folder / "data" / "store")

    def is_time(self) -> bool:
        return SystemClock().monotonic() < self.until

    def produce(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "enable.idempotence": True}
        )
        number = 0
        while not self.ended.is_set():
            for _ in range(500):
                producer.produce("t", b"%018d" % number + b" " * 200)
                number += 1
            assert producer.flush(60) == 0

    def sweep(self) -> None:
        while not self.ended.is_set():
            done = self.command("sweep", "--grace", "0")
            self.outcomes["sweeps"] += done.returncode == 0

    def command(self, *given: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "lakehead", *given, "--path", f"{self.broker.folder}/data"],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def scan(self) -> None:
        while self.is_time():
            try:
                rows = lakehead.scan(self.store, "t", columns=["offset", "value"]).read_all()
            except DataLoss:
                self.outcomes["scans with an error"] += 1
                continue
            offsets = rows.column("offset").to_pylist()
            values = [int(value) for value in pc.cast(rows.column("value"), "binary").to_pylist()]
            if offsets != values or offsets != list(range(offsets[0], offsets[0] + len(offsets))):
                self.wrong.append(f"scan: {len(offsets)} rows from {offsets[:1]}")
            self.outcomes["scans"] += 1

    def query(self) -> None:
        while self.is_time():
            done = self.command("sql", "-e", QUERY, "--format", "json", "--no-delta")
            if done.returncode:
                error = done.stderr.strip().splitlines()[-1]
                known = "deleted" in error or "no longer" in error or "retention" in error
                self.outcomes["queries with an error"] += 1
                if not known:
                    self.wrong.append(f"sql: {done.stderr[-600:]}")
                continue
            row = json.loads(done.stdout.strip().splitlines()[-1])
            row = row[0] if isinstance(row, list) else row
            count, low, high = row["n"], row["lo"], row["hi"]
            if count != high - low + 1 or row["s"] != (low + high) * count // 2:
                self.wrong.append(f"sql: {row}")
            self.outcomes["queries"] += 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_reads_beside_retention_and_sweep_are_whole_or_an_error(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": world.broker.bootstrap})
        configs = {"retention.bytes": str(KEPT_BYTES)}
        admin.create_topics([NewTopic("t", 1, 1, config=configs)])["t"].result(30)
        workers = [threading.Thread(target=one) for one in (world.produce, world.sweep)]
        for worker in workers:
            worker.start()
        assert wait_until(lambda: first_offset(world) > 0, 120), "nothing expires"
        before = first_offset(world)
        world.until = SystemClock().monotonic() + SECONDS
        readers = [threading.Thread(target=one) for one in (world.scan, world.scan, world.query)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        after = first_offset(world)
        world.ended.set()
        for worker in workers:
            worker.join()
    finally:
        world.ended.set()
        world.broker.kill()
    assert world.wrong == []
    assert after > before, "nothing has expired meanwhile"
    assert world.outcomes["scans"] > 0
    assert world.outcomes["sweeps"] > 0
    assert world.outcomes["queries"] + world.outcomes["queries with an error"] > 0


def first_offset(world: World) -> int:
    """The first offset that the topic has, as its objects say."""
    try:
        rows = lakehead.scan(world.store, "t", columns=["offset"]).read_all()
    except DataLoss:
        return 0
    return int(rows.column("offset")[0].as_py()) if rows.num_rows else 0
