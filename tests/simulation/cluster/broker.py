"""The request path of a simulated member: the real dispatcher, handlers, coordinators of
transactions, groups and share-partitions, and connections, without a socket.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from lakehead.broker import api
from lakehead.broker.cluster.broker_lifecycle import BrokerLifecycle
from lakehead.broker.cluster.inter_broker_client import InterBrokerClient, PeerNetwork
from lakehead.broker.cluster.metadata_image import MetadataCache
from lakehead.broker.cluster.node_producer import NodeProducer
from lakehead.broker.cluster.read_replicas import ReadReplicas, TailSource
from lakehead.broker.cluster.replica_manager import ReplicaManager
from lakehead.broker.cluster.replica_selector import ReplicaSelector
from lakehead.broker.cluster.replication_control import InternalTopic, ReplicationControl
from lakehead.broker.configs.entries import broker_values
from lakehead.broker.coordinator.group.coordinator import GroupCoordinator
from lakehead.broker.coordinator.share.coordinator import ShareCoordinator
from lakehead.broker.coordinator.transaction.add_partitions_manager import AddPartitionsToTxnManager
from lakehead.broker.coordinator.transaction.coordinator import TransactionCoordinator
from lakehead.broker.coordinator.transaction.markers import MarkerSender
from lakehead.broker.network.connection import Connection, FrameHandler
from lakehead.broker.network.dispatcher import Dispatcher
from lakehead.broker.network.listeners import Listeners
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.node import Backpressure
from lakehead.broker.partition.cold_reads import ColdReads
from lakehead.broker.partition.fetch_session import FetchSessions
from lakehead.broker.partition.partition import (
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    TRANSACTIONS_TOPIC,
)
from lakehead.broker.producer_ids import ProducerIds
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.broker.quota.client_quotas import ClientQuotas
from lakehead.broker.quota.rates import QuotaWindow
from lakehead.broker.quota.throttles import Throttles
from lakehead.broker.security.authorizer import AllowAll
from lakehead.broker.services import BrokerServices, RequestCounts
from lakehead.broker.settings import RACK_AWARE, Settings
from lakehead.broker.share.dead_letter_writer import DeadLetterWriter
from lakehead.broker.share.partition_ends import PartitionEnds
from lakehead.broker.share.share_counts import ShareCounts
from lakehead.broker.share.share_settings import ShareSettings
from lakehead.storage.clock import Clock
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.read_replica import ReadReplicaServices, TailCache
from lakehead.storage.tasks import TaskScope
from tests.simulation.cluster.watched_shares import WatchedPersister, WatchedShares

if TYPE_CHECKING:
    from tests.simulation.cluster.member import Member

_REGISTRY = api.registry()
_WINDOW = QuotaWindow(11, 1.0)


class _Absent:
    """A part that simulated members lack. Requests of their clients use none of these."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"simulated members have no part with {name}")


_ABSENT = _Absent()


