"""Access decisions are Kafka's: the index against rules that are read one by one, as the words of
Kafka's documentation have it.
"""

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lakehead.broker.security import standard_authorizer
from lakehead.broker.security.acl_index import AclIndex
from lakehead.broker.security.acls import (
    AclFilter,
    PatternType,
    Permission,
    check_new,
    host_matches,
)
from lakehead.broker.security.authorizer import AclOperation, ResourceType
from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.broker.security.standard_authorizer import StandardAuthorizer, super_users
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.metadata.records import AclBinding, AclCreate, AclDelete, Entry
from lakehead.storage.metadata.rules import apply_records as apply
from lakehead.storage.metadata.state import MetadataImage

NAMES = ["a", "ab", "abc", "abd", "b", "ba", "*", "hardcode"]
USERS = ["alice", "bob"]
HOSTS = ["10.0.0.1", "10.0.1.1", "::1", "::ffff:10.0.0.1"]
TYPES = [ResourceType.TOPIC, ResourceType.GROUP]
OPERATIONS = [op for op in AclOperation if op.value >= AclOperation.READ]

ACLS = st.builds(
    AclBinding,
    resource_type=st.sampled_from(["topic", "group"]),
    resource_name=st.sampled_from(NAMES),
    pattern_type=st.sampled_from(["literal", "literal", "prefixed"]),
    principal=st.sampled_from(["User:alice", "User:bob", "User:*", "Group:alice"]),
    host=st.sampled_from(["*", "*", "10.0.0.1", "10.0.0.0/24", "::1", "0:0:0:0:0:0:0:1", "::/0"]),
    operation=st.sampled_from(
        ["all", "read", "write", "describe", "alter", "alter_configs", "describe_configs", "delete"]
    ),
    permission=st.sampled_from(["allow", "allow", "deny"]),
)
SETS = st.lists(ACLS, max_size=14, unique=True)
USED = st.sampled_from([AclOperation[name] for name in ("READ", "WRITE", "DESCRIBE", "ALTER")])


def _covers(acl: AclBinding, kind: ResourceType, name: str) -> bool:
    if acl.resource_type != kind.name.lower():
        return False
    if acl.pattern_type == "prefixed":
        return name.startswith(acl.resource_name)
    return acl.resource_name in {name, "*"}


def _is_here(rule: str, client: str) -> bool:
    address = ipaddress.ip_address(client)
    address = getattr(address, "ipv4_mapped", None) or address
    return rule == "*" or address in ipaddress.ip_network(rule)


def _is_of(acl: AclBinding, user: str, host: str) -> bool:
    return acl.principal in {f"User:{user}", "User:*"} and _is_here(acl.host, host)


def _names(acl: AclBinding, operation: AclOperation) -> bool:
    word = operation.name.lower()
    if acl.operation in {"all", word}:
        return True
    if acl.permission == "deny":
        return False
    if operation is AclOperation.DESCRIBE:
        return acl.operation in {"read", "write", "delete", "alter"}
    return operation is AclOperation.DESCRIBE_CONFIGS and acl.operation == "alter_configs"


def _decision(
    acls: list[AclBinding],
    user: str,
    host: str,
    what: tuple[AclOperation, ResourceType, str],
    *,
    by_default: bool,
) -> bool:
    """Kafka's answer, by reading every rule."""
    operation, kind, name = what
    there = [acl for acl in acls if _covers(acl, kind, name)]
    used = [acl for acl in there if _is_of(acl, user, host) and _names(acl, operation)]
    if any(acl.permission == "deny" for acl in used):
        return False
    return bool(used) or (not there and by_default)


