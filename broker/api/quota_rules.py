"""Checks of client quotas and of filters in requests about them. Pure (KIP-546).

An entity has quotas: a user, a client id, both together, or an address. A name of None stands for
all entities without quotas of their own.
"""

import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.metadata.state import QuotaEntity

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = frozenset({USER, CLIENT_ID, IP})
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
"""The match type of a component of a filter: a name, the default, or any of either."""

_WHOLE_MAX = {
    "producer_byte_rate": 2**63 - 1,
    "consumer_byte_rate": 2**63 - 1,
    "connection_creation_rate": 2**31 - 1,
}
"""Quotas that are whole numbers, with the largest of each."""
_CLIENT_KEYS = frozenset(
    {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}
)
_IP_KEYS = frozenset({"connection_creation_rate"})
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252})")


def _refusal(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)


def check_entity(entity: Mapping[str, str | None]) -> None:
    """Raise INVALID_REQUEST for an entity that no quota can be set for."""
    if not entity:
        raise _refusal("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in ENTITY_TYPES:
            raise _refusal(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _refusal(f"Empty {kind} not supported")
    if IP in entity:
        if len(entity) > 1:
            raise _refusal("An address cannot be combined with a user or a client id.")
        address = entity[IP]
        if address is not None and not _is_address(address):
            raise _refusal(f"{address} is not a valid IP or resolvable host.")


def check_quota(entity: Mapping[str, str | None], key: str, value: float) -> None:
    """Raise INVALID_REQUEST for a quota that an entity cannot have."""
    _check_key(entity, key)
    if not (math.isfinite(value) and value > 0):
        raise _refusal(f"Quota {key} must be greater than 0")
    most = _WHOLE_MAX.get(key)
    if most is None:
        return
    if value > most:
        raise _refusal(f"Proposed value for {key} is too large for a whole number.")
    if value != int(value):
        raise _refusal(f"{key} cannot be a fractional value.")


def _check_key(entity: Mapping[str, str | None], key: str) -> None:
    """Raise INVALID_REQUEST for a name of a quota that such entities do not have."""
    if key not in (_IP_KEYS if IP in entity else _CLIENT_KEYS):
        raise _refusal(f"Invalid configuration key {key}")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST.fullmatch(text) is not None
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One condition of a filter on entities."""

    kind: str
    match_type: int
    name: str | None

    def check(self) -> None:
        """Raise KafkaError (INVALID_REQUEST, UNSUPPORTED_VERSION) for an invalid quota."""
        if not self.kind:
            raise _refusal("Invalid empty entity type.")
        if self.kind not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.unsupported_version, f"Unsupported entity type {self.kind}")
        if self.match_type not in {EXACT, DEFAULT, SPECIFIED}:
            raise _refusal(f"Unknown match type {self.match_type}")
        if self.match_type == EXACT and self.name is None:
            raise _refusal("An exact match needs a name.")
        if self.match_type != EXACT and self.name is not None:
            raise _refusal("Only an exact match has a name.")

    def matches(self, entity: Mapping[str, str | None]) -> bool:
        """Return true if an entity fulfils the condition."""
        if self.kind not in entity:
            return False
        return self.match_type == SPECIFIED or entity[self.kind] == self.name


def check_filter(components: Sequence[Component]) -> None:
    """Raise KafkaError for an invalid filter."""
    for component in components:
        component.check()
    kinds = [component.kind for component in components]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise _refusal(f"Entity type {kind} cannot appear more than once in the filter.")
    if IP in kinds and len(kinds) > 1:
        raise _refusal("An address cannot be combined with a user or a client id.")


def is_selected(entity: QuotaEntity, components: Sequence[Component], *, is_strict: bool) -> bool:
    """Return true if a filter is about an entity; a strict one only if it names all of its
    types.
    """
    named = dict(entity)
    if is_strict and len(named) != len(components):
        return False
    return all(component.matches(named) for component in components)
