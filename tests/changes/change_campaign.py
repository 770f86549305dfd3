"""Changes of a living PostgreSQL on their way to Delta tables, while every part is killed.

A workload runs on the database; a connector produces its changes to a cluster of two nodes under a
supervisor; `lakehead materialize --follow` keeps the tables. At random moments one of them is
ended by signal 9 (the database as by a crash) and started again. At the end all is let finish, and
the tables are held beside the database.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import lakehead
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from tests.changes.connector import SLOT
from tests.changes.envelopes import lsn
from tests.changes.postgres import Postgres, query_patiently, running_postgres
from tests.changes.row_changes import SCHEMA, Workload
from tests.changes.row_comparison import differences
from tests.changes.tables import TABLES
from tests.changes.writer import Writer
from tests.support.supervised import ROOT, Supervised, supervised

NODES = 2
PARTITIONS = 2
FLAGS = ("--upload.age.ms", "1000", "--no-maintain", "--offsets.topic.num.partitions", "1")
_PAUSES_S = (0.3, 2.0)
_PARTS = ("node", "node", "connector", "connector", "tables", "tables", "postgres")
_CHECKPOINTS = 0.7
_DRAIN_S = 1800.0


class Worker:
    """A process that is started again whenever it ends."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.ended = 0
        """How often it ended without having been killed."""
        self._arguments = arguments
        self._log = log
        self._process = self._launch()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    @property
    def log_size(self) -> int:
        return self._log.stat().st_size

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._launch()

    def look_after(self) -> None:
        if self._process.poll() is not None:
            self.ended += 1
            self._process = self._launch()

    def finish(self, number: signal.Signals) -> None:
        """End it for good."""
        self._process.send_signal(number)
        self._process.wait(120)

    def _launch(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *self._arguments], cwd=ROOT, stdout=log, stderr=log
            )


