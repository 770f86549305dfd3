"""The lake's part of the console, in a process of its own: values by their schemas, tables and
dead letters.

A node does not load the packages of the lake (a quarter of a gigabyte), and no value that takes
long to decode may hold its event loop. So the process is started when a page first needs it, runs
at a lower priority, works on one request at a time, and is killed if one takes too long. It ends by
itself when it is not used, and with its node.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from lakehead.broker.maintenance.beside import environment
from lakehead.broker.maintenance.tables_beside import is_lake_installed
from lakehead.broker.settings import Settings
from lakehead.broker.supervisor.lifeline import SUPERVISOR
from lakehead.storage.errors import LakeheadError

_MODULE = "lakehead.broker.cli.console_process"
_START_S = 6.0
"""Longest wait of a page for a process that starts. It takes seconds to import its packages, and
more on a busy machine: the viewer loads the page again meanwhile.
"""
_WAIT_S = 4.0
"""Longest wait for requests of other pages."""
_RESPONSE_MAX = 32 << 20


class LakeProcessError(LakeheadError):
    """The process has no response. The message is a line for the viewer."""


def process_environment(settings: Settings) -> Mapping[str, str]:
    """Return the environment of a process that a page starts: with the settings of its node. The
    node is not its supervisor: the kernel would end it with the thread of the page.
    """
    found = {**os.environ, **environment(settings)}
    found.pop(SUPERVISOR)
    return found


class LakeProcess:
    """The process of a node. For the threads of pages."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False

    def request(self, work: str, *, timeout_s: float, **fields: Any) -> Any:
        """Have a request done and return what was found. Raises LakeProcessError."""
        if not is_lake_installed():
            raise LakeProcessError(
                "the packages of the lake are not installed on this node: "
                "pip install 'lakehead[lake]'"
            )
        if not self._lock.acquire(timeout=_WAIT_S):
            raise LakeProcessError("other pages are being made: try again")
        try:
            response = self._exchange({"work": work, **fields}, timeout_s)
        finally:
            self._lock.release()
        if "error" in response:
            raise LakeProcessError(response["error"])
        return response["found"]

    def _exchange(self, request: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        process = self._ready()
        assert process.stdin is not None, "a pipe"
        assert process.stdout is not None, "a pipe"
        limit = threading.Timer(timeout_s, process.kill)
        limit.start()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline(_RESPONSE_MAX)
            if line.endswith(b"\n"):
                response: Mapping[str, Any] = json.loads(line)
                return response
        except OSError:
            line = b""
        finally:
            limit.cancel()
        self.close()
        reason = "has more than 32 MiB" if line else f"did not come within {timeout_s:.0f} s"
        raise LakeProcessError(f"the response of the process for tables and values {reason}")

    def _ready(self) -> "subprocess.Popen[bytes]":
        """Return the process, started if there is none, once it takes requests."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._started()
            self._process, self._is_ready = process, False
        if not self._is_ready:
            assert process.stdout is not None, "a pipe"
            if not select.select([process.stdout], [], [], _START_S)[0]:
                raise LakeProcessError(
                    "the process for tables and values is starting: load the page again"
                )
            self._is_ready = bool(process.stdout.readline())
            if not self._is_ready:
                self.close()
                raise LakeProcessError(
                    "the process for tables and values does not start (the node's log has the "
                    "reason)"
                )
        return process

    def _started(self) -> "subprocess.Popen[bytes]":
        self.close()
        try:
            return subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=process_environment(self._settings),
                start_new_session=True,  # Ctrl-C is the node's
            )
        except OSError as error:
            raise LakeProcessError(f"the process for tables and values: {error}") from None

    def close(self) -> None:
        """End the process, if there is one: it may be killed anywhere."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written is of no use any more
                    pipe.close()