def _type_decision(
    acls: list[AclBinding],
    user: str,
    host: str,
    what: tuple[AclOperation, ResourceType],
    *,
    by_default: bool,
) -> bool:
    """Kafka's answer: `Authorizer.authorizeByResourceType`, line by line."""
    operation, kind = what
    if _decision(acls, user, host, (operation, kind, "hardcode"), by_default=by_default):
        return True
    used = [
        acl
        for acl in acls
        if acl.resource_type == kind.name.lower()
        and _is_of(acl, user, host)
        and acl.operation in {"all", operation.name.lower()}
    ]
    denied = {(acl.pattern_type, acl.resource_name) for acl in used if acl.permission == "deny"}
    if ("literal", "*") in denied:
        return False
    for acl in used:
        name = acl.resource_name
        if acl.permission == "deny":
            continue
        if (acl.pattern_type, name) == ("literal", "*"):
            return True
        if acl.pattern_type == "literal" and ("literal", name) in denied:
            continue
        prefixes = (name[:length] for length in range(1, len(name) + 1))
        if not any(("prefixed", prefix) in denied for prefix in prefixes):
            return True
    return False


def _entry(*records: AclCreate | AclDelete) -> Entry:
    return Entry(version=2, writer="w", nonce="n", time_ms=0, records=records)


def _image(acls: list[AclBinding]) -> MetadataImage:
    if not acls:
        return MetadataImage()
    return apply(MetadataImage(), [AclCreate(acls=tuple(acls))], 0)


@given(
    acls=SETS,
    user=st.sampled_from(USERS),
    host=st.sampled_from(HOSTS),
    operation=USED,
    kind=st.sampled_from(TYPES),
    name=st.sampled_from([*NAMES, "abcd", "z"]),
    by_default=st.booleans(),
)
def test_a_decision_is_that_of_reading_every_rule(
    acls: list[AclBinding],
    user: str,
    host: str,
    operation: AclOperation,
    kind: ResourceType,
    name: str,
    by_default: bool,
) -> None:
    authorizer = StandardAuthorizer(_image(acls), frozenset(), by_default=by_default)
    principal = KafkaPrincipal("User", user)
    wanted = _decision(acls, user, host, (operation, kind, name), by_default=by_default)
    for _ in range(2):  # the second is remembered
        assert authorizer.authorize(principal, host, operation, kind, name) is wanted
    of_type = _type_decision(acls, user, host, (operation, kind), by_default=by_default)
    for _ in range(2):
        assert authorizer.authorize_by_resource_type(principal, host, operation, kind) is of_type


@given(
    acls=SETS, more=st.lists(st.sets(st.integers(0, 13)), max_size=6), user=st.sampled_from(USERS)
)
def test_rules_that_come_and_go_decide_as_if_they_had_always_been_so(
    acls: list[AclBinding], more: list[set[int]], user: str
) -> None:
    state = MetadataImage()
    authorizer = StandardAuthorizer(state, frozenset(), by_default=False)
    principal = KafkaPrincipal("User", user)
    present: dict[AclBinding, None] = {}
    for numbers in more:
        turned = [acls[number] for number in sorted(numbers) if number < len(acls)]
        added = tuple(acl for acl in turned if acl not in present)
        removed = tuple(acl for acl in turned if acl in present)
        records = (AclDelete(acls=removed), AclCreate(acls=added))
        state = apply(state, records, 0)
        authorizer.follow(state, _entry(*records))
        for acl in removed:
            del present[acl]
        present |= dict.fromkeys(added)
        assert len(authorizer) == len(present)
        for kind in TYPES:
            for name in NAMES:
                what = (AclOperation.READ, kind, name)
                wanted = _decision([*present], user, "10.0.0.1", what, by_default=False)
                assert authorizer.authorize(principal, "10.0.0.1", *what) is wanted


