"""Draws requests about what is of the whole cluster: quotas of clients, features, what has configs.

Quotas that both take are large: Kafka would hold back this test's own requests.
"""

from typing import Any

from tests.differential.brokers import Request
from tests.differential.chances import Chances

_USER, _CLIENT, _ADDRESS = "user", "client-id", "ip"
_CLIENT_KEYS = (
    *("producer_byte_rate", "consumer_byte_rate"),
    *("request_percentage", "controller_mutation_rate"),
)
_KEYS = (*_CLIENT_KEYS, "connection_creation_rate", "no.such.quota", "")
_LARGE = (1_000_000_000.0, 2_000_000_000.0)
_SMALL = (0.0, -1.0, 1.5, 1e30)


def _owner(c: Chances) -> list[dict[str, Any]]:
    user = {"entity_type": _USER, "entity_name": f"{c.prefix}u"}
    client = {"entity_type": _CLIENT, "entity_name": f"{c.prefix}c"}
    address = {"entity_type": _ADDRESS, "entity_name": c.address}
    every_user = {"entity_type": _USER, "entity_name": None}
    every_client = {"entity_type": _CLIENT, "entity_name": None}
    odd: list[list[dict[str, Any]]] = [
        [],
        [{"entity_type": "group", "entity_name": "g"}],
        [{"entity_type": _USER, "entity_name": ""}],
        [{"entity_type": _ADDRESS, "entity_name": "no such host"}],
        [user, address],
    ]
    usual = [[user], [client], [user, client], [address], [every_user], [user, every_client]]
    owner: list[dict[str, Any]] = c.mostly(c.rng.choice(usual), *odd, rarity=0.15)
    return owner


def alter_quotas(c: Chances) -> Request:
    owner = _owner(c)
    is_everyone = any(one["entity_name"] is None for one in owner)
    values = _LARGE if is_everyone else (*_LARGE, *_SMALL)
    is_address = any(one["entity_type"] == _ADDRESS for one in owner)
    usual = ("connection_creation_rate",) if is_address else _CLIENT_KEYS
    changes = [
        {
            "key": c.mostly(key, *_KEYS, rarity=0.1),
            "value": c.mostly(c.rng.choice(_LARGE), *values, rarity=0.3),
            "remove": c.mostly(False, True, rarity=0.25),
        }
        for key in c.some(usual)
    ]
    entries = [{"entity": owner, "ops": changes}]
    if c.rng.random() < 0.05:
        changes.append(changes[0])
    elif c.rng.random() < 0.1:
        entries.append({"entity": _owner(c), "ops": changes})
    only = c.mostly(False, True)
    return c.request(49, {"entries": entries, "validate_only": only})


def describe_quotas(c: Chances) -> Request:
    exact = {_USER: f"{c.prefix}u", _CLIENT: f"{c.prefix}c", _ADDRESS: c.address}
    components = []
    for kind in c.mostly(c.some((_USER, _CLIENT), 2), [_ADDRESS], [], [_USER, _ADDRESS]):
        match = c.rng.choice([(0, exact[kind]), (0, exact[kind]), (1, None), (2, None)])
        match = c.mostly(match, (0, None), (1, exact[kind]), (2, "x"), (3, None))
        kind = c.mostly(kind, "group", "", rarity=0.04)
        components.append({"entity_type": kind, "match_type": match[0], "match": match[1]})
    if c.rng.random() < 0.03:
        components += components
    return c.request(48, {"components": components, "strict": c.mostly(False, True, rarity=0.4)})


def update_features(c: Chances) -> Request:
    names = c.mostly(["transaction.version"], ["no.such"], [""], [], rarity=0.4)
    if c.rng.random() < 0.1:
        names = ["transaction.version", "no.such"]
    updates = [
        {
            "feature": name,
            "max_version_level": c.mostly(2, 3, 99, -1, 0, 1, rarity=0.6),
            "upgrade_type": c.mostly(1, 0, 2, 3, 4, rarity=0.4),
            "allow_downgrade": c.mostly(False, True, rarity=0.4),
        }
        for name in names
    ]
    # Whether it could be done is asked alone: Kafka would change its level.
    version = max(c.version(57), 1)
    tree = {"timeout": 5000, "feature_updates": updates, "validate_only": True}
    return Request(key=57, version=version, tree=tree)


def list_config_resources(c: Chances) -> Request:
    kinds = c.mostly(c.some((2, 4, 16, 32), 2), [], [8], [0], [99], rarity=0.2)
    return c.request(74, {"resource_types": kinds})


DRAWS = (
    *(alter_quotas, alter_quotas, describe_quotas, describe_quotas),
    *(update_features, list_config_resources),
)
