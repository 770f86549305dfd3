"""The services of a broker that API handlers use.

A frozen set: the node makes it once, when every part of it exists. Handlers, the dispatcher and
request contexts hold this set and not the node, so a handler reaches no part that is not named
here, and nothing here leads back to the node. Parts of which handlers need little are protocols.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.heartbeat import Heartbeat, HeartbeatResponse
from lakehead.broker.cluster.metadata_image import TopicPartition
from lakehead.broker.configs.table_places import TablePlaces
from lakehead.broker.coordinator.group.coordinator import GroupCoordinator
from lakehead.broker.coordinator.transaction.coordinator import TransactionCoordinator
from lakehead.broker.coordinator.transaction.messages import Producer
from lakehead.broker.network.connection import Connection
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.partition.cold_reads import ColdReads
from lakehead.broker.partition.fetch_session import FetchSessions
from lakehead.broker.partition.partition import Topic, TopicRegistry
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.broker.settings import Settings
from lakehead.storage.clock import Clock
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.tasks import TaskScope


class DelayedRequests(Protocol):
    """Requests that wait for a partition: `cluster.replica_manager.DelayedRequests`."""

    def should_wait(self, topic: Topic, index: int) -> bool:
        """Return true if a request should wait, because the partition will soon be led here."""

    def add(self, stream_id: int, callback: Callable[[], None]) -> None:
        """Call `callback` once the stream's partition is served here, unless `remove`d before."""

    def remove(self, stream_id: int, callback: Callable[[], None]) -> None:
        """Do not call `callback` any more."""


class Replicas(Protocol):
    """The partitions that this node leads: `cluster.replica_manager.ReplicaManager`."""

    @property
    def delayed(self) -> DelayedRequests:
        """Requests for partitions that this node is about to lead."""

    async def wait_led(self, stream_ids: Iterable[int], timeout_s: float = ...) -> Collection[int]:
        """Wait until each stream has its leader; return those that do not in time."""


class TopicAdmin(Protocol):
    """Changes of topics: `cluster.replication_control.ReplicationControl`."""

    async def create(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        replicas: Sequence[tuple[int, ...]] = (),
        *,
        check: Callable[[MetadataImage], None] = ...,
    ) -> Topic:
        """Create a topic. Raises KafkaError, TopicExists, StorageError."""

    async def ensure(self, name: str, *, check: Callable[[MetadataImage], None] = ...) -> Topic:
        """Return a topic, created if it is missing. Raises KafkaError, StorageError."""

    async def delete(self, topic_id: str) -> None:
        """Delete a topic. Raises UnknownTopic, StorageError."""

    async def add_partitions(
        self, name: str, count: int, replicas: Sequence[tuple[int, ...]] = ()
    ) -> None:
        """Extend a topic to `count` partitions. Raises KafkaError, StorageError."""


class Leaders(Protocol):
    """The leaders of partitions: `cluster.metadata_image.MetadataCache`."""

    def exists(self, where: TopicPartition) -> bool:
        """Return true if the partition exists."""

    def leader(self, where: TopicPartition) -> int | None:
        """Return the id of the node that leads a partition, or None without a leader."""

    def node(self, where: TopicPartition) -> NodeState | None:
        """Return the node that leads a partition, or None without a leader."""


class Nodes(Protocol):
    """The nodes of the cluster as this one sees them: `cluster.broker_lifecycle`."""

    def ready(self) -> Collection[int]:
        """Return the nodes that serve."""

    def unreachable(self) -> Collection[int]:
        """Return the nodes whose connections have ended."""

    def levels(self) -> Mapping[int, tuple[int, int]]:
        """Return the lowest and highest feature level that each node supports."""

    def handle_heartbeat(self, heartbeat: Heartbeat, *, is_from_node: bool) -> HeartbeatResponse:
        """Handle a heartbeat and return the response."""


class ReadSession(Protocol):
    """Proof that this node may serve reads: `cluster.broker_lifecycle.Session`."""

    def is_current(self) -> bool:
        """Return true if reads may be served now."""

    async def ensure(self) -> bool:
        """Return whether reads may be served, after reading the metadata log if necessary."""


class TransactionVerifier(Protocol):
    """Checks that a partition is in a transaction (KIP-890): `transaction.transactions`."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        is_adding: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return the code of the transaction's coordinator for each partition. Never raises."""

    async def verify_here(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        is_adding: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return the codes as the coordinator of the transaction. Never raises."""


class ProducerIdSource(Protocol):
    """Unique producer ids: `producer_ids.ProducerIds`."""

    async def take(self) -> int:
        """Return an unused id. Raises StorageError."""


class Addresses(Protocol):
    """The addresses of nodes by listener: `network.listeners.Listeners`."""

    def address(self, name: str, node: NodeState) -> Address:
        """Return the address of a node for clients of a listener."""


@dataclass(slots=True)
class RequestCounts:
    """Partitions that requests were served for, since the start of the node."""

    produced_total: int = 0
    """Partitions of produce requests."""
    fetched_total: int = 0
    """Partitions of fetch responses."""

    def produced(self, partitions: int) -> None:
        """Count the partitions of a produce request."""
        self.produced_total += partitions

    def fetched(self, partitions: int) -> None:
        """Count the partitions of a fetch response."""
        self.fetched_total += partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerServices:
    """The parts of a broker that serve requests."""

    settings: Settings
    node_id: int
    advertised_host: str
    advertised_port: int
    store_uri: str
    clock: Clock
    rng: random.Random
    scope: TaskScope
    apis: tuple[Api, ...]
    """The APIs served, by key."""
    metadata: MetadataLog
    replica_manager: Replicas
    replication_control: TopicAdmin
    topics: TopicRegistry
    groups: GroupCoordinator
    transaction_coordinator: TransactionCoordinator
    transactions: TransactionVerifier
    metadata_cache: Leaders
    producer_ids: ProducerIdSource
    lifecycle: Nodes
    session: ReadSession
    """Says whether this node may serve reads as a leader."""
    listeners: Addresses
    table_places: TablePlaces
    memory: RequestMemory
    fetch_sessions: FetchSessions
    cold_reads: ColdReads
    is_writable: Callable[[], bool]
    """True if batches of producers can be accepted now."""
    when_writable: Callable[[Callable[[], None]], None]
    """Calls back once, when `is_writable` turns true again."""
    produced: Callable[[int], None]
    """Counts the partitions of a produce request."""
    fetched: Callable[[int], None]
    """Counts the partitions of a fetch response."""
    crashed: Callable[[Connection, Exception], None]
    """Closes the connection of a request that failed with an unexpected error."""
    rejected: Callable[[Connection, str], None]
    """Closes a connection that does not speak Kafka."""

    @property
    def state(self) -> MetadataImage:
        """The newest known metadata image."""
        return self.metadata.state
