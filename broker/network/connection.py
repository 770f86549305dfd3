"""One client connection: frames in, responses out, in order.

Each frame gets a bytearray of its own, since the records of a Produce request are kept as views
into it. A short one comes with its length field, in one read of the socket; of others all that
follows is received straight into its place. Produce requests are pipelined: the next is started
while earlier ones wait to become durable. Any other request starts when everything before it is
answered, and what follows waits for its answer, as Kafka mutes a channel.

What a stranger can make us hold is bounded: a frame grows as its bytes arrive, not by what its
length promises; what waits came in one read, and is one frame or a few short ones; nothing is read
while responses are not taken.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from broker.protocol.frame import FRAME_MIN

if TYPE_CHECKING:
    from broker.network.server import Server

Piece = bytes | bytearray | memoryview

FIRST_PIECE = 1 << 20
"""A longer frame is allocated in steps, as its bytes arrive."""
READ_AHEAD = 512
"""Read of a socket while no frame has begun: short requests cost one call of the system, not
three.
"""
PIPELINE_MAX = 64
"""Produce requests of one connection that may wait for the WAL at once."""

_LENGTH = struct.Struct(">i")
_PRODUCE_KEY = b"\x00\x00"
_ZEROS = bytes(FIRST_PIECE)


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


class FrameHandler(Protocol):
    """What a connection does with a whole frame."""

    def __call__(self, connection: "Connection", frame: bytearray) -> bool:
        """Start a request. False: no later frame may start until `Connection.proceed` is called."""


class Connection(asyncio.BufferedProtocol):
    """One accepted socket. Made by `Server`."""

    __slots__ = (
        "_backlog",
        "_blocked",
        "_filled",
        "_frame",
        "_frame_size",
        "_head",
        "_in_step",
        "_is_flush_due",
        "_loop",
        "_muted",
        "_pending",
        "_reading",
        "_server",
        "_transport",
        "_writable",
        "active_at",
        "client_host",
        "frame_began_at",
    )

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._head = memoryview(bytearray(READ_AHEAD))
        self._frame: bytearray | None = None
        self._frame_size = 0
        self._filled = 0
        self._pending: deque[Slot] = deque()
        self._backlog: deque[bytearray] = deque()
        self._muted = False
        self._blocked = False
        self._writable = True
        self._reading = True
        self._in_step = False
        self._is_flush_due = False
        self.active_at = server.now
        self.frame_began_at = server.now
        self.client_host = ""

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a new socket."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else ""
        transport.set_write_buffer_limits(high=self._server.write_buffer_bytes)
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Let go of everything that waits for an answer."""
        self._transport = None
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
        """Close when the client does: nobody is left to take an answer."""
        return False

    def pause_writing(self) -> None:
        """Stop starting requests: the client does not take its responses."""
        self._writable = False
        self._regulate()

    def resume_writing(self) -> None:
        """Go on."""
        self._writable = True
        self.active_at = self._server.now
        self._step()

    # The node's side.

    @property
    def is_open(self) -> bool:
        """Whether the client can still be answered."""
        return self._transport is not None

    def slot(self) -> Slot:
        """Return the place of the next response."""
        slot = Slot(self)
        self._pending.append(slot)
        return slot

    def proceed(self) -> None:
        """Let later frames start again; see `FrameHandler`."""
        self._blocked = False
        self._step()

    def ready(self) -> None:
        """Take note that a response is ready. It is sent at once when its request just started,
        else soon, with the others that become ready meanwhile: a group commit answers many, and
        each write of a socket costs more than a request.
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
            self._transport.close()

    @property
    def is_idle(self) -> bool:
        """Whether no request is at work."""
        return not self._pending

    @property
    def is_in_frame(self) -> bool:
        """Whether a frame has begun to arrive and is not whole."""
        return self._frame is not None or self._filled > 0

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
                self._frame_size = size
                self._frame = frame = bytearray(min(size, FIRST_PIECE))
                self._filled = filled - begin
                frame[: self._filled] = head[begin:filled]
                break
            self._backlog.append(bytearray(head[begin:end]))
            position = end
        else:
            self._filled = filled - position
            head[: self._filled] = bytes(head[position:filled])
        if position and self.is_in_frame:
            self.frame_began_at = self.active_at
        return position > 0

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
        if not pieces or self._transport is None:
            return
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)

    def _step(self) -> None:
        """Start what may start, then read or not, as there is room."""
        if self._in_step:
            return
        self._in_step = True
        try:
            backlog = self._backlog
            while backlog and self._may_start(backlog[0]):
                frame = backlog.popleft()
                self._muted = frame[:2] != _PRODUCE_KEY
                if not self._server.handle(self, frame):
                    self._blocked = True
                self._send_ready()
        finally:
            self._in_step = False
        self._regulate()

    def _may_start(self, frame: bytearray) -> bool:
        if self._muted or self._blocked or not self._writable or self._transport is None:
            return False
        if frame[:2] == _PRODUCE_KEY:
            return len(self._pending) < PIPELINE_MAX
        return not self._pending

    def _regulate(self) -> None:
        wanted = self._writable and not self._backlog
        transport = self._transport
        if wanted is self._reading or transport is None or transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()
