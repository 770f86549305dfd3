"""`lakehead start --nodes N` as a process, for tests: its nodes, its log, its end."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Supervised:
    """A supervisor and its nodes on a folder."""

    def __init__(self, folder: Path, nodes: int, flags: Sequence[str]) -> None:
        self.nodes = nodes
        self.data = folder / "data"
        self._out = (folder / "out").open("w")
        self._log = folder / "log"
        command = [
            *(sys.executable, "-m", "lakehead", "start", "--nodes", str(nodes)),
            *("--data", str(self.data), "--port", "0", "--wal.size", "64m"),
        ]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *flags], cwd=ROOT, stdout=self._out, stderr=log
            )
        self.out = folder / "out"

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def addresses(self) -> list[str]:
        found = re.search(r"lakehead is ready at (\S+),", self.out.read_text())
        return found[1].split(",") if found else []

    def pids(self, node_id: int) -> list[int]:
        """Of all lives of a node."""
        pattern = rf"node_id={node_id} event=node_started pid=(\d+)"
        return [int(pid) for pid in re.findall(pattern, self.log)]

    def lives_ready(self, node_id: int) -> int:
        return len(re.findall(rf"node_id={node_id} event=node_ready", self.log))

    def wait_ready(self) -> None:
        assert wait_until(lambda: len(self.addresses) == self.nodes, 60), self.log

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        nodes = dict(re.findall(r"node_id=(\d+) event=node_started pid=(\d+)", self.log))
        self.process.kill()
        self.process.wait(30)
        for pid in nodes.values():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._out.close()


@contextmanager
def supervised(folder: Path, nodes: int, *flags: str) -> Iterator[Supervised]:
    """`lakehead start --nodes`, ended at the end; it may not be ready yet."""
    made = Supervised(folder, nodes, flags)
    try:
        yield made
    finally:
        made.end()
