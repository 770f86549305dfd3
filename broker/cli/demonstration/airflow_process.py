"""A local Airflow as processes: started, looked at, and ended with all of its children."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lakehead.broker.cli.demonstration.airflow_home import MARK, AirflowHome
from lakehead.broker.cli.demonstration.bound_process import bound
from lakehead.storage.errors import LakeheadError

_READY_S = 900.0
_STOP_S = 30.0
_POLL_S = 0.5
_PARTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")


@contextlib.contextmanager
def running_airflow(
    home: AirflowHome, environment: Mapping[str, str], *, check: Callable[[], None]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `airflow standalone` until the block ends; yield its process once all parts are well.

    `check` is called during the wait, and may raise. Processes that an earlier run left are ended
    first. Raises LakeheadError, which names the log, if Airflow does not start.
    """
    end_leftovers(home.folder)
    command = bound([str(Path(sys.executable).parent / "airflow"), "standalone"], by=signal.SIGINT)
    with _outlived(home.folder), home.log.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=home.folder,
            start_new_session=True,  # Ctrl-C is for us alone: parts are ended in order
        )
        try:
            _wait_ready(home, process, check)
            yield process
        finally:
            _stop(process)
            end_leftovers(home.folder)


def _wait_ready(
    home: AirflowHome, process: "subprocess.Popen[bytes]", check: Callable[[], None]
) -> None:
    deadline = time.perf_counter() + _READY_S
    while not _is_well(home.url):
        check()
        if process.poll() is not None:
            raise LakeheadError(f"Airflow did not start: {_last_words(home.log)}")
        if time.perf_counter() > deadline:
            raise LakeheadError(f"Airflow was not ready in {_READY_S:.0f} s: see {home.log}")
        time.sleep(_POLL_S)


def _is_well(url: str) -> bool:
    """Return true if all parts report that they are healthy."""
    try:
        with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=5) as response:  # noqa: S310
            health = json.load(response)
    except (OSError, ValueError):
        return False
    return all(health.get(part, {}).get("status") == "healthy" for part in _PARTS)


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else 'it said nothing'} (more in {log})"


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _outlived(folder: Path) -> Iterator[None]:
    """Have a process that ends the Airflow in `folder` if this one is killed.

    The kernel then sends Airflow the signal of an orderly end, but a scheduler whose worker was
    killed may wait for that worker without limit. It has the mark, too, so that the next run in the
    folder ends it first.
    """
    last = subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder)],
        stdin=subprocess.PIPE,
        env={**os.environ, MARK: str(folder)},
        start_new_session=True,
    )
    assert last.stdin is not None
    try:
        yield
    finally:
        last.stdin.close()
        last.wait()


def _outlive(folder: Path) -> None:
    """Wait until the process at the other end of standard input is gone, and for an orderly end of
    what it left; then end the rest.
    """
    sys.stdin.buffer.read()
    deadline = time.perf_counter() + _STOP_S
    while _processes_in(folder) and time.perf_counter() < deadline:
        time.sleep(_POLL_S)
    end_leftovers(folder)


def end_leftovers(folder: Path) -> None:
    """End the processes of an Airflow that lived in `folder`: they carry its mark."""
    while left := _processes_in(folder):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _processes_in(folder: Path) -> list[int]:
    """Return the ids of other processes that carry the mark of the Airflow in `folder`."""
    mark = f"{MARK}={folder}".encode()
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and mark in _environment(pid)]


def _environment(pid: int) -> list[bytes]:
    """Return the environment of another process; of those of other users, and of the dead, none."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


if __name__ == "__main__":
    _outlive(Path(sys.argv[1]))
