"""A broker that is asked, and what is known of it: the ids that it gave out.

Requests name topics and producers; `resolved` puts in the ids that this broker gave them.
"""

import asyncio
import contextlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial.errors import SerialError

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.node_proof import NO_PROOF, NodeProof
from tests.differential.trees import Tree, answer_tree, message, unknown_id
from tests.support.node_client import Client
from tests.support.wire import Batch

API_VERSIONS, METADATA, CREATE_TOPICS, LIST_TRANSACTIONS = 18, 3, 19, 66
PRODUCE, FETCH, DELETE_RECORDS, INIT_PRODUCER_ID, END_TXN = 0, 1, 21, 22, 26
CHANGING = frozenset({19, 20, 33, 37, 44, 49})
"""APIs whose changes are in the metadata."""
_OF_EVERY_ROUND = frozenset({"transaction_states", "entries", "config_resources"})
"""Fields of answers that list what there is in the cluster."""
NO_ANSWER_S = 8.0
_COORDINATED_S = 30.0
_ENDED_S = 5.0
"""Until what ends a transaction is written, if it can be."""
_NO_SESSION = 12_345, 1
_CLOSED_S = 0.1
"""Until a connection is closed, if it is to be."""
_PASSING_S, _PAUSE_S = 3.0, 0.02
_PASSING = frozenset(
    {
        *("concurrent_transactions", "not_coordinator", "coordinator_load_in_progress"),
        *("coordinator_not_available", "leader_not_available", "network_exception"),
    }
)


@dataclass(frozen=True, slots=True)
class TopicId:
    """The id of a topic, or one that no topic has."""

    name: str


@dataclass(frozen=True, slots=True)
class ProducerId:
    """The id of a producer, moved by `off`."""

    name: str
    off: int = 0


@dataclass(frozen=True, slots=True)
class ProducerEpoch:
    """The epoch of a producer, moved by `off`."""

    name: str
    off: int = 0


@dataclass(frozen=True, slots=True)
class LeaderEpoch:
    """The epoch of a partition's leader, moved by `off`."""

    topic: str
    index: int
    off: int = 0


@dataclass(frozen=True, slots=True)
class SessionId:
    """The id of a fetch session, moved by `off`."""

    name: str
    off: int = 0


@dataclass(frozen=True, slots=True)
class SessionEpoch:
    """The epoch of the next fetch in a session, moved by `off`."""

    name: str
    off: int = 0


