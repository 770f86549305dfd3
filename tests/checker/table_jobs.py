"""Jobs that bring topics into tables while the cluster and its store fail, and views of the tables.

Two processes of `lakehead materialize --follow` compete for the tables, with OPTIMIZE when it is
due; each is killed or stopped after some seconds, and another one takes its place. They reach the
store by the proxy that fails. Tables are read from the server itself.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from lakehead.lake.declaration.table_declaration import default_table_uri
from tests.checker.table_rules import TableView, Values
from tests.support.waiting import wait_until

FOLLOWERS = 2
LIFE_S = (4.0, 15.0)
VIEW_S = 3.0
CATCH_UP_S = 120.0
ICEBERG = "chaos"
CONFIGS: Mapping[str, str] = {
    "lakehead.table.enable": "true",
    "lakehead.table.value.format": "raw",
    "lakehead.table.freshness.ms": "1000",
    "lakehead.table.optimize.interval.ms": "3000",
    "lakehead.table.optimize.small.percent": "1",
}
WITH_ICEBERG: Mapping[str, str] = {
    "lakehead.table.formats": "delta,iceberg",
    "lakehead.table.iceberg.catalog": ICEBERG,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLoad:
    """The cluster, as jobs see it (`environment`), and as a reader sees it that nothing disturbs
    (`calm`).
    """

    path: str
    topics: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    calm: Mapping[str, str]
    iceberg: Mapping[str, str]
    """Properties of the Iceberg catalog, as PyIceberg names them."""

    def variables(self, reaching: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a job that reaches the store in one of the two ways."""
        prefix = f"PYICEBERG_CATALOG__{ICEBERG.upper()}__"
        names = {
            name: prefix + name.replace(".", "__").replace("-", "_").upper()
            for name in self.iceberg
        }
        settings = {names[name]: value for name, value in self.iceberg.items()}
        return {**os.environ, **reaching, **settings}


@dataclass(slots=True)
class _Follower:
    process: "subprocess.Popen[bytes]"
    ends: float


@dataclass(slots=True)
class TableJobs:
    """The jobs of a run, and what was seen of its tables."""

    load: TableLoad
    seed: int
    killed: int = 0
    views: dict[str, list[TableView]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def declare(self, bootstrap: str, admin: Mapping[str, str | int | float]) -> None:
        """Declare the tables; the last topic's is an Iceberg table too."""
        client = AdminClient({"bootstrap.servers": bootstrap, **admin})
        for topic in self.load.topics:
            configs = {**CONFIGS, **(WITH_ICEBERG if topic == self.load.topics[-1] else {})}
            entries = [
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in configs.items()
            ]
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
            for done in client.incremental_alter_configs([resource]).values():
                done.result(60)

    def start(self) -> None:
        """Begin."""
        for target in (self._keep_followers, self._look):
            thread = threading.Thread(target=target, name=target.__name__, daemon=True)
            self._threads.append(thread)
            thread.start()

    def finish(self) -> None:
        """End all jobs, by force."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def complete(self, logs: Mapping[str, Values]) -> None:
        """Bring the tables up to these logs without a fault, and take a last view of each."""

        def is_complete() -> bool:
            done = self._run(*self.load.topics)
            if done.returncode:
                self.errors.append(done.stderr.decode(errors="replace")[-300:])
            return all(
                self._held(topic) >= sum(map(len, log.values())) for topic, log in logs.items()
            )

        wait_until(is_complete, CATCH_UP_S)
        for topic in self.load.topics:
            self._view(topic)

    def iceberg_rows(self) -> list[tuple[int, int, bytes]]:
        """Return the rows of the Iceberg table, by PyIceberg."""
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(ICEBERG, **self.load.iceberg)
        name = f"lakehead.{self.load.topics[-1]}"
        return _rows(catalog.load_table(name).scan().to_arrow())

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            self._command(*arguments),
            env=self.load.variables(self.load.calm),
            cwd=self.load.folder,
            capture_output=True,
            check=False,
            timeout=CATCH_UP_S,
        )

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "lakehead", "materialize", "-p", self.load.path, *arguments]

    def _keep_followers(self) -> None:
        rng = random.Random(f"{self.seed}-tables")
        followers: list[_Follower] = []
        with (self.load.folder / "tables.log").open("ab") as log:
            while not self._stop.wait(0.1):
                for one in [one for one in followers if one.process.poll() is not None]:
                    followers.remove(one)
                for one in followers:
                    if time.monotonic() > one.ends:
                        how = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
                        one.process.send_signal(how)
                        self.killed += how == signal.SIGKILL
                        one.ends += LIFE_S[1]
                if len(followers) < FOLLOWERS:
                    process = subprocess.Popen(
                        self._command("--follow", "--workers", "1"),
                        env=self.load.variables(self.load.environment),
                        cwd=self.load.folder,
                        stdout=log,
                        stderr=log,
                    )
                    ends = time.monotonic() + rng.uniform(*LIFE_S)
                    followers.append(_Follower(process, ends))
            for one in followers:
                one.process.kill()
                one.process.wait()

    def _look(self) -> None:
        while not self._stop.wait(VIEW_S):
            for topic in self.load.topics:
                try:
                    self._view(topic)
                except Exception as error:
                    self.errors.append(f"view of {topic}: {error!r}")

    def _held(self, topic: str) -> int:
        table = self._table(topic)
        return 0 if table is None else int(table.count())

    def _view(self, topic: str) -> None:
        table = self._table(topic)
        if table is not None:
            rows = _rows(table.to_pyarrow_table(columns=["_partition", "_offset", "value"]))
            self.views.setdefault(topic, []).append(TableView(table.version(), rows))

    def _table(self, topic: str) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        uri = default_table_uri(self.load.path, topic)
        try:
            return DeltaTable(uri, storage_options=dict(self.load.calm) or None)
        except TableNotFoundError:
            return None


def _rows(table: pa.Table) -> list[tuple[int, int, bytes]]:
    columns = (table.column(name).to_pylist() for name in ("_partition", "_offset", "value"))
    return list(zip(*columns, strict=True))
