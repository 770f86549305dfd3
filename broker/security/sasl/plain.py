"""PLAIN (RFC 4616): user and password in one message. For encrypted listeners only."""

import hashlib
import hmac
from collections.abc import Mapping

from lakehead.broker.security.principal import USER, KafkaPrincipal
from lakehead.broker.security.sasl.outcome import Authenticated, Outcome, SaslFailure

MECHANISM = "PLAIN"
_TOKENS = 3
_FAILED = "Authentication failed: "


class PlainUsers:
    """The passwords of users, of which only hashes are kept."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._hashes = {user: _hash(password) for user, password in passwords.items()}

    def __len__(self) -> int:
        return len(self._hashes)

    def __repr__(self) -> str:
        return f"PlainUsers({len(self)} users)"

    def is_password(self, user: str, password: str) -> bool:
        """Return true if the user exists and has this password; in the same time for all."""
        known = self._hashes.get(user)
        is_same = hmac.compare_digest(_hash(password), known or _hash(""))
        return is_same and known is not None


class PlainServer:
    """The server's side of one exchange; see `SaslMechanism`."""

    def __init__(self, users: PlainUsers) -> None:
        self._users = users

    def evaluate(self, message: bytes) -> Outcome:
        """See `SaslMechanism.evaluate`. Messages are Kafka's (PlainSaslServer)."""
        tokens = message.decode(errors="replace").split("\0", _TOKENS)
        if len(tokens) != _TOKENS:
            raise _shown(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(tokens)}")
        authzid, user, password = tokens
        if not user:
            raise _shown(f"{_FAILED}username not specified")
        if not password:
            raise _shown(f"{_FAILED}password not specified")
        if not self._users.is_password(user, password):
            raise _shown(f"{_FAILED}Invalid username or password")
        if authzid not in {"", user}:
            raise _shown(
                f"{_FAILED}Client requested an authorization id that is different from username"
            )
        return Authenticated(KafkaPrincipal(USER, user))


def _hash(password: str) -> bytes:
    return hashlib.sha512(password.encode(errors="surrogatepass")).digest()


def _shown(message: str) -> SaslFailure:
    return SaslFailure(message, message)
