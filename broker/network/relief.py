"""Clients that hold the memory that others wait for are let go, the longest first.

A client that does not read its responses, or that has announced a long request and does not send
it, costs nothing while there is room for all. It comes again, and reads on where it was.
"""

from collections.abc import Iterable

import structlog

from lakehead.broker.network.connection import Connection
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.storage.memory_pool import MemoryPool

PATIENCE_S = 5.0
"""A client that takes and sends next to nothing for so long may be cut off."""
_PRESSURE = 3 / 4
_RELIEVED = 1 / 4
_log = structlog.get_logger("broker.network")


class Relief:
    """Looks at the connections every second."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.cut_total: int = 0

    def look(self, connections: Iterable[Connection], now: float) -> None:
        """Cut off connections while memory is short; `now` is the monotonic time."""
        deaf: list[tuple[float, int, Connection]] = []
        slow: list[tuple[float, int, Connection]] = []
        for connection in connections:
            deaf_s = connection.deaf_s(now)
            if deaf_s >= PATIENCE_S:
                deaf.append((deaf_s, connection.untaken, connection))
            held = connection.frame_held(now, PATIENCE_S)
            if held:
                slow.append((now - connection.frame_began_at, held, connection))
        self._cut(self._memory.responses, deaf, "it does not take its responses")
        self._cut(self._memory.frames, slow, "its request does not arrive")

    def _cut(
        self, pool: MemoryPool, found: list[tuple[float, int, Connection]], reason: str
    ) -> None:
        if not pool.waiting and pool.used < pool.capacity * _PRESSURE:
            return
        found.sort(key=lambda one: one[0], reverse=True)
        left = pool.used
        for seconds, held, connection in found:
            if left < pool.capacity * _RELIEVED:
                return
            left -= held
            self.cut_total += 1
            _log.warning(
                "connection_cut_for_memory",
                client_host=connection.client_host,
                reason=reason,
                seconds=round(seconds),
                bytes_held=held,
                bytes_used=pool.used,
                bytes_capacity=pool.capacity,
            )
            connection.abort()
