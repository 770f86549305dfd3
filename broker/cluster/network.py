"""The seam between a node and its peers: connections that carry one request at a time.

`TcpNetwork` is the real one; a simulation brings its own. What is said over it only makes things
quick: every loss, delay and doubling is harmless.
"""

import asyncio
import errno
import struct
from collections.abc import Callable
from typing import Protocol, cast

from lakehead.broker.protocol.errors import MalformedFrame

_LENGTH = struct.Struct(">i")
_ANSWER_MAX = 1 << 20


class PeerChannel(Protocol):
    """An open connection to another node."""

    @property
    def is_open(self) -> bool:
        """Whether it may still carry something."""

    async def ask(self, frame: bytes) -> memoryview:
        """Send one request and return the response without its length field. One at a time.

        Raises OSError when the connection ends before, MalformedFrame for what is no answer.
        """

    def close(self) -> None:
        """Close it."""


class PeerNetwork(Protocol):
    """Opens connections."""

    async def connect(self, host: str, port: int, on_closed: Callable[[], None]) -> PeerChannel:
        """Connect; `on_closed` is called once when the connection has ended, by whomever.

        Raises ConnectionRefusedError when nobody listens there, and other kinds of OSError.
        """


class TcpNetwork:
    """Connections over TCP."""

    async def connect(self, host: str, port: int, on_closed: Callable[[], None]) -> PeerChannel:
        """See `PeerNetwork.connect`."""
        loop = asyncio.get_running_loop()
        try:
            _, channel = await loop.create_connection(lambda: _Channel(on_closed), host, port)
        except OSError as error:
            raise _plain(error) from error
        return channel


def _plain(error: OSError) -> OSError:
    """Return what it comes to when several addresses of a name were tried: one error for all."""
    text = str(error)
    attempts = text.count("[Errno ")
    if attempts and attempts == text.count(f"[Errno {errno.ECONNREFUSED}]"):
        return ConnectionRefusedError(text)
    return error


class _Channel(asyncio.Protocol):
    """A `PeerChannel` over a socket."""

    def __init__(self, on_closed: Callable[[], None]) -> None:
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[memoryview] | None = None
        self._error: Exception | None = None
        self._is_ended = False

    @property
    def is_open(self) -> bool:
        """See `PeerChannel.is_open`."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, frame: bytes) -> memoryview:
        """See `PeerChannel.ask`."""
        if self._transport is None or self._error is not None:
            raise self._error or ConnectionResetError("the connection has ended")
        assert self._answer is None, "one request at a time"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        try:
            return await self._answer
        finally:
            self._answer = None

    def close(self) -> None:
        """See `PeerChannel.close`."""
        if self._transport is not None:
            self._transport.abort()

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the socket."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take in what arrives; hand on a whole answer."""
        self._received += data
        if len(self._received) < _LENGTH.size:
            return
        size = _LENGTH.unpack_from(self._received)[0]
        if not 0 < size <= _ANSWER_MAX or self._answer is None:
            self._fail(MalformedFrame(f"{size} bytes from a node that was not asked for them"))
        elif len(self._received) >= _LENGTH.size + size:
            frame = bytes(self._received[_LENGTH.size : _LENGTH.size + size])
            del self._received[: _LENGTH.size + size]
            if not self._answer.done():
                self._answer.set_result(memoryview(frame))

    def eof_received(self) -> bool:
        """Tell at once: a client that lost its connection in the same moment is about to ask."""
        self._end(ConnectionResetError("the other node closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        self._transport = None
        self._end(exc or ConnectionResetError("the connection was closed"))

    def _end(self, error: Exception) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._fail(error)
            self._on_closed()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._error)
        self.close()
