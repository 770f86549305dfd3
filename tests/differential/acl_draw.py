"""Draws access rules: what a user is granted at random, and requests about rules."""

from typing import Any

from tests.differential.brokers import Request
from tests.differential.chances import Chances
from tests.differential.stream import DRAWS as OTHERS

ADMIN_HOST, USER_HOST = "127.0.0.2", "127.0.0.3"
"""All clients are User:ANONYMOUS: rules tell them apart by where they connect from."""
PRINCIPAL = "User:ANONYMOUS"
_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID = 2, 3, 4, 5
_LITERAL, _PREFIXED = 3, 4
_ANY, _MATCH, _ALL, _DENY, _ALLOW = 1, 2, 2, 2, 3
_OPERATIONS = {
    _TOPIC: (3, 4, 5, 6, 7, 8, 10, 11),
    _GROUP: (3, 6, 8, 10, 11),
    _CLUSTER: (5, 7, 8, 9, 10, 11, 12),
    _TRANSACTIONAL_ID: (4, 8, 15),
}


def everything(host: str) -> list[dict[str, Any]]:
    """The rules of one who may do everything from an address."""
    names = {_TOPIC: "*", _GROUP: "*", _CLUSTER: "kafka-cluster", _TRANSACTIONAL_ID: "*"}
    return [rule(kind, name, _LITERAL, operation=_ALL, host=host) for kind, name in names.items()]


def rule(
    kind: int,
    name: str,
    pattern: int,
    *,
    operation: int,
    host: str = USER_HOST,
    permission: int = _ALLOW,
    principal: str = PRINCIPAL,
) -> dict[str, Any]:
    """One rule as CreateAcls has it."""
    return {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": principal,
        "host": host,
        "operation": operation,
        "permission_type": permission,
    }


def grants(c: Chances) -> list[dict[str, Any]]:
    """Rules for the user of a round: many of use, some that deny, some about others."""
    made = [grant(c) for _ in range(c.rng.choice([0, 2, 4, 6, 8, 12, 16, 24]))]
    return [one for number, one in enumerate(made) if one not in made[:number]]


def grant(c: Chances) -> dict[str, Any]:
    kind = c.rng.choice([_TOPIC] * 5 + [_GROUP] * 2 + [_CLUSTER] * 2 + [_TRANSACTIONAL_ID] * 2)
    names = {_TOPIC: c.names, _GROUP: [c.group], _TRANSACTIONAL_ID: c.transactional}.get(kind)
    if names is None:
        name, pattern = "kafka-cluster", _LITERAL
    else:
        exact = (c.rng.choice(names), _LITERAL)
        part = c.rng.choice(names)
        prefix = (part[: c.rng.randrange(1, len(part) + 1)], _PREFIXED)
        name, pattern = c.rng.choice([exact, exact, prefix, ("*", _LITERAL)])
    permission = c.mostly(_ALLOW, _DENY, rarity=0.12)
    is_for_others = permission == _ALLOW and kind != _CLUSTER  # the administrator stays allowed
    return rule(
        kind,
        name,
        pattern,
        operation=c.mostly(c.rng.choice(_OPERATIONS[kind]), _ALL, rarity=0.35),
        permission=permission,
        host=c.mostly(USER_HOST, "*", "10.1.1.1", rarity=0.15) if is_for_others else USER_HOST,
        principal=c.mostly(PRINCIPAL, "User:*", f"User:{c.prefix}other", rarity=0.2),
    )


def _selection(c: Chances) -> dict[str, Any]:
    one = grant(c)
    exact = {
        "resource_type_filter": one["resource_type"],
        "resource_name_filter": one["resource_name"],
        "pattern_type_filter": one["resource_pattern_type"],
        "principal_filter": one["principal"],
        "host_filter": one["host"],
        "operation": one["operation"],
        "permission_type": one["permission_type"],
    }
    wide = {
        "resource_type_filter": c.mostly(exact["resource_type_filter"], _ANY, 99, rarity=0.4),
        "resource_name_filter": c.mostly(
            exact["resource_name_filter"], None, "*", "kafka-cluster", rarity=0.5
        ),
        "pattern_type_filter": c.rng.choice([_ANY, _MATCH, _LITERAL, _PREFIXED, 77]),
        "principal_filter": c.mostly(None, exact["principal_filter"], rarity=0.3),
        "host_filter": USER_HOST,
        "operation": c.mostly(_ANY, exact["operation"], 99, rarity=0.3),
        "permission_type": c.mostly(_ANY, _DENY, _ALLOW, 98, rarity=0.3),
    }
    selection: dict[str, Any] = c.rng.choice([exact, wide, wide])
    return selection


def describe_acls(c: Chances) -> Request:
    return c.request(29, _selection(c))


def create_acls(c: Chances) -> Request:
    rules = [grant(c) for _ in range(c.rng.choice([1, 1, 2, 3]))]
    for one in rules:
        one["host"] = USER_HOST
        if c.rng.random() < 0.2:
            part, value = c.rng.choice(
                [
                    *(("resource_name", ""), ("resource_type", 1), ("resource_type", 99)),
                    *(("resource_pattern_type", 1), ("resource_pattern_type", 2)),
                    *(("operation", 1), ("operation", 99), ("permission_type", 1)),
                    *(("permission_type", 0), ("resource_type", 4), ("principal", "nobody")),
                ]
            )
            one[part] = value
    return c.request(30, {"creations": rules})


def delete_acls(c: Chances) -> Request:
    return c.request(31, {"filters": [_selection(c) for _ in range(c.rng.choice([1, 2]))]})


ACL_DRAWS = (describe_acls, describe_acls, create_acls, delete_acls)
DRAWS = (*OTHERS, *ACL_DRAWS)
