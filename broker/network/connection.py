"""One client connection: frames in, responses out, in order.

Each frame gets a bytearray of its own, since the records of a Produce request are kept as views
into it. One read of the socket takes all that has arrived, into a buffer that all connections
share, and every whole frame of it starts in the same pass. The rest of a frame that is not whole is
received straight into its place, and so are long frames that come one after another. Produce
requests are pipelined: the next starts while earlier ones wait to become durable. Any other request
starts when all before it are completed, and later ones wait for its response, as Kafka mutes a
channel.

The memory that a stranger can occupy is bounded. A frame grows as its bytes arrive, not by the
length that it announces. Frames that wait came in one read, and no more is read meanwhile. Nothing
is read while responses are not taken. A throttled connection is muted: none of its requests starts,
and nothing is read beyond the first bytes of the next, by which an end of the connection is seen.
Over all connections `RequestMemory` is the bound: unless most of it is free, a frame is not read
before there is room for all of it, and a request with a long response does not start while untaken
responses leave no room.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from lakehead.broker.network.listeners import Listener
from lakehead.broker.network.memory_shares import Holding, ShareWait
from lakehead.broker.network.request_memory import UNCHARGED_FRAME, Piece, RequestMemory, frame_cost
from lakehead.broker.network.unsent import RATE_MIN, UnsentResponses
from lakehead.broker.protocol.frame import FRAME_MIN
from lakehead.broker.security.principal import ANONYMOUS, NODE, KafkaPrincipal
from lakehead.storage.latency import Timing

FIRST_PIECE = 1 << 20
"""A longer frame is allocated in steps, as its bytes arrive."""
CONTROL_REQUEST_MAX = 16 << 20
"""Longest request of an API that carries no records: one that announces more is closed before its
bytes are read.
"""
READ_AHEAD = UNCHARGED_FRAME
"""Read of a socket while no frame has begun, of a client that may not have more of the memory yet.
"""
LONG_FRAME = 32 << 10
"""After a longer frame the next one is expected to be long, and received straight into its place,
which spares a copy of it.
"""
STARTED_AT_ONCE = 64
"""Requests that one connection may start in one turn of the event loop."""
PIPELINE_MAX = 64
"""Produce requests of one connection that may wait for the WAL at once."""

_LENGTH = struct.Struct(">i")
_KEY = struct.Struct(">h")
_PRODUCE, _FETCH = 0, 1
_NOTHING = memoryview(b"")


class FrameHandler(Protocol):
    """Handles the whole frames of a connection."""

    def __call__(self, connection: "Connection", frame: bytearray) -> bool:
        """Start a request. False: no later frame may start until `Connection.proceed` is called."""


class Gate(Protocol):
    """Takes the frames of a connection until its client is authenticated, and sees when that ends:
    `network.authentication.Authentication`.
    """

    def takes(self, frame: bytearray) -> bool:
        """Take a frame: true. False: it is a request to serve."""


class Slot:
    """The place of one response in the order of a connection."""

    __slots__ = ("cancel", "connection", "pieces", "timing")

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.pieces: Sequence[Piece] | None = None
        self.cancel: Callable[[], object] | None = None
        """Called when the connection is lost before the response is ready."""
        self.timing: Timing | None = None
        """Stopped when the response is sent."""

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Give the response; it is sent when those before it are."""
        self.pieces = pieces
        self.cancel = None
        self.connection.ready()


class ConnectionOwner(Protocol):
    """The server of a connection (`lakehead.broker.network.server.Server`)."""

    memory: RequestMemory
    handle: FrameHandler
    request_max_bytes: int
    write_buffer_bytes: int
    now: float
    """Monotonic seconds, as of the last tick."""

    def opened(self, connection: "Connection") -> None:
        """Count a new connection; it may exceed the quota."""

    def closed(self, connection: "Connection") -> None:
        """Forget a connection."""

    def rejected(self, connection: "Connection", reason: str) -> None:
        """Close a connection that does not speak Kafka."""

    def throttled(self, connections: int) -> None:
        """Count connections that are muted for a quota: 1, or -1 at the end."""

    def admits(self, connection: "Connection", key: int) -> bool:
        """Return true if a connection beyond the quota may stay, by the API key of its first
        request.
        """