@given(
    acls=SETS,
    kind=st.sampled_from([ResourceType.ANY, ResourceType.TOPIC]),
    name=st.sampled_from([None, *NAMES]),
    pattern=st.sampled_from(
        [PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED]
    ),
    principal=st.sampled_from([None, "User:alice", "User:*"]),
    host=st.sampled_from([None, "*", "::1"]),
    operation=st.sampled_from([AclOperation.ANY, AclOperation.READ, AclOperation.ALL]),
    permission=st.sampled_from([Permission.ANY, Permission.DENY, Permission.ALLOW]),
)
def test_a_filter_selects_by_each_of_its_parts(
    acls: list[AclBinding],
    kind: ResourceType,
    name: str | None,
    pattern: PatternType,
    principal: str | None,
    host: str | None,
    operation: AclOperation,
    permission: Permission,
) -> None:
    given_filter = AclFilter(kind, name, pattern, principal, host, operation, permission)
    for acl in acls:
        applies = {
            PatternType.ANY: name in {None, acl.resource_name},
            PatternType.LITERAL: acl.pattern_type == "literal"
            and name in {None, acl.resource_name},
            PatternType.PREFIXED: acl.pattern_type == "prefixed"
            and name in {None, acl.resource_name},
            PatternType.MATCH: name is None
            or _covers(acl, ResourceType[acl.resource_type.upper()], name),
        }[pattern]
        wanted = (
            applies
            and (kind is ResourceType.ANY or acl.resource_type == "topic")
            and principal in {None, acl.principal}
            and host in {None, acl.host}
            and operation.name.lower() in {"any", acl.operation}
            and permission.name.lower() in {"any", acl.permission}
        )
        assert given_filter.matches(acl) is wanted


@pytest.mark.parametrize(
    ("rule", "client", "is_covered"),
    [
        ("10.0.0.0/8", "10.255.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.1.2.3/8", "10.9.9.9", True),
        ("10.0.0.1/32", "10.0.0.1", True),
        ("2001:db8::/32", "2001:db8:1::5", True),
        ("2001:db8::/32", "2001:db9::5", False),
        ("0.0.0.0/0", "::1", False),
        ("::/0", "10.0.0.1", False),
        ("fe80::1", "fe80::1%eth0", True),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("10.0.0.0/24", "::ffff:10.0.0.1", True),
        ("broker.example.com", "10.0.0.1", False),
        ("*", "10.0.0.1", True),
        ("*", "", True),
        ("10.0.0.0/8", "", False),
    ],
)
def test_a_host_is_an_address_or_a_network(rule: str, client: str, is_covered: bool) -> None:
    assert host_matches(rule, client) is is_covered


def test_a_look_at_prefixes_misses_none_beside_a_change() -> None:
    """Another thread may be in the middle of one: a denial that it passed over would allow."""
    index = AclIndex()
    first, second, third = (
        _changed(pattern_type="prefixed", resource_name="abc"[:length]) for length in (1, 2, 3)
    )
    for acl in (first, second, third):
        index.add(acl)
    looked = index.patterns("topic", "abc")
    assert next(looked) == {"User:a": {first: None}}
    index.remove(first)
    assert list(looked) == [{"User:a": {second: None}}, {"User:a": {third: None}}]


_RULE = AclBinding(
    resource_type="topic",
    resource_name="t",
    pattern_type="literal",
    principal="User:a",
    host="*",
    operation="read",
    permission="allow",
)


@pytest.mark.parametrize(
    "host", ["10.0.0.0/33", "10.0.0/8", "::/129", "/8", "10.0.0.0/", "10.0.0.0/255.0.0.0", "a/b/c"]
)
def test_a_network_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(LakeheadError, match="CIDR"):
        check_new(_changed(host=host))


@pytest.mark.parametrize(
    "host", ["10.0.0.0/0", "::/0", "1.2.3.4/32", "10.1.2.3/8", "some.host", ""]
)
def test_other_hosts_are_taken(host: str) -> None:
    check_new(_changed(host=host))


@pytest.mark.parametrize(
    "parts",
    [
        {"resource_type": "any"},
        {"resource_type": "unknown"},
        {"pattern_type": "match"},
        {"pattern_type": "any"},
        {"operation": "any"},
        {"operation": "unknown"},
        {"permission": "any"},
        {"permission": "unknown"},
        {"resource_name": ""},
        {"resource_type": "cluster"},
        {"principal": "alice"},
        {"principal": ":alice"},
    ],
)
def test_a_rule_that_means_nothing_is_refused(parts: dict[str, str]) -> None:
    with pytest.raises(LakeheadError):
        check_new(_changed(**parts))


