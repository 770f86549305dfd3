"""The public keys of a token issuer: when they are fetched, and which are in force.

A state machine; its times are seconds of one monotonic clock. Keys that were fetched stay in force
while the issuer does not respond. A token by an unknown key is a reason to fetch them before their
time: the issuer may have begun to use a new one. Such fetches are rare however many tokens come.
"""

import json
from collections import OrderedDict

from joserfc.errors import JoseError
from joserfc.jwk import KeySet

DOCUMENT_MAX = 1 << 20
"""Longest JWK set, in bytes."""
EARLY_S = 10.0
"""Least time between fetches that unknown keys cause."""
SAME_KEY_S = 60.0
"""Least time between fetches that the same unknown key causes, as in Kafka."""
_KEY_IDS_MAX = 16
_KEY_ID_LENGTH_MAX = 1_000
_BACKOFF_POWER_MAX = 30


class JwksError(ValueError):
    """The document is not a JWK set with a usable key."""


class Jwks:
    """The keys of one issuer. `refresh_s` is the interval of fetches; after a failed one the next
    comes after `backoff_s`, doubled each time up to `backoff_max_s`.
    """

    def __init__(
        self, *, refresh_s: float, backoff_s: float, backoff_max_s: float, now: float
    ) -> None:
        self._refresh_s = refresh_s
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._failures = 0
        self._due_at = now
        self._early_at = float("-inf")
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self.keys: KeySet | None = None
        """The keys in force; None: they were never fetched."""
        self.fetched_at = float("-inf")

    def wait_s(self, now: float) -> float:
        """Return the time until the next fetch."""
        return max(0.0, self._due_at - now)

    def loaded(self, document: bytes, now: float) -> None:
        """Take a fetched document. Raises JwksError, and the keys stay as they are; see
        `failed`.
        """
        self.keys = parse_jwks(document)
        self._failures = 0
        self.fetched_at = now
        self._due_at = now + self._refresh_s
        for key in self.keys.keys:
            self._unknown.pop(key.kid or "", None)

    def failed(self, now: float) -> float:
        """Take note that a fetch has failed; return the time until the next one."""
        doubled: float = self._backoff_s * (1 << min(self._failures, _BACKOFF_POWER_MAX))
        self._failures += 1
        wait_s = min(doubled, self._backoff_max_s)
        self._due_at = now + wait_s
        return wait_s

    def should_fetch_for(self, key_id: str, now: float) -> bool:
        """Return true if a token by an unknown key is a reason to fetch now; it is recorded."""
        if len(key_id) > _KEY_ID_LENGTH_MAX or self._failures:
            return False
        seen_at = self._unknown.get(key_id, float("-inf"))
        if now - seen_at < SAME_KEY_S or now - self._early_at < EARLY_S:
            return False
        self._unknown[key_id] = self._early_at = self._due_at = now
        self._unknown.move_to_end(key_id)
        if len(self._unknown) > _KEY_IDS_MAX:
            self._unknown.popitem(last=False)
        return True


def parse_jwks(document: bytes) -> KeySet:
    """Return the keys of a JWK set that are of a known kind. Raises JwksError."""
    if len(document) > DOCUMENT_MAX:
        raise JwksError(f"a key set of {len(document)} bytes")
    try:
        parsed = json.loads(document)
        listed = parsed["keys"]
        assert isinstance(listed, list)
    except (ValueError, TypeError, KeyError, AssertionError, RecursionError):
        raise JwksError("the document is not a JWK set, {'keys': [...]}") from None
    keys = []
    for one in listed:
        try:
            keys += KeySet.import_key_set({"keys": [one]}).keys
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            continue  # a kind of key that is not known here does not spoil the others
    if not keys:
        raise JwksError("the JWK set has no key of a known kind")
    return KeySet(keys)
