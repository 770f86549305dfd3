"""Access rules (ACLs): their words in the metadata, the filters that select them, and their hosts.

A rule is an `AclBinding` of the metadata. Its words are the names of Kafka's enumerations in lower
case; requests have their numbers. A host is `*`, an address, or a network in CIDR notation
(KIP-1276).
"""

import ipaddress
from collections.abc import Collection, Iterable
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from lakehead.storage.metadata.records import AclBinding

WILDCARD = "*"
"""The literal name, and the host, that stand for every one."""
EVERY_USER = "User:*"
"""The principal that stands for every user."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class PatternType(IntEnum):
    """The meaning of a rule's resource name, as Kafka numbers it (KIP-290)."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """The effect of a rule, as Kafka numbers it."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


def word(value: IntEnum) -> str:
    """Return the word of the metadata for a value of an enumeration."""
    return value.name.lower()


def known(kind: type[IntEnum], number: int) -> IntEnum:
    """Return the value of a number; UNKNOWN, which is 0, for a number that has none."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


class AclFilter(NamedTuple):
    """The rules that a request is about; None and ANY stand for every value (KIP-140).

    `pattern_type` MATCH selects the rules that apply to the resource `name`.
    """

    resource_type: ResourceType
    name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission: Permission

    @property
    def is_unknown(self) -> bool:
        """True if a part is of no value that this release knows."""
        parts = (self.resource_type, self.pattern_type, self.operation, self.permission)
        return any(part == 0 for part in parts)

    def matches(self, acl: AclBinding) -> bool:
        """Return true if the filter selects a rule."""
        return (
            _selects(self.resource_type, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and _selects(self.operation, acl.operation)
            and _selects(self.permission, acl.permission)
        )

    def candidates(self, acls: Collection[AclBinding]) -> Iterable[AclBinding]:
        """Return those rules that the filter could select: at most one, if it names every part."""
        if self.is_unknown:
            return ()
        name, principal, host = self.name, self.principal, self.host
        parts = (self.resource_type, self.pattern_type, self.operation, self.permission)
        is_exact = self.pattern_type is not PatternType.MATCH and all(part != 1 for part in parts)
        if not is_exact or name is None or principal is None or host is None:
            return acls
        acl = AclBinding(
            resource_type=word(self.resource_type),
            resource_name=name,
            pattern_type=word(self.pattern_type),
            principal=principal,
            host=host,
            operation=word(self.operation),
            permission=word(self.permission),
        )
        return (acl,) if acl in acls else ()

    def _matches_pattern(self, acl: AclBinding) -> bool:
        is_any = self.pattern_type in {PatternType.ANY, PatternType.MATCH}
        if not is_any and acl.pattern_type != word(self.pattern_type):
            return False
        if self.name is None or self.name == acl.resource_name:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        if acl.pattern_type == word(PatternType.LITERAL):
            return acl.resource_name == WILDCARD
        return self.name.startswith(acl.resource_name)


def _selects(wanted: IntEnum, value: str) -> bool:
    return wanted.name == "ANY" or word(wanted) == value


def check_new(acl: AclBinding) -> None:
    """Raise INVALID_REQUEST for a rule that cannot be created, in Kafka's order of checks."""
    is_cluster = acl.resource_type == word(ResourceType.CLUSTER)
    if is_cluster and acl.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.resource_name:
        raise _invalid("Invalid empty resource name")
    _check_word("resourceType", acl.resource_type, {"any", "unknown"})
    _check_word("patternType", acl.pattern_type, {"any", "unknown", "match"})
    _check_word("operation", acl.operation, {"any", "unknown"})
    _check_word("permissionType", acl.permission, {"any", "unknown"})
    kind, colon, _ = acl.principal.partition(":")
    if not colon or not kind:
        raise _invalid(f"{acl.principal!r} is not a principal, which is written type:name")
    if "/" in acl.host and _network(acl.host) is None:
        raise _invalid(f"{acl.host!r} is not a network in CIDR notation")


def _check_word(name: str, value: str, refused: Collection[str]) -> None:
    if value in refused:
        raise _invalid(f"Invalid {name} {value.upper()}")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)


def host_matches(host: str, client: str) -> bool:
    """Return true if the host of a rule covers the address of a client.

    Addresses count, not their spellings: `::1` is `0:0:0:0:0:0:0:1`. An IPv4 address that comes
    mapped into IPv6 is an IPv4 address.
    """
    if host in {WILDCARD, client}:
        return True
    address = _address(client)
    if address is None:
        return False
    if "/" in host:
        network = _network(host)
        return network is not None and address in network
    return _address(host) == address


@lru_cache(4096)
def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@lru_cache(4096)
def _network(text: str) -> Network | None:
    prefix_length = text.partition("/")[2]
    if not (prefix_length.isascii() and prefix_length.isdigit()):
        return None  # Python would take masks such as /255.0.0.0, too
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
