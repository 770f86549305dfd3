"""TLS between a socket and its `Connection`, by two memory BIOs of OpenSSL.

The connection sees a transport; the socket sees a protocol. Bytes are decrypted straight into the
buffer that the connection gives, and views of responses are encrypted a chunk at a time, as the
client takes them: what the client does not take stays plain, as views of cached batches. The
buffers of OpenSSL are small for that reason, and the buffer that a socket is read into is one for
all connections.

Handshakes cost CPU before a client is known: `Handshakes` bounds that. A handshake starts with the
first bytes of the client, so that a connection which sends nothing costs no more than one without
TLS.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol, cast

from lakehead.broker.network.connection import Connection
from lakehead.broker.network.handshakes import Handshakes
from lakehead.broker.network.request_memory import Piece, RequestMemory
from lakehead.broker.security.principal import KafkaPrincipal

RECEIVE_SIZE = 256 << 10
"""Read of a socket, of any connection."""
FEED_SIZE = 32 << 10
"""Encrypted bytes that OpenSSL gets at once; its buffer keeps the size of the largest."""
CHUNK_SIZE = 64 << 10
"""Bytes of responses that are encrypted at once: four records of TLS."""
HELLO_MAX = 64 << 10
"""Bytes that a client may send before its part of the handshake is looked at."""


class HandshakeFailed(Exception):
    """A client has no place after its handshake. The message says why."""


class TlsServer(Protocol):
    """The server of TLS connections (`lakehead.broker.network.server.Server`)."""

    memory: RequestMemory
    handshakes: Handshakes
    receive_buffer: memoryview

    def context(self, listener: str) -> ssl.SSLContext:
        """Return the present context of a listener."""

    def peer_principal(self, listener: str, certificate: bytes) -> KafkaPrincipal:
        """Return the name in a client's certificate (DER). Raises HandshakeFailed."""

    def check_cipher(self, listener: str, name: str) -> None:
        """Raise HandshakeFailed if the listener does not allow a cipher suite, by OpenSSL's
        name.
        """

    def rejected(self, connection: Connection, reason: str) -> None:
        """Close a connection that does not speak Kafka."""


