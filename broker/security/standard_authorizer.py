"""Kafka's StandardAuthorizer: the rules of the metadata decide, and a denial goes first.

A rule applies to an action if its pattern covers the resource (the name, `*`, or a prefix), its
principal is the client's or `User:*`, its host covers the client's address, and its operation is
the action's or ALL. A rule that allows READ, WRITE, DELETE or ALTER allows DESCRIBE, too, and one
that allows ALTER_CONFIGS allows DESCRIBE_CONFIGS; a rule that denies them does not.

The first that holds decides: a super user may do everything; a rule that denies; a rule that
allows; there is a rule for the resource, of any principal: denied; else
`allow.everyone.if.no.acl.found`.
"""

from collections.abc import Mapping

from lakehead.broker.security.acl_index import AclIndex
from lakehead.broker.security.acls import EVERY_USER, WILDCARD, host_matches, word
from lakehead.broker.security.authorizer import AclOperation, ResourceType
from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.records import AclBinding, AclCreate, AclDelete, Entry
from lakehead.storage.metadata.state import MetadataImage

CLASS_NAME = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The value of `authorizer.class.name` that turns access rules on."""
DECISIONS_MAX = 16_384
"""Decisions that are kept. With one more, all are dropped."""
KEPT_NAME_MAX = 256
"""A decision about a longer name is not kept: clients choose names, and they take memory."""
_HARDCODED = "hardcode"
"""The name by which Kafka finds out that a principal may use every resource of a type."""

_ALL = word(AclOperation.ALL)
_IMPLYING: Mapping[AclOperation, frozenset[str]] = {
    AclOperation.DESCRIBE: frozenset({"describe", "read", "write", "delete", "alter"}),
    AclOperation.DESCRIBE_CONFIGS: frozenset({"describe_configs", "alter_configs"}),
}
_ALLOWING: Mapping[AclOperation, frozenset[str]] = {
    operation: _IMPLYING.get(operation, frozenset({word(operation)})) | {_ALL}
    for operation in AclOperation
}
"""The words of operations by which a rule allows an operation."""
_DENYING: Mapping[AclOperation, frozenset[str]] = {
    operation: frozenset({word(operation), _ALL}) for operation in AclOperation
}
"""The words of operations by which a rule denies an operation."""


def super_users(text: str) -> frozenset[str]:
    """Return the principals of the setting `super.users`, which semicolons separate. Raises
    SettingsError.
    """
    try:
        return frozenset(
            f"{principal.principal_type}:{principal.name}"
            for part in text.split(";")
            if part.strip()
            for principal in (KafkaPrincipal.parse(part.strip()),)
        )
    except ValueError as error:
        raise SettingsError(f"super.users: {error}; separate them by semicolons") from None


class StandardAuthorizer:
    """Decides by the rules of one metadata image; `follow` brings the next one. `authorize` may be
    called in any thread: a decision that is made beside `follow` is by the rules before, by the new
    ones or by some of both, and is not remembered.
    """

    is_enabled = True

    def __init__(self, state: MetadataImage, users: frozenset[str], *, by_default: bool) -> None:
        self._super_users = users
        self._by_default = by_default
        self._index = AclIndex()
        self._acls = MetadataImage().acls
        self._decisions: dict[tuple[KafkaPrincipal, str, int, int, str], bool] = {}
        self._type_decisions: dict[tuple[KafkaPrincipal, str, int, int], bool] = {}
        self.misses_total = 0
        """Decisions that were not remembered."""
        self.follow(state, None)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def kept(self) -> int:
        """Decisions that are remembered."""
        return len(self._decisions) + len(self._type_decisions)

    def follow(self, state: MetadataImage, entry: Entry | None) -> None:
        """Decide by the rules of `state` from now on. `entry` is the one that led to it, None if
        anything may have changed.
        """
        if state.acls is self._acls:
            return
        self._acls = state.acls
        if entry is None:
            self._rebuild(state)
        else:
            self._change(entry)
        # New ones: a thread that decides by the rules before remembers that in the old ones.
        self._decisions, self._type_decisions = {}, {}

    def _change(self, entry: Entry) -> None:
        for record in entry.records:
            if isinstance(record, AclCreate):
                for acl in record.acls:
                    self._index.add(acl)
            elif isinstance(record, AclDelete):
                for acl in record.acls:
                    self._index.remove(acl)

    def _rebuild(self, state: MetadataImage) -> None:
        index = AclIndex()
        for acl in state.acls:
            index.add(acl)
        self._index = index

    def authorize(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """See `Authorizer.authorize`."""
        key = (principal, host, operation, resource_type, name)
        decisions = self._decisions
        decision = decisions.get(key)
        if decision is None:
            self.misses_total += 1
            decision = self._decide(principal, host, operation, resource_type, name)
            if len(name) <= KEPT_NAME_MAX:
                if len(decisions) >= DECISIONS_MAX:
                    decisions.clear()
                decisions[key] = decision
        return decision

    def authorize_by_resource_type(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
    ) -> bool:
        """See `Authorizer.authorize_by_resource_type`."""
        key = (principal, host, operation, resource_type)
        decision = self._type_decisions.get(key)
        if decision is None:
            self.misses_total += 1
            decision = self._decide_by_type(principal, host, operation, resource_type)
            if len(self._type_decisions) >= DECISIONS_MAX:
                self._type_decisions.clear()
            self._type_decisions[key] = decision
        return decision

    def _decide(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        user = str(principal)
        if user in self._super_users:
            return True
        allowing, denying = _ALLOWING[operation], _DENYING[operation]
        is_found = is_allowed = False
        for by_principal in self._index.patterns(word(resource_type), name):
            is_found = True
            for acls in (by_principal.get(user), by_principal.get(EVERY_USER)):
                for acl in tuple(acls or ()):  # which may change meanwhile, in another thread
                    is_allowing = acl.permission == "allow"
                    if is_allowing and is_allowed:
                        continue  # only a denial can change that
                    if acl.operation not in (allowing if is_allowing else denying):
                        continue
                    if not host_matches(acl.host, host):
                        continue
                    if not is_allowing:
                        return False
                    is_allowed = True
        return is_allowed or (not is_found and self._by_default)

    def _decide_by_type(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
    ) -> bool:
        """A rule counts if no rule that denies covers all of it: `*` covers everything, a prefix
        covers what begins with it, a name covers itself. As in Kafka, no operation implies another.
        """
        if self._decide(principal, host, operation, resource_type, _HARDCODED):
            return True
        operations = _DENYING[operation]
        allowed: list[AclBinding] = []
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        users = {str(principal): None, EVERY_USER: None}
        for acl in self._index.of_principals(word(resource_type), users):
            if acl.operation not in operations or not host_matches(acl.host, host):
                continue
            if acl.permission == "allow":
                allowed.append(acl)
            elif acl.pattern_type == "prefixed":
                denied_prefixes.add(acl.resource_name)
            elif acl.resource_name == WILDCARD:
                return False
            else:
                denied_names.add(acl.resource_name)
        lengths = sorted({len(prefix) for prefix in denied_prefixes})
        return any(_is_free(acl, denied_names, denied_prefixes, lengths) for acl in allowed)


def _is_free(
    acl: AclBinding, denied_names: set[str], denied_prefixes: set[str], lengths: list[int]
) -> bool:
    """Return true if no denied name or prefix covers all that a rule allows."""
    name = acl.resource_name
    if acl.pattern_type == "literal":
        if name == WILDCARD:
            return True
        if name in denied_names:
            return False
    return not any(name[:length] in denied_prefixes for length in lengths if length <= len(name))
