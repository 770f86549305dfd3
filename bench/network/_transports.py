"""A server for one connection that receives or sends many bytes, by one of several transports.

Run as a module it prints its port, serves a connection, and prints the CPU seconds of that.
"""

import asyncio
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import uvloop

from lakehead.broker.network.handshakes import Handshakes
from lakehead.broker.network.listeners import Listener
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.network.tls import RECEIVE_SIZE, TlsServer, TlsSocket
from lakehead.broker.security.security_protocol import SecurityProtocol

TRANSPORTS = ("plain", "memory BIO", "uvloop", "TLS socket")
PIECE = 16 << 10
"""Of responses: a batch. A write has 64 of them, as a fetch response of 1 MiB."""
_PIECES = 64
_BUFFER = 1 << 20


class Peer(asyncio.BufferedProtocol):
    """Receives, or sends while the client takes: as `Connection` does, without requests."""

    def __init__(self, size: int, done: asyncio.Future[None], *, sends: bool) -> None:
        self.listener = Listener(name="SSL", protocol=SecurityProtocol.SSL)
        self.is_in_handshake = True
        self.peer_certificate_principal = None
        self._left = size
        self._done = done
        self._sends = sends
        self._is_paused = False
        self._buffer = memoryview(bytearray(_BUFFER))
        self._at = 0
        self._pieces = [memoryview(bytes(PIECE))] * _PIECES
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=0)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self._done.done():
            self._done.set_result(None)

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer[self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._sends:
            self._send()  # the client's first byte
            return
        self._at = (self._at + nbytes) % _BUFFER
        self._left -= nbytes
        if self._left <= 0:
            self._transport.write(b"!")

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._send()

    def _send(self) -> None:
        while self._left > 0 and not self._is_paused:
            self._left -= PIECE * _PIECES
            self._transport.writelines(self._pieces)


async def serve(transport: str, size: int, keys: Path, *, sends: bool) -> None:
    """Serve one connection, and print the CPU seconds that it cost."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys)
    peer = Peer(size, done, sends=sends)
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    if transport == "TLS socket":
        connection, _ = listening.accept()
        began = time.process_time()
        _serve_socket(connection, context, size, sends=sends)
    else:
        made: Callable[[], Any] = lambda: peer  # noqa: E731
        if transport == "memory BIO":
            server = SimpleNamespace(
                memory=RequestMemory(64 << 20),
                handshakes=Handshakes(8, time.monotonic),
                receive_buffer=memoryview(bytearray(RECEIVE_SIZE)),
                context=lambda _: context,
                check_cipher=lambda *_: None,
                rejected=lambda _, reason: print(reason, file=sys.stderr),
            )
            made = lambda: TlsSocket(cast(TlsServer, server), cast(Any, peer))  # noqa: E731
        served = await loop.create_server(
            made, sock=listening, ssl=context if transport == "uvloop" else None
        )
        began = time.process_time()
        await done
        served.close()
    print(f"{time.process_time() - began:.4f}", flush=True)


def _serve_socket(raw: socket.socket, context: ssl.SSLContext, size: int, *, sends: bool) -> None:
    """OpenSSL reads and writes the socket itself: system calls for each record, no copy, and
    without an event loop.
    """
    with context.wrap_socket(raw, server_side=True) as one:
        buffer, piece = bytearray(_BUFFER), memoryview(bytes(PIECE))
        if sends:
            one.recv_into(buffer)
            for _ in range(size // PIECE):
                one.sendall(piece)
        else:
            while size > 0:
                size -= one.recv_into(buffer)
            one.sendall(b"!")
        one.recv_into(buffer)


def chunks(size: int, chunk: bytes) -> Iterator[bytes]:
    """Yield what a client sends."""
    for _ in range(size // len(chunk)):
        yield chunk


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sends=sys.argv[4] == "send"))
