"""Draws requests about one group: mostly what a client would send, often a little off."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from tests.differential.group_requests import KINDS, Asked
from tests.differential.sides import NOWHERE, Side

TOPICS = {"t": 2, "u": 1}
"""Topics that both servers have, and their partitions."""
SESSION_MS = 30_000
"""Longer than a group is asked about: no timer ends while two servers are compared."""

_RANGE, _STICKY, _ROUND = ("range", b"r"), ("sticky", b"s"), ("roundrobin", b"o")
_USUAL = [(_RANGE,), (_RANGE, _STICKY), (_RANGE, _ROUND)]
"""All like the same best: where votes are equal, Kafka takes what its hash table has first."""
_CHANGED: list[tuple[tuple[str, bytes], ...]] = [(_STICKY,), (_ROUND,), (_RANGE, _STICKY), ()]
_WEIGHTS = {
    "join": 12,
    "sync": 10,
    "heartbeat": 4,
    "leave": 3,
    "commit": 5,
    "fetch": 3,
    "delete_offsets": 1,
    "delete_groups": 1,
    "describe": 2,
    "list": 1,
    "find": 1,
}
_METADATA = (None, "", "x" * 4096, "x" * 4097)
_STATES = (("Stable",), ("empty", "PREPARINGREBALANCE"), ("nonsense",), ("Dead",))
_TYPES = (("classic",), ("Consumer",), ("CLASSIC", "nonsense"))


class Draw:
    """Draws for one group; `others` are groups that were asked about before."""

    def __init__(self, rng: random.Random, group: str, others: Sequence[str], count: int) -> None:
        self._rng = rng
        self._group = group
        self._others = tuple(others)
        self._count = count
        self._is_static = [rng.random() < 0.3 for _ in range(count)]
        self._protocols = [rng.choice(_USUAL) for _ in range(count)]
        self._protocol_type = rng.choice(["consumer", "consumer", "connect"])

    def draw(self, side: Side) -> Asked | None:
        """Return a request of a client that waits for nothing, None if all wait."""
        rng = self._rng
        free = [client for client in range(self._count) if client not in side.waiting]
        if not free:
            return None
        client = rng.choice(free)
        kind = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        first, last = KINDS[kind].versions
        version = self._mostly(last, *range(first, last + 1), rarity=0.5)
        identity = self._mostly(client, *range(self._count), rarity=0.08)
        fields = getattr(self, f"_{kind}")(identity, version)
        group = self._mostly(self._group, "", rarity=0.02)
        return Asked(
            kind=kind,
            client=client,
            identity=identity,
            version=version,
            group=group,
            fields=fields,
        )

    def _mostly(self, usual: Any, *rare: Any, rarity: float = 0.06) -> Any:
        return self._rng.choice(rare) if self._rng.random() < rarity else usual

    def _instance(self, identity: int, version: int, first: int) -> str | None:
        usual = f"i{identity}" if self._is_static[identity] else None
        instance: str | None = self._mostly(usual, "i0", "other", None)
        return instance if version >= first else None

    def _member(self, identity: int, version: int, first: int) -> dict[str, Any]:
        return {
            "member": self._mostly("own", "none", "bogus"),
            "generation": self._mostly(0, 1, -1),
            "instance": self._instance(identity, version, first),
        }

    def _join(self, identity: int, version: int) -> Mapping[str, Any]:
        if self._rng.random() < 0.05:
            self._protocols[identity] = self._rng.choice(_CHANGED)
        return {
            "member": self._mostly("own", "none", "bogus", rarity=0.15),
            "instance": self._instance(identity, version, 5),
            "session_ms": self._mostly(SESSION_MS, 0, 5_999, 1_800_001, -1, rarity=0.04),
            "protocol_type": self._mostly(self._protocol_type, "", "other"),
            "protocols": self._protocols[identity],
        }

    def _sync(self, identity: int, version: int) -> Mapping[str, Any]:
        return self._member(identity, version, 3) | {
            "protocol_type": self._mostly("own", "none", "wrong"),
            "protocol_name": self._mostly("own", "none", "wrong"),
            "assigns": self._mostly(False, True),
        }

    def _heartbeat(self, identity: int, version: int) -> Mapping[str, Any]:
        return self._member(identity, version, 3)

    def _leave(self, identity: int, version: int) -> Mapping[str, Any]:
        others = self._mostly((), ("i0",), ("nobody", "i1"), rarity=0.2)
        return self._member(identity, version, 3) | {"others": others}

    def _commit(self, identity: int, version: int) -> Mapping[str, Any]:
        topics = self._rng.sample([*TOPICS, NOWHERE], k=self._rng.choice([1, 1, 2, 3]))
        offsets = [
            (
                topic,
                self._mostly(0, 1, 7, -1, rarity=0.3),
                self._mostly(self._rng.randrange(1000), -1),
                self._mostly("note", *_METADATA, rarity=0.3),
            )
            for topic in topics
        ]
        return self._member(identity, version, 7) | {
            "generation": self._mostly(0, 1, -1, None, rarity=0.3),
            "offsets": offsets,
            "epoch": self._mostly(-1, 0, 5),
        }

    def _fetch(self, _: int, version: int) -> Mapping[str, Any]:
        usual = [(topic, list(range(count))) for topic, count in TOPICS.items()]
        every: list[Any] | None = None if version >= 2 else []
        topics = self._mostly(usual, [], [("t", [0, 9])], [(NOWHERE, [0])], every, rarity=0.6)
        groups = self._mostly((), ("nobody",), self._others[-2:], rarity=0.3)
        return {"topics": topics, "groups": groups, "stable": self._mostly(False, True)}

    def _delete_offsets(self, _: int, __: int) -> Mapping[str, Any]:
        some = [("t", [0, 1, 9]), (NOWHERE, [0])]
        return {"topics": self._mostly([("t", [0])], some, [("u", [0])], [], rarity=0.5)}

    def _delete_groups(self, _: int, __: int) -> Mapping[str, Any]:
        return {"groups": self._mostly((), ("nobody",), ("",), rarity=0.3)}

    def _describe(self, _: int, __: int) -> Mapping[str, Any]:
        groups = self._mostly((), ("nobody",), ("",), rarity=0.3)
        return {"groups": groups, "operations": self._mostly(False, True, rarity=0.5)}

    def _list(self, _: int, version: int) -> Mapping[str, Any]:
        states = self._mostly((), *_STATES, rarity=0.6)
        types = self._mostly((), *_TYPES, rarity=0.4)
        return {"states": states if version >= 4 else (), "types": types if version >= 5 else ()}

    def _find(self, _: int, __: int) -> Mapping[str, Any]:
        return {"type": self._mostly(0, 3, 17, -1), "groups": self._mostly((), ("",), rarity=0.3)}
