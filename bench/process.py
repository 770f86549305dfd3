"""A server under measurement: one process tree, its log file, its CPU time and its memory."""

import os
import re
import secrets
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from bench.tls_and_sasl import ClientSettings

CUT_SHORT = 130
"""Exit status of a benchmark that Ctrl-C ended, as shells have it."""
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
_TURN_SECONDS = 0.02


def _turns(seconds: float) -> range:
    """Return the turns of a wait. Time in which this process was stopped counts as one of them: the
    server was stopped too, perhaps, while another measurement had the machine.
    """
    return range(int(seconds / _TURN_SECONDS))


class ServerFailed(Exception):
    """The server ended or did not respond in time; the message holds the end of its log."""


_PORTS = range(10_000, 32_000)
"""Below those that the system gives to outgoing connections, which would come in between."""
_NEIGHBOURS = 4


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on now, nor on the next few: nodes
    of one supervisor stand side by side.
    """
    while True:
        port = secrets.choice(_PORTS)
        with ExitStack() as probes:
            try:
                for neighbour in range(_NEIGHBOURS):
                    probe = probes.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port + neighbour))
            except OSError:
                continue
            return port


class NotEnoughCores(Exception):
    """Servers and clients cannot have cores of their own. The message says how many there are."""


def cores(each: int) -> tuple[set[int], set[int]]:
    """Return that many cores for servers, and as many others for clients, of those that this
    process may use; 0: all of them for both. Raises NotEnoughCores.
    """
    there = sorted(os.sched_getaffinity(0))
    if not each:
        return set(there), set(there)
    if each < 0 or len(there) < 2 * each:
        raise NotEnoughCores(f"PIN={each} needs {2 * each} cores: this process has {len(there)}")
    return set(there[:each]), set(there[each : 2 * each])


@contextmanager
def on_cores(chosen: Collection[int]) -> Iterator[None]:
    """Processes that are started within the block, and this thread, have these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def log_tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log file; empty if there is none."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resources that a process tree has used since it started."""

    cpu_seconds: float
    peak_rss_bytes: int


class ServerProcess:
    """A server that listens on one port of the loopback interface, started on entry to a `with`.

    `command` is run with `environment` added to ours; its output goes to `log`. It counts as ready
    when its port takes connections on `host`. `client` is what clients need beside its address.
    A server with a page of metrics has it at `metrics_port`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        port: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        client: ClientSettings | None = None,
        metrics_port: int = 0,
    ) -> None:
        self.name = name
        self.metrics_port = metrics_port
        self.client = client or ClientSettings()
        self.host = host
        self.port = port
        self.log = log
        self._command = list(command)
        self._environment = dict(os.environ) | dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Kafka's `bootstrap.servers` for this server."""
        return f"{self.host}:{self.port}"

    @property
    def librdkafka(self) -> dict[str, str]:
        """Settings of a client of librdkafka."""
        return {"bootstrap.servers": self.bootstrap, **self.client.librdkafka}

    def command_config(self) -> tuple[str, str]:
        """Return the flag of Kafka's tools, and its file, with the settings of Java's clients."""
        path = self.log.with_name("client.properties")
        path.write_text("".join(f"{name}={value}\n" for name, value in self.client.java.items()))
        return "--command-config", str(path)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} is not started"
        return self._process

    @property
    def is_running(self) -> bool:
        """True if it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the process and wait until its port takes connections, or raise ServerFailed."""
        self.spawn()
        return self.wait_listening()

    def spawn(self) -> None:
        """Start the process, and wait for nothing."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_listening(self) -> Self:
        """Wait until its port takes connections, or raise ServerFailed."""
        for _ in _turns(START_SECONDS_MAX):
            if self._listens():
                return self
            if self.process.poll() is not None:
                raise ServerFailed(
                    f"{self.name} ended with status {self.process.returncode}:\n"
                    f"{log_tail(self.log)}"
                )
            time.sleep(_TURN_SECONDS)
        self.kill()
        raise ServerFailed(f"{self.name} did not start:\n{log_tail(self.log)}")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((self.host, self.port)) == 0

    def stop(self) -> int:
        """End the process politely (SIGTERM), by force after a while; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            for _ in _turns(STOP_SECONDS_MAX):
                try:
                    return self.process.wait(_TURN_SECONDS)
                except subprocess.TimeoutExpired:
                    pass
            self.kill()
        return self.process.returncode

    def kill(self) -> None:
        """`kill -9` and wait for the end."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def usage(self) -> Usage:
        """CPU seconds and peak resident bytes of the process and its children so far."""
        root = psutil.Process(self.process.pid)
        cpu, rss = 0.0, 0
        for member in (root, *root.children(recursive=True)):
            times = member.cpu_times()
            cpu += times.user + times.system + times.children_user + times.children_system
            rss += _peak_rss_bytes(member.pid)
        return Usage(cpu_seconds=cpu, peak_rss_bytes=rss)

    def metric(self, name: str) -> float:
        """The sum of a metric over all its labels, as the page of metrics has it now."""
        page = f"http://{self.host}:{self.metrics_port}/metrics"
        with urllib.request.urlopen(page, timeout=10) as response:
            lines = response.read().decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[ {{]", line)
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _peak_rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    rss: int = psutil.Process(pid).memory_info().rss  # no peak outside Linux: the present value
    return rss