class Connection(asyncio.BufferedProtocol):
    """One accepted socket. Made by `Server`."""

    __slots__ = (
        "_at_work",
        "_blocked",
        "_filled",
        "_frame",
        "_frame_most",
        "_frame_size",
        "_frame_wait",
        "_frames",
        "_in_step",
        "_is_flush_due",
        "_is_let_in",
        "_is_raw",
        "_kept",
        "_loop",
        "_muted",
        "_pending",
        "_reading",
        "_server",
        "_start_wait",
        "_throttle",
        "_throttled_at",
        "_transport",
        "_unsent",
        "_untaken",
        "_waiting",
        "active_at",
        "client_host",
        "client_port",
        "fetched_at",
        "frame_began_at",
        "gate",
        "is_authenticated",
        "is_in_handshake",
        "is_undecided",
        "last_opening",
        "listener",
        "opened_at",
        "peer_certificate_principal",
        "principal",
        "software_name",
        "software_version",
        "timing",
        "when_lost",
    )

    def __init__(self, server: ConnectionOwner, listener: Listener) -> None:
        self._server = server
        self.listener: Listener = listener
        """The listener that the client came by."""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._frame: bytearray | None = None
        self._frame_size = 0
        """Of the frame that has begun, or of the last one."""
        self._frame_most = server.request_max_bytes
        self._is_raw = False
        self._filled = 0
        self._pending: deque[Slot] = deque()
        self._waiting: bytearray | None = None
        """A whole frame whose turn has not come."""
        self._kept = b""
        """The bytes that were received after it; without one the beginning of the next frame. While
        memory is waited for, they are the first bytes of the frame that has begun.
        """
        self._frames = Holding(server.memory.frame_shares, self._client)
        self._untaken = Holding(server.memory.response_shares, self._client)
        self._at_work = 0
        """Bytes of frames that are looked at, charged to the node's memory."""
        self._frame_wait: ShareWait | None = None
        """For memory of the frame that has begun; nothing is read meanwhile."""
        self._start_wait: ShareWait | None = None
        """For responses to be taken, with a request that may have a long response."""
        self._is_let_in = False
        """True if that wait is over, and its request not started yet."""
        self._unsent: UnsentResponses | None = None
        self._throttle: asyncio.TimerHandle | None = None
        """Ends the time for which a quota mutes the connection."""
        self._throttled_at = 0.0
        self._muted = False
        self._blocked = False
        self._reading = True
        self._in_step = False
        self._is_flush_due = False
        self.opened_at = server.now
        self.is_in_handshake: bool = listener.protocol.is_tls
        """True until the TLS handshake is over."""
        self.active_at = server.now
        self.frame_began_at = server.now
        self.client_host = ""
        self.client_port = 0
        self.software_name: str | None = None
        """The client's software, as ApiVersions says it (KIP-511); None before."""
        self.software_version: str | None = None
        self.when_lost: dict[object, Callable[[], object]] = {}
        """Called when the connection is lost."""
        self.gate: Gate | None = None
        """Takes the frames of a client that has to authenticate."""
        self.principal: KafkaPrincipal = ANONYMOUS
        """The name under which the client acts; authentication sets it."""
        self.peer_certificate_principal: KafkaPrincipal | None = None
        """The name in the client's certificate, if it has shown one."""
        self.is_authenticated: bool = not listener.protocol.is_sasl
        """True if requests are served. On a listener with SASL authentication makes it true."""
        self.is_undecided = False
        """True if it has a place only if its first request comes from another node."""
        self.last_opening: object = None
        """The dispatcher's note of the last request with records, which the next may repeat."""
        self.fetched_at = float("-inf")
        """When the last Fetch response with records was given, by the time of the event loop."""
        self.timing: Timing | None = None
        """Of the request that is about to get its place."""

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a new socket."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else ""
        self.client_port = int(peer[1]) if peer else 0
        transport.set_write_buffer_limits(high=0)
        self._unsent = UnsentResponses(
            self._server.memory, transport, self._untaken, self._server.now
        )
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Drop every request that waits for its response, and references back to the connection:
        it is freed at once then, and not with thousands of others by the garbage collector, in
        one turn of the event loop.
        """
        self._transport = None
        if self._throttle is not None:
            self._end_throttle()
        self._give_back_memory()
        self._unsent = self.gate = self.last_opening = None
        self._frames.end()
        self._untaken.end()
        self._frame = self._waiting = None
        self._kept = b""
        pending, self._pending = self._pending, deque()
        for slot in pending:
            if slot.cancel is not None:
                slot.cancel()
        self._server.closed(self)
        lost, self.when_lost = self.when_lost, {}
        for callback in lost.values():
            callback()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the next bytes go: the rest of a frame that has begun, or else the buffer
        that all connections share, which is emptied within `buffer_updated`.
        """
        frame = self._frame
        if frame is None:
            memory, kept = self._server.memory, self._kept
            buffer, begin = memory.received, len(kept)
            if begin:
                buffer[:begin] = kept
            may_have_more = (
                self.is_authenticated
                and self._throttle is None
                and self._frame_size <= LONG_FRAME
                and not (self.is_in_handshake or self.is_undecided or self._is_raw)
            )
            if may_have_more and memory.has_much_room:
                return buffer[begin:]
            return buffer[begin : max(READ_AHEAD, begin + 1)]
        if self._filled == len(frame):  # a long frame, of which this much has arrived
            longer = bytearray(_allocated(self._frame_size, 2 * self._filled))
            longer[: self._filled] = frame
            self._frame = frame = longer
        return memoryview(frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take note of received bytes; act on whole frames."""
        self.active_at = self._server.now
        frame = self._frame
        if frame is not None:
            self._filled += nbytes
            if self._filled == self._frame_size:
                self._frame, self._waiting = None, frame
                self._filled = 0
                self._step()
            return
        if not self._kept:
            self.frame_began_at = self.active_at
        received = self._server.memory.received[: len(self._kept) + nbytes]
        if self._kept:
            self._unkeep()
        if self._throttle is None:
            self._step(received)
        else:  # they are looked at when the throttle time is over
            self._keep(received)
            self._regulate()

    def eof_received(self) -> bool:
        """Close when the client does, after what is written: it may still take that."""
        if self._unsent is not None:
            self._unsent.flush()
        return False

    def pause_writing(self) -> None:
        """Take note that the client has not taken everything yet."""
        if self._unsent is not None:
            self._unsent.pause()

    def resume_writing(self) -> None:
        """Go on."""
        self.active_at = self._server.now
        if self._unsent is not None and self._transport is not None:
            self._unsent.resume()
            self._step()

    # The node's side.

    @property
    def is_open(self) -> bool:
        """Return true if the client can still get responses."""
        return self._transport is not None

    @property
    def is_closing(self) -> bool:
        """Return true once the connection is closed, or is about to be."""
        return self._transport is None or self._transport.is_closing()

    def slot(self) -> Slot:
        """Return the place of the next response."""
        slot = Slot(self)
        self.hold(slot)
        return slot

    def hold(self, slot: Slot) -> None:
        """Give the next response its place."""
        slot.timing, self.timing = self.timing, None
        self._pending.append(slot)

    def proceed(self) -> None:
        """Let later frames start again; see `FrameHandler`."""
        self._blocked = False
        self._frame_is_done()
        self._step()

    def ready(self) -> None:
        """Note that a response is ready. It is sent at once when its request just started, else
        soon, with others that become ready meanwhile: a group commit completes many requests, and
        each write to a socket costs more than a request.
        """
        if not self._in_step:
            self._step_soon()

    def throttle(self, seconds: float) -> None:
        """Start no request and read nothing for so long (KIP-219); a longer time that has begun is
        kept. Responses to what has started are sent.
        """
        if self._transport is None:
            return
        until = self._loop.time() + seconds
        throttle = self._throttle
        if throttle is None:
            self._throttled_at = self._server.now
            self._server.throttled(1)
        elif until <= throttle.when():
            return
        else:
            throttle.cancel()
        self._throttle = self._loop.call_later(seconds, self._throttle_is_over)
        if not self._in_step:
            self._regulate()

    @property
    def is_throttled(self) -> bool:
        """Return true while a quota mutes the connection."""
        return self._throttle is not None

    def abort(self) -> None:
        """Close at once; what is unsent is lost."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close after what is written has been sent."""
        if self._transport is not None:
            if self._unsent is not None:
                self._unsent.flush()
            self._transport.close()

    def limit_frames(self, *, most: int | None = None, is_raw: bool = False) -> None:
        """Take frames of `most` bytes at most, by default as large as requests may be. Those that
        are `is_raw` are no requests, and may be empty; they are taken one at a time.
        """
        self._frame_most = self._server.request_max_bytes if most is None else most
        self._is_raw = is_raw

    def charge_untaken(self, size: int) -> None:
        """Charge bytes that the client has not taken, or give them back if they are negative."""
        if size > 0:
            self._untaken.take(size)
        else:
            self._untaken.give_back(-size)

    @property
    def is_between_nodes(self) -> bool:
        """Return true if the other side may be a node: by the listener of nodes, with SASL by the
        name that it has proven, and with TLS alone by a certificate that it has shown.
        """
        listener = self.listener
        if not listener.is_inter_broker:
            return False
        if listener.protocol.is_sasl:
            return self.principal.principal_type == NODE
        return not listener.protocol.is_tls or self.peer_certificate_principal is not None

    @property
    def is_known(self) -> bool:
        """Return true if the client has done all that its listener wants before requests."""
        return self.is_authenticated and not self.is_in_handshake

    @property
    def is_idle(self) -> bool:
        """Return true if no request is at work."""
        return not self._pending

    @property
    def is_in_frame(self) -> bool:
        """Return true if a frame has begun to arrive and is not whole."""
        if self._frame_wait is not None or self._waiting is not None:
            return False
        return self._frame is not None or bool(self._kept)

    @property
    def has_fetched(self) -> bool:
        """Return true if a Fetch response had records, so that the next Fetch shows that they were
        taken.
        """
        return self.fetched_at > float("-inf")

    @property
    def untaken(self) -> int:
        """Bytes of responses that the client has not taken."""
        return 0 if self._unsent is None else self._unsent.size

    def deaf_s(self, now: float) -> float:
        """Return for how long the client has not taken its responses; see `UnsentResponses`."""
        return 0.0 if self._unsent is None else self._unsent.deaf_s(now)

    def frame_held(self, now: float, after_s: float) -> int:
        """Return the memory that is kept for a frame of which less than `RATE_MIN` has arrived,
        for longer than `after_s`; and what a throttled client sent without regard to that.
        """
        if self._throttle is not None and now - self._throttled_at > after_s:
            return self._charged
        age = now - self.frame_began_at
        is_slow = self._frame is not None and age > after_s and self._filled < RATE_MIN * age
        return frame_cost(self._frame_size) if is_slow else 0

    def _end_throttle(self) -> None:
        assert self._throttle is not None
        self._throttle.cancel()
        self._throttle = None
        self._server.throttled(-1)

    def _throttle_is_over(self) -> None:
        self._end_throttle()
        self.frame_began_at = self.active_at = self._server.now
        if self._waiting is None and self._frame_wait is None:
            self._step(self._unkeep())
        else:
            self._step()

    def _start_each(self, received: memoryview) -> bool:
        """Start the frames of what was received, and begin the one that is not whole. Keep what is
        behind a frame whose turn has not come. Return false if nothing may start in this turn of
        the event loop any more.
        """
        position, filled, left = 0, len(received), STARTED_AT_ONCE
        while filled - position >= 4:
            size = _LENGTH.unpack_from(received, position)[0]
            least = 0 if self._is_raw else FRAME_MIN
            if not least <= size <= self._frame_most:
                self._reject(f"a frame of {size} bytes")
                return False
            begin, end = position + 4, position + 4 + size
            if end > filled:
                if filled - begin >= _KEY.size:  # its API is known
                    self._begin_frame(size, received[begin:])
                    position = filled
                break
            frame = bytearray(received[begin:end])
            self._frame_size = size
            position = end
            key = -1 if self._is_raw else _KEY.unpack_from(frame)[0]
            if not left or not self._may_start(key):
                self._waiting = frame
                self._frames.take(frame_cost(size))
                break
            left -= 1
            if not self._start(frame, key, 0):
                return False
        if position < filled:
            self._keep(received[position:])
        if position and self.is_in_frame:
            self.frame_began_at = self.active_at
        if not left:
            self._step_soon()
        return left > 0

    def _start(self, frame: bytearray, key: int, charged: int) -> bool:
        """Start the request of a frame, of the API with this key, for which so many bytes are
        charged already. Return false if the connection has no place.
        """
        if self.is_undecided and not self._server.admits(self, key):
            self._at_work += charged
            return False
        self._muted = key != _PRODUCE
        if not self._server.handle(self, frame):
            self._blocked = True
        elif not self._muted or key == _FETCH:  # what it needs of the frame is charged elsewhere
            if charged:
                self._frames.give_back(charged)
            if self._muted:
                self._send_ready()
            return True
        cost = frame_cost(len(frame))
        self._frames.take(cost - charged)
        self._at_work += cost
        if self._muted:
            self._send_ready()
        return True

    def _keep(self, received: memoryview) -> None:
        """Keep what cannot be looked at yet."""
        self._kept = bytes(received)
        self._frames.take(frame_cost(len(received)))

    def _unkeep(self) -> memoryview:
        """Return what was kept, to be looked at now."""
        kept, self._kept = self._kept, b""
        self._frames.give_back(frame_cost(len(kept)))
        return memoryview(kept)

    def _reject(self, reason: str) -> None:
        """Close the connection after what came before."""
        self._send_ready()
        self._server.rejected(self, reason)

    def _begin_frame(self, size: int, begun: memoryview) -> None:
        """Begin a frame whose first bytes were received, when there is memory for all of it."""
        key = self._key(begun)
        if size > CONTROL_REQUEST_MAX and key != _PRODUCE:
            self._reject(f"a frame of {size} bytes for api key {key}")
            return
        self._frame_size = size
        memory = self._server.memory
        self._frame_wait = memory.admit_frame(key, size, self._frames, self._frame_may_go_on)
        if self._frame_wait is None:
            self._frame_has_room(begun)
        else:
            self._keep(begun)

    def _frame_has_room(self, begun: memoryview) -> None:
        self._filled = len(begun)
        self._frame = frame = bytearray(_allocated(self._frame_size, FIRST_PIECE))
        frame[: self._filled] = begun

    def _frame_may_go_on(self) -> None:
        self._frame_wait = None
        self.frame_began_at = self.active_at = self._server.now
        self._frame_has_room(self._unkeep())
        self._regulate()

    def _step_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _frame_is_done(self) -> None:
        """Give back the memory of frames that are looked at no more."""
        at_work, self._at_work = self._at_work, 0
        self._frames.give_back(at_work)

    def _give_back_memory(self) -> None:
        memory = self._server.memory
        if self._unsent is not None:
            self._unsent.drop()
        if self._frame_wait is not None:
            memory.frame_shares.leave(self._frame_wait)
        if self._start_wait is not None:
            memory.response_shares.leave(self._start_wait)
        self._frame_wait = self._start_wait = None
        self._at_work += self._charged
        self._frame_is_done()

    @property
    def _charged(self) -> int:
        """The charge for frames that have not started."""
        waiting, begun = self._waiting, self._frame
        charged = frame_cost(len(self._kept)) + (frame_cost(len(waiting)) if waiting else 0)
        return charged + (frame_cost(self._frame_size) if begun is not None else 0)

    def _flush(self) -> None:
        self._is_flush_due = False
        self._step()

    def _send_ready(self) -> None:
        """Send the responses that are ready and whose turn it is."""
        pending = self._pending
        pieces: list[Piece] = []
        while pending and (ready := pending[0].pieces) is not None:
            pieces.extend(ready)
            if (timing := pending.popleft().timing) is not None:
                timing.stop()
        if not pending:
            self._muted = False
            if not self._blocked:
                self._frame_is_done()
        if pieces and self._unsent is not None and self._transport is not None:
            self._unsent.send(pieces)

    def _step(self, received: memoryview = _NOTHING) -> None:
        """Send what is ready, start what may start, then read or not, as there is room."""
        if self._in_step:
            return
        self._in_step = True
        try:
            may_go_on = not received or self._start_each(received)
            if not self._pending or self._pending[0].pieces is not None:
                self._send_ready()
            while may_go_on and (frame := self._waiting) is not None:
                key = self._key(frame)
                if not self._may_start(key):
                    break
                self._waiting = None
                may_go_on = self._start(frame, key, frame_cost(len(frame)))
                if may_go_on and self._kept:
                    may_go_on = self._start_each(self._unkeep())
                self._send_ready()
        finally:
            self._in_step = False
        self._regulate()

    def _may_start(self, key: int) -> bool:
        if self._muted or self._blocked or self._start_wait is not None or self._transport is None:
            return False
        if self._throttle is not None:
            return False
        unsent = self._unsent
        if (
            unsent is not None
            and unsent.is_paused
            and self.untaken > self._server.write_buffer_bytes
        ):
            return False
        if key == _PRODUCE:
            return len(self._pending) < PIPELINE_MAX
        if self._pending:
            return False
        if self._is_let_in:
            self._is_let_in = False
            return True
        is_reader = self.has_fetched and not self.untaken
        self._start_wait = self._server.memory.admit_response(
            key, self._untaken, self._may_go_on, is_reader=is_reader
        )
        return self._start_wait is None

    def _key(self, frame: bytearray | memoryview) -> int:
        """Return the API key at the start of a frame; -1 of one that is no request."""
        if self._is_raw:
            return -1
        key: int = _KEY.unpack_from(frame)[0]
        return key

    def _client(self) -> tuple[str, str]:
        return self.principal.name, self.client_host

    def _may_go_on(self) -> None:
        self._start_wait = None
        self._is_let_in = True
        self._step()

    def _regulate(self) -> None:
        transport = self._transport
        if transport is None:
            return
        is_taken = self.untaken <= self._server.write_buffer_bytes
        wanted = is_taken and self._waiting is None and self._frame_wait is None
        if self._throttle is not None and (self._kept or self._frame is not None):
            wanted = False
        if wanted is self._reading or transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()


def _allocated(size: int, most: int) -> int:
    """Return how much of a frame of `size` bytes to allocate if it should be about `most`: whole
    frames that are a little longer, such as those of a batch of 1 MiB, need no second step.
    """
    return size if size <= most + most // 8 else most
