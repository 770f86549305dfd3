"""One client connection: frames in, responses out, in order.

Each frame gets a bytearray of its own, since the records of a Produce request are kept as views
into it. A short frame comes with its length field, in one read of the socket; the rest of a longer
one is received straight into its place. Produce requests are pipelined: the next starts while
earlier ones wait to become durable. Any other request starts when all before it are completed, and
later ones wait for its response, as Kafka mutes a channel.

The memory that a stranger can occupy is bounded. A frame grows as its bytes arrive, not by the
length that it announces. Frames that wait came in one read: one frame, or a few short ones. Nothing
is read while responses are not taken. Over all connections `RequestMemory` is the bound: a frame is
not read before there is room for all of it, and a request with a long response does not start while
untaken responses leave no room.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from lakehead.broker.network.request_memory import UNCHARGED_FRAME, Piece, RequestMemory, frame_cost
from lakehead.broker.network.unsent import RATE_MIN, UnsentResponses
from lakehead.broker.protocol.frame import FRAME_MIN
from lakehead.storage.memory_pool import PoolWait

FIRST_PIECE = 1 << 20
"""A longer frame is allocated in steps, as its bytes arrive."""
CONTROL_REQUEST_MAX = 16 << 20
"""Longest request of an API that carries no records: one that announces more is closed before its
bytes are read.
"""
READ_AHEAD = UNCHARGED_FRAME
"""Read of a socket while no frame has begun: short requests cost one call of the system, not
three.
"""
PIPELINE_MAX = 64
"""Produce requests of one connection that may wait for the WAL at once."""

_LENGTH = struct.Struct(">i")
_KEY = struct.Struct(">h")
_PRODUCE, _FETCH = 0, 1
_ZEROS = bytes(FIRST_PIECE)


class FrameHandler(Protocol):
    """Handles the whole frames of a connection."""

    def __call__(self, connection: "Connection", frame: bytearray) -> bool:
        """Start a request. False: no later frame may start until `Connection.proceed` is called."""


class Slot:
    """The place of one response in the order of a connection."""

    __slots__ = ("cancel", "connection", "pieces")

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.pieces: Sequence[Piece] | None = None
        self.cancel: Callable[[], object] | None = None
        """Called when the connection is lost before the response is ready."""

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

    def admits(self, connection: "Connection", key: int) -> bool:
        """Return true if a connection beyond the quota may stay, by the API key of its first
        request.
        """


class Connection(asyncio.BufferedProtocol):
    """One accepted socket. Made by `Server`."""

    __slots__ = (
        "_at_work",
        "_backlog",
        "_blocked",
        "_filled",
        "_frame",
        "_frame_size",
        "_frame_wait",
        "_head",
        "_in_step",
        "_is_flush_due",
        "_is_let_in",
        "_loop",
        "_muted",
        "_pending",
        "_reading",
        "_server",
        "_start_wait",
        "_transport",
        "_unsent",
        "active_at",
        "client_host",
        "frame_began_at",
        "has_fetched",
        "is_undecided",
        "listener",
    )

    def __init__(self, server: ConnectionOwner, listener: str) -> None:
        self._server = server
        self.listener: str = listener
        """Name of the listener that the client came by."""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._head = memoryview(bytearray(READ_AHEAD))
        self._frame: bytearray | None = None
        self._frame_size = 0
        self._filled = 0
        self._pending: deque[Slot] = deque()
        self._backlog: deque[bytearray] = deque()
        self._at_work = 0
        """Bytes of frames that are looked at, charged to the node's memory."""
        self._frame_wait: PoolWait | None = None
        """For memory of the frame that has begun; nothing is read meanwhile."""
        self._start_wait: PoolWait | None = None
        """For responses to be taken, with a request that may have a long response."""
        self._is_let_in = False
        """True if that wait is over, and its request not started yet."""
        self._unsent: UnsentResponses | None = None
        self._muted = False
        self._blocked = False
        self._reading = True
        self._in_step = False
        self._is_flush_due = False
        self.active_at = server.now
        self.frame_began_at = server.now
        self.client_host = ""
        self.is_undecided = False
        """True if it has a place only if its first request comes from another node."""
        self.has_fetched = False
        """True if a Fetch response had records, so that the next one shows that they were taken."""

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a new socket."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else ""
        transport.set_write_buffer_limits(high=0)
        self._unsent = UnsentResponses(self._server.memory, transport, self._server.now)
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Drop every request that waits for its response."""
        self._transport = None
        self._give_back_memory()
        self._backlog.clear()
        self._frame = None
        pending, self._pending = self._pending, deque()
        for slot in pending:
            if slot.cancel is not None:
                slot.cancel()
        self._server.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the next bytes go: what comes before a frame has begun, or its rest."""
        frame = self._frame
        if frame is None:
            return self._head[self._filled :]
        if self._filled == len(frame):  # a long frame, of which this much has arrived
            more = min(self._frame_size - len(frame), len(frame))
            while more > 0:
                frame += _ZEROS[:more]
                more -= FIRST_PIECE
        return memoryview(frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take note of received bytes; act on whole frames."""
        self.active_at = self._server.now
        if self._filled == 0:
            self.frame_began_at = self.active_at
        self._filled += nbytes
        frame = self._frame
        if frame is None:
            if self._take_frames():
                self._step()
        elif self._filled == self._frame_size:
            self._frame = None
            self._filled = 0
            self._backlog.append(frame)
            self._step()

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

    def slot(self) -> Slot:
        """Return the place of the next response."""
        slot = Slot(self)
        self._pending.append(slot)
        return slot

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
        if not self._in_step and not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

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

    @property
    def is_idle(self) -> bool:
        """Return true if no request is at work."""
        return not self._pending

    @property
    def is_in_frame(self) -> bool:
        """Return true if a frame has begun to arrive and is not whole."""
        return self._frame_wait is None and (self._frame is not None or self._filled > 0)

    @property
    def untaken(self) -> int:
        """Bytes of responses that the client has not taken."""
        return 0 if self._unsent is None else self._unsent.size

    def deaf_s(self, now: float) -> float:
        """Return for how long the client has not taken its responses; see `UnsentResponses`."""
        return 0.0 if self._unsent is None else self._unsent.deaf_s(now)

    def frame_held(self, now: float, after_s: float) -> int:
        """Return the memory that is kept for a frame of which less than `RATE_MIN` has arrived,
        for longer than `after_s`.
        """
        age = now - self.frame_began_at
        is_slow = self._frame is not None and age > after_s and self._filled < RATE_MIN * age
        return frame_cost(self._frame_size) if is_slow else 0

    def _take_frames(self) -> bool:
        """Take the frames off what was received, and begin the one that is not whole. Return
        whether there are any.
        """
        head, filled, position = self._head, self._filled, 0
        while filled - position >= 4:
            size = _LENGTH.unpack_from(head, position)[0]
            if not FRAME_MIN <= size <= self._server.request_max_bytes:
                self._step()  # what came before may start
                self._server.rejected(self, f"a frame of {size} bytes")
                return False
            begin, end = position + 4, position + 4 + size
            if end > filled:
                if filled - begin < _KEY.size:  # its API is not known yet
                    self._keep(position)
                    break
                self._keep(begin)
                self._begin_frame(size)
                break
            self._backlog.append(bytearray(head[begin:end]))
            position = end
        else:
            self._keep(position)
        if position and self.is_in_frame:
            self.frame_began_at = self.active_at
        return position > 0

    def _keep(self, position: int) -> None:
        """Keep what was received from a position on, at the front."""
        head = self._head
        kept = bytes(head[position : self._filled])
        self._filled = len(kept)
        head[: len(kept)] = kept

    def _begin_frame(self, size: int) -> None:
        """Begin a frame whose first bytes were received, when there is memory for all of it."""
        (key,) = _KEY.unpack_from(self._head)
        if size > CONTROL_REQUEST_MAX and key != _PRODUCE:
            self._step()  # what came before may start
            self._server.rejected(self, f"a frame of {size} bytes for api key {key}")
            return
        self._frame_size = size
        memory = self._server.memory
        self._frame_wait = memory.admit_frame(key, size, self._frame_may_go_on)
        if self._frame_wait is None:
            self._frame_has_room()
        else:
            self._regulate()

    def _frame_has_room(self) -> None:
        self._frame = frame = bytearray(min(self._frame_size, FIRST_PIECE))
        frame[: self._filled] = self._head[: self._filled]

    def _frame_may_go_on(self) -> None:
        self._frame_wait = None
        self.frame_began_at = self.active_at = self._server.now
        self._frame_has_room()
        self._regulate()

    def _frame_is_done(self) -> None:
        """Give back the memory of frames that are looked at no more."""
        at_work, self._at_work = self._at_work, 0
        self._server.memory.frames.give_back(at_work)

    def _give_back_memory(self) -> None:
        memory = self._server.memory
        if self._unsent is not None:
            self._unsent.drop()
        if self._frame_wait is not None:
            memory.frames.leave(self._frame_wait)
        if self._start_wait is not None:
            memory.responses.leave(self._start_wait)
        self._frame_wait = self._start_wait = None
        self._at_work += sum(frame_cost(len(frame)) for frame in self._backlog)
        if self._frame is not None:
            self._at_work += frame_cost(self._frame_size)
        self._frame_is_done()

    def _flush(self) -> None:
        self._is_flush_due = False
        self._send_ready()
        self._step()

    def _send_ready(self) -> None:
        """Send the responses that are ready and whose turn it is."""
        pending = self._pending
        pieces: list[Piece] = []
        while pending and (ready := pending[0].pieces) is not None:
            pieces.extend(ready)
            pending.popleft()
        if not pending:
            self._muted = False
            if not self._blocked:
                self._frame_is_done()
        if pieces and self._unsent is not None and self._transport is not None:
            self._unsent.send(pieces)

    def _step(self) -> None:
        """Start what may start, then read or not, as there is room."""
        if self._in_step:
            return
        self._in_step = True
        try:
            backlog = self._backlog
            while backlog and self._may_start(backlog[0]):
                frame = backlog.popleft()
                (key,) = _KEY.unpack_from(frame)
                self._at_work += frame_cost(len(frame))
                if self.is_undecided and not self._server.admits(self, key):
                    break
                self._muted = key != _PRODUCE
                if not self._server.handle(self, frame):
                    self._blocked = True
                elif key in {_PRODUCE, _FETCH}:
                    self._frame_is_done()
                self._send_ready()
        finally:
            self._in_step = False
        self._regulate()

    def _may_start(self, frame: bytearray) -> bool:
        if self._muted or self._blocked or self._start_wait is not None or self._transport is None:
            return False
        if self.untaken > self._server.write_buffer_bytes:
            return False
        (key,) = _KEY.unpack_from(frame)
        if key == _PRODUCE:
            return len(self._pending) < PIPELINE_MAX
        if self._pending:
            return False
        if self._is_let_in:
            self._is_let_in = False
            return True
        self._start_wait = self._server.memory.admit_response(key, self._may_go_on)
        return self._start_wait is None

    def _may_go_on(self) -> None:
        self._start_wait = None
        self._is_let_in = True
        self._step()

    def _regulate(self) -> None:
        transport = self._transport
        if transport is None:
            return
        is_taken = self.untaken <= self._server.write_buffer_bytes
        wanted = is_taken and not self._backlog and self._frame_wait is None
        if wanted is self._reading or transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()
