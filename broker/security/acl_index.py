"""Access rules by resource and principal, changed rule by rule as the metadata change."""

from collections import Counter
from collections.abc import Iterable, Iterator, Set

from lakehead.broker.security.acls import WILDCARD
from lakehead.storage.metadata.records import AclBinding

ByPrincipal = dict[str, dict[AclBinding, None]]
"""The rules of one pattern, by their principal."""
_NONE: Set[AclBinding] = frozenset()


class AclIndex:
    """The rules of all resources. To find those of a resource costs a look-up for its name, one for
    `*`, and one for each length that a prefix has; the number of rules does not matter.
    """

    def __init__(self) -> None:
        self._literals: dict[tuple[str, str], ByPrincipal] = {}
        self._prefixes: dict[tuple[str, str], ByPrincipal] = {}
        self._lengths: dict[str, list[int]] = {}
        """The lengths of prefixes, ascending, by resource type. A list is replaced, never changed:
        another thread may be at it, which would pass over a length.
        """
        self._length_counts: Counter[tuple[str, int]] = Counter()
        self._of_principal: dict[tuple[str, str], dict[AclBinding, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, acl: AclBinding) -> None:
        """Add a rule that is not there."""
        patterns = self._patterns_like(acl)
        place = acl.resource_type, acl.resource_name
        by_principal = patterns.get(place)
        if by_principal is None:
            by_principal = patterns[place] = {}
            if patterns is self._prefixes:
                self._count_length(acl.resource_type, len(acl.resource_name))
        by_principal.setdefault(acl.principal, {})[acl] = None
        owner = acl.resource_type, acl.principal
        self._of_principal.setdefault(owner, {})[acl] = None
        self._count += 1

    def remove(self, acl: AclBinding) -> None:
        """Remove a rule that is there."""
        patterns = self._patterns_like(acl)
        place = acl.resource_type, acl.resource_name
        by_principal = patterns[place]
        of_principal = by_principal[acl.principal]
        del of_principal[acl]
        if not of_principal:
            del by_principal[acl.principal]
        if not by_principal:
            del patterns[place]
            if patterns is self._prefixes:
                self._uncount_length(acl.resource_type, len(acl.resource_name))
        owner = acl.resource_type, acl.principal
        del self._of_principal[owner][acl]
        if not self._of_principal[owner]:
            del self._of_principal[owner]
        self._count -= 1

    def patterns(self, resource_type: str, name: str) -> Iterator[ByPrincipal]:
        """Yield the rules of each pattern that applies to a resource."""
        literals = self._literals
        found = literals.get((resource_type, name))
        if found is not None:
            yield found
        if name != WILDCARD:
            found = literals.get((resource_type, WILDCARD))
            if found is not None:
                yield found
        size = len(name)
        for length in self._lengths.get(resource_type, ()):
            if length > size:
                break
            found = self._prefixes.get((resource_type, name[:length]))
            if found is not None:
                yield found

    def of_principals(self, resource_type: str, principals: Iterable[str]) -> Iterator[AclBinding]:
        """Yield the rules of some principals on resources of a type."""
        for principal in principals:
            yield from self._of_principal.get((resource_type, principal), _NONE)

    def _patterns_like(self, acl: AclBinding) -> dict[tuple[str, str], ByPrincipal]:
        return self._prefixes if acl.pattern_type == "prefixed" else self._literals

    def _count_length(self, resource_type: str, length: int) -> None:
        self._length_counts[resource_type, length] += 1
        if self._length_counts[resource_type, length] == 1:
            self._lengths[resource_type] = sorted((*self._lengths.get(resource_type, ()), length))

    def _uncount_length(self, resource_type: str, length: int) -> None:
        self._length_counts[resource_type, length] -= 1
        if not self._length_counts[resource_type, length]:
            del self._length_counts[resource_type, length]
            left = [one for one in self._lengths[resource_type] if one != length]
            self._lengths[resource_type] = left
