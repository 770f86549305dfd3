"""A broker of the demo's own: a process, started and stopped as a user would."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from lakehead.broker.cli.demonstration.bound_process import bound
from lakehead.storage.errors import LakeheadError

READY_LINE = re.compile(r"lakehead is ready at (?P<address>\S+),")
_READY_S = 60.0
_STOP_S = 60.0


@contextlib.contextmanager
def running_broker(folder: Path, *settings: str) -> Iterator[str]:
    """Run `lakehead start` with its data in `folder`, on a free port; yield its address.

    It logs to `folder/broker.log`. Raises LakeheadError with the last lines of its log if it does
    not start.
    """
    log = folder / "broker.log"
    start = [sys.executable, "-m", "lakehead", "start", "--data", str(folder), "--port", "0"]
    environment = {name: v for name, v in os.environ.items() if not name.startswith("LAKEHEAD_")}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            bound([*start, *settings]),
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us alone: it is stopped in its turn
        )
        try:
            yield _address(process, log)
        finally:
            _stop(process)


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Return where the broker listens, once it says so."""
    assert process.stdout is not None
    # A broker that hangs would keep readline waiting: ending it ends the line.
    watchdog = threading.Timer(_READY_S, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            if found := READY_LINE.search(line.decode(errors="replace")):
                return found["address"]
    finally:
        watchdog.cancel()
    words = log.read_text(errors="replace").strip().splitlines()
    raise LakeheadError(f"the broker did not start: {words[-1] if words else 'it said nothing'}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
