"""The services of a broker that API handlers use.

A frozen set: the node makes it once, when every part of it exists. Handlers, the dispatcher and
request contexts hold this set and not the node, so a handler reaches no part that is not named
here, and nothing here leads back to the node.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from lakehead.broker.cluster.broker_lifecycle import BrokerLifecycle, Session
from lakehead.broker.cluster.metadata_image import MetadataCache
from lakehead.broker.cluster.replica_manager import ReplicaManager
from lakehead.broker.cluster.replication_control import ReplicationControl
from lakehead.broker.configs.table_places import TablePlaces
from lakehead.broker.coordinator.group.coordinator import GroupCoordinator
from lakehead.broker.coordinator.transaction.coordinator import TransactionCoordinator
from lakehead.broker.coordinator.transaction.transactions import Transactions
from lakehead.broker.network.connection import Connection
from lakehead.broker.network.listeners import Listeners
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.partition.cold_reads import ColdReads
from lakehead.broker.partition.fetch_session import FetchSessions
from lakehead.broker.partition.partition import TopicRegistry
from lakehead.broker.producer_ids import ProducerIds
from lakehead.broker.protocol.api import Api
from lakehead.broker.settings import Settings
from lakehead.storage.clock import Clock
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import ClusterState
from lakehead.storage.tasks import TaskScope


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
    replica_manager: ReplicaManager
    replication_control: ReplicationControl
    topics: TopicRegistry
    groups: GroupCoordinator
    transaction_coordinator: TransactionCoordinator
    transactions: Transactions
    metadata_cache: MetadataCache
    producer_ids: ProducerIds
    lifecycle: BrokerLifecycle
    session: Session
    """Says whether this node may serve reads as a leader."""
    listeners: Listeners
    table_places: TablePlaces
    memory: RequestMemory
    fetch_sessions: FetchSessions
    cold_reads: ColdReads
    is_writable: Callable[[], bool]
    """Whether batches of producers can be accepted now."""
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
    def state(self) -> ClusterState:
        """The newest known cluster state."""
        return self.metadata.state