class Broker:
    """Serves requests. It owns the connections that clients and nodes open to its process
    (`lakehead.broker.network.connection.ConnectionOwner`); `fail` is called with an error that no
    request may end with.
    """

    def __init__(
        self,
        member: Member,
        address: Address,
        engine: StreamEngine,
        lifecycle: BrokerLifecycle,
        replicas: ReplicaManager,
        control: ReplicationControl,
        network: PeerNetwork,
        settings: Settings,
        clock: Clock,
        rng: random.Random,
        scope: TaskScope,
        fail: Callable[[str, BaseException], None],
    ) -> None:
        metadata, topics = engine.metadata, replicas.topics
        dispatcher = Dispatcher(_REGISTRY, on_crash=partial(fail, "a request"))
        self.handle: FrameHandler = dispatcher
        self.memory = RequestMemory(settings.request_memory_size)
        self.request_max_bytes = settings.socket_request_max_bytes
        self.write_buffer_bytes = 1 << 20
        self.now = 0.0
        self._fail = fail
        listeners = Listeners(settings)
        self._listener = listeners.inter_broker
        cache = MetadataCache(lambda: metadata.state, lifecycle.unreachable)
        producer_ids = ProducerIds(metadata, settings.node_id)
        self.client = InterBrokerClient(
            settings.node_id,
            network,
            lambda: metadata.state,
            dispatcher.handle_own,
            timeout_s=2 * lifecycle.session_s,
        )
        states = InternalTopic(control, topics, TRANSACTIONS_TOPIC)
        self.coordinator = TransactionCoordinator(
            states,
            states.epoch,
            settings,
            clock,
            scope,
            producer_ids,
            MarkerSender(self.client, cache, scope),
            lifecycle.session.ensure,
        )
        shares = InternalTopic(control, topics, SHARE_STATES_TOPIC)
        self.share_coordinator = ShareCoordinator(
            shares, topics, settings, clock, scope, lifecycle.session.ensure
        )
        share_states = WatchedPersister(
            *(member, self.client, shares, cache, scope),
            timeout_s=settings.share_coordinator_write_timeout_ms / 1000,
        )
        share_settings, counts = ShareSettings(settings, lambda: metadata.state), ShareCounts()
        dead_letters = DeadLetterWriter(
            NodeProducer(self.client, cache, clock, node_id=settings.node_id),
            *(control, topics, self.memory, share_settings, lambda: metadata.state),
            *(lambda: broker_values(metadata.state, settings), clock, counts),
        )
        self.share_partitions = WatchedShares(
            *(member, topics, share_states, dead_letters, share_settings, counts),
            *(settings, clock, scope),
        )
        offsets = InternalTopic(control, topics, OFFSETS_TOPIC)
        self.groups = GroupCoordinator(
            *(offsets, topics, settings, clock, rng, scope, lambda: metadata.state), share_states
        )
        self.selector = ReplicaSelector(
            lambda: metadata.state,
            lifecycle.unreachable,
            is_enabled=settings.replica_selector_class == RACK_AWARE,
        )
        self.read_replicas = ReadReplicas(
            ReadReplicaServices(
                TailCache(settings.replica_read_cache_size), engine.reader, metadata
            ),
            self.client,
            clock,
            scope,
            node_id=settings.node_id,
            tail=TailSource(settings.replica_read_tail),
            store=member.world.store_of(member.name),
        )
        self._scope = scope
        backpressure = Backpressure(engine)
        parts: dict[str, Any] = {
            "settings": settings,
            "node_id": settings.node_id,
            "addresses": {self._listener.name: address},
            "clock": clock,
            "rng": rng,
            "scope": scope,
            "apis": tuple(dispatcher.registry.apis()),
            "metadata": metadata,
            "replica_manager": replicas,
            "replication_control": control,
            "topics": topics,
            "groups": self.groups,
            "share_coordinator": self.share_coordinator,
            "share_partitions": self.share_partitions,
            "share_states": share_states,
            "partition_ends": PartitionEnds(self.client, cache),
            "transaction_coordinator": self.coordinator,
            "transactions": AddPartitionsToTxnManager(
                settings.node_id, self.coordinator, states, cache, self.client, scope
            ),
            "metadata_cache": cache,
            "producer_ids": producer_ids,
            "lifecycle": lifecycle,
            "session": lifecycle.session,
            "listeners": listeners,
            "authorizer": AllowAll(),
            "quotas": ClientQuotas(
                lambda: metadata.state.quotas, clock, _WINDOW, _WINDOW, Throttles()
            ),
            "memory": self.memory,
            "fetch_sessions": FetchSessions(100, clock, rng),
            "cold_reads": ColdReads(scope),
            "is_writable": backpressure.is_writable,
            "when_writable": backpressure.when_writable,
            "counts": RequestCounts(),
            "read_replicas": self.read_replicas,
            "replica_selector": self.selector,
            "crashed": dispatcher.crashed,
            "rejected": self.rejected,
        }
        names = (field.name for field in fields(BrokerServices))
        dispatcher.serve(BrokerServices(**dict.fromkeys(names, _ABSENT) | parts))
        replicas.on_deleted(self.share_coordinator.topics_deleted)
        replicas.add_listener(self.share_coordinator.shards)
        replicas.add_listener(self.share_partitions)
        replicas.on_deleted(self.groups.topics_deleted)
        replicas.add_listener(self.groups.shards)
        replicas.add_listener(self.coordinator.shards)

    async def start(self) -> None:
        """Coordinate groups, share-partitions and transactions."""
        await self.groups.start()
        self.share_coordinator.start()
        await self.coordinator.start()
        if self.selector.is_enabled:
            self._scope.spawn_loop(self.read_replicas.run, name="close idle read replicas")

    def close(self) -> None:
        """Coordinate no more, and send nothing."""
        self.groups.shards.close()
        self.share_coordinator.shards.close()
        self.share_partitions.close()
        self.read_replicas.close()
        self.coordinator.shards.close()
        self.client.close()

    def accept(self) -> Connection:
        """Return the connection of a client, or of another node."""
        return Connection(self, self._listener)

    # The owner of connections.

    def opened(self, connection: Connection) -> None:
        """See `ConnectionOwner.opened`: every client is welcome."""

    def closed(self, connection: Connection) -> None:
        """See `ConnectionOwner.closed`."""

    def rejected(self, connection: Connection, reason: str) -> None:
        """Fail: all clients speak Kafka."""
        self._fail("a request", AssertionError(f"a request was rejected: {reason}"))
        connection.abort()

    def throttled(self, connections: int) -> None:
        """See `ConnectionOwner.throttled`: there are no quotas."""

    def admits(self, connection: Connection, key: int) -> bool:
        """See `ConnectionOwner.admits`."""
        return True
