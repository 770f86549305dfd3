"""The listening side: accepts connections, keeps within their number, closes the idle ones."""

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import structlog

from lakehead.broker.configs.entries import BrokerValues
from lakehead.broker.network.connection import Connection, FrameHandler
from lakehead.broker.network.listeners import MAIN, Listeners
from lakehead.broker.network.request_memory import BETWEEN_NODES, RequestMemory
from lakehead.broker.open_files import open_file_limit
from lakehead.broker.settings import Settings
from lakehead.storage.clock import Clock
from lakehead.storage.errors import SettingsError
from lakehead.storage.memory_pool import MemoryPool

TICK_S = 1.0
LINGER_S = 1.0
UNDECIDED_MAX = 16
UNDECIDED_S = 1.0
_RESERVE = range(128, 2048)
DEAF_S = 5.0
"""Time after which a client that takes and sends next to nothing may be cut off."""
_PRESSURE = 3 / 4
_RELIEVED = 1 / 4
_log = structlog.get_logger("broker.network")


class ConnectionQuotas:
    """Limits the number of connections. `max_connections` returns the present setting; `refuse`
    closes a connection and counts it; `open_files` is the limit of the process.

    Connections are fewer than the process may have open files, so that storage, metadata and other
    nodes always get a descriptor. Beyond the limit a connection is closed, unless another node made
    it: as Kafka does for its listener between brokers, which here is the same one. So the first
    request decides, and the newest connections without one are kept for a moment.
    """

    def __init__(
        self,
        max_connections: Callable[[], int],
        refuse: Callable[[Connection], None],
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
        """The maximum number of client connections."""
        return min(self._max_connections(), self.by_descriptors)

    def enter(self, connection: Connection, held: int, now: float) -> None:
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

    def decide(self, connection: Connection, key: int) -> bool:
        """Keep an undecided connection if its first request, of the API with this key, is one that
        nodes send to each other; return whether it is kept.
        """
        if key in BETWEEN_NODES:
            self._undecided.pop(connection, None)
            connection.is_undecided = False
            return True
        self._refuse(connection)
        return False

    def leave(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self._undecided.pop(connection, None)

    def tick(self, now: float) -> None:
        """Close those that have sent nothing for too long; `now` is monotonic seconds."""
        for connection, since in list(self._undecided.items()):
            if now - since >= UNDECIDED_S:
                self._refuse(connection)


class MemoryRelief:
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
            if deaf_s >= DEAF_S:
                deaf.append((deaf_s, connection.untaken, connection))
            held = connection.frame_held(now, DEAF_S)
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


TICK_S = 1.0
LINGER_S = 1.0
_log = structlog.get_logger("broker.network")


class Server:
    """Accepts connections at `sockets`, by the names of their listeners, and owns them. `handle`
    starts the request of a whole frame; `configs` returns the present configs of this broker;
    `memory` bounds all requests together.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        handle: FrameHandler,
        configs: Callable[[], BrokerValues],
        memory: RequestMemory,
        sockets: Mapping[str, socket.socket],
    ) -> None:
        self.handle = handle
        self.memory = memory
        self.relief: MemoryRelief = MemoryRelief(memory)
        self.quotas: ConnectionQuotas = ConnectionQuotas(
            lambda: int(configs().number("max.connections")), self._refuse, open_file_limit()
        )
        self.request_max_bytes = settings.socket_request_max_bytes
        self.write_buffer_bytes = settings.write_buffer_bytes
        self.now = clock.monotonic()
        """Monotonic seconds, as of the last tick: cheap to read for each frame."""
        self.connections: set[Connection] = set()
        self.accepted_total: int = 0
        self.refused_total: int = 0
        self.rejected_total: int = 0
        self.lag_s: float = 0.0
        """The delay of the last tick: the event loop's lag."""
        self.lag_max_s: float = 0.0
        self._configs = configs
        self._settings = settings
        self._clock = clock
        self._sockets = sockets
        self._listening: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._all_closed: Callable[[], None] | None = None

    async def listen(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        for name, taken in self._sockets.items():
            taken.listen(self.quotas.backlog)
            self._listening.append(
                await loop.create_server(
                    partial(Connection, self, name), sock=taken, backlog=self.quotas.backlog
                )
            )
        self._timer = loop.call_later(TICK_S, self._tick, self._clock.monotonic() + TICK_S)

    def stop_accepting(self) -> None:
        """Take no more connections."""
        for listening in self._listening:
            listening.close()
        if not self._listening:
            for taken in self._sockets.values():
                taken.close()

    async def close(self) -> None:
        """Send what is written, for a moment; close every connection; wait until they are gone."""
        self.stop_accepting()
        if self._timer is not None:
            self._timer.cancel()
        if not self.connections:
            return
        gone = asyncio.get_running_loop().create_future()
        self._all_closed = lambda: None if gone.done() else gone.set_result(None)
        for connection in list(self.connections):
            connection.close()
        await asyncio.wait([gone], timeout=LINGER_S)
        for connection in list(self.connections):
            connection.abort()
        await gone

    def opened(self, connection: Connection) -> None:
        """Take note of a new connection, which may have no place."""
        self.accepted_total += 1
        self.quotas.enter(connection, len(self.connections), self.now)
        self.connections.add(connection)

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        self.quotas.leave(connection)
        if not self.connections and self._all_closed is not None:
            self._all_closed()

    def rejected(self, connection: Connection, reason: str) -> None:
        """Close a connection that does not speak Kafka."""
        self.rejected_total += 1
        _log.info("connection_rejected", client_host=connection.client_host, reason=reason)
        connection.abort()

    def admits(self, connection: Connection, key: int) -> bool:
        """See `ConnectionOwner.admits`."""
        return self.quotas.decide(connection, key)

    def _refuse(self, connection: Connection) -> None:
        """Close a connection that has no place."""
        self.refused_total += 1
        self.quotas.leave(connection)
        connection.abort()

    def _tick(self, due: float) -> None:
        now = self.now = self._clock.monotonic()
        self.lag_s = max(0.0, now - due)
        self.lag_max_s = max(self.lag_max_s, self.lag_s)
        idle_s = self._settings.connections_max_idle_ms / 1000
        for connection in list(self.connections):
            idle = connection.is_idle and now - connection.active_at >= idle_s
            stalled = connection.is_in_frame and now - connection.frame_began_at >= idle_s
            if idle or stalled:
                connection.abort()
        self.quotas.tick(now)
        self.relief.look(list(self.connections), now)
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick, now + TICK_S)


def bind_sockets(settings: Settings, listeners: Listeners) -> dict[str, socket.socket]:
    """Bind the addresses of all listeners, without listening yet; return the sockets by name.

    Raises SettingsError if an address is not available.
    """
    places = {MAIN: (settings.host, settings.port)}
    places |= {one.name: (one.host, one.port) for one in listeners.all.values()}
    sockets: dict[str, socket.socket] = {}
    for name, (host, port) in places.items():
        try:
            sockets[name] = _listening_socket(host, port, settings)
        except OSError as error:
            for bound in sockets.values():
                bound.close()
            raise SettingsError(
                f"cannot listen on {host}:{port}: {error.strerror or error}"
            ) from None
    return sockets


def _listening_socket(host: str, port: int, settings: Settings) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # The event loop turns Nagle's algorithm off only where it knows that this is TCP; with it, the
    # second of two responses waits for the client's delayed acknowledgement of the first, 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit these.
        for option, size in (
            (socket.SO_SNDBUF, settings.socket_send_buffer_bytes),
            (socket.SO_RCVBUF, settings.socket_receive_buffer_bytes),
        ):
            if size > 0:
                listening.setsockopt(socket.SOL_SOCKET, option, size)
        listening.bind(address)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
