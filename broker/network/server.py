"""The listening side: accepts connections, keeps within their number, closes the idle ones."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog

from lakehead.broker.configs.entries import BrokerValues
from lakehead.broker.network.acceptor import Acceptor
from lakehead.broker.network.connection import Connection, FrameHandler
from lakehead.broker.network.connection_limits import ConnectionLimits, check_limits
from lakehead.broker.network.connection_quotas import ConnectionQuotas
from lakehead.broker.network.handshakes import Handshakes
from lakehead.broker.network.listeners import Listener, Listeners
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.network.tls import RECEIVE_SIZE, TlsSocket
from lakehead.broker.network.tls_contexts import TlsContexts
from lakehead.broker.observability.event_rate_limit import EventRateLimit
from lakehead.broker.open_files import open_file_limit
from lakehead.broker.quota.accept_rates import AcceptRates
from lakehead.broker.quota.connection_rates import ConnectionRates
from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.broker.settings import Settings
from lakehead.storage.clock import Clock
from lakehead.storage.errors import SettingsError
from lakehead.storage.memory_pool import MemoryPool
from lakehead.storage.plain_text import address_text
from lakehead.storage.tasks import TaskScope

TICK_S = 1.0
LOOKED_AT_ONCE = 200
"""Connections that are looked at in one turn of the event loop: about a millisecond."""
CLOSED_AT_ONCE = 10
"""Those of them that are closed in one turn: thousands that came together end together."""
LINGER_S = 1.0
HELD_MAX = 256
"""Connections beyond the rate of their address that are held before they are closed."""
DEAF_S = 5.0
"""Time after which a client that takes and sends next to nothing may be cut off."""
REASON_MAX = 256
"""Characters of the reason for which a connection is rejected: it may quote the client."""
_PRESSURE = 3 / 4
_RELIEVED = 1 / 4
_log = structlog.get_logger("broker.network")


class MemoryRelief:
    """Looks at each connection every second, and then cuts off some while memory is short."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.cut_total: int = 0
        self._deaf: list[tuple[float, int, Connection]] = []
        self._slow: list[tuple[float, int, Connection]] = []

    def look(self, connection: Connection, now: float) -> None:
        """Note a connection that may be cut off; `now` is the monotonic time."""
        deaf_s = connection.deaf_s(now)
        if deaf_s >= DEAF_S:
            self._deaf.append((deaf_s, connection.untaken, connection))
        held = connection.frame_held(now, DEAF_S)
        if held:
            self._slow.append((now - connection.frame_began_at, held, connection))

    def relieve(self) -> None:
        """Cut off connections that were noted, while memory is short."""
        memory = self._memory
        deaf, self._deaf = self._deaf, []
        slow, self._slow = self._slow, []
        self._cut(memory.responses, deaf, "it does not take its responses")
        self._cut(
            memory.frames, slow, "its request does not arrive, or is sent in spite of a quota"
        )

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


