"""The common part of all kinds of clients of a simulated cluster: a life, randomness of their own,
and topics.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.errors import TopicExists
from tests.simulation.cluster.client_wire import ClientWire
from tests.simulation.lives import Life

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld
    from tests.simulation.cluster.member import Member

HOST = "client"


class Clients(ABC):
    """Clients of one kind. `start` begins them, `judge` compares what they saw."""

    def __init__(self, world: ClusterWorld, rng: random.Random) -> None:
        self.ends: Counter[str] = Counter()
        """Ends of clients and of their work, by kind."""
        self.world = world
        self.rng = rng
        self.life = Life(world.loop, "clients")

    @abstractmethod
    def start(self) -> None:
        """Begin."""

    @abstractmethod
    async def judge(self) -> None:
        """Judge what happened, once nothing fails any more. Raises Violation."""

    def begin(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start something of which every error breaks the world."""
        return self.life.spawn(self.guarded(coro), name)

    async def guarded(self, coro: Coroutine[Any, Any, None]) -> None:
        """Let every error break the world."""
        try:
            await coro
        except Exception as error:
            self.world.fail(error)

    def wire(self) -> ClientWire:
        """Return new connections."""
        return ClientWire(self.world, self.life, HOST)

    def note(self, name: str, what: str) -> None:
        """Say something in the world's trace."""
        self.world.trace.add(name, what)

    async def ready(self, topic: str, partitions: int) -> None:
        """Wait for a topic, which the first client to find it missing creates."""
        world = self.world
        while topic not in world.oracle.state.topics:
            living = world.living()
            if living:
                member = self.rng.choice(living)
                creating = member.begin(self._create(member, topic, partitions), "create a topic")
                await asyncio.wait([creating], timeout=5.0)
            await asyncio.sleep(0.5)

    async def _create(self, member: Member, topic: str, partitions: int) -> None:
        assert member.replication_control is not None
        with suppress(KafkaError, TopicExists):
            await member.replication_control.create(topic, partitions)
