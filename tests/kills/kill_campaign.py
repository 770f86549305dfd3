"""Jobs that are killed at every step, several at once, on a cluster whose producers go on.

A real broker with four topics: `orders` declares a table, which is an Iceberg table too,
`customers` a table by upsert with deletion vectors, `state` is compacted by keys, `plain` is none
of these. Both tables have an entry in a catalog, and their topics little room (retention waits for
the tables). Job after job is started as a process of its own, up to `TOGETHER` at a time, the same
one twice too; most end by a fail-point or by signal 9 at a random moment. At the end all jobs run
once more in peace, and `kill_checks` judges.
"""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lakehead.lake.catalogs.named_catalogs import CATALOGS
from lakehead.storage.failpoints import KILLED
from tests.checker.history import History
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.traffic import IDEMPOTENT, QUICK_RECONNECT, ProducerThread
from tests.support.unity_server import UnityServer, unity_server

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 2
TOGETHER = 3
_STRIDE = 7919
PATIENT = {**IDEMPOTENT, "message.timeout.ms": 0}
"""A producer whose records are in time however long the machine stands still."""
TABLE, UPSERTED, KEYED, PLAIN = "orders", "customers", "state", "plain"
CATALOG, ICEBERG_TABLE = "kills", "shop.orders"
ENTRIES: Mapping[str, str] = {TABLE: "unity.shop.orders", UPSERTED: "unity.shop.customers"}
"""The names in the catalog of the tables of topics."""
TOPICS: Mapping[str, Mapping[str, str]] = {
    TABLE: {
        "retention.bytes": "60000",
        "lakehead.table.enable": "true",
        "lakehead.table.formats": "delta,iceberg",
        "lakehead.table.iceberg.catalog": CATALOG,
        "lakehead.table.iceberg.name": ICEBERG_TABLE,
        "lakehead.table.catalog": CATALOG,
        "lakehead.table.catalog.name": ENTRIES[TABLE],
    },
    UPSERTED: {
        "retention.bytes": "60000",
        "lakehead.table.enable": "true",
        "lakehead.table.mode": "upsert",
        "lakehead.table.deletion.vectors": "true",
        "lakehead.table.catalog": CATALOG,
        "lakehead.table.catalog.name": ENTRIES[UPSERTED],
    },
    KEYED: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    PLAIN: {},
}
JOBS: Mapping[str, tuple[str, ...]] = {
    **{
        f"{job} {topic}": (job, topic, *more)
        for job, more in (("materialize", ("--workers", "1")), ("optimize", ()), ("vacuum", ()))
        for topic in (TABLE, UPSERTED)
    },
    "compact-objects": ("compact-objects", "--count", "4", "--target", "1"),
    "compact-topics": ("compact-topics",),
    "apply-retention": ("apply-retention",),
    "sweep": ("sweep", "--yes", "--grace", "30", "--margin", "30"),
}
PLACES: Mapping[str, tuple[str, ...]] = {
    f"materialize {TABLE}": ("materialize_", "table_"),
    f"materialize {UPSERTED}": ("materialize_", "merge_", "table_"),
    **{f"optimize {topic}": ("optimize_", "table_") for topic in (TABLE, UPSERTED)},
    **{f"vacuum {topic}": ("vacuum_",) for topic in (TABLE, UPSERTED)},
    "compact-objects": ("compact_",),
    "compact-topics": ("compaction_",),
    "apply-retention": ("metadata_entry_",),
    "sweep": ("garbage_",),
}
"""What the names of a job's fail-points begin with."""


def places() -> dict[str, list[str]]:
    """The fail-points of each job: those of its own, and those of every commit."""
    names: set[str] = set()
    for package in ("storage", "lake"):
        for source in (ROOT / package).rglob("*.py"):
            names |= set(re.findall(r'\bfailpoint\("(\w+)"\)', source.read_text()))
    commits = {"metadata_entry_planned", "metadata_entry_put"}
    return {
        job: sorted({name for name in names if name.startswith(prefixes)} | commits)
        for job, prefixes in PLACES.items()
    }