@dataclass(frozen=True, slots=True)
class Records:
    """A record batch of a producer, None for one without an id."""

    producer: str | None
    epoch_off: int
    fields: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, in the names of things."""

    key: int
    version: int
    tree: Mapping[str, Any]
    about: str = ""
    """The producer, or the fetch session, whose id and epoch the answer tells."""

    @property
    def name(self) -> str:
        return schema(self.key, self.version).request_class.__name__.removesuffix("Request")

    def __str__(self) -> str:
        return f"{self.name} v{self.version} {_shown(self.tree)}"


def _shown(tree: Tree) -> str:
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{name}: {_shown(value)}" for name, value in tree.items()) + "}"
    if isinstance(tree, list | tuple):
        return "[" + ", ".join(map(_shown, tree)) + "]"
    return repr(tree)


@dataclass(slots=True)
class Broker:
    """One server and a connection to it."""

    name: str
    port: int
    client: Client
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    prefix: str = ""
    """What the names of this round begin with."""
    admin: Client | None = None
    """Asks what the requests are drawn by; None: the client itself may."""
    local_host: str | None = None
    """Where the client connects from."""
    topics: dict[str, int] = field(default_factory=dict)
    """The topics there are, and how many partitions each has."""
    leader_epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    sessions: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    async def connect(
        cls,
        name: str,
        port: int,
        proof: NodeProof = NO_PROOF,
        *,
        local_host: str | None = None,
        admin_host: str | None = None,
    ) -> "Broker":
        """Return a connection; by `proof` a broker that wants one takes it for a node's, as Kafka
        without an authorizer takes any. With access rules, the administrator and the client differ
        by the addresses that they connect from.
        """
        client = await Client.connect_to(port, local_host=local_host)
        client.proof = proof
        admin = None
        if admin_host is not None:
            admin = await Client.connect_to(port, local_host=admin_host)
        return cls(name, port, client, admin=admin, local_host=local_host)

    def _label(self, value: Any) -> str:
        if value is None or value in (-1, UUID(int=0)):
            return "none"
        of_topics = (name for name, one in self.topic_ids.items() if one == value)
        of_producers = (
            name
            for name, (one, _) in self.producers.items()
            if one == value and name.startswith(self.prefix)
        )
        return next(of_topics, None) or next(of_producers, "another")

    def resolved(self, tree: Tree) -> Tree:
        """Return a tree with this broker's ids in it."""
        match tree:
            case TopicId(name):
                return self.topic_ids.get(name, unknown_id(7))
            case ProducerId(name, off):
                return self.producers.get(name, (_unknown_producer(name), 0))[0] + off
            case ProducerEpoch(name, off):
                return self.producers.get(name, (0, 0))[1] + off
            case LeaderEpoch(topic, index, off):
                return self.leader_epochs.get((topic, index), 0) + off
            case SessionId(name, off):
                return self.sessions.get(name, _NO_SESSION)[0] + off
            case SessionEpoch(name, off):
                return self.sessions.get(name, _NO_SESSION)[1] + off
            case Records(producer, epoch_off, fields):
                given = dict(fields)
                if producer is not None:
                    given["producer_id"] = self.resolved(ProducerId(producer))
                    given["producer_epoch"] = self.resolved(ProducerEpoch(producer, epoch_off))
                return Batch(**given).encode()
            case Mapping():
                return {name: self.resolved(value) for name, value in tree.items()}
            case list() | tuple():
                return [self.resolved(one) for one in tree]
        return tree

    async def ask(self, request: Request) -> Tree:
        """Return what is compared of the answer; a word when there is none."""
        answer, tree = await self._ask_once(request)
        for _ in range(int(_PASSING_S / _PAUSE_S)):
            if not _passes(tree):
                break
            await asyncio.sleep(_PAUSE_S)
            answer, tree = await self._ask_once(request)
        if request.about and not isinstance(answer, str):
            if request.key == FETCH:
                self._learn_session(request, answer)
            else:
                await self._learn_producer(request, answer)
            tree = self._tree(answer)
        return tree

    async def _ask_once(self, request: Request) -> tuple[Any, Tree]:
        answer = await self._ask(request.key, request.version, request.tree)
        return answer, answer if isinstance(answer, str) else self._tree(answer)

    def _tree(self, answer: Any) -> Tree:
        """Return what is compared of an answer: in lists of all that there is, what this round
        made. Rounds before may have ended where the two began to differ.
        """
        tree = answer_tree(answer, self._label)
        for name in _OF_EVERY_ROUND & tree.keys():
            tree[name] = [one for one in tree[name] or () if self._is_of_round(str(one))]
        return tree

    def _is_of_round(self, shown: str) -> bool:
        return self.prefix in shown or repr(address_of(self.prefix)) in shown

    async def command(self, key: int, version: int, tree: Tree) -> Any:
        """Return the answer to a request of the administrator."""
        if self.admin is None:
            return await self._ask(key, version, tree)
        asked = message(schema(key, version).request_class, self.resolved(tree))
        async with asyncio.timeout(NO_ANSWER_S):
            return await self.admin.ask(key, version, asked)

    async def _ask(self, key: int, version: int, tree: Tree) -> Any:
        asked = message(schema(key, version).request_class, self.resolved(tree))
        try:
            async with asyncio.timeout(NO_ANSWER_S):
                if key == PRODUCE and tree["acks"] == 0:
                    self.client.send(key, version, asked, answered=False)
                    nothing = message(schema(API_VERSIONS, 0).request_class, {})
                    await self.client.ask(API_VERSIONS, 0, nothing)
                    await asyncio.sleep(_CLOSED_S)
                    await self.client.ask(API_VERSIONS, 0, nothing)
                    return "open"
                return await self.client.ask(key, version, asked)
        except SerialError:
            return "unreadable"  # by kio
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.reconnect()
            return "closed"
        except TimeoutError:
            await self.reconnect()
            return "silent"

    async def reconnect(self) -> None:
        """Close the client's connection, and open another one."""
        self.client.writer.close()
        with contextlib.suppress(OSError):
            await self.client.writer.wait_closed()
        proof = self.client.proof
        self.client = await Client.connect_to(self.port, local_host=self.local_host)
        self.client.proof = proof

    def _learn_session(self, request: Request, answer: Any) -> None:
        if answer.error_code is not ErrorCode.none:
            return
        epoch = self.resolved(request.tree["session_epoch"])
        if answer.session_id == 0:
            self.sessions.pop(request.about, None)
        else:
            self.sessions[request.about] = (answer.session_id, epoch + 1)

    async def _learn_producer(self, request: Request, answer: Any) -> None:
        if answer.error_code is not ErrorCode.none:
            return
        if request.key == INIT_PRODUCER_ID or request.version >= 5:
            self.producers[request.about] = (answer.producer_id, answer.producer_epoch)
        name = request.tree.get("transactional_id")
        for _ in range(int(_ENDED_S / _PAUSE_S) if name else 0):
            told = await self.command(LIST_TRANSACTIONS, 0, {})
            states = {
                one.transactional_id: one.transaction_state for one in told.transaction_states
            }
            if not states.get(name, "").startswith("Prepare"):
                return
            await asyncio.sleep(_PAUSE_S)

    async def learn_topics(self, prefix: str) -> None:
        """Learn which topics of this prefix there are."""
        self.prefix = prefix
        answer = await self.command(METADATA, 12, {"topics": None})
        found = [topic for topic in answer.topics if (topic.name or "").startswith(prefix)]
        self.topics = {topic.name: len(topic.partitions) for topic in found}
        self.topic_ids |= {topic.name: topic.topic_id for topic in found}
        self.leader_epochs = {
            (topic.name, part.partition_index): part.leader_epoch
            for topic in found
            for part in topic.partitions
        }

    async def wait_coordinated(self) -> None:
        """Wait until groups and transactions have a coordinator."""
        for key_type in (0, 1):
            tree = {"coordinator_keys": ["k"], "key_type": key_type}
            async with asyncio.timeout(_COORDINATED_S):
                while True:
                    answer = await self.command(10, 4, tree)
                    if answer.coordinators[0].error_code is ErrorCode.none:
                        break

    async def versions(self) -> dict[int, tuple[int, int]]:
        """Return first and last version of each API that is served."""
        answer = await self._ask(API_VERSIONS, 2, {})
        return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}


def address_of(prefix: str) -> str:
    """Return an address for what is named by addresses."""
    number = int("".join(filter(str.isdigit, prefix)) or 0)
    return f"10.0.{number // 256 % 256}.{number % 256}"


def _unknown_producer(name: str) -> int:
    """Return an id that nobody gave out: another one for each name, as brokers remember it."""
    return 900_000_000 + zlib.crc32(name.encode()) % 1_000_000


def _passes(tree: Tree) -> bool:
    if isinstance(tree, dict):
        return any(_passes(value) for value in tree.values())
    if isinstance(tree, list):
        return any(map(_passes, tree))
    return isinstance(tree, str) and tree in _PASSING
