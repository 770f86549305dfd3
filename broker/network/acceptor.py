"""Accepts the connections of one listener: some in each turn of the event loop, so that a flood of
new ones holds up no other, and none while a rate says to wait.
"""

import asyncio
import errno
import socket
from collections.abc import Callable

import structlog

from lakehead.storage.tasks import TaskScope

BATCH = 4
"""Connections that are accepted in one turn of the event loop: about a millisecond."""
SCARCE_S = 0.5
"""Pause when no descriptor or memory is left for another connection."""
SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_log = structlog.get_logger("broker.network")


class Acceptor:
    """Accepts at `listening`, a socket that does not block. `make` makes the protocol of a new
    connection; `wait_s` records one, and returns the seconds that it has to wait.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        wait_s: Callable[[], float],
        scope: TaskScope,
    ) -> None:
        self._listening = listening
        self._make = make
        self._wait_s = wait_s
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._waiting: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, backlog: int) -> None:
        """Accept from here on. `backlog` connections may wait in the kernel."""
        self._listening.listen(backlog)
        self._resume()

    def close(self) -> None:
        """Accept no more; the one that waits is closed. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None
        self._listening.close()

    def _resume(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._open(waiting)
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening.fileno())
        self._timer = self._loop.call_later(seconds, self._resume)

    def _accept(self) -> None:
        for _ in range(BATCH):
            try:
                taken, _ = self._listening.accept()
            except OSError as error:
                if error.errno in SCARCE:
                    _log.warning("connection_not_accepted", reason=error.strerror)
                    self._pause(SCARCE_S)
                return  # none is there any more, or it has ended meanwhile
            seconds = self._wait_s()
            if seconds > 0:
                self._waiting = taken
                self._pause(seconds)
                return
            self._open(taken)

    def _open(self, taken: socket.socket) -> None:
        taken.setblocking(False)
        self._scope.spawn_apart(self._connect(taken), name="open a connection")

    async def _connect(self, taken: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, taken)
        except OSError:
            taken.close()  # the client has gone