class Server:
    """Accepts connections of `listeners` at `sockets`, by their names, and owns them. `watch` sees
    each new connection, `handle` starts the request of a whole frame; `configs` returns the present
    configs of this broker; `accept_rates` bound how fast connections are accepted, `rates` how fast
    those of an address are made; `memory` bounds all requests together.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        handle: FrameHandler,
        configs: Callable[[], BrokerValues],
        memory: RequestMemory,
        listeners: Mapping[str, Listener],
        sockets: Mapping[str, socket.socket],
        accept_rates: AcceptRates,
        rates: ConnectionRates,
        tls: TlsContexts,
        watch: Callable[[Connection], None],
        scope: TaskScope,
    ) -> None:
        self.handle = handle
        self._watch = watch
        self.memory = memory
        self.relief: MemoryRelief = MemoryRelief(memory)
        self.quotas: ConnectionQuotas = ConnectionQuotas(
            lambda: configs().number("max.connections"),
            self._refuse,
            open_file_limit(),
            has_own_listener=len(listeners) > 1,
        )
        self.request_max_bytes = settings.socket_request_max_bytes
        self.write_buffer_bytes = settings.write_buffer_bytes
        self.now = clock.monotonic()
        """Monotonic seconds, as of the last tick: cheap to read for each frame."""
        self.connections: set[Connection] = set()
        self.accepted_total: int = 0
        self.refused_total: int = 0
        self.rejected_total: int = 0
        self._rejections = EventRateLimit(clock)
        self.throttled_now: int = 0
        """Connections that are muted for a quota."""
        self._accept_rates = accept_rates
        self._rates = rates
        self._scope = scope
        self._limits = ConnectionLimits(configs)
        self._held: dict[Connection, asyncio.TimerHandle] = {}
        self.lag_s: float = 0.0
        """The delay of the last tick: the event loop's lag."""
        self.lag_max_s: float = 0.0
        self.configs = configs
        """Returns the present configs of this broker."""
        self._settings = settings
        self._clock = clock
        self.tls = tls
        tls.follow(configs)
        self.handshakes: Handshakes = Handshakes(settings.ssl_handshakes_max, clock.monotonic)
        self.receive_buffer = memoryview(bytearray(RECEIVE_SIZE))
        self._listeners = listeners
        self.sockets = sockets
        self._acceptors: list[Acceptor] = []
        self._is_accepting = True
        self._timer: asyncio.TimerHandle | None = None
        self._all_closed: Callable[[], None] | None = None

    async def listen(self) -> None:
        """Accept connections."""
        for name, taken in self.sockets.items():
            listener = self._listeners[name]
            acceptor = Acceptor(
                taken,
                partial(self._accept, listener),
                partial(self._accept_rate_s, listener),
                self._scope,
            )
            acceptor.start(self.quotas.backlog)
            self._acceptors.append(acceptor)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TICK_S, self._tick, self._clock.monotonic() + TICK_S)

    def _accept(self, listener: Listener) -> Connection | TlsSocket:
        connection = Connection(self, listener)
        return TlsSocket(self, connection) if listener.protocol.is_tls else connection

    def _accept_rate_s(self, listener: Listener) -> float:
        is_protected = self.quotas.is_protected(listener)
        return self._accept_rates.accepted(
            listener.name, listener.prefix, is_protected=is_protected
        )

    def context(self, listener: str) -> ssl.SSLContext:
        """See `TlsServer.context`."""
        return self.tls.context(listener)

    def peer_principal(self, listener: str, certificate: bytes) -> KafkaPrincipal:
        """See `TlsServer.peer_principal`."""
        return self.tls.peer_principal(listener, certificate)

    def check_cipher(self, listener: str, name: str) -> None:
        """See `TlsServer.check_cipher`."""
        self.tls.check_cipher(listener, name)

    def stop_accepting(self) -> None:
        """Take no more connections."""
        self._is_accepting = False
        for acceptor in self._acceptors:
            acceptor.close()
        for taken in self.sockets.values():
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
        if not self._is_accepting:  # it was on its way when the server stopped
            self.connections.add(connection)
            connection.abort()
            return
        self.accepted_total += 1
        limit = self._limits.enter(connection)
        if limit is not None:
            self.connections.add(connection)
            _log.debug("connection_refused", client_host=connection.client_host, setting=limit)
            self._refuse(connection)
            return
        self._watch(connection)
        self.quotas.enter(connection, self.connections, self.now)
        self.connections.add(connection)
        seconds = self._rates.opened(connection.client_host)
        if seconds > 0:
            self._hold(connection, seconds)

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        held = self._held.pop(connection, None)
        if held is not None:
            held.cancel()
        self.quotas.leave(connection)
        self._limits.leave(connection)
        if not self.connections and self._all_closed is not None:
            self._all_closed()

    def rejected(self, connection: Connection, reason: str) -> None:
        """Close a connection that does not speak Kafka. Of each address a bounded number of events
        is written; `repeated` counts those between.
        """
        self.rejected_total += 1
        host, reason = connection.client_host, reason[:REASON_MAX]
        repeated = self._rejections.admit((host, reason), host)
        if repeated is not None:
            counted = {"repeated": repeated} if repeated else {}
            _log.info("connection_rejected", client_host=host, reason=reason, **counted)
        connection.abort()

    def throttled(self, connections: int) -> None:
        """See `ConnectionOwner.throttled`."""
        self.throttled_now += connections

    def admits(self, connection: Connection, key: int) -> bool:
        """See `ConnectionOwner.admits`."""
        return self.quotas.decide(connection, key)

    def _hold(self, connection: Connection, seconds: float) -> None:
        """Close a connection beyond the rate of its address, after a while if not too many are
        held.
        """
        if len(self._held) >= HELD_MAX:
            self._refuse(connection)
            return
        connection.throttle(2 * seconds)  # nothing of it starts meanwhile
        self._held[connection] = asyncio.get_running_loop().call_later(
            seconds, self._refuse, connection
        )

    def _refuse(self, connection: Connection) -> None:
        """Close a connection that has no place."""
        self.refused_total += 1
        self.quotas.leave(connection)
        connection.abort()

    def _tick(self, due: float) -> None:
        now = self.now = self._clock.monotonic()
        self.lag_s = max(0.0, now - due)
        self.lag_max_s = max(self.lag_max_s, self.lag_s)
        # First of all: an unexpected error of one tick ends no later one.
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick, now + TICK_S)
        self.tls.refresh()
        self._look(list(self.connections), 0, now)

    def _look(self, connections: Sequence[Connection], begin: int, now: float) -> None:
        """Look at the connections from `begin` on, some in each turn of the event loop: thousands
        of idle ones hold up no other.
        """
        end = begin
        closed = 0
        for connection in connections[begin : begin + LOOKED_AT_ONCE]:
            end += 1
            if self._is_over(connection, now):
                connection.abort()
                closed += 1
                if closed == CLOSED_AT_ONCE:
                    break
            else:
                self.relief.look(connection, now)
        if end < len(connections):
            asyncio.get_running_loop().call_soon(self._look, connections, end, now)
            return
        self.quotas.tick(self.connections, now)
        self.relief.relieve()

    def _is_over(self, connection: Connection, now: float) -> bool:
        """Return true if a connection was idle, or not authenticated, for too long."""
        idle_s = self._settings.connections_max_idle_ms / 1000
        handshake_s = self._settings.ssl_handshake_timeout_ms / 1000
        known_s = handshake_s if connection.is_in_handshake else idle_s
        return (
            (connection.is_idle and now - connection.active_at >= idle_s)
            or (connection.is_in_frame and now - connection.frame_began_at >= idle_s)
            or (not connection.is_known and now - connection.opened_at >= known_s)
        )


def bind_sockets(settings: Settings, listeners: Listeners) -> dict[str, socket.socket]:
    """Bind the addresses of all listeners, without listening yet; return the sockets by name.

    Raises SettingsError if an address is not available.
    """
    check_limits(settings.max_connections_per_ip, settings.max_connections_per_ip_overrides)
    sockets: dict[str, socket.socket] = {}
    for name, one in listeners.all.items():
        host, port = one.host, one.port
        try:
            sockets[name] = _listening_socket(host, port, settings)
        except OSError as error:
            for bound in sockets.values():
                bound.close()
            raise SettingsError(
                f"cannot listen on {address_text(host, port)}: "
                f"{error.strerror or error}{_advice(error)}"
            ) from None
    return sockets


def _advice(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return ": set another port, or stop the process that has this one"
    if error.errno == errno.EACCES:
        return ": ports below 1024 need a privilege: set another one"
    if error.errno == errno.EADDRNOTAVAIL:
        return ": set a host that is an address of this machine; clients get advertised.host"
    return ""


def _listening_socket(host: str, port: int, settings: Settings) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # Nagle's algorithm is off: with it, the second of two responses waits for the client's delayed
    # acknowledgement of the first, 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit these.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
