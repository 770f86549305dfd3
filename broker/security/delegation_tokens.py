"""Delegation tokens (KIP-48): credentials that an authenticated client gets for others.

A token is an id and an HMAC of it, by `delegation.token.secret.key`, which all nodes have and the
metadata have not. A client logs in by SCRAM with the id as user and the HMAC, in Base64, as
password. It acts as the owner of the token.
"""

import base64
import hmac
from collections.abc import Iterable
from functools import lru_cache

from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.broker.security.sasl.scram import MIN_ITERATIONS, ScramMechanism, base_36
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import DelegationTokenDelete
from lakehead.storage.metadata.state import DelegationToken, MetadataImage, ScramCredential

TIME_MAX_MS = 253_402_300_799_000
"""The last second of the year 9999: later times cannot be written in responses."""
_CREDENTIALS_MAX = 4_096
_REMOVED_MAX = 1_000
"""Of one entry of the metadata log."""


class DelegationTokens:
    """Makes and checks tokens by a secret key; without one they are not enabled."""

    def __init__(self, secret_key: str, *, max_lifetime_ms: int, expiry_time_ms: int) -> None:
        self._key = secret_key.encode()
        self.max_lifetime_ms = max_lifetime_ms
        self.expiry_time_ms = expiry_time_ms
        self._by_hmac: dict[bytes, str] = {}
        self._known: set[str] = set()
        # Each costs thousands of iterations, so that clients with one token share its credential.
        self._credential = lru_cache(maxsize=_CREDENTIALS_MAX)(self._new_credential)

    @property
    def is_enabled(self) -> bool:
        """Return true if there is a key."""
        return bool(self._key)

    def hmac_of(self, token_id: str) -> bytes:
        """Return the HMAC of a token, as Kafka computes it: 64 bytes."""
        return hmac.digest(self._key, token_id.encode(), "sha512")

    def scram_credential(self, token_id: str, mechanism: ScramMechanism) -> ScramCredential:
        """Return the credential by which a client logs in with a token."""
        return self._credential(token_id, mechanism)

    def _new_credential(self, token_id: str, mechanism: ScramMechanism) -> ScramCredential:
        secret = self.hmac_of(token_id)
        seed = hmac.digest(secret, b"salt", "sha256")
        salt = base_36(int.from_bytes(seed[:16], "big")).encode()
        password = base64.b64encode(secret).decode()
        return mechanism.credential_of(password, salt, MIN_ITERATIONS)

    def find(self, state: MetadataImage, token_hmac: bytes) -> DelegationToken | None:
        """Return the token with this HMAC."""
        tokens = state.delegation_tokens
        for token_id in set(tokens) - self._known:
            self._by_hmac[self.hmac_of(token_id)] = token_id
            self._known.add(token_id)
        if len(self._known) > 2 * len(tokens) + _CREDENTIALS_MAX:
            self._by_hmac = {code: one for code, one in self._by_hmac.items() if one in tokens}
            self._known = set(self._by_hmac.values())
        token_id = self._by_hmac.get(token_hmac, "")
        return tokens.get(token_id)


def may_change(token: DelegationToken, principal: KafkaPrincipal) -> bool:
    """Return true if a principal may renew or expire a token: its owner and its renewers may."""
    name = str(principal)
    return name == token.owner or name in token.renewers


def is_of(token: DelegationToken, principals: Iterable[str]) -> bool:
    """Return true if one of the principals is owner, requester or renewer of a token: they may see
    it.
    """
    return any(
        name in {token.owner, token.requester} or name in token.renewers for name in principals
    )


def later(now_ms: int, duration_ms: int) -> int:
    """Return the time after a duration."""
    return min(now_ms + duration_ms, TIME_MAX_MS)


async def remove_expired(metadata: MetadataLog, now_ms: int) -> None:
    """Remove the tokens that have expired. Raises StorageError."""

    def plan(state: MetadataImage) -> list[DelegationTokenDelete]:
        return [
            DelegationTokenDelete(token_id=token.token_id)
            for _, token in sorted(state.delegation_tokens.items())
            if token.has_expired(now_ms)
        ][:_REMOVED_MAX]

    while len(removed := plan(metadata.state)):
        await metadata.commit_with(plan)
        if len(removed) < _REMOVED_MAX:
            return
