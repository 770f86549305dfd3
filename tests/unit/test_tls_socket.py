"""TLS over a transport that is read in pieces: bytes reach the connection in their order."""

import asyncio
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehead.broker.network.handshakes import Handshakes
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.network.tls import TlsSocket
from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.storage.clock import SystemClock

BUFFER = 1 << 18
READ = 100_000
"""More than OpenSSL gets at once."""


class Raw:
    """A socket's transport: what comes from the client is delivered while it is read."""

    def __init__(self) -> None:
        self.is_reading = True
        self.sent = bytearray()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def write(self, data: bytes) -> None:
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return 0


class Reader:
    """A connection that stops reading after each piece."""

    def __init__(self) -> None:
        self.client_host = "127.0.0.1"
        self.listener = SimpleNamespace(name="SSL", protocol=SimpleNamespace(is_sasl=False))
        self.is_in_handshake = True
        self.transport: Any = None
        self.taken = bytearray()
        self._buffer = memoryview(bytearray(10_000))

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.taken += self._buffer[:nbytes]
        self.transport.pause_reading()

    def charge_untaken(self, size: int) -> None:
        pass


class Server:
    """The parts of a server that a TLS connection uses."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.memory = RequestMemory(1 << 24)
        self.handshakes = Handshakes(8, SystemClock().monotonic)
        self.receive_buffer = memoryview(bytearray(BUFFER))
        self.problems: list[str] = []
        self._context = context

    def context(self, listener: str) -> ssl.SSLContext:
        return self._context

    def check_cipher(self, listener: str, name: str) -> None:
        pass

    def rejected(self, connection: Any, reason: str) -> None:
        self.problems.append(reason)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    folder: Path = tmp_path_factory.mktemp("ca")
    authority = DevelopmentCa(folder, utc(SystemClock().now_ms()))
    node = authority.issue("node", hosts=("localhost",))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(node)
    return server, ssl.create_default_context(cafile=str(authority.certificate_path))


class Client:
    """The other side, and the way between."""

    def __init__(self, server: Server, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.raw, self.reader, self._server = Raw(), Reader(), server
        self.socket = TlsSocket(server, self.reader)  # type: ignore[arg-type]
        self.socket.connection_made(self.raw)  # type: ignore[arg-type]
        self._waiting = bytearray()

    def deliver(self) -> None:
        """Deliver what the client has written, if the socket is read."""
        self._waiting += self.outgoing.read()
        while self._waiting and self.raw.is_reading:
            piece = self._waiting[:READ]
            del self._waiting[:READ]
            self._server.receive_buffer[: len(piece)] = piece
            self.socket.get_buffer(-1)
            self.socket.buffer_updated(len(piece))

    async def shake_hands(self) -> None:
        async with asyncio.timeout(20):
            while True:
                try:
                    self.tls.do_handshake()
                    is_done = True
                except ssl.SSLWantReadError:
                    is_done = False
                self.deliver()
                self.incoming.write(bytes(self.raw.sent))
                self.raw.sent.clear()
                if is_done and not self.reader.is_in_handshake:
                    return
                await asyncio.sleep(0.001)


async def test_bytes_keep_their_order_however_often_reading_stops(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server = Server(contexts[0])
    client = Client(server, contexts[1])
    await client.shake_hands()
    sent = bytes(number % 251 for number in range(600_000))
    for begin in range(0, len(sent), 10_000):
        client.tls.write(sent[begin : begin + 10_000])
    async with asyncio.timeout(20):
        while len(client.reader.taken) < len(sent) and not server.problems:
            client.deliver()
            client.reader.transport.resume_reading()
            client.deliver()  # before the loop's next turn
            await asyncio.sleep(0)
    assert server.problems == []
    assert client.reader.taken == sent
