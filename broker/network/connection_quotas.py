"""The limit of connections of a node (`max.connections`), and those that have a place beyond it."""

from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import structlog

from lakehead.broker.network.connection import Connection
from lakehead.broker.network.listeners import Listener
from lakehead.broker.network.request_memory import BETWEEN_NODES

UNDECIDED_MAX = 16
UNDECIDED_S = 1.0
_RESERVE = range(128, 2048)
_TO_AUTHENTICATE = frozenset({17, 18, 36})
"""SaslHandshake, ApiVersions, SaslAuthenticate."""
_log = structlog.get_logger("broker.network")


class ConnectionQuotas:
    """Limits the number of connections. `max_connections` returns the present setting; `refuse`
    closes a connection and counts it; `open_files` is the limit of the process;
    `has_own_listener` is true if nodes have a listener that is not the only one.

    Connections are fewer than the process may have open files, so that storage, metadata and other
    nodes always get a descriptor. Beyond the limit a new connection is closed, unless it comes by
    the listener of nodes: then, as in Kafka, the connection of another listener that was idle for
    longest is closed for it. If nodes and clients share the only listener, the first request
    decides, after authentication if there is one, and the newest connections without a request are
    kept for a moment.
    """

    def __init__(
        self,
        max_connections: Callable[[], int],
        refuse: Callable[[Connection], None],
        open_files: int,
        *,
        has_own_listener: bool = False,
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
        self._has_own_listener = has_own_listener
        self._undecided: dict[Connection, float] = {}
        self._idle: deque[Connection] = deque()
        """Those that may be closed for a node, the one that was idle for longest first."""
        self._active: deque[Connection] = deque()
        """The same, of those that were active since the last tick."""
        self._sorted_at = -1.0
        self._is_reported = False

    @property
    def most(self) -> int:
        """The maximum number of client connections."""
        return min(self._max_connections(), self.by_descriptors)

    def is_protected(self, listener: Listener) -> bool:
        """Return true if connections of a listener have a place beyond `max.connections`."""
        return self._has_own_listener and listener.is_inter_broker

    def enter(self, connection: Connection, others: AbstractSet[Connection], now: float) -> None:
        """Decide on a new connection beside others; `now` is monotonic seconds of the last tick."""
        most, held = self.most, len(others)
        if held < most:
            self._is_reported = self._is_reported and held > most * 9 // 10
            return
        self._report(held)
        if self._has_own_listener:
            self._enter_full(connection, others, now)
            return
        if len(self._undecided) >= UNDECIDED_MAX:
            self._refuse(next(iter(self._undecided)))
        self._undecided[connection] = now
        connection.is_undecided = True

    def decide(self, connection: Connection, key: int) -> bool:
        """Keep an undecided connection if its first request, of the API with this key, is one that
        nodes send to each other; return whether it may be served.
        """
        if key in BETWEEN_NODES and connection.is_between_nodes:
            self._undecided.pop(connection, None)
            connection.is_undecided = False
            return True
        may_be_node = connection.listener.is_inter_broker and not connection.is_authenticated
        if may_be_node and key in _TO_AUTHENTICATE:
            return True  # and it stays undecided
        self._refuse(connection)
        return False

    def leave(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self._undecided.pop(connection, None)

    def tick(self, connections: AbstractSet[Connection], now: float) -> None:
        """Close undecided connections without a request for too long, and those beyond a limit that
        was lowered; `now` is monotonic seconds.
        """
        for connection, since in list(self._undecided.items()):
            if now - since >= UNDECIDED_S:
                self._refuse(connection)
        if self._has_own_listener:
            for _ in range(len(connections) - self.most):
                idle = self._longest_idle(connections, now)
                if idle is None:
                    return
                self._refuse(idle)

    def _enter_full(
        self, connection: Connection, others: AbstractSet[Connection], now: float
    ) -> None:
        if not self.is_protected(connection.listener):
            self._refuse(connection)
            return
        idle = self._longest_idle(others, now)
        if idle is not None:
            self._refuse(idle)
        elif len(others) >= self.by_descriptors:
            self._refuse(connection)

    def _longest_idle(self, connections: AbstractSet[Connection], now: float) -> Connection | None:
        """Return the open connection of another listener that was idle for longest. They are sorted
        once for each tick, since activity is noted by ticks.
        """
        if self._sorted_at != now:
            found = [
                one
                for one in connections
                if not self.is_protected(one.listener) and not one.is_closing
            ]
            found.sort(key=lambda one: (one.active_at, one.opened_at))
            self._idle, self._active, self._sorted_at = deque(found), deque(), now
        for queue in (self._idle, self._active):
            while queue:
                one = queue.popleft()
                if one not in connections or one.is_closing:
                    continue
                if queue is self._idle and one.active_at >= now:
                    self._active.append(one)
                else:
                    return one
        return None

    def _report(self, held: int) -> None:
        if self._is_reported:
            return
        self._is_reported = True
        _log.warning(
            "connections_full",
            connections=held,
            max_connections=self._max_connections(),
            open_files=self.by_descriptors + self.reserve,
            kept_for_storage_and_nodes=self.reserve,
        )
