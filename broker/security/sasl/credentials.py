"""The credentials that SCRAM checks: of users and of delegation tokens by the metadata image, of
nodes by the cluster's secret.

A user that does not exist gets a credential like any other, derived from its name, so that neither
the challenge nor the time of the response shows that it is unknown.
"""

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial

from immutables import Map

from lakehead.broker.security.delegation_tokens import DelegationTokens
from lakehead.broker.security.principal import NODE, KafkaPrincipal
from lakehead.broker.security.sasl.scram import (
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    FindIdentity,
    ScramIdentity,
    ScramMechanism,
    base_36,
    principal_of,
)
from lakehead.storage.metadata.state import MetadataImage, ScramCredential

_NODE_USER = re.compile(r"__node-(?P<id>\d{1,10})")
_UNKNOWN = KafkaPrincipal("Unknown", "")


def node_user(node_id: int) -> str:
    """Return the name by which a node authenticates to others."""
    return f"__node-{node_id}"


@lru_cache(maxsize=64)
def node_salted_password(secret: str, mechanism: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password of nodes, which follows from the secret of the cluster. Computed
    once: connections between nodes come often after a failover.
    """
    password = hmac.digest(bytes.fromhex(secret), b"password of nodes", "sha256").hex()
    return SCRAM_MECHANISMS[mechanism].salted_password(password, salt, iterations)


@lru_cache(maxsize=64)
def _node_credential(secret: str, mechanism: ScramMechanism) -> ScramCredential:
    salt = hmac.digest(bytes.fromhex(secret), b"salt of nodes", "sha256")
    salted = node_salted_password(secret, mechanism.name, salt, MIN_ITERATIONS)
    return mechanism.credential(salted, salt, MIN_ITERATIONS)


class ScramCredentials:
    """Finds credentials in the newest metadata image, `state()`. `pepper` makes those of unknown
    users in a cluster without a secret.
    """

    def __init__(
        self,
        state: Callable[[], MetadataImage],
        tokens: DelegationTokens,
        now_ms: Callable[[], int],
        pepper: bytes,
    ) -> None:
        self._state = state
        self._tokens = tokens
        self._now_ms = now_ms
        self._pepper = pepper
        self._usual: dict[str, int] = {}
        self._usual_of: Map[tuple[str, str], ScramCredential] | None = None

    def finder(
        self, mechanism: ScramMechanism, *, has_nodes: bool, has_users: bool
    ) -> FindIdentity:
        """Return the lookup of a listener: `has_nodes` is true for that between nodes, `has_users`
        if the mechanism is enabled for clients.
        """
        return partial(self._find, mechanism, has_nodes, has_users)

    def _find(
        self, mechanism: ScramMechanism, has_nodes: bool, has_users: bool, name: str, is_token: bool
    ) -> ScramIdentity:
        found = None
        if is_token:
            found = self._of_token(mechanism, name) if has_users else None
        elif has_nodes and (node := _NODE_USER.fullmatch(name)) is not None:
            found = self._of_node(mechanism, node["id"])
        elif has_users:
            found = self._of_user(mechanism, name)
        return self._unknown(mechanism, name) if found is None else found

    def _of_user(self, mechanism: ScramMechanism, name: str) -> ScramIdentity | None:
        credential = self._state().scram_credentials.get((name, mechanism.name))
        if credential is None or credential.iterations < MIN_ITERATIONS:
            return None
        return ScramIdentity(credential, principal_of(name))

    def _of_token(self, mechanism: ScramMechanism, token_id: str) -> ScramIdentity | None:
        token = self._state().delegation_tokens.get(token_id)
        if token is None or not self._tokens.is_enabled or token.has_expired(self._now_ms()):
            return None
        owner = KafkaPrincipal.parse(token.owner)._replace(is_token_authenticated=True)
        credential = self._tokens.scram_credential(token_id, mechanism)
        return ScramIdentity(credential, owner, token.expiry_ms)

    def _of_node(self, mechanism: ScramMechanism, node_id: str) -> ScramIdentity | None:
        secret = self._state().node_secret
        if not secret:
            return None
        return ScramIdentity(_node_credential(secret, mechanism), KafkaPrincipal(NODE, node_id))

    def _unknown(self, mechanism: ScramMechanism, name: str) -> ScramIdentity:
        secret = self._state().node_secret
        key = bytes.fromhex(secret) if secret else self._pepper
        keyed = hashlib.blake2b(key=key, digest_size=64, person=b"unknown user")
        keyed.update(f"{mechanism.name},{name}".encode(errors="surrogatepass"))
        seed = keyed.digest()
        credential = ScramCredential(
            salt=base_36(int.from_bytes(seed[:16], "big") << 2 | seed[16] & 3).encode(),
            stored_key=mechanism.hash(seed),
            server_key=mechanism.hash(seed[::-1]),
            iterations=self._usual_iterations(mechanism.name),
        )
        return ScramIdentity(credential, _UNKNOWN)

    def _usual_iterations(self, mechanism: str) -> int:
        """Return the iterations that most users of the mechanism have."""
        known = self._state().scram_credentials
        if known is not self._usual_of:
            counts: dict[str, Counter[int]] = {name: Counter() for name in SCRAM_MECHANISMS}
            for (_, name), credential in known.items():
                counts.setdefault(name, Counter())[credential.iterations] += 1
            self._usual_of = known
            self._usual = {
                name: max(count, key=lambda i, c=count: (c[i], i))  # type: ignore[misc]
                for name, count in counts.items()
                if count
            }
        return self._usual.get(mechanism, MIN_ITERATIONS)
