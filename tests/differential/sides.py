"""Two servers that are asked the same, and what is compared of their answers.

Member ids differ from server to server, so each side has labels for them: the first id that a side
shows is m1, and so on. Everything else is compared as it is.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.node import Node
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from tests.support.node_client import Client

Answer = tuple[Any, ...]
"""What is compared of an answer."""

BOGUS = "bogus-1"
"""A member id that nobody gave out."""
NOWHERE = "nowhere"
"""A topic that neither side has."""
_READY_TIMES = 150


@dataclass(slots=True)
class Identity:
    """Who a member of a group is, as its last JoinGroup was answered."""

    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leads: bool = False


@dataclass(slots=True)
class Side:
    """One server, with a connection for each of its clients."""

    name: str
    port: int
    clients: list[Client]
    identities: list[Identity] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    waiting: dict[int, "asyncio.Task[Any]"] = field(default_factory=dict)
    asking_as: dict[int, int] = field(default_factory=dict)
    """In whose name a client asked last."""
    _readers: dict[int, Callable[[Any], Answer]] = field(default_factory=dict)

    @classmethod
    async def connect(cls, name: str, port: int, client_count: int) -> "Side":
        """Connect `client_count` clients to a server."""
        return cls(name, port, [await _connected(port) for _ in range(client_count)])

    def forget(self) -> None:
        """Begin anew with members nobody has seen."""
        self.identities = [Identity() for _ in self.clients]
        self.labels = {}

    async def renew(self, client: int) -> None:
        """Connect a client anew; what it waits for is of no interest."""
        task = self.waiting.pop(client, None)
        if task is not None:
            task.cancel()
        self.clients[client].writer.close()
        self.clients[client] = await _connected(self.port)

    def label(self, member_id: str | None) -> str | None:
        """Return the label of a member id."""
        if not member_id or member_id == BOGUS:
            return member_id
        return self.labels.setdefault(member_id, f"m{len(self.labels) + 1}")

    def known(self, member_id: str) -> str:
        """Return the label of another's member id, which nobody may have been told yet."""
        return self.labels.get(member_id, "new")

    def topic_name(self, topic: Any) -> str:
        """Return the name of a topic in an answer, which may have its id instead."""
        name = getattr(topic, "name", None)
        if name:
            return str(name)
        return next((n for n, i in self.topic_ids.items() if i == topic.topic_id), "?")

    async def ask(self, key: int, version: int, build: Callable[[ModuleType], Any]) -> Any:
        """Have the first client ask, and wait for the answer, as it is."""
        module = schema(key, version).request_module
        return await self.clients[0].ask(key, version, build(module))

    def send(
        self, client: int, key: int, version: int, message: Any, read: Callable[[Any], Answer]
    ) -> None:
        """Ask; `read` turns the answer into what is compared, when it comes."""
        assert client not in self.waiting
        self.clients[client].send(key, version, message)
        self.waiting[client] = asyncio.create_task(self.clients[client].receive())
        self._readers[client] = read

    def answered(self) -> set[int]:
        """Return the clients that have an answer which was not taken."""
        return {client for client, task in self.waiting.items() if task.done()}

    def take(self) -> dict[int, Answer]:
        """Return what was answered since, by client."""
        return {
            client: self._readers.pop(client)(self.waiting.pop(client).result())
            for client in sorted(self.answered())
        }

    async def prepare(self, topics: Mapping[str, int]) -> None:
        """Make these topics, of so many partitions, and wait for a coordinator of groups."""

        def creation(m: ModuleType) -> Any:
            wanted = [
                entity(
                    m,
                    "CreatableTopic",
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    assignments=(),
                    configs=(),
                )
                for name, partitions in topics.items()
            ]
            return entity(m, "CreateTopicsRequest", topics=wanted, timeout=10_000)

        made = await self.ask(19, 7, creation)
        self.topic_ids = {topic.name: topic.topic_id for topic in made.topics}
        self.topic_ids[NOWHERE] = UUID(int=7)
        for _ in range(_READY_TIMES):
            await self.ask(
                10, 2, lambda m: entity(m, "FindCoordinatorRequest", key="g", key_type=0)
            )
            beaten = await self.ask(12, 4, _heartbeat)
            if beaten.error_code is ErrorCode.unknown_member_id:
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"{self.name}: nobody coordinates groups")


def _heartbeat(m: ModuleType) -> Any:
    return entity(m, "HeartbeatRequest", group_id="g", generation_id=0, member_id="nobody")


async def _connected(port: int) -> Client:
    return await Client.connect(cast(Node, SimpleNamespace(advertised_port=port)))
