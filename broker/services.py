"""The services of a broker that API handlers use.

A frozen set: the node makes it once, when every part of it exists. Handlers, the dispatcher and
request contexts hold this set and not the node, so a handler reaches no part that is not named
here, and nothing here leads back to the node. Parts of which handlers need little are protocols.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.described_topics import DescribedTopics
from lakehead.broker.cluster.heartbeat import Heartbeat, HeartbeatResponse
from lakehead.broker.cluster.metadata_image import TopicPartition
from lakehead.broker.cluster.read_replicas import ReadReplicas
from lakehead.broker.cluster.replica_selector import ReplicaSelector
from lakehead.broker.configs.table_places import TablePlaces
from lakehead.broker.coordinator.group.coordinator import GroupCoordinator
from lakehead.broker.coordinator.share.coordinator import ShareCoordinator
from lakehead.broker.coordinator.transaction.coordinator import TransactionCoordinator
from lakehead.broker.coordinator.transaction.messages import Producer
from lakehead.broker.deadline import Deadline
from lakehead.broker.network.connection import Connection
from lakehead.broker.network.listeners import Listeners
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.partition.cold_reads import ColdReads
from lakehead.broker.partition.fetch_session import FetchSessions
from lakehead.broker.partition.partition import Topic, TopicRegistry
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.broker.quota.client_quotas import ClientQuotas
from lakehead.broker.security.audit import AuditLog
from lakehead.broker.security.authorizer import Authorizer
from lakehead.broker.security.delegation_tokens import DelegationTokens
from lakehead.broker.settings import Settings
from lakehead.broker.share.partition_ends import PartitionEnds
from lakehead.broker.share.persister import Persister
from lakehead.broker.share.share_partition_manager import SharePartitionManager
from lakehead.broker.telemetry.client_telemetry import ClientTelemetry
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
        deadline: Deadline | None = None,
    ) -> Topic:
        """Create a topic. Raises KafkaError, TopicExists, StorageError."""

    async def ensure(
        self,
        name: str,
        *,
        check: Callable[[MetadataImage], None] = ...,
        deadline: Deadline | None = None,
    ) -> Topic:
        """Return a topic, created if it is missing. Raises KafkaError, StorageError."""

    async def delete(self, topic_id: str, deadline: Deadline | None = None) -> None:
        """Delete a topic. Raises KafkaError, UnknownTopic, StorageError."""

    async def add_partitions(
        self,
        name: str,
        count: int,
        replicas: Sequence[tuple[int, ...]] = (),
        deadline: Deadline | None = None,
    ) -> None:
        """Extend a topic to `count` partitions. Raises KafkaError, StorageError."""


class Leaders(Protocol):
    """The leaders of partitions: `cluster.metadata_image.MetadataCache`."""

    @property
    def described(self) -> DescribedTopics:
        """Topics as responses of Metadata describe them."""

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

    def is_state_current(self) -> bool:
        """Return true if this node's state was the newest within the session time."""

    async def ensure_state(self) -> bool:
        """Return the same, after reading the metadata log if necessary."""


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


class FetchedTo(StrEnum):
    """The destination of the records of a fetch response."""

    SAME_ZONE = "same zone"
    OTHER_ZONE = "other zone"
    UNKNOWN = "unknown"
    """The consumer, or this node, did not say where it is."""
    NODE = "node"
    """Another node: a read replica copies them."""


@dataclass(slots=True)
class RequestCounts:
    """Partitions that requests were served for, since the start of the node."""

    produced_total: int = 0
    """Partitions of produce requests."""
    fetched_total: int = 0
    """Partitions of fetch responses."""
    sent_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of records in fetch responses, by destination: see `FetchedTo`."""
    redirected_total: int = 0
    """Partitions for which consumers were sent to a node of their zone."""

    def produced(self, partitions: int) -> None:
        """Count the partitions of a produce request."""
        self.produced_total += partitions

    def fetched(self, partitions: int) -> None:
        """Count the partitions of a fetch response."""
        self.fetched_total += partitions

    def sent(self, fetched_to: FetchedTo, size: int) -> None:
        """Count the bytes of records of a fetch response."""
        self.sent_bytes[fetched_to] += size

    def redirected(self, partitions: int) -> None:
        """Count partitions for which a consumer was sent to a node of its zone."""
        self.redirected_total += partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerServices:
    """The parts of a broker that serve requests."""

    settings: Settings
    node_id: int
    addresses: Mapping[str, Address]
    """Of this node, by listener."""
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
    share_coordinator: ShareCoordinator
    share_partitions: SharePartitionManager
    share_states: Persister
    partition_ends: PartitionEnds
    transaction_coordinator: TransactionCoordinator
    transactions: TransactionVerifier
    metadata_cache: Leaders
    producer_ids: ProducerIdSource
    lifecycle: Nodes
    session: ReadSession
    """Says whether this node may serve reads as a leader."""
    listeners: Listeners
    table_places: TablePlaces
    authorizer: Authorizer
    audit: AuditLog
    delegation_tokens: DelegationTokens
    quotas: ClientQuotas
    memory: RequestMemory
    fetch_sessions: FetchSessions
    cold_reads: ColdReads
    telemetry: ClientTelemetry
    """The metrics that clients push."""
    is_writable: Callable[[], bool]
    """True if batches of producers can be accepted now."""
    when_writable: Callable[[Callable[[], None]], None]
    """Calls back once, when `is_writable` turns true again."""
    counts: RequestCounts
    read_replicas: ReadReplicas
    """The partitions that this node serves to consumers of its zone."""
    replica_selector: ReplicaSelector
    """Chooses the node that consumers of a zone read from."""
    crashed: Callable[[Connection, Exception], None]
    """Closes the connection of a request that failed with an unexpected error."""
    rejected: Callable[[Connection, str], None]
    """Closes a connection that does not speak Kafka."""

    @property
    def state(self) -> MetadataImage:
        """The newest known metadata image."""
        return self.metadata.state
