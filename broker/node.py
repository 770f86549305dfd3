"""A broker node: the parts put together, started and stopped in order.

Start: listen (so that the port is known and had), open store, WAL and engine, which recovers what a
crash left, open every partition, load groups, then take requests. Stop: take no more connections,
let coordinators answer whoever waits, make everything durable and upload it, close. When the engine
fails (fenced, or its WAL is broken) the node acknowledges nothing more and ends with an error.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator

import structlog

from lakehead.broker import api
from lakehead.broker.cluster.broker_lifecycle import (
    BrokerLifecycle,
    Session,
    check_advertised_address,
    refuse_duplicate_id,
    refuse_meta_address,
    refuse_other_cluster,
)
from lakehead.broker.cluster.controller import Controller, ControllerSettings
from lakehead.broker.cluster.inter_broker_client import InterBrokerClient, PeerNetwork, TcpNetwork
from lakehead.broker.cluster.load_meter import LoadMeter, Traffic
from lakehead.broker.cluster.log_recovery import LogRecovery
from lakehead.broker.cluster.metadata_image import MetadataCache
from lakehead.broker.cluster.replica_manager import ReplicaManager
from lakehead.broker.cluster.replication_control import InternalTopic, ReplicationControl
from lakehead.broker.configs.entries import BrokerValues, broker_values
from lakehead.broker.configs.table_places import TablePlaces
from lakehead.broker.coordinator.group.coordinator import GroupCoordinator
from lakehead.broker.coordinator.transaction.coordinator import TransactionCoordinator
from lakehead.broker.coordinator.transaction.markers import MarkerSender
from lakehead.broker.coordinator.transaction.transactions import Transactions
from lakehead.broker.maintenance.beside import MaintenanceBeside
from lakehead.broker.maintenance.tables_beside import (
    TablesBeside,
    is_lake_installed,
    tables_keeping,
)
from lakehead.broker.network.dispatcher import Dispatcher
from lakehead.broker.network.listeners import Listeners
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.network.server import Server
from lakehead.broker.observability.health import health
from lakehead.broker.observability.page import ObservabilityPage
from lakehead.broker.partition.cold_reads import ColdReads
from lakehead.broker.partition.fetch_session import FetchSessions
from lakehead.broker.partition.topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicRegistry
from lakehead.broker.producer_ids import ProducerIds
from lakehead.broker.services import BrokerServices
from lakehead.broker.settings import Settings
from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import ClusterState
from lakehead.storage.object_store import ObjectStore, check_store, open_store
from lakehead.storage.object_store.counted import CountedStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.left_logs import LeftLogs
from lakehead.storage.stream.settings import NodeIdentity
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import WalOwner, WriteAheadLog, open_wal
from lakehead.storage.wal.address import locate_wal, public_address
from lakehead.storage.wal.deadline import OnStuck
from lakehead.storage.wal.holder import HostProcesses, host_name

EXPIRY_S = 600.0
STOP_REPORT_S = 5.0
"""A stop that takes longer is reported as often."""
_log = structlog.get_logger("broker.node")


class NodeFailed(LakeheadError):
    """The node can acknowledge nothing more and has stopped. The message says why."""


class Node:
    """One broker. Made by `start_node`; everything runs on one event loop."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        rng: random.Random,
        store: ObjectStore,
        on_stuck: OnStuck | None = None,
    ) -> None:
        self.settings = settings
        self._on_stuck = on_stuck
        self.table_places: TablePlaces = TablePlaces(settings)
        self.clock: Clock = clock
        self.rng = rng
        self.scope = TaskScope(self._crashed)
        self.store: CountedStore = CountedStore(store, clock=clock)
        self.dispatcher: Dispatcher = Dispatcher(api.registry())
        self.listeners: Listeners = Listeners(settings)
        self.memory = RequestMemory(settings.request_memory_size)
        self.server: Server = Server(settings, clock, self.dispatcher, self.configs, self.memory)
        self.fetch_sessions: FetchSessions = FetchSessions(
            settings.max_incremental_fetch_session_cache_slots, clock, rng
        )
        self.cold_reads: ColdReads = ColdReads(self.scope)
        self.advertised_host = settings.advertised_host or settings.host
        self.advertised_port = 0
        self.produced_total: int = 0
        """Partitions' worth of batches that produce requests brought."""
        self.fetched_total: int = 0
        """Partitions that fetch requests were answered for."""
        self.network: PeerNetwork = TcpNetwork()
        self.lifecycle: BrokerLifecycle
        self.controller: Controller
        self.log_recovery: LogRecovery
        self.engine: StreamEngine
        self.wal: WriteAheadLog
        self.replica_manager: ReplicaManager
        self.replication_control: ReplicationControl
        self.groups: GroupCoordinator
        self.transaction_coordinator: TransactionCoordinator
        self.transactions: Transactions
        self.metadata_cache: MetadataCache
        self.inter_broker_client: InterBrokerClient
        self.producer_ids: ProducerIds
        self.services: BrokerServices
        self.maintenance: MaintenanceBeside | None = None
        """What starts maintenance, if this node does."""
        self.tables: TablesBeside | None = None
        """What keeps the declared tables, if this node does."""
        self._writable_waiters: dict[Callable[[], None], None] = {}
        self._failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._page: ObservabilityPage | None = None
        self.is_ready: bool = False
        """Whether this node has begun to serve, and has all its parts."""
        self.is_stopping: bool = False
        """Whether this node has been told to stop."""

    @property
    def state(self) -> ClusterState:
        """The newest known cluster state."""
        return self.engine.metadata.state

    def configs(self) -> BrokerValues:
        """Return this broker's configs as they are now."""
        return broker_values(self.state, self.settings)

    @property
    def topics(self) -> TopicRegistry:
        """The topics of the cluster."""
        return self.replica_manager.topics

    @property
    def node_id(self) -> int:
        """This broker's id."""
        return self.settings.node_id

    @property
    def failure(self) -> Exception | None:
        """Why this node cannot go on; None while it can."""
        return self._failure.result() if self._failure.done() else None

    @property
    def session(self) -> Session:
        """Whether this node may answer reads as a leader."""
        return self.lifecycle.session

    def is_writable(self) -> bool:
        """Whether producers' batches can be taken now."""
        return self.engine.writable()

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when `is_writable` turns true again."""
        self._writable_waiters[callback] = None

    def produced(self, partitions: int) -> None:
        """Count what a produce request brought."""
        self.produced_total += partitions

    def fetched(self, partitions: int) -> None:
        """Count what a fetch request took."""
        self.fetched_total += partitions

    # Life.

    async def start(self) -> None:
        """Open everything and take requests.

        Raises SettingsError for an address that is taken, and the errors of storage.
        """
        settings = self.settings
        refuse_meta_address(self.advertised_host)
        port = self.server.bind(settings.host, settings.port)
        for listener in self.listeners.all.values():
            self.server.bind(listener.host, listener.port, listener.name)
        self.advertised_port = settings.advertised_port or port
        await self._open_engine()
        self.engine.on_writable.append(self._now_writable)
        self.replica_manager = ReplicaManager(
            self.engine, settings, self.clock, self.rng, self.scope
        )
        self.replication_control = ReplicationControl(
            self.engine.metadata, self.replica_manager, settings, self.rng, self.lifecycle.ready
        )
        self.producer_ids = ProducerIds(self.engine.metadata, settings.node_id)
        await self.replica_manager.start()
        await self._start_coordinators()
        self.scope.spawn(self._watch_engine(), name="watch the engine")
        self.scope.spawn_duty(self._expire_producers, name="expire producers")
        if settings.metrics_port >= 0:
            self._page = ObservabilityPage(self)
            self._page.start(settings.host, settings.metrics_port)
        await self.server.listen()
        await check_advertised_address(self.network, self.lifecycle.own, self.state)
        self._take_part()
        self.is_ready = True
        _log.info(
            "node_ready",
            node_id=settings.node_id,
            node_epoch=self.engine.node_epoch,
            cluster_id=self.state.cluster_id,
            host=self.advertised_host,
            port=self.advertised_port,
            topics=len(self.topics.by_name),
        )

    async def wait_failed(self) -> Exception:
        """Return what made this node unable to go on."""
        return await asyncio.shield(self._failure)

    async def close(self) -> None:
        """Stop cleanly: everything acknowledged is in objects when this returns.

        What this node leads is handed over to other nodes first, if there are any. With an object
        store that does not answer it gives up after shutdown.timeout.ms, half of it for handing
        over; what is not uploaded then is in the WAL, and is recovered at the next start.
        """
        is_first, self.is_stopping = not self.is_stopping, True
        now = asyncio.get_running_loop().time()
        timeout_s = self.settings.shutdown_timeout_ms / 1000
        if self.is_ready and is_first:
            _log.info("node_stopping", node_id=self.node_id, timeout_s=timeout_s)
            self.scope.spawn_apart(self._report_stop(), name="report the stop")
        if self.is_ready and self.failure is None:
            await self._hand_over(now + timeout_s / 2)
        self.server.stop_accepting()
        if hasattr(self, "groups"):
            self.groups.shards.close()
            self.transaction_coordinator.shards.close()
            self.inter_broker_client.close()
            self.replica_manager.stop()
        if hasattr(self, "engine"):
            try:
                async with asyncio.timeout_at(now + timeout_s):
                    await self.engine.close()
            except TimeoutError:
                _log.warning(
                    "shutdown_timed_out",
                    node_id=self.node_id,
                    not_uploaded_bytes=self.engine.cache.uncommitted,
                    recovered_from="the write-ahead log, at the next start",
                )
        await self.server.close()
        await self.scope.close()
        if self._page is not None:
            self._page.close()
        await self.store.close()
        if self.is_ready:
            _log.info("node_stopped", node_id=self.node_id)

    async def _report_stop(self) -> None:
        """Log what a stop that takes long waits for."""
        while True:
            await asyncio.sleep(STOP_REPORT_S)
            _log.warning(
                "node_stop_waits",
                node_id=self.node_id,
                not_uploaded_bytes=self.engine.cache.uncommitted,
                troubles=health(self).troubles,
            )

    async def _hand_over(self, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self.lifecycle.controlled_shutdown(self.replica_manager)
        except TimeoutError:
            _log.warning("hand_over_timed_out", node_id=self.node_id)

    async def _open_engine(self) -> None:
        settings = self.settings
        wal_uri = await locate_wal(settings.wal_uri)

        async def open_own_wal(owner: WalOwner) -> WriteAheadLog:
            self.wal = await open_wal(
                wal_uri,
                rng=self.rng,
                node_id=owner.node_id,
                cluster_id=owner.cluster_id,
                host_id=settings.host_id,
                owner=owner,
                settings=settings.block_wal,
                on_stuck=self._on_stuck,
            )
            return self.wal

        self.engine = await StreamEngine.open(
            store=self.store,
            open_wal=open_own_wal,
            node=NodeIdentity(
                node_id=settings.node_id,
                host=self.advertised_host,
                port=self.advertised_port,
                rack=settings.broker_rack or None,
                host_id=settings.host_id or host_name(),
                wal=public_address(wal_uri),
                process=HostProcesses().current().name,
                tables=tables_keeping(settings, is_lake_installed),
                accept_log_loss=settings.accepted_log_epoch,
            ),
            clock=self.clock,
            rng=self.rng,
            settings=settings.engine,
            scope=self.scope,
            admit=self._admit,
            on_registered=self._join,
        )

    async def _start_coordinators(self) -> None:
        settings, clock, scope = self.settings, self.clock, self.scope
        self.inter_broker_client = InterBrokerClient(
            settings.node_id,
            self.network,
            lambda: self.state,
            self.dispatcher.answer,
            timeout_s=2 * self.lifecycle.session_s,
        )
        self.metadata_cache = MetadataCache(lambda: self.state, self.lifecycle.unreachable)
        leaders, client = self.metadata_cache, self.inter_broker_client
        control, topics = self.replication_control, self.topics
        offsets = InternalTopic(control, topics, OFFSETS_TOPIC)
        states = InternalTopic(control, topics, TRANSACTIONS_TOPIC)
        self.transaction_coordinator = TransactionCoordinator(
            states,
            states.epoch,
            settings,
            clock,
            scope,
            self.producer_ids,
            MarkerSender(client, leaders, scope),
            self.session.ensure,
        )
        self.transactions = Transactions(
            settings.node_id, self.transaction_coordinator, states, leaders, client, scope
        )
        self.groups = GroupCoordinator(offsets, self.topics, settings, clock, self.rng, scope)
        self.replica_manager.on_deleted(self.groups.topics_deleted)
        for shards in (self.groups.shards, self.transaction_coordinator.shards):
            self.replica_manager.add_listener(shards)
        self.services = self._make_services()
        self.dispatcher.serve(self.services)
        await self.groups.start()
        await self.transaction_coordinator.start()

    def _make_services(self) -> BrokerServices:
        return BrokerServices(
            settings=self.settings,
            node_id=self.settings.node_id,
            advertised_host=self.advertised_host,
            advertised_port=self.advertised_port,
            store_uri=self.store.uri,
            clock=self.clock,
            rng=self.rng,
            scope=self.scope,
            apis=tuple(self.dispatcher.registry.apis()),
            metadata=self.engine.metadata,
            replica_manager=self.replica_manager,
            replication_control=self.replication_control,
            topics=self.topics,
            groups=self.groups,
            transaction_coordinator=self.transaction_coordinator,
            transactions=self.transactions,
            metadata_cache=self.metadata_cache,
            producer_ids=self.producer_ids,
            lifecycle=self.lifecycle,
            session=self.session,
            listeners=self.listeners,
            table_places=self.table_places,
            memory=self.memory,
            fetch_sessions=self.fetch_sessions,
            cold_reads=self.cold_reads,
            is_writable=self.is_writable,
            when_writable=self.when_writable,
            produced=self.produced,
            fetched=self.fetched,
            crashed=self.dispatcher.crashed,
            rejected=self.server.rejected,
        )

    async def _admit(self, state: ClusterState) -> None:
        """Refuse to start in another cluster, or beside a node that has this id."""
        refuse_other_cluster(state, self.settings.cluster_id, self.settings.store_uri)
        await refuse_duplicate_id(self.network, state, self.settings.node_id)

    def _join(self, metadata: MetadataLog) -> None:
        """Let the other nodes hear of this one, which does not serve yet."""
        settings = self.settings
        self.lifecycle = BrokerLifecycle(
            metadata.state.nodes[settings.node_id],
            metadata,
            self.network,
            self.clock,
            self.scope,
            interval_s=settings.broker_heartbeat_interval_ms / 1000,
            session_s=settings.broker_session_timeout_ms / 1000,
            nudge=self._read_metadata,
            load=LoadMeter(self._traffic, self.clock, time.process_time).load,
        )
        self.lifecycle.start()

    def _take_part(self) -> None:
        """Serve, and share the work of the cluster."""
        settings, metadata = self.settings, self.engine.metadata
        self.lifecycle.serve()
        left = LeftLogs(self.engine, settings.wal_uri, settings=settings.block_wal)
        self.log_recovery = LogRecovery(settings.node_id, metadata, self.scope, left.recover)
        self.log_recovery.start()
        self.scope.spawn_duty(left.give_back_all, name="give volumes back")
        self.controller = Controller(
            metadata,
            self.lifecycle,
            self.clock,
            self.scope,
            ControllerSettings(
                is_balancing=settings.auto_leader_rebalance_enable,
                balance_s=settings.leader_imbalance_check_interval_seconds,
                imbalance=settings.leader_imbalance_per_broker_percentage / 100,
            ),
        )
        self.controller.start()
        if settings.maintain and not settings.store_uri.startswith("memory:"):
            self.maintenance = MaintenanceBeside(metadata, settings, self.clock)
            self.scope.spawn_duty(self.maintenance.run, name="start maintenance")
            if settings.maintain_tables:
                self.tables = TablesBeside(metadata, settings, self.clock, is_lake_installed)
                self.scope.spawn_duty(self.tables.run, name="keep declared tables")

    def _read_metadata(self, next_entry: int) -> None:
        """Read the log now: another node says that it goes up to there."""
        if hasattr(self, "engine"):
            self.engine.follower.nudge(next_entry)

    def _traffic(self) -> Iterator[Traffic]:
        if hasattr(self, "replica_manager"):
            for partition in self.replica_manager.led():
                yield Traffic(partition.stream.stream_id, partition.bytes_in, partition.bytes_out)

    async def _watch_engine(self) -> None:
        self._fail(await self.engine.wait_failed())

    async def _expire_producers(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_S)
            before_ms = self.clock.now_ms() - self.configs().number("producer.id.expiration.ms")
            for partition in list(self.replica_manager.led()):
                await partition.expire_producers(before_ms)

    def _now_writable(self) -> None:
        waiters, self._writable_waiters = self._writable_waiters, {}
        for waiter in waiters:
            waiter()

    def _crashed(self, name: str, error: BaseException) -> None:
        _log.error("task_crashed", task=name, exc_info=error)
        self._fail(error if isinstance(error, Exception) else NodeFailed(f"{name}: {error!r}"))

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_result(error)


async def start_node(
    settings: Settings,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    on_stuck: OnStuck | None = None,
) -> Node:
    """Return a node that takes requests. Raises SettingsError and the errors of storage.

    `on_stuck` is called when the device of its log does not answer: the process may not be able to
    end in order then.
    """
    rng = rng or random.SystemRandom()  # it draws the secret of nodes, too
    store = open_store(settings.store_uri)
    node = Node(settings, clock or SystemClock(), rng, store, on_stuck)
    try:
        await check_store(store, rng=rng)
        await node.start()
    except BaseException:
        await node.close()
        raise
    return node
