"""The places for connections: fewer than the process may have open files, so that storage, metadata
and other nodes always find a descriptor.

Beyond the limit a connection is closed, unless another node made it: as Kafka does for its listener
between brokers, which here is the same one. So the first request decides, and a few connections are
kept that have sent none yet, the newest ones, for a moment.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from lakehead.broker.network.request_memory import BETWEEN_NODES

if TYPE_CHECKING:
    from lakehead.broker.network.connection import Connection

UNDECIDED_MAX = 16
UNDECIDED_S = 1.0
_RESERVE = range(128, 2048)
_log = structlog.get_logger("broker.network")


class ConnectionPlaces:
    """Who is let in. `max_connections` returns the setting as it is now; `refuse` closes a
    connection and counts it; `open_files` is the limit of the process.
    """

    def __init__(
        self,
        max_connections: Callable[[], int],
        refuse: Callable[["Connection"], None],
        open_files: int,
    ) -> None:
        reserve = min(max(open_files // 4, _RESERVE.start), _RESERVE.stop, open_files // 2)
        self.reserve = reserve
        """Descriptors that are kept for storage, metadata, other nodes, and what is accepted before
        it is looked at.
        """
        self.by_descriptors = open_files - reserve
        self.backlog = reserve // 4
        """Connections that the kernel may hold until they are accepted, all of them at once."""
        self._max_connections = max_connections
        self._refuse = refuse
        self._undecided: dict[Connection, float] = {}
        self._is_told = False

    @property
    def most(self) -> int:
        """How many connections clients may have."""
        return min(self._max_connections(), self.by_descriptors)

    def enter(self, connection: "Connection", held: int, now: float) -> None:
        """Decide on a new connection beside `held` others; `now` is monotonic seconds."""
        most = self.most
        if held < most:
            self._is_told = self._is_told and held > most * 9 // 10
            return
        if not self._is_told:
            self._is_told = True
            _log.warning(
                "connections_full",
                connections=held,
                max_connections=self._max_connections(),
                open_files=self.by_descriptors + self.reserve,
                kept_for_storage_and_nodes=self.reserve,
            )
        if len(self._undecided) >= UNDECIDED_MAX:
            self._refuse(next(iter(self._undecided)))
        self._undecided[connection] = now
        connection.is_undecided = True

    def decide(self, connection: "Connection", key: int) -> bool:
        """Keep an undecided connection if its first request, of the API with this key, is one that
        nodes send to each other; return whether it is kept.
        """
        if key in BETWEEN_NODES:
            self._undecided.pop(connection, None)
            connection.is_undecided = False
            return True
        self._refuse(connection)
        return False

    def leave(self, connection: "Connection") -> None:
        """Forget a connection that is closed."""
        self._undecided.pop(connection, None)

    def tick(self, now: float) -> None:
        """Close those that have sent nothing for too long; `now` is monotonic seconds."""
        for connection, since in list(self._undecided.items()):
            if now - since >= UNDECIDED_S:
                self._refuse(connection)
