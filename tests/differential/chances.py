"""What every draw is made of: usual values, and now and then others."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from tests.differential.brokers import Request, address_of

Versions = Mapping[int, tuple[int, int]]


class Chances:
    """The names and versions that requests of one round are drawn from."""

    def __init__(self, rng: random.Random, prefix: str, versions: Versions) -> None:
        self.rng = rng
        self.prefix = prefix
        self.names = [f"{prefix}{letter}" for letter in "abcd"]
        self.transactional = [f"{prefix}x", f"{prefix}y"]
        self.producers = [*self.transactional, f"{prefix}i"]
        self.sessions = [f"{prefix}s", f"{prefix}t"]
        """Fetch sessions: one by the ids of topics, one by their names."""
        self.group = f"{prefix}g"
        self.address = address_of(prefix)
        self.sequences: dict[tuple[str, str, int], int] = {}
        self._versions = versions
        self.topics_seen: dict[str, int] = {}
        """What Kafka has, and how many partitions of it."""

    def mostly(self, usual: Any, *rare: Any, rarity: float = 0.1) -> Any:
        return self.rng.choice(rare) if self.rng.random() < rarity else usual

    def some(self, every: Sequence[Any], most: int = 3) -> list[Any]:
        count = min(len(every), self.rng.choice([1, 1, 1, *range(2, most + 1)]))
        return self.rng.sample(list(every), count)

    def topic(self) -> str:
        """A topic: mostly one that there is."""
        there = sorted(self.topics_seen) or self.names
        name: str = self.mostly(
            self.rng.choice(there), *self.names, "", "..", "no such", "x" * 250, rarity=0.15
        )
        return name

    def topics(self) -> list[str]:
        """Topics, none twice."""
        return sorted({self.topic() for _ in range(self.rng.choice([1, 1, 2, 3]))})

    def partition(self, topic: str) -> int:
        count = self.topics_seen.get(topic, 1)
        index: int = self.mostly(self.rng.randrange(count), count, -1, 2**31 - 1, rarity=0.08)
        return index

    def partitions(self, topic: str) -> list[int]:
        return sorted({self.partition(topic) for _ in range(self.rng.choice([1, 1, 2]))})

    def version(self, key: int, least: int = 0) -> int:
        first, last = self._versions[key]
        return int(self.mostly(last, *range(max(first, least), last + 1), rarity=0.5))

    def is_transactional(self, producer: str) -> bool:
        return producer in self.transactional

    def request(self, key: int, tree: Mapping[str, Any], *, about: str = "") -> Request:
        return Request(key=key, version=self.version(key), tree=tree, about=about)