class KeyedThread:
    """A producer of records with keys; `newest` is what of each was acknowledged last. Every third
    record has one of all `keys`, the others one of the first `hot`, so that rounds replace some
    rows of a file and not all. One in `nulls` values is null (0: none).
    """

    def __init__(self, bootstrap: str, topic: str, *, keys: int, hot: int, nulls: int = 0) -> None:
        self.newest: dict[bytes, bytes | None] = {}
        self.failed: list[str] = []
        self._topic, self._keys, self._hot, self._nulls = topic, keys, hot, nulls
        self._producer = Producer({"bootstrap.servers": bootstrap, **PATIENT})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=topic, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            # Keys that follow one another are far apart, so that vectors are not runs of rows.
            key_number = number * _STRIDE % (self._hot if number % 3 else self._keys)
            is_null = self._nulls and number % self._nulls == 0
            key, value = b"k%d" % key_number, None if is_null else b"%d" % number

            def answered(
                error: object, _: object, key: bytes = key, value: bytes | None = value
            ) -> None:
                if error is None:
                    self.newest[key] = value
                else:
                    self.failed.append(str(error))

            self._producer.produce(
                self._topic,
                key=key,
                value=value,
                partition=key_number % PARTITIONS,
                on_delivery=answered,
            )
            self._producer.poll(0.005)
            number += 1


@dataclass(slots=True)
class Tally:
    """What a campaign has done."""

    runs: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    """What jobs said that ended with status 1."""
    tracebacks: list[str] = field(default_factory=list)


