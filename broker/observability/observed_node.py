"""The parts of a node that its metrics and probes read. `lakehead.broker.node.Node` has them
all.
"""

from typing import Protocol

from lakehead.broker.cluster.broker_lifecycle import BrokerLifecycle, Session
from lakehead.broker.cluster.controller import Controller
from lakehead.broker.cluster.inter_broker_client import PeerNetwork
from lakehead.broker.cluster.log_recovery import LogRecovery
from lakehead.broker.cluster.replica_manager import ReplicaManager
from lakehead.broker.coordinator.group.coordinator import GroupCoordinator
from lakehead.broker.coordinator.transaction.coordinator import TransactionCoordinator
from lakehead.broker.maintenance.beside import MaintenanceBeside
from lakehead.broker.maintenance.tables_beside import TablesBeside
from lakehead.broker.network.authentication import Authenticator
from lakehead.broker.network.dispatcher import Dispatcher
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.network.server import Server
from lakehead.broker.partition.cold_reads import ColdReads
from lakehead.broker.partition.fetch_session import FetchSessions
from lakehead.broker.partition.partition import TopicRegistry
from lakehead.broker.quota.client_quotas import ClientQuotas
from lakehead.broker.quota.connection_rates import ConnectionRates
from lakehead.broker.security.audit_topic import AuditTopic
from lakehead.broker.services import BrokerServices, RequestCounts
from lakehead.broker.share.share_partition_manager import SharePartitionManager
from lakehead.storage.clock import Clock
from lakehead.storage.encryption.data_keys import DataKeys
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.counted import CountedStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.wal import WriteAheadLog


class ObservedNode(Protocol):
    """A node as metrics and probes read it. Nothing here is written by them."""

    engine: StreamEngine
    wal: WriteAheadLog
    store: CountedStore
    data_keys: DataKeys
    clock: Clock
    network: PeerNetwork
    server: Server
    dispatcher: Dispatcher
    services: BrokerServices
    authenticator: Authenticator
    memory: RequestMemory
    quotas: ClientQuotas
    connection_rates: ConnectionRates
    fetch_sessions: FetchSessions
    cold_reads: ColdReads
    lifecycle: BrokerLifecycle
    topics: TopicRegistry
    replica_manager: ReplicaManager
    groups: GroupCoordinator
    share_partitions: SharePartitionManager
    transaction_coordinator: TransactionCoordinator
    controller: Controller
    log_recovery: LogRecovery
    maintenance: MaintenanceBeside | None
    tables: TablesBeside | None
    counts: RequestCounts
    audit_topic: AuditTopic | None
    is_ready: bool
    is_stopping: bool

    @property
    def state(self) -> MetadataImage:
        """The newest known metadata image."""

    @property
    def session(self) -> Session:
        """Says whether the node may serve reads as a leader."""

    @property
    def failure(self) -> Exception | None:
        """The reason that the node cannot go on; None while it can."""

    def is_writable(self) -> bool:
        """Return true if batches of producers can be accepted now."""
