"""OAUTHBEARER (RFC 7628): the client sends a token, and some authority says what it proves.

::

    client first    n,[a=authzid],^Aauth=Bearer TOKEN^A[key=value^A]^A      (^A is the character 1)
    server          empty: the token is valid; else JSON, {"status": "invalid_token"}
    client          ^A, and the exchange fails with that JSON
"""

import json
import re

from lakehead.broker.security.principal import USER, KafkaPrincipal
from lakehead.broker.security.sasl.outcome import (
    Authenticated,
    Challenge,
    InvalidToken,
    Outcome,
    SaslFailure,
    TokenToValidate,
    ValidToken,
)

MECHANISM = "OAUTHBEARER"
_END = "\x01"
_PAIRS_MAX = 64
_SASL_NAME = re.compile(r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+")
_KEY = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)


class OAuthBearerServer:
    """The server's side of one exchange; see `TokenMechanism`."""

    def __init__(self) -> None:
        self._authzid = ""
        self._refusal: InvalidToken | None = None
        self._refusal_text = ""

    def evaluate(self, message: bytes) -> Outcome:
        """See `SaslMechanism.evaluate`."""
        if message == b"\x01" and self._refusal is not None:
            raise SaslFailure(self._refusal.reason, self._refusal_text)
        self._refusal = None
        self._authzid, token = _parsed(message)
        return TokenToValidate(token)

    def validated(self, result: ValidToken | InvalidToken) -> Outcome:
        """See `TokenMechanism.validated`."""
        if isinstance(result, InvalidToken):
            self._refusal = result
            status = {"status": result.status}
            if result.scope is not None:
                status["scope"] = result.scope
            self._refusal_text = json.dumps(status, separators=(", ", ":"))
            return Challenge(self._refusal_text.encode())
        if self._authzid not in {"", result.name}:
            raise SaslFailure(
                text := "Authentication failed: Client requested an authorization id "
                f"({self._authzid}) that is different from the token's principal name "
                f"({result.name})",
                text,
            )
        return Authenticated(KafkaPrincipal(USER, result.name), expires_ms=result.expires_ms)


def _parsed(message: bytes) -> tuple[str, str]:
    """Return authorization id and token of a client's first message."""
    text = message.decode(errors="replace")
    header, _, rest = text.partition(_END)
    flag, _, authzid = header.partition(",")
    pairs, end = rest[:-1], rest[-1:]
    if flag != "n" or not authzid.endswith(",") or end != _END:
        raise SaslFailure("a malformed first OAUTHBEARER message")
    authzid = authzid[:-1]
    if authzid and not (authzid.startswith("a=") and _SASL_NAME.fullmatch(authzid, 2)):
        raise SaslFailure("a malformed authorization id in an OAUTHBEARER message")
    if pairs.count(_END) > _PAIRS_MAX or (pairs and not pairs.endswith(_END)):
        raise SaslFailure("a malformed first OAUTHBEARER message")
    auth = None
    for pair in pairs.split(_END)[:-1]:
        key, equals, value = pair.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise SaslFailure("a malformed extension in an OAUTHBEARER message")
        if key == "auth":
            auth = value
    found = None if auth is None else _AUTH.fullmatch(auth)
    if found is None or found["scheme"].lower() != "bearer":
        raise SaslFailure("an OAUTHBEARER message without a bearer token")
    return authzid[2:], found["token"]
