"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), both sides of the exchange.

::

    client first    n,[a=authzid],n=user,r=client nonce[,extensions]
    server first    r=client nonce + server nonce,s=salt,i=iterations
    client final    c=base64 of "n,[a=authzid],",r=both nonces[,extensions],p=proof
    server final    v=signature

The server keeps a salted hash of the password in two forms, and no form lets it log in elsewhere.
To check a login it computes two HMACs; the iterations are the client's work. An unknown user gets
a made-up salt and fails at the last message, like a user with a wrong password, whereas Kafka fails
at the first message. The extension `tokenauth=true` says that user and password are the id and the
HMAC of a delegation token (KIP-48).

Passwords are taken as UTF-8, as by Kafka, without SASLprep. Channel binding is not offered.
"""

import base64
import hashlib
import hmac
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lakehead.broker.security.principal import USER, KafkaPrincipal
from lakehead.broker.security.sasl.outcome import Authenticated, Challenge, Outcome, SaslFailure
from lakehead.storage.metadata.state import ScramCredential

MIN_ITERATIONS = 4_096
MAX_ITERATIONS = 16_384
_PARTS_MAX = 32
"""Attributes of a message; a longer list is refused before it is split."""
_NONCE_MAX = 1_024
_SALT_BITS = 130
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramMechanism:
    """A variant of SCRAM. `number` is its code in requests (KIP-554)."""

    name: str
    number: int
    hash_name: str

    def hash(self, data: bytes) -> bytes:
        """Return H(data)."""
        return hashlib.new(self.hash_name, data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        """Return HMAC(key, data)."""
        return hmac.digest(key, data, self.hash_name)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Return Hi(password, salt, iterations). It takes milliseconds."""
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)

    def credential(self, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
        """Return the credential of a salted password."""
        client_key = self.hmac(salted_password, b"Client Key")
        return ScramCredential(
            salt=salt,
            stored_key=self.hash(client_key),
            server_key=self.hmac(salted_password, b"Server Key"),
            iterations=iterations,
        )

    def credential_of(self, password: str, salt: bytes, iterations: int) -> ScramCredential:
        """Return the credential of a password. It takes milliseconds."""
        return self.credential(self.salted_password(password, salt, iterations), salt, iterations)

    def is_password(self, password: str, credential: ScramCredential) -> bool:
        """Return true if the credential is one of this password. It takes milliseconds."""
        made = self.credential_of(password, credential.salt, credential.iterations)
        return hmac.compare_digest(made.stored_key, credential.stored_key)


SHA_256 = ScramMechanism(name="SCRAM-SHA-256", number=1, hash_name="sha256")
SHA_512 = ScramMechanism(name="SCRAM-SHA-512", number=2, hash_name="sha512")
SCRAM_MECHANISMS: Mapping[str, ScramMechanism] = {one.name: one for one in (SHA_256, SHA_512)}


def secure_text(rng: random.Random) -> str:
    """Return a text of 130 random bits in base 36, as Kafka makes its nonces and salts."""
    return base_36(rng.getrandbits(_SALT_BITS))


def base_36(number: int) -> str:
    """Return a number that is not negative in base 36."""
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)) or "0"


class ScramIdentity(NamedTuple):
    """The credential that a user name stands for, and the name that it proves."""

    credential: ScramCredential
    principal: KafkaPrincipal
    expires_ms: int | None = None


FindIdentity = Callable[[str, bool], ScramIdentity]
"""Returns the identity of (name, is it the id of a delegation token); of an unknown name one with a
made-up credential, always the same.
"""


class _First(NamedTuple):
    header: str
    authzid: str
    bare: str
    user: str
    nonce: str
    is_token: bool