def _changed(**parts: str) -> AclBinding:
    fields = {name: getattr(_RULE, name) for name in AclBinding.__struct_fields__}
    return AclBinding(**{**fields, **parts})


def test_a_super_user_may_do_what_is_denied() -> None:
    denied = _changed(principal="User:*", operation="all", permission="deny", resource_name="*")
    users = super_users(" User:admin ; User:a,b;;")
    authorizer = StandardAuthorizer(_image([denied]), users, by_default=False)
    for name, is_allowed in (("admin", True), ("a,b", True), ("a", False)):
        principal = KafkaPrincipal("User", name)
        what = (AclOperation.WRITE, ResourceType.TOPIC)
        assert authorizer.authorize(principal, "::1", *what, "t") is is_allowed
        assert authorizer.authorize_by_resource_type(principal, "::1", *what) is is_allowed


@pytest.mark.parametrize("text", ["admin", "User:", ":admin", "User:a;b"])
def test_a_super_user_without_a_type_is_a_wrong_setting(text: str) -> None:
    with pytest.raises(SettingsError, match=r"super\.users"):
        super_users(text)


def test_a_client_that_makes_up_names_takes_little_memory() -> None:
    authorizer = StandardAuthorizer(_image([_RULE]), frozenset(), by_default=False)
    principal = KafkaPrincipal("User", "a")
    for number in range(40_000):
        authorizer.authorize(principal, "::1", AclOperation.READ, ResourceType.GROUP, f"{number}")
    authorizer.authorize(principal, "::1", AclOperation.READ, ResourceType.GROUP, "x" * 30_000)
    assert authorizer.kept <= 16_384


RULE = AclBinding(
    resource_type="topic",
    resource_name="a",
    pattern_type="literal",
    principal="User:alice",
    host="*",
    operation="describe",
    permission="allow",
)
WITH_RULE = apply(MetadataImage(), [AclCreate(acls=(RULE,))], 0)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_decision_made_in_a_thread_beside_a_change_of_rules_is_not_remembered(
    is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics that a regular expression matches are checked off the event loop."""
    before = WITH_RULE if is_deleted else MetadataImage()
    record = (AclDelete if is_deleted else AclCreate)(acls=(RULE,))
    after = apply(before, [record], 0)
    authorizer = StandardAuthorizer(before, frozenset(), by_default=False)
    decide = authorizer._decide

    def beside(*action: Any) -> bool:
        decision: bool = decide(*action)
        authorizer.follow(after, _entry(record))  # before the thread remembers its decision
        return decision

    def may() -> bool:
        alice, operation = KafkaPrincipal("User", "alice"), AclOperation.DESCRIBE
        return authorizer.authorize(alice, "10.0.0.1", operation, ResourceType.TOPIC, "a")

    with monkeypatch.context() as patch:
        patch.setattr(authorizer, "_decide", beside)
        assert may() is is_deleted
    assert may() is not is_deleted


def test_rules_may_change_while_a_thread_looks_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = tuple(replace(RULE, host=f"10.0.0.{number}") for number in range(3))
    before, record = (
        apply(MetadataImage(), [AclCreate(acls=rules[:2])], 0),
        AclCreate(acls=rules[2:]),
    )
    after = apply(before, [record], 0)
    authorizer = StandardAuthorizer(before, frozenset(), by_default=False)

    def beside(rule: str, host: str) -> bool:
        authorizer.follow(after, _entry(record))
        return rule == host

    monkeypatch.setattr(standard_authorizer, "host_matches", beside)
    alice, operation = KafkaPrincipal("User", "alice"), AclOperation.DESCRIBE
    assert authorizer.authorize(alice, "10.0.0.1", operation, ResourceType.TOPIC, "a")
    assert authorizer.authorize(alice, "10.0.0.2", operation, ResourceType.TOPIC, "a")