class KillCampaign:
    """One cluster, its producers, and the jobs that are let loose on it."""

    def __init__(self, folder: Path, seed: int, entries: UnityServer) -> None:
        self.history = History()
        self.entries = entries
        self.iceberg = {
            "type": "sql",
            "uri": f"sqlite:///{folder / 'iceberg.db'}",
            "warehouse": (folder / "warehouse").as_uri(),
        }
        """Properties of the Iceberg catalog."""
        catalogs = folder / "catalogs.toml"
        catalogs.write_text(f'[{CATALOG}]\ntype = "unity"\nuri = "{entries.uri}"\n')
        self._catalogs = {CATALOGS: str(catalogs)} | {
            f"PYICEBERG_CATALOG__{CATALOG.upper()}__{name.upper()}": value
            for name, value in self.iceberg.items()
        }
        self.tally = Tally()
        self.broker = BrokerProcess(folder, (*HASTY, "--no-maintain"))
        self.keyed: dict[str, KeyedThread] = {}
        self._rng = random.Random(seed)
        self._producers: list[ProducerThread] = []
        self._running: list[tuple[str, float, subprocess.Popen[str]]] = []
        self._places = places()

    @property
    def data(self) -> Path:
        """The cluster's folder."""
        return self.broker.folder / "data"

    @property
    def store(self) -> Path:
        """The cluster's store."""
        return self.data / "store"

    def start(self) -> None:
        """Start the broker and the producers."""
        self.broker.start()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, **QUICK_RECONNECT})
        new = [
            NewTopic(name, num_partitions=PARTITIONS, replication_factor=1, config=dict(configs))
            for name, configs in TOPICS.items()
        ]
        for made in admin.create_topics(new).values():
            made.result(20)
        self.keyed = {
            KEYED: KeyedThread(self.broker.bootstrap, KEYED, keys=40, hot=40),
            UPSERTED: KeyedThread(
                self.broker.bootstrap, UPSERTED, keys=100_000, hot=2000, nulls=10
            ),
        }
        for keyed in self.keyed.values():
            keyed.start()
        producer = ProducerThread(
            "orders",
            self.broker.bootstrap,
            TABLE,
            partitions=PARTITIONS,
            history=self.history,
            config=PATIENT,
            records_per_s=300,
        )
        plain = ProducerThread(
            "plain",
            self.broker.bootstrap,
            PLAIN,
            partitions=PARTITIONS,
            history=History(),
            config=PATIENT,
            records_per_s=100,
        )
        self._producers = [producer, plain]
        for one in self._producers:
            one.start()

    def let_loose(self, *, kills: int, seconds: float) -> None:
        """Start and kill jobs until so many were killed, or the time is over."""
        end = time.monotonic() + seconds
        while sum(self.tally.kills.values()) < kills and time.monotonic() < end:
            if len(self._running) < TOGETHER:
                self._begin(self._rng.choice(list(JOBS)))
            self._look_after()
            time.sleep(0.02)
        for _, _, process in self._running:
            process.send_signal(signal.SIGKILL)
        while self._running:
            self._look_after()

    def settle(self) -> None:
        """Stop producing, upload everything, and run each job to its end."""
        for one in self._producers:
            assert one.finish() == 0
        for keyed in self.keyed.values():
            keyed.finish()
        assert self.broker.stop() == 0, self.broker.log
        fill = [f"materialize {topic}" for topic in (TABLE, UPSERTED)]
        for name in (
            *fill,
            f"optimize {TABLE}",
            f"optimize {UPSERTED}",
            "compact-objects",
            "compact-topics",
            "apply-retention",
            *fill,  # for the catalogs, which have not heard of OPTIMIZE
        ):
            more = ("--wait", "120") if name in fill else ()  # whose lease a kill left
            done = self.lakehead(*JOBS[name], *more)
            assert done.returncode == 0, (name, done.stderr)

    def close(self) -> None:
        """End whatever still runs."""
        for _, _, process in self._running:
            process.kill()
            process.communicate()
        for one in self._producers:
            one.finish(0)
        self.broker.kill()

    def lakehead(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return subprocess.run(
            self._command(arguments),
            env=self._environment(""),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def _command(self, arguments: Sequence[str]) -> list[str]:
        path = ("--path", str(self.data), "--json")
        return [sys.executable, "-m", "lakehead", *arguments, *path]

    def _begin(self, job: str) -> None:
        rng, failpoint, dies_at = self._rng, "", time.monotonic() + 600
        chance = rng.random()
        if chance < 0.5:
            failpoint = f"{rng.choice(self._places[job])}:{rng.choice([1, 1, 2, 3])}"
        elif chance < 0.9:
            dies_at = time.monotonic() + rng.uniform(0.5, 6.0)
        process = subprocess.Popen(
            self._command(JOBS[job]),
            env=self._environment(failpoint),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.tally.runs[job] += 1
        self._running.append((job, dies_at, process))

    def _look_after(self) -> None:
        for one in list(self._running):
            job, dies_at, process = one
            if process.poll() is None and time.monotonic() > dies_at:
                process.send_signal(signal.SIGKILL)
            if process.poll() is None:
                continue
            self._running.remove(one)
            _, error = process.communicate()
            if process.returncode in (KILLED, -signal.SIGKILL):
                self.tally.kills[job] += 1
            elif "Traceback" in error:
                self.tally.tracebacks.append(error[-2000:])
            elif process.returncode:
                lines = error.strip().splitlines()
                self.tally.refusals[f"{job}: {lines[-1][:200] if lines else ''}"] += 1

    def _environment(self, failpoint: str) -> dict[str, str]:
        own = {"PYTHONPATH": str(ROOT), "LAKEHEAD_FAILPOINT": failpoint}
        return os.environ | self._catalogs | own


@contextmanager
def campaign(folder: Path, seed: int) -> Iterator[KillCampaign]:
    """A campaign that is over when this is."""
    with unity_server() as entries:
        running = KillCampaign(folder, seed, entries)
        try:
            running.start()
            yield running
        finally:
            running.close()
