"""A cluster of hosts that a real Terraform makes, clients at work on it, and `lakehead
rolling-update` as its operator types it.
"""

import asyncio
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.process import free_port
from lakehead.broker.cli.cluster import load_state
from lakehead.broker.cli.inspection.wal_file import read_wal_file
from lakehead.broker.cluster.node_status import leads
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import MetadataImage, NodeState
from tests.checker.figures import figures
from tests.checker.history import History
from tests.checker.rules import violations
from tests.rolling import host
from tests.support.traffic import (
    IDEMPOTENT,
    ProducerThread,
    TailThread,
    create_topic,
    read_log,
)
from tests.support.waiting import wait_until

ROOT = Path(__file__).parent / "root"
TOPIC, PARTITIONS = "kept", 12
RESOURCE = "terraform_data.host"
TERRAFORM_S = 300


class World:
    """Hosts a-0, a-1 ... of this machine."""

    def __init__(self, folder: Path, hosts: int, variables: Mapping[str, object]) -> None:
        self.folder = folder / "hosts"
        self.folder.mkdir()
        self.root = folder / "root"
        shutil.copytree(ROOT, self.root)
        self._log = folder / "tool.log"
        self._log.touch()
        self.variables: dict[str, object] = {"hosts": hosts, **variables}
        script = str(Path(host.__file__))
        ports = [free_port() for _ in range(5)]
        fixed = {"folder": str(self.folder), "python": sys.executable, "ports": ports}
        text = json.dumps(fixed | {"script": script})
        (self.root / "terraform.tfvars.json").write_text(text)
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.terraform("init", "-input=false")

    def terraform(self, *arguments: str) -> str:
        done = subprocess.run(
            ["terraform", *arguments],
            cwd=self.root,
            env=os.environ | {"CHECKPOINT_DISABLE": "1"},
            capture_output=True,
            text=True,
            timeout=TERRAFORM_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def apply(self) -> None:
        self.terraform("apply", "-auto-approve", "-input=false", *self.options)

    @property
    def options(self) -> list[str]:
        return [f"-var={name}={value}" for name, value in self.variables.items()]

    def begin(self, *more: str) -> subprocess.Popen[str]:
        """Begin a rolling update to the variables as they are now."""
        variables = [
            text for name, value in self.variables.items() for text in ("--var", f"{name}={value}")
        ]
        command = [sys.executable, "-m", "lakehead", "rolling-update", str(self.root)]
        with self._log.open("a") as log:
            return subprocess.Popen(
                [
                    *(*command, "--resource", RESOURCE, "--auto-approve", "--min-ready", "1"),
                    *(*variables, *more),
                ],
                cwd=host.REPOSITORY,
                env=os.environ | {"CHECKPOINT_DISABLE": "1", "TMPDIR": str(self._log.parent)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def update(self, *more: str) -> str:
        """Do one; return what it printed."""
        with self.begin(*more) as process:
            out = process.communicate(timeout=TERRAFORM_S)[0]
        assert process.returncode == 0, self.said
        return out

    def fails(self, *more: str) -> str:
        """Do one that is refused; return its one line."""
        before = len(self.said)
        with self.begin(*more) as process:
            process.communicate(timeout=TERRAFORM_S)
        assert process.returncode == 1, self.said
        last = self.said[before:].strip().splitlines()[-1]
        assert last.startswith("lakehead: "), self.said
        return last

    @property
    def said(self) -> str:
        return self._log.read_text()

    def running(self) -> set[str]:
        """The slots whose host runs."""
        folders = [place for place in self.folder.glob("a-*") if place.is_dir()]
        return {place.name for place in folders if host.pid_of(place)}

    def boots(self, slot: str) -> int:
        boots = self.folder / slot / "boots"
        return len(boots.read_text().split()) if boots.exists() else 0

    def boot(self, slot: str) -> None:
        """As somebody does who turns a machine on again."""
        command = [sys.executable, str(Path(host.__file__)), "boot", str(self.folder / slot)]
        subprocess.run(command, check=True, timeout=60)

    def kill(self, slot: str) -> None:
        """A power cut: the supervisor, before it starts anything again, and its nodes."""
        pid = host.pid_of(self.folder / slot)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        nodes = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(nodes) >= 2
        for child in (*map(int, nodes), pid):
            os.kill(child, signal.SIGKILL)

    def state(self) -> MetadataImage:
        return asyncio.run(load_state(str(self.folder)))

    def live(self) -> dict[int, NodeState]:
        return {n: node for n, node in self.state().nodes.items() if not node.is_fenced}

    def leads(self) -> Counter[int]:
        return leads(self.state())

    def wal_sizes(self, slot: str) -> list[int]:
        """The room that each node has in its host's block WAL."""
        reports = asyncio.run(read_wal_file(str(self.folder / slot / "wal")))
        return [report.summary["capacity"] for report in reports]

    def wait_live(self, *node_ids: int) -> None:
        def settled() -> bool:
            try:
                return self.live().keys() == set(node_ids)
            except SettingsError:
                return False  # nobody has made the cluster yet

        assert wait_until(settled, 240), self.logs()

    def logs(self) -> str:
        logs = (place.read_text()[-3000:] for place in sorted(self.folder.glob("a-*/log")))
        return "\n\n".join([self.said, *logs])

    def end(self) -> None:
        for place in self.folder.glob("a-*"):
            host.stop(place, signal.SIGKILL)


class Clients:
    """A producer and a consumer that must notice nothing, and somebody who counts hosts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.history = History()
        create_topic(world.bootstrap, TOPIC, PARTITIONS)
        self._producer = ProducerThread(
            "kept",
            world.bootstrap,
            TOPIC,
            partitions=PARTITIONS,
            history=self.history,
            config=IDEMPOTENT,
            records_per_s=200,
        )
        self._tail = TailThread(world.bootstrap, TOPIC, partitions=PARTITIONS, history=self.history)
        self._began = self.history.clock()
        self._producer.start()
        self._tail.start()
        self._expected = world.running()
        self._stop = threading.Event()
        self._counting = threading.Thread(target=self._count, daemon=True)
        self.down: set[frozenset[str]] = set()
        """Which hosts were down together, of those that were there at the beginning."""
        self._counting.start()
        self.go_on()

    def _count(self) -> None:
        while not self._stop.wait(0.05):
            self.down.add(frozenset(self._expected - self._world.running()))

    def go_on(self) -> None:
        mark = self._producer.acknowledged + 200
        assert wait_until(lambda: self._producer.acknowledged >= mark, 60), self._world.logs()

    def finish(self, *, pause_max_s: float = math.inf) -> None:
        """Nothing was lost, doubled or passed over, and no partition paused longer."""
        self._stop.set()
        self._counting.join(10)
        assert self._producer.finish() == 0, self._world.logs()
        ended = self.history.clock()
        log = read_log(self._world.bootstrap, TOPIC, PARTITIONS)
        wanted = sum(map(len, log.values()))
        assert wait_until(lambda: self._read() >= wanted, 60), "the consumer has not seen all"
        self._tail.finish()
        assert violations(self.history, log) == []
        assert wanted == self._producer.acknowledged
        found = figures(self.history, began=self._began, ended=ended)
        print(f"\n{wanted} records in {ended - self._began:.0f} s; pauses of a second and more:")
        print([(gap.partition, round(gap.seconds, 2)) for gap in found.gaps[:8]])
        assert all(gap.seconds < pause_max_s for gap in found.gaps)

    def _read(self) -> int:
        polls = self.history.readings["tail"]
        return sum(len(poll.reads) for poll in polls if hasattr(poll, "reads"))


@contextmanager
def hosts_of_terraform(folder: Path, hosts: int, **variables: object) -> Iterator[World]:
    """A cluster with so many hosts, all of which serve."""
    world = World(folder, hosts, variables)
    try:
        world.apply()
        world.wait_live(*(100 * slot + node for slot in range(hosts) for node in range(2)))
        yield world
    finally:
        world.end()
