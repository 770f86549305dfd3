"""A socket without TLS between the event loop and its connection."""

import asyncio

from lakehead.broker.network.connection import Connection


class PlainSocket(asyncio.BufferedProtocol):
    """One accepted socket: the event loop calls it, and it calls `connection`."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._connection.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._connection.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._connection.buffer_updated(nbytes)

    def eof_received(self) -> bool:
        """See `asyncio.BufferedProtocol`."""
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._connection.resume_writing()