class ChangeCampaign:
    """All parts on one folder."""

    def __init__(self, folder: Path, server: Postgres, nodes: Supervised, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._server = server
        self._nodes = nodes
        self._rng = random.Random(seed)
        bootstrap = ",".join(nodes.addresses)
        given = json.dumps({"postgres": str(server.folder), "bootstrap": bootstrap})
        self.connector = Worker(["tests.changes.connector", given], folder / "connector.log")
        follow = ("lakehead", "materialize", "--follow", "--path", str(nodes.data), "--json")
        self.tables = Worker(follow, folder / "tables.log")

    def kill_while(self, writer: Writer) -> None:
        """Kill parts until the workload is done and its changes are in the topics."""
        until, target = time.monotonic() + _DRAIN_S, None
        marks: dict[bool, int] = {}
        while target is None or self._confirmed() < target:
            assert time.monotonic() < until, f"{self.connector.log}\n{self.tables.log}"
            part = self._rng.choice(_PARTS)
            is_tables = part == "tables"
            if marks.get(is_tables) != self._got_through(is_tables):
                self._kill(part)
                marks[is_tables] = self._got_through(is_tables)
            time.sleep(self._rng.uniform(*_PAUSES_S))
            self.connector.look_after()
            self.tables.look_after()
            if writer.failed is not None:
                raise writer.failed
            if writer.is_done and target is None:
                target = self._end_of_log()

    def settle(self) -> dict[str, TableOutcome]:
        """Let everything come to its end, without kills; what became of the tables."""
        self.connector.finish(signal.SIGKILL)
        self.tables.finish(signal.SIGTERM)
        self._nodes.process.send_signal(signal.SIGTERM)
        assert self._nodes.process.wait(120) == 0, self._nodes.log[-2000:]
        told: list[TableOutcome] = []
        tables = DeclaredTables(self.path, wait_s=60)
        try:
            tables.catch_up(all_of_them=True, on_table=told.append)
        finally:
            tables.close()
        return {outcome.topic: outcome for outcome in told}

    @property
    def path(self) -> str:
        """Of the cluster: a URI as the command makes it, so that tables are in the same place."""
        return f"file:{self._nodes.data / 'store'}"

    def close(self) -> None:
        self.connector.finish(signal.SIGKILL)
        self.tables.finish(signal.SIGKILL)

    def _kill(self, part: str) -> None:
        if part == "node":
            number = self._rng.randrange(NODES)
            if self._nodes.lives_ready(number) < len(self._nodes.pids(number)):
                return  # it is on its way up: to be let get there
            with suppress(ProcessLookupError):
                os.kill(self._nodes.pids(number)[-1], signal.SIGKILL)
        elif part == "postgres":
            # A slot is where the last checkpoint saved it. By itself the server makes one in five
            # minutes: without these, as many crashes as here would let nothing get further.
            if self._rng.random() < _CHECKPOINTS:
                self._server.query("CHECKPOINT")
            self._server.crash()
            self._server.start()
        else:
            (self.connector if part == "connector" else self.tables).kill()
        self.kills[part] += 1

    def _got_through(self, is_tables: bool) -> int:
        """Another number when records have got into tables, or changes into topics."""
        return self.tables.log_size if is_tables else self._confirmed()

    def _end_of_log(self) -> int:
        """A position after all changes, which the slot will pass."""
        ask = "SELECT pg_current_wal_insert_lsn()"
        position = lsn(query_patiently(self._server.folder, ask)[0])
        # One change more that changes nothing: the slot goes past what is before it.
        table = TABLES[0].name
        query_patiently(self._server.folder, f"UPDATE {table} SET name = name")
        return position

    def _confirmed(self) -> int:
        ask = f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        found = query_patiently(self._server.folder, ask)
        return lsn(found[0]) if found and found[0] else 0


@contextmanager
def campaign(folder: Path, seed: int) -> Iterator[tuple[ChangeCampaign, Postgres]]:
    """A database, a cluster with topics that declare tables, and what lies between."""
    with running_postgres() as server, supervised(folder, NODES, *FLAGS) as nodes:
        server.query(SCHEMA)
        nodes.wait_ready()
        admin = AdminClient({"bootstrap.servers": ",".join(nodes.addresses), "log_level": 0})
        more = {"lakehead.table.freshness.ms": "3000", "retention.ms": "-1"}
        topics = [NewTopic(t.topic, PARTITIONS, 1, config=t.configs | more) for t in TABLES]
        for made in admin.create_topics(topics).values():
            made.result(30)
        running = ChangeCampaign(folder, server, nodes, seed)
        try:
            yield running, server
        finally:
            running.close()


def run(folder: Path, *, rows: int, seed: int) -> list[str]:
    """A whole campaign; what is wrong, a line each. Prints what was done."""
    began = time.monotonic()
    with campaign(folder, seed) as (running, server):
        writer = Writer(server, Workload(seed, rows))
        writer.start()
        running.kill_while(writer)
        drained = time.monotonic()
        outcomes = running.settle()
        found = [f"{o.topic}: {o.error}" for o in outcomes.values() if o.error is not None]
        lines = {table.name: server.query(table.rows_sql) for table in TABLES}
    for table in TABLES:
        outcome = outcomes[table.topic]
        found += differences(table, outcome.table, map(table.row, lines[table.name]))
        if outcome.result.dead_letters or outcome.lag.records:
            found.append(f"{table.name}: {outcome}")
    ended = time.monotonic()
    records = sum(lakehead.catalog_tables(running.path).partitions["end_offset"].to_pylist())
    print(f"{writer.changes} rows changed in {writer.crashes + 1} lives of the database")
    print(f"{records} records in topics; {sum(map(len, lines.values()))} rows at the end")
    print(f"kills: {dict(running.kills)}")
    ended_alone = {"connector": running.connector.ended, "tables": running.tables.ended}
    print(f"ended because the database or the cluster was away, and started again: {ended_alone}")
    print(f"{drained - began:.0f} s to the last record, {ended - began:.0f} s in all")
    return found