class ScramServer:
    """The server's side of one exchange; see `SaslMechanism`. `nonce` is a `secure_text` of its
    own.
    """

    def __init__(self, mechanism: ScramMechanism, find: FindIdentity, nonce: str) -> None:
        self._mechanism = mechanism
        self._find = find
        self._own_nonce = nonce
        self._first: _First | None = None
        self._server_first = ""
        self._nonce = ""
        self._identity: ScramIdentity | None = None

    def evaluate(self, message: bytes) -> Outcome:
        """See `SaslMechanism.evaluate`."""
        text = _text(message)
        if self._identity is None:
            return self._begin(text)
        identity, self._identity = self._identity, None
        return self._finish(text, identity)

    def _begin(self, text: str) -> Challenge:
        if self._first is not None:
            raise SaslFailure("a SCRAM message after the end of the exchange")
        self._first = first = _client_first(text)
        self._identity = identity = self._find(first.user, first.is_token)
        if first.authzid and first.authzid != first.user:
            raise SaslFailure(text := _OTHER_AUTHZID, text)
        self._nonce = first.nonce + self._own_nonce
        salt = base64.b64encode(identity.credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={identity.credential.iterations}"
        return Challenge(self._server_first.encode())

    def _finish(self, text: str, identity: ScramIdentity) -> Authenticated:
        assert self._first is not None
        without_proof, _, proof_text = text.rpartition(",p=")
        binding, _, rest = without_proof.partition(",")
        nonce = rest.partition(",")[0]
        if not (binding.startswith("c=") and nonce.startswith("r=")):
            raise SaslFailure("a malformed final SCRAM message")
        if _base64(binding[2:]) != self._first.header.encode():
            raise SaslFailure("the channel binding of a SCRAM exchange has changed")
        if not hmac.compare_digest(nonce[2:].encode(), self._nonce.encode()):
            if nonce[2:] == self._first.nonce + self._nonce:
                raise SaslFailure(_NONCE_TWICE)
            raise SaslFailure("the final SCRAM message has another nonce")
        credential, mechanism = identity.credential, self._mechanism
        signed = f"{self._first.bare},{self._server_first},{without_proof}".encode()
        client_signature = mechanism.hmac(credential.stored_key, signed)
        proof = _base64(proof_text)
        if len(proof) != len(client_signature):
            raise SaslFailure("a SCRAM proof of a wrong size")
        stored_key = mechanism.hash(_xor(client_signature, proof))
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise SaslFailure("no such user, or another password")
        signature = base64.b64encode(mechanism.hmac(credential.server_key, signed))
        return Authenticated(identity.principal, b"v=" + signature, identity.expires_ms)


_OTHER_AUTHZID = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
_NONCE_TWICE = (
    "the final SCRAM message has the client's nonce twice, as librdkafka before 2.6.1 sends it: "
    "the client needs a newer one"
)
"""Kafka refuses it as well since 3.7.2 (CVE-2024-56128)."""


class ScramClient:
    """The client's side of one exchange, for requests between nodes. Raises SaslFailure for a
    server that does not know the password.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        salted_password: Callable[[bytes, int], bytes],
        nonce: str,
    ) -> None:
        self._mechanism = mechanism
        self._salted_password = salted_password
        self._nonce = nonce
        self._bare = f"n={_sasl_name(user)},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the final message, after the first one of the server."""
        text = _text(server_first)
        parts = dict(part.partition("=")[::2] for part in text.split(",", _PARTS_MAX))
        nonce, iterations = parts.get("r", ""), parts.get("i", "")
        is_whole = nonce.startswith(self._nonce) and nonce != self._nonce and "s" in parts
        if not (is_whole and iterations.isascii() and iterations.isdecimal()):
            raise SaslFailure("a malformed first SCRAM message of a server")
        rounds = int(iterations[:9])
        if not MIN_ITERATIONS <= rounds <= MAX_ITERATIONS:
            raise SaslFailure(f"a server requests {rounds} iterations of SCRAM")
        salted = self._salted_password(_base64(parts["s"]), rounds)
        mechanism = self._mechanism
        client_key = mechanism.hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        proof = _xor(client_key, mechanism.hmac(mechanism.hash(client_key), signed))
        self._signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Check that the server knows the password, by its last message."""
        text = _text(server_final)
        if not (text.startswith("v=") and self._signature):
            raise SaslFailure("a server that does not end its SCRAM exchange")
        if not hmac.compare_digest(_base64(text[2:].partition(",")[0]), self._signature):
            raise SaslFailure("a server that does not know the password")


def _client_first(text: str) -> _First:
    flag, _, after_flag = text.partition(",")
    authzid, comma, bare = after_flag.partition(",")
    if flag not in {"n", "y"} or not comma or (authzid and not authzid.startswith("a=")):
        raise SaslFailure("a malformed first SCRAM message")
    if bare.count(",", 0, None) > _PARTS_MAX:
        raise SaslFailure("a first SCRAM message of too many parts")
    user, *rest = bare.split(",")
    if not user.startswith("n=") or not rest or not rest[0].startswith("r="):
        raise SaslFailure("a malformed first SCRAM message")  # or one with mandatory extensions
    nonce = rest[0][2:]
    if not 0 < len(nonce) <= _NONCE_MAX or not all("!" <= char <= "~" for char in nonce):
        raise SaslFailure("a malformed nonce of a SCRAM client")
    extensions = dict(part.partition("=")[::2] for part in rest[1:])
    return _First(
        header=f"{flag},{authzid},",
        authzid=_user_name(authzid[2:]) if authzid else "",
        bare=bare,
        user=_user_name(user[2:]),
        nonce=nonce,
        is_token=extensions.get("tokenauth", "").lower() == "true",
    )


def _user_name(sasl_name: str) -> str:
    if not sasl_name or "=" in sasl_name.replace("=2C", "").replace("=3D", ""):
        raise SaslFailure("a malformed user name in a SCRAM message")
    return sasl_name.replace("=2C", ",").replace("=3D", "=")


def _sasl_name(user: str) -> str:
    return user.replace("=", "=3D").replace(",", "=2C")


def _text(message: bytes) -> str:
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise SaslFailure("a SCRAM message that is not UTF-8") from None
    if "\0" in text:
        raise SaslFailure("a SCRAM message with a zero character")
    return text


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise SaslFailure("a SCRAM message with malformed Base64") from None


def _xor(first: bytes, second: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(first, second, strict=True))


def principal_of(user: str) -> KafkaPrincipal:
    """Return the principal of a user."""
    return KafkaPrincipal(USER, user)
