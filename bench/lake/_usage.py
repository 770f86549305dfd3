"""Use of resources during a measurement: CPU seconds and peak memory, by kind of process."""

import contextlib
import os
import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from bench.figures import Figure

_SAMPLE_SECONDS = 0.2
_RESET_PEAK = "5"


class ProcessWatch:
    """Watches this process and all that it started, for as long as a `with` runs.

    The kernel keeps the peak memory of each process, so that samples miss none of a process that
    lives at one of them. CPU time of a process is that of its last sample, or of the end; it is
    that of one of the `rounds` that are to be made.
    """

    def __init__(self, rounds: int = 1) -> None:
        self._rounds = rounds
        self._cpu: dict[int, float] = {}
        self._cpu_before: dict[int, float] = {}
        self._peaks: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def cpu_seconds(self) -> float:
        """Of all processes together, for one round."""
        used = sum(cpu - self._cpu_before.get(pid, 0.0) for pid, cpu in self._cpu.items())
        return used / self._rounds

    @property
    def peaks(self) -> dict[str, int]:
        """Peak resident bytes of the largest process of each kind."""
        return dict(self._peaks)

    def __enter__(self) -> Self:
        for process in _family():
            with contextlib.suppress(OSError):
                Path(f"/proc/{process.pid}/clear_refs").write_text(_RESET_PEAK)
            with contextlib.suppress(psutil.Error):
                self._cpu_before[process.pid] = sum(process.cpu_times()[:2])
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._sample()

    def figures(self, part: str, name: str, size: float | None = None) -> list[Figure]:
        """Peak memory by process and, for `size` bytes of work, CPU seconds per GB."""
        found = [
            Figure(part=part, name=f"{name}: peak memory, {kind}", value=peak / 2**20, unit="MB")
            for kind, peak in sorted(self._peaks.items())
        ]
        if size:
            cost = self.cpu_seconds / (size / 1e9)
            found.insert(0, Figure(part=part, name=f"{name}: CPU", value=cost, unit="s/GB"))
        return found

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        for process in _family():
            try:
                self._cpu[process.pid] = sum(process.cpu_times()[:2])
                peak = _peak_bytes(process.pid)
                kind = _kind(process)
            except (psutil.Error, OSError):
                continue  # it has just ended
            self._peaks[kind] = max(self._peaks.get(kind, 0), peak)


def _family() -> list[psutil.Process]:
    root = psutil.Process()
    return [root, *root.children(recursive=True)]


def _kind(process: psutil.Process) -> str:
    if process.pid == os.getpid():
        return "this process"
    command = " ".join(process.cmdline())
    for part, kind in (
        ("kafka.Kafka", "Kafka's JVM"),
        ("SparkSubmit", "Spark's JVM"),
        ("pyspark.daemon", "Python worker"),
        ("lakehead materialize", "materialize"),
        ("lakehead", "Lakehead"),
        ("multiprocessing.spawn", "the job"),
    ):
        if part in command:
            return kind
    return str(process.name())


def _peak_bytes(pid: int) -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
