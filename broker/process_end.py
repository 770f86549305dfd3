"""The end of a process: on signals, or by force when a call to the kernel never returns.

A process ends only when the last call of its threads to the kernel has returned, and a disk may
never respond. Until then its descriptors stay open: other nodes and clients would wait at
connections that no thread serves. So `ForcedEnd` closes them, and only then ends the process as far
as possible.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol

import structlog

GRACE_S = 1.0
"""Time for the orderly end: to refuse what waits, and to close connections."""
STATUS = 74
"""Exit status of a forced end: EX_IOERR of sysexits.h."""
_STANDARD = (0, 1, 2)
_log = structlog.get_logger("broker.process")


class ForcedEnd:
    """Ends this process after `grace_s` seconds, by `end`, unless it has ended in order by then."""

    def __init__(
        self, *, grace_s: float = GRACE_S, end: Callable[[int], object] | None = None
    ) -> None:
        self._grace_s = grace_s
        self._end = end or end_now
        self._lock = threading.Lock()
        self._has_begun = False

    def begin(self, reason: str) -> None:
        """Begin the time, once. From any thread."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
        threading.Thread(target=self._run, args=(reason,), name="forced end", daemon=True).start()

    def _run(self, reason: str) -> None:
        threading.Event().wait(self._grace_s)
        _log.error("end_forced", reason=reason, after_s=self._grace_s, status=STATUS)
        self._end(STATUS)


def end_now(status: int) -> NoReturn:
    """End the process, and before that whatever others wait for: connections, its output."""
    let_go()
    os._exit(status)


def let_go() -> None:
    """Shut network connections and listening sockets down, and close the standard streams. A thread
    that the kernel keeps would keep them all open.
    """
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # it is closed already; the listing had its own
            if str(link.readlink()).startswith("socket:"):
                _shut_down(int(link.name))
    for fd in _STANDARD:
        with suppress(OSError):
            os.close(fd)


def _shut_down(fd: int) -> None:
    """Shut a socket of the network down. Others may be shared with the parent: the journal's is."""
    one = socket.socket(fileno=fd)
    try:
        if one.family in {socket.AF_INET, socket.AF_INET6}:
            one.shutdown(socket.SHUT_RDWR)
    finally:
        one.detach()


class Settable(Protocol):
    """An event, of asyncio or of threads."""

    def set(self) -> None:
        """Set it."""


class StopSignals:
    """The signals that stop a process: the first one sets `events`, a later one ends it at once,
    after `before_exit`.

    A second signal within REPEAT_S is taken for the same one: a terminal and a wrapper of the
    process both pass Ctrl-C on.
    """

    REPEAT_S = 1.0

    def __init__(
        self,
        monotonic: Callable[[], float],
        *events: Settable,
        before_exit: Callable[[], None] = lambda: None,
    ) -> None:
        self._monotonic = monotonic
        self._events = events
        self._before_exit = before_exit
        self._first_at: float | None = None

    def arrived(self, number: signal.Signals) -> None:
        """Take a signal."""
        now = self._monotonic()
        if self._first_at is None:
            self._first_at = now
            for event in self._events:
                event.set()
        elif now - self._first_at >= self.REPEAT_S:
            _log.warning("stop_forced", signal=number.name)
            self._before_exit()
            os._exit(128 + number)
