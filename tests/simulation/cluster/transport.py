"""The server's side of a simulated connection: a transport below a real `Connection`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from lakehead.broker.network.connection import Connection


class SimulatedTransport(asyncio.Transport):
    """Gives a connection what arrives, and gives `send` what it writes; `closed` is called once
    when the node closes.
    """

    def __init__(
        self,
        connection: Connection,
        client_host: str,
        send: Callable[[bytes], None],
        closed: Callable[[], None],
    ) -> None:
        super().__init__({"peername": (client_host, 0)})
        self._connection = connection
        self._send = send
        self._closed = closed
        self._unread = bytearray()
        self._is_reading = True
        self._is_ended = False
        connection.connection_made(self)

    # From the client.

    def receive(self, data: bytes) -> None:
        """Take bytes that have arrived."""
        self._unread += data
        self._feed()

    def end(self) -> None:
        """Take note that the client has closed, or is gone."""
        if not self._is_ended:
            self._is_ended = True
            self._connection.connection_lost(None)

    def _feed(self) -> None:
        while self._unread and self._is_reading and not self._is_ended:
            buffer = self._connection.get_buffer(-1)
            size = min(len(buffer), len(self._unread))
            buffer[:size] = self._unread[:size]
            del self._unread[:size]
            self._connection.buffer_updated(size)

    # From the connection: see `asyncio.Transport`.

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The client takes everything."""

    def get_write_buffer_size(self) -> int:
        """Return 0: the client has taken everything."""
        return 0

    def write(self, data: Any) -> None:
        """Send a whole response."""
        if not self._is_ended:
            self._send(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send whole responses in pieces."""
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        """Return true once the node has closed."""
        return self._is_ended

    def close(self) -> None:
        """Close after what was written, which is on its way."""
        if not self._is_ended:
            self._is_ended = True
            self._closed()
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def abort(self) -> None:
        """Close at once."""
        self.close()

    def pause_reading(self) -> None:
        """Keep what arrives."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Go on with what was kept."""
        self._is_reading = True
        if self._unread:
            asyncio.get_running_loop().call_soon(self._feed)