class TlsSocket(asyncio.BufferedProtocol):
    """One accepted socket with TLS: the transport of `connection`, whose methods it has."""

    def __init__(self, server: TlsServer, connection: Connection) -> None:
        self._server = server
        self._connection = connection
        self._raw: asyncio.Transport | None = None
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._is_open = False
        """True once the handshake is over."""
        self._left = b""
        """Encrypted bytes that were read and not looked at, while the connection reads nothing."""
        self._is_reading = True
        self._is_raw_paused = False
        self._charged = 0
        self._plain: deque[memoryview] = deque()
        """Of responses, not encrypted yet."""
        self._plain_size = 0
        self._is_pausing = False
        self._is_closing = False
        self._is_pumping = False

    @property
    def client_host(self) -> str:
        """The address of the client."""
        return self._connection.client_host

    # The socket's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`. The connection counts from here on."""
        self._raw = raw = cast(asyncio.Transport, transport)
        raw.set_write_buffer_limits(high=0)
        self._connection.connection_made(cast(asyncio.Transport, self))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._raw = None
        self._tls = None
        self._server.handshakes.end(self)
        self._release()
        self._plain.clear()
        self._plain_size = 0
        self._left = b""
        self._connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the buffer that all connections share: it is emptied before this call's end."""
        return self._server.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take encrypted bytes."""
        received = self._server.receive_buffer[:nbytes]
        if self._is_open:
            self._take(received)
            return
        if self._raw is None:
            return
        if self._tls is None and not self._incoming.pending:
            self._server.handshakes.begin(self)
        if self._incoming.pending + nbytes > HELLO_MAX:
            self._fail("its handshake is too long")
            return
        self._incoming.write(received)
        self._raw.pause_reading()
        self._server.handshakes.step(self)

    def eof_received(self) -> bool:
        """Close when the client does."""
        if self._is_open:
            return self._connection.eof_received()
        return False

    def pause_writing(self) -> None:
        """Take note that the client has not taken everything yet."""
        self._is_raw_paused = True

    def resume_writing(self) -> None:
        """Encrypt what comes next."""
        self._is_raw_paused = False
        self._release()
        self._pump()

    # The handshake.

    def take_step(self) -> None:
        """Go on with the handshake as far as the client's bytes go."""
        raw = self._raw
        if raw is None or raw.is_closing():
            return
        try:
            if self._tls is None:
                context = self._server.context(self._connection.listener.name)
                self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            raw.resume_reading()
            return
        except ssl.SSLError as error:
            self._fail(_reason(error))
            return
        self._flush()
        self._server.handshakes.end(self)
        try:
            self._let_in(self._tls)
        except HandshakeFailed as error:
            self._fail(str(error))
            return
        self._is_open = True
        self._connection.is_in_handshake = False
        if self._is_reading:
            raw.resume_reading()
        self._decrypt()  # the first request may have come with the end of the handshake

    def _let_in(self, tls: ssl.SSLObject) -> None:
        connection = self._connection
        cipher = tls.cipher()
        if cipher is not None:
            self._server.check_cipher(connection.listener.name, cipher[0])
        certificate = tls.getpeercert(binary_form=True)
        if certificate:
            principal = self._server.peer_principal(connection.listener.name, certificate)
            connection.peer_certificate_principal = principal
            if not connection.listener.protocol.is_sasl:
                connection.principal = principal

    def _fail(self, reason: str) -> None:
        """Send OpenSSL's alert, if there is one, and close."""
        raw = self._raw
        self._server.handshakes.end(self)
        if raw is None:
            return
        alert = self._outgoing.read()
        if alert:
            raw.write(alert)
        self._server.rejected(self._connection, f"TLS: {reason}")

    # The connection's side, as its transport.

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the limit is 0, as the connection wants it."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`."""
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._is_closing or self._raw is None or self._raw.is_closing()

    def pause_reading(self) -> None:
        """Deliver nothing to the connection."""
        self._is_reading = False
        if self._raw is not None and self._is_open:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Deliver what was received meanwhile, and then more."""
        self._is_reading = True
        if self._raw is not None and self._is_open:
            asyncio.get_running_loop().call_soon(self._go_on)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the client has not taken."""
        raw = self._raw
        return self._plain_size + (0 if raw is None else raw.get_write_buffer_size())

    def write(self, data: Piece) -> None:
        """See `asyncio.WriteTransport`."""
        self.writelines((data,))

    def writelines(self, pieces: Iterable[Piece]) -> None:
        """See `asyncio.WriteTransport`."""
        for piece in pieces:
            view = memoryview(piece).cast("B")
            self._plain.append(view)
            self._plain_size += len(view)
        self._pump()

    def close(self) -> None:
        """Close after what is written was sent."""
        self._is_closing = True
        self._pump()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        if self._raw is not None:
            if self._is_open:
                self._raw.abort()
            else:
                self._raw.close()  # an alert may be on its way

    # Decryption and encryption.

    def _go_on(self) -> None:
        left, self._left = self._left, b""
        self._release()
        if self._raw is not None and self._is_open:
            self._decrypt()
            self._take(memoryview(left))
        # The socket is read from here on, not before: what it has comes after what was left.
        if self._raw is not None and self._is_open and self._is_reading:
            self._raw.resume_reading()

    def _take(self, received: memoryview) -> None:
        for begin in range(0, len(received), FEED_SIZE):
            if not self._is_reading:
                self._left += bytes(received[begin:])
                self._charge_frames()
                return
            if self._raw is None:
                return
            self._incoming.write(received[begin : begin + FEED_SIZE])
            self._decrypt()

    def _decrypt(self) -> None:
        connection, tls = self._connection, self._tls
        if tls is None:
            return
        try:
            while self._is_reading and self._raw is not None:
                buffer = connection.get_buffer(-1)
                count = cast(int, tls.read(len(buffer), buffer))
                if not count:
                    self._ended()
                    return
                connection.buffer_updated(count)
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended()
            return
        except ssl.SSLError as error:
            self._fail(_reason(error))
            return
        if self._outgoing.pending:  # a new key, on the client's request
            self._flush()

    def _ended(self) -> None:
        """The client has closed its side."""
        self._connection.eof_received()
        self.close()

    def _pump(self) -> None:
        """Encrypt and send as much as the client takes."""
        raw, tls = self._raw, self._tls
        if self._is_pumping or raw is None:
            return
        self._is_pumping = True
        try:
            while self._plain and not self._is_raw_paused and tls is not None and self._is_open:
                chunk = self._chunk()
                tls.write(chunk)
                self._flush()
        except ssl.SSLError as error:
            self._fail(_reason(error))
            return
        finally:
            self._is_pumping = False
        is_paused = bool(self._plain) or self._is_raw_paused
        if is_paused is not self._is_pausing:
            self._is_pausing = is_paused
            if is_paused:
                self._connection.pause_writing()
            else:
                self._connection.resume_writing()
        if self._is_closing and not self._plain and not self._is_raw_paused:
            self._say_goodbye()

    def _chunk(self) -> Piece:
        """Take the next bytes to encrypt off those that wait."""
        plain = self._plain
        taken: list[memoryview] = []
        room = CHUNK_SIZE
        while plain and room:
            piece = plain[0]
            if len(piece) > room:
                taken.append(piece[:room])
                plain[0] = piece[room:]
                room = 0
            else:
                taken.append(plain.popleft())
                room -= len(piece)
        self._plain_size -= CHUNK_SIZE - room
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def _flush(self) -> None:
        raw = self._raw
        if raw is None or not self._outgoing.pending:
            return
        raw.write(self._outgoing.read())
        if self._is_raw_paused:
            held = raw.get_write_buffer_size()
            self._connection.charge_untaken(held)
            self._charged += held

    def _say_goodbye(self) -> None:
        raw, tls = self._raw, self._tls
        if raw is None or raw.is_closing():
            return
        if tls is not None and self._is_open:
            try:
                tls.unwrap()
            except ssl.SSLError:
                pass  # the client's own goodbye is not waited for
            if self._outgoing.pending:
                raw.write(self._outgoing.read())
        raw.close()

    # Memory.

    def _charge_frames(self) -> None:
        held = len(self._left)
        self._connection.charge_untaken(held)
        self._charged += held

    def _release(self) -> None:
        charged, self._charged = self._charged, 0
        self._connection.charge_untaken(-charged)


def _reason(error: ssl.SSLError) -> str:
    return str(error.reason or error).replace("_", " ").lower()
