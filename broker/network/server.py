"""The listening side: accepts connections, keeps within their number, closes the idle ones."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import partial

import structlog

from lakehead.broker.configs.entries import BrokerValues
from lakehead.broker.network.connection import Connection, FrameHandler
from lakehead.broker.network.listeners import MAIN, Listeners
from lakehead.broker.network.places import ConnectionPlaces
from lakehead.broker.network.relief import Relief
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.open_files import open_file_limit
from lakehead.broker.settings import Settings
from lakehead.storage.clock import Clock
from lakehead.storage.errors import SettingsError

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
        self.relief: Relief = Relief(memory)
        self.places: ConnectionPlaces = ConnectionPlaces(
            lambda: int(configs().number("max.connections")), self._refuse, open_file_limit()
        )
        self.request_max_bytes = settings.socket_request_max_bytes
        self.write_buffer_bytes = settings.write_buffer_bytes
        self.now = clock.monotonic()
        """Monotonic seconds, as of the last tick: cheap to ask for each frame."""
        self.connections: set[Connection] = set()
        self.accepted_total: int = 0
        self.refused_total: int = 0
        self.rejected_total: int = 0
        self.lag_s: float = 0.0
        """How late the last tick was: the event loop's lag."""
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
            taken.listen(self.places.backlog)
            self._listening.append(
                await loop.create_server(
                    partial(Connection, self, name), sock=taken, backlog=self.places.backlog
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
        self.places.enter(connection, len(self.connections), self.now)
        self.connections.add(connection)

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        self.places.leave(connection)
        if not self.connections and self._all_closed is not None:
            self._all_closed()

    def rejected(self, connection: Connection, reason: str) -> None:
        """Close a connection that does not speak Kafka."""
        self.rejected_total += 1
        _log.info("connection_rejected", client_host=connection.client_host, reason=reason)
        connection.abort()

    def _refuse(self, connection: Connection) -> None:
        """Close a connection that has no place."""
        self.refused_total += 1
        self.places.leave(connection)
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
        self.places.tick(now)
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
    # The event loop turns Nagle's algorithm off only where it is told that this is TCP; with it,
    # the second of two answers waits for the client's delayed acknowledgement of the first, 40 ms.
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
