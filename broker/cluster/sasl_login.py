"""Logins over a channel, the side of the client: the handshake, and the messages of a mechanism
(KIP-43, KIP-152).

A node logs in to another one by SCRAM, and an import to its source by what that takes.
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.inter_broker_client import PeerChannel
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.messages import entity
from lakehead.broker.security.sasl.outcome import SaslFailure
from lakehead.broker.security.sasl.scram import ScramClient, ScramMechanism, secure_text

_HANDSHAKE, _AUTHENTICATE = (17, 1), (36, 1)
_ELEMENTS_MAX = 100


class SaslLogin(Protocol):
    """The client's side of one exchange."""

    @property
    def mechanism(self) -> str:
        """The name of the mechanism."""

    def first(self) -> bytes:
        """Return the first message."""

    def reply(self, challenge: bytes, /) -> bytes | None:
        """Return the message that follows one of the server; None: the exchange is over. Raises
        SaslFailure.
        """


class PlainLogin:
    """PLAIN (RFC 4616)."""

    mechanism = "PLAIN"

    def __init__(self, user: str, password: str) -> None:
        self._message = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        """See `SaslLogin.first`."""
        return self._message

    def reply(self, _challenge: bytes, /) -> bytes | None:
        """See `SaslLogin.reply`."""
        return None


class ScramLogin:
    """SCRAM (RFC 5802): the server proves that it knows the password, too."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        salted_password: Callable[[bytes, int], bytes],
        rng: random.Random,
    ) -> None:
        self.mechanism = mechanism.name
        self._client = ScramClient(mechanism, user, salted_password, secure_text(rng))
        self._is_final = False

    @classmethod
    def by_password(
        cls, mechanism: ScramMechanism, user: str, password: str, rng: random.Random
    ) -> "ScramLogin":
        """Return the login of a user with a password."""
        return cls(mechanism, user, partial(mechanism.salted_password, password), rng)

    def first(self) -> bytes:
        """See `SaslLogin.first`."""
        return self._client.first()

    def reply(self, challenge: bytes, /) -> bytes | None:
        """See `SaslLogin.reply`."""
        if self._is_final:
            self._client.check(challenge)
            return None
        self._is_final = True
        return self._client.final(challenge)


class TokenLogin:
    """OAUTHBEARER (RFC 7628), with the extensions of KIP-342."""

    mechanism = "OAUTHBEARER"

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        pairs = "".join(f"{name}={value}\x01" for name, value in extensions.items())
        self._message = f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()

    def first(self) -> bytes:
        """See `SaslLogin.first`."""
        return self._message

    def reply(self, challenge: bytes, /) -> bytes | None:
        """See `SaslLogin.reply`: a server that refuses the token says why, and fails once this is
        confirmed.
        """
        return b"\x01" if challenge else None


async def log_in(channel: PeerChannel, login: SaslLogin) -> None:
    """Log in over a new channel. Raises SaslFailure, MalformedFrame, OSError."""
    shaken = await _send(channel, _HANDSHAKE, "SaslHandshakeRequest", mechanism=login.mechanism)
    if shaken.error_code is not ErrorCode.none:
        known = ", ".join(sorted(shaken.mechanisms))
        raise SaslFailure(f"it has no {login.mechanism} on this listener, but {known or 'nothing'}")
    token: bytes | None = login.first()
    while token is not None:
        response = await _send(channel, _AUTHENTICATE, "SaslAuthenticateRequest", auth_bytes=token)
        if response.error_code is not ErrorCode.none:
            raise SaslFailure(response.error_message or f"{login.mechanism} fails")
        token = login.reply(bytes(response.auth_bytes))


async def _send(channel: PeerChannel, api: tuple[int, int], name: str, **fields: Any) -> Any:
    message = schema(*api)
    request = entity(message.request_module, name, **fields)
    response = await channel.send(encode_request(*api, 0, request))
    start = 5 if message.flexible_response else 4
    return decode(message.response_class, response, start, _ELEMENTS_MAX)
