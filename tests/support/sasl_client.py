"""A client that speaks SASL to a broker message by message, in any order."""

import base64
import hashlib
import hmac
import socket
import ssl
import struct
from typing import Any, Self

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.messages import entity

SECONDS_MAX = 20.0
HANDSHAKE, AUTHENTICATE, VERSIONS, METADATA = 17, 36, 18, 3


class SaslClient:
    """A connection. Requests raise EOFError when the broker closes it in place of a response."""

    def __init__(
        self, port: int, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self._socket = socket.create_connection((host, port), SECONDS_MAX)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """Return a frame without its length."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def raw(self, token: bytes) -> bytes:
        """Send a token as a frame of its own; return the frame that comes back."""
        self.send(struct.pack(">i", len(token)) + token)
        return self.receive()

    def ask(self, key: int, version: int, name: str, **fields: Any) -> Any:
        message = schema(key, version)
        self._sent += 1
        request = entity(message.request_module, name, **fields)
        self.send(encode_request(key, version, self._sent, request))
        return self.take(key, version)

    def take(self, key: int, version: int) -> Any:
        """Return the response to a request that was sent."""
        message, response = schema(key, version), self.receive()
        start = 5 if message.flexible_response and key != VERSIONS else 4
        return decode(message.response_class, memoryview(response), start)

    def versions(self, version: int = 0) -> Any:
        return self.ask(VERSIONS, version, "ApiVersionsRequest", **_SOFTWARE)

    def handshake(self, mechanism: str, version: int = 1) -> Any:
        return self.ask(HANDSHAKE, version, "SaslHandshakeRequest", mechanism=mechanism)

    def authenticate(self, message: bytes, version: int = 2) -> Any:
        return self.ask(AUTHENTICATE, version, "SaslAuthenticateRequest", auth_bytes=message)

    def metadata(self) -> Any:
        return self.ask(METADATA, 1, "MetadataRequest", topics=())

    def is_closed(self) -> bool:
        """Wait for the broker to close the connection, or to send something."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def plain(self, user: str, password: str) -> Any:
        assert int(self.handshake("PLAIN").error_code) == 0
        return self.authenticate(f"\0{user}\0{password}".encode())

    def scram(self, user: str, password: str) -> Any:
        """Log in by SCRAM-SHA-512; return the last response."""
        self.handshake("SCRAM-SHA-512")
        bare = f"n={user},r=abcdef"
        challenge = self.authenticate(f"n,,{bare}".encode())
        return self.authenticate(scram_final(bare, challenge.auth_bytes, password, "sha512"))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = self._socket.recv(size - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise EOFError("the broker closed the connection")
            data += piece
        return data


_SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


def scram_final(first_bare: str, server_first: bytes, password: str, hash_name: str) -> bytes:
    """Return the final message of a client, written by RFC 5802 and nothing else."""
    fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
    salt, rounds = base64.b64decode(fields["s"]), int(fields["i"])
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, rounds)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    final = f"c=biws,r={fields['r']}"
    message = f"{first_bare},{server_first.decode()},{final}".encode()
    signature = hmac.digest(stored_key, message, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{final},p={base64.b64encode(proof).decode()}".encode()
