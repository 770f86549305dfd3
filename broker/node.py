"""A broker node: its parts, put together, started and stopped in order.

`start_node` builds: bind the listeners, so that the port is known and reserved; open the store, the
write-ahead log and the engine, which recovers what a crash left; make everything that needs them.
Then `Node.start` opens partitions, loads coordinators and accepts connections. `Node.close` stops:
hand leaderships over, accept no more connections, end delayed requests, upload everything, close.
When the engine fails (it is fenced, or its log is broken), the node acknowledges nothing more and
ends with an error.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

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
from lakehead.broker.coordinator.transaction.add_partitions_manager import AddPartitionsToTxnManager
from lakehead.broker.coordinator.transaction.coordinator import TransactionCoordinator
from lakehead.broker.coordinator.transaction.markers import MarkerSender
from lakehead.broker.maintenance.beside import MaintenanceBeside
from lakehead.broker.maintenance.tables_beside import (
    TablesBeside,
    is_lake_installed,
    tables_keeping,
)
from lakehead.broker.network.dispatcher import Dispatcher
from lakehead.broker.network.listeners import MAIN, Listeners
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.network.server import Server, bind_sockets
from lakehead.broker.observability.health import health
from lakehead.broker.observability.page import ObservabilityPage
from lakehead.broker.partition.cold_reads import ColdReads
from lakehead.broker.partition.fetch_session import FetchSessions
from lakehead.broker.partition.partition import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicRegistry
from lakehead.broker.producer_ids import ProducerIds
from lakehead.broker.services import BrokerServices, RequestCounts
from lakehead.broker.settings import Settings
from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import ObjectStore, check_store, open_store
from lakehead.storage.object_store.counted import CountedStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity
from lakehead.storage.stream.unrecovered_wals import UnrecoveredWals
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import WalOwner, WriteAheadLog, open_wal
from lakehead.storage.wal.address import locate_wal, public_address
from lakehead.storage.wal.deadline import OnStuck
from lakehead.storage.wal.holder import HostProcesses, host_name

EXPIRY_S = 600.0
STOP_REPORT_S = 5.0
"""Interval of the reports of a stop that takes longer."""
_log = structlog.get_logger("broker.node")


class NodeFailed(LakeheadError):
    """The node can acknowledge nothing more and has stopped. The message says why."""


class _Failure:
    """The first error after which the node cannot go on."""

    def __init__(self) -> None:
        self._future: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    @property
    def error(self) -> Exception | None:
        """The error; None while the node can go on."""
        return self._future.result() if self._future.done() else None

    def report(self, error: Exception) -> None:
        """Record an error, unless there is one already."""
        if not self._future.done():
            self._future.set_result(error)

    def crashed(self, name: str, error: BaseException) -> None:
        """Record the unexpected error of a task."""
        _log.error("task_crashed", task=name, exc_info=error)
        self.report(error if isinstance(error, Exception) else NodeFailed(f"{name}: {error!r}"))

    async def wait(self) -> Exception:
        """Return the error, once there is one."""
        return await asyncio.shield(self._future)


class Backpressure:
    """Produce requests that wait until the engine accepts batches again."""

    def __init__(self, engine: StreamEngine) -> None:
        self._engine = engine
        self._callbacks: dict[Callable[[], None], None] = {}
        engine.on_writable.append(self.resume)

    def is_writable(self) -> bool:
        """Return true if batches of producers can be accepted now."""
        return self._engine.writable()

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the engine is writable again."""
        self._callbacks[callback] = None

    def resume(self) -> None:
        """Call the callbacks that wait."""
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks:
            callback()


@dataclass(kw_only=True, eq=False)
class Node:
    """One broker, made by `start_node`. Everything runs on one event loop."""

    settings: Settings
    clock: Clock
    rng: random.Random
    scope: TaskScope
    store: CountedStore
    network: PeerNetwork
    wal: WriteAheadLog
    engine: StreamEngine
    lifecycle: BrokerLifecycle
    topics: TopicRegistry
    replica_manager: ReplicaManager
    replication_control: ReplicationControl
    metadata_cache: MetadataCache
    inter_broker_client: InterBrokerClient
    groups: GroupCoordinator
    transaction_coordinator: TransactionCoordinator
    transactions: AddPartitionsToTxnManager
    services: BrokerServices
    dispatcher: Dispatcher
    server: Server
    memory: RequestMemory
    listeners: Listeners
    fetch_sessions: FetchSessions
    cold_reads: ColdReads
    counts: RequestCounts
    backpressure: Backpressure
    unrecovered_wals: UnrecoveredWals
    log_recovery: LogRecovery
    controller: Controller
    maintenance: MaintenanceBeside | None
    """Starts maintenance, if this node does that."""
    tables: TablesBeside | None
    """Runs the process that refreshes declared tables, if this node does that."""
    stop_reason: _Failure
    is_ready: bool = field(default=False, init=False)
    """True if this node serves."""
    is_stopping: bool = field(default=False, init=False)
    """True if this node has begun to stop."""
    page: ObservabilityPage = field(init=False)

    def __post_init__(self) -> None:
        self.page = ObservabilityPage(self)

    @property
    def state(self) -> MetadataImage:
        """The newest known metadata image."""
        return self.engine.metadata.state

    def configs(self) -> BrokerValues:
        """Return the present configs of this broker."""
        return broker_values(self.state, self.settings)

    @property
    def node_id(self) -> int:
        """The id of this broker."""
        return self.settings.node_id

    @property
    def advertised_host(self) -> str:
        """The host by which clients and other nodes reach this broker."""
        return self.services.advertised_host

    @property
    def advertised_port(self) -> int:
        """The port by which clients and other nodes reach this broker."""
        return self.services.advertised_port

    @property
    def failure(self) -> Exception | None:
        """The reason that this node cannot go on; None while it can."""
        return self.stop_reason.error

    @property
    def session(self) -> Session:
        """Says whether this node may serve reads as a leader."""
        return self.lifecycle.session

    def is_writable(self) -> bool:
        """Return true if batches of producers can be accepted now."""
        return self.backpressure.is_writable()

    async def start(self) -> None:
        """Lead the assigned partitions, load coordinators, accept connections, join the
        controllers.

        Raises SettingsError for a metrics port that is taken, and the errors of storage.
        """
        settings = self.settings
        self.scope.spawn(self._watch_engine(), name="watch the engine")
        await self.replica_manager.start()
        await self.groups.start()
        await self.transaction_coordinator.start()
        self.scope.spawn_duty(self._expire_producers, name="expire producers")
        if settings.metrics_port >= 0:
            self.page.start(settings.host, settings.metrics_port)
        await self.server.listen()
        await check_advertised_address(self.network, self.lifecycle.own, self.state)
        self.lifecycle.serve()
        self.log_recovery.start()
        self.scope.spawn_duty(self.unrecovered_wals.give_back_all, name="give volumes back")
        self.controller.start()
        if self.maintenance is not None:
            self.scope.spawn_duty(self.maintenance.run, name="start maintenance")
        if self.tables is not None:
            self.scope.spawn_duty(self.tables.run, name="keep declared tables")
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
        """Return the error that made this node unable to go on, once there is one."""
        return await self.stop_reason.wait()

    async def close(self) -> None:
        """Stop cleanly: all that was acknowledged is in objects when this returns.

        The node first hands its leaderships over to other nodes, if there are any. It gives up
        after shutdown.timeout.ms, half of it for handing over, if the object store does not
        respond. Records that are not uploaded then are in the write-ahead log, and the next start
        recovers it.
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
        self.groups.shards.close()
        self.transaction_coordinator.shards.close()
        self.inter_broker_client.close()
        self.replica_manager.stop()
        await _close_engine(self.engine, now + timeout_s)
        await self.server.close()
        await self.scope.close()
        self.page.close()
        await self.store.close()
        if self.is_ready:
            _log.info("node_stopped", node_id=self.node_id)

    async def _report_stop(self) -> None:
        """Log the reasons of a stop that takes long."""
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
            _log.warning("controlled_shutdown_timed_out", node_id=self.node_id)

    async def _watch_engine(self) -> None:
        self.stop_reason.report(await self.engine.wait_failed())

    async def _expire_producers(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_S)
            before_ms = self.clock.now_ms() - self.configs().number("producer.id.expiration.ms")
            for partition in list(self.topics.led()):
                await partition.expire_producers(before_ms)


async def start_node(
    settings: Settings,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    store: ObjectStore | None = None,
    on_stuck: OnStuck | None = None,
) -> Node:
    """Return a node that serves. Raises SettingsError and the errors of storage.

    `store` is used in place of the one that the settings name. `on_stuck` is called when the device
    of the node's log does not respond: the process may not be able to end in order then.
    """
    rng = rng or random.SystemRandom()  # it draws the secret of nodes, too
    store = store or open_store(settings.store_uri)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(store.close)
        node = await _build(settings, clock or SystemClock(), rng, store, on_stuck, opened)
        opened.pop_all()
    try:
        await node.start()
    except BaseException:
        await node.close()
        raise
    return node


async def _build(
    settings: Settings,
    clock: Clock,
    rng: random.Random,
    object_store: ObjectStore,
    on_stuck: OnStuck | None,
    opened: AsyncExitStack,
) -> Node:
    """Return a node that is not started; `opened` closes what was opened if this fails."""
    failure = _Failure()
    scope = TaskScope(failure.crashed)
    store = CountedStore(object_store, clock=clock)
    network = TcpNetwork()
    listeners = Listeners(settings)
    table_places = TablePlaces(settings)
    await check_store(object_store, rng=rng)
    advertised_host = settings.advertised_host or settings.host
    refuse_meta_address(advertised_host)
    sockets = bind_sockets(settings, listeners)
    for bound in sockets.values():
        opened.callback(bound.close)
    advertised_port = settings.advertised_port or sockets[MAIN].getsockname()[1]

    topics = TopicRegistry()
    opened.push_async_callback(scope.close)
    engine, wal, lifecycle = await _open_engine(
        settings,
        clock,
        rng,
        store,
        scope,
        network,
        (advertised_host, advertised_port),
        LoadMeter(partial(_traffic, topics), clock, time.process_time),
        on_stuck,
    )
    opened.push_async_callback(engine.close)
    metadata = engine.metadata
    replicas = ReplicaManager(topics, engine, settings, clock, rng, scope)
    control = ReplicationControl(metadata, replicas, settings, rng, lifecycle.ready)
    cache = MetadataCache(lambda: metadata.state, lifecycle.unreachable)
    producer_ids = ProducerIds(metadata, settings.node_id)

    dispatcher = Dispatcher(api.registry())
    client = InterBrokerClient(
        settings.node_id,
        network,
        lambda: metadata.state,
        dispatcher.answer,
        timeout_s=2 * lifecycle.session_s,
    )
    states = InternalTopic(control, topics, TRANSACTIONS_TOPIC)
    transaction_coordinator = TransactionCoordinator(
        states,
        states.epoch,
        settings,
        clock,
        scope,
        producer_ids,
        MarkerSender(client, cache, scope),
        lifecycle.session.ensure,
    )
    transactions = AddPartitionsToTxnManager(
        settings.node_id, transaction_coordinator, states, cache, client, scope
    )
    offsets = InternalTopic(control, topics, OFFSETS_TOPIC)
    groups = GroupCoordinator(offsets, topics, settings, clock, rng, scope)
    replicas.on_deleted(groups.topics_deleted)
    replicas.add_listener(groups.shards)
    replicas.add_listener(transaction_coordinator.shards)

    memory = RequestMemory(settings.request_memory_size)
    server = Server(
        settings,
        clock,
        dispatcher,
        lambda: broker_values(metadata.state, settings),
        memory,
        sockets,
    )
    fetch_sessions = FetchSessions(settings.max_incremental_fetch_session_cache_slots, clock, rng)
    cold_reads = ColdReads(scope)
    counts, backpressure = RequestCounts(), Backpressure(engine)
    services = BrokerServices(
        settings=settings,
        node_id=settings.node_id,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        store_uri=store.uri,
        clock=clock,
        rng=rng,
        scope=scope,
        apis=tuple(dispatcher.registry.apis()),
        metadata=metadata,
        replica_manager=replicas,
        replication_control=control,
        topics=topics,
        groups=groups,
        transaction_coordinator=transaction_coordinator,
        transactions=transactions,
        metadata_cache=cache,
        producer_ids=producer_ids,
        lifecycle=lifecycle,
        session=lifecycle.session,
        listeners=listeners,
        table_places=table_places,
        memory=memory,
        fetch_sessions=fetch_sessions,
        cold_reads=cold_reads,
        is_writable=backpressure.is_writable,
        when_writable=backpressure.when_writable,
        produced=counts.produced,
        fetched=counts.fetched,
        crashed=dispatcher.crashed,
        rejected=server.rejected,
    )
    dispatcher.serve(services)

    unrecovered_wals = UnrecoveredWals(engine, settings.wal_uri, settings=settings.block_wal)
    controller_settings = ControllerSettings(
        is_balancing=settings.auto_leader_rebalance_enable,
        balance_s=settings.leader_imbalance_check_interval_seconds,
        imbalance=settings.leader_imbalance_per_broker_percentage / 100,
    )
    is_maintaining = settings.maintain and not settings.store_uri.startswith("memory:")
    has_tables = is_maintaining and settings.maintain_tables
    return Node(
        settings=settings,
        clock=clock,
        rng=rng,
        scope=scope,
        store=store,
        network=network,
        wal=wal,
        engine=engine,
        lifecycle=lifecycle,
        topics=topics,
        replica_manager=replicas,
        replication_control=control,
        metadata_cache=cache,
        inter_broker_client=client,
        groups=groups,
        transaction_coordinator=transaction_coordinator,
        transactions=transactions,
        services=services,
        dispatcher=dispatcher,
        server=server,
        memory=memory,
        listeners=listeners,
        fetch_sessions=fetch_sessions,
        cold_reads=cold_reads,
        counts=counts,
        backpressure=backpressure,
        unrecovered_wals=unrecovered_wals,
        log_recovery=LogRecovery(settings.node_id, metadata, scope, unrecovered_wals.recover),
        controller=Controller(metadata, lifecycle, clock, scope, controller_settings),
        maintenance=MaintenanceBeside(metadata, settings, clock) if is_maintaining else None,
        tables=TablesBeside(metadata, settings, clock, is_lake_installed) if has_tables else None,
        stop_reason=failure,
    )


async def _open_engine(
    settings: Settings,
    clock: Clock,
    rng: random.Random,
    store: ObjectStore,
    scope: TaskScope,
    network: PeerNetwork,
    advertised: tuple[str, int],
    load: LoadMeter,
    on_stuck: OnStuck | None,
) -> tuple[StreamEngine, WriteAheadLog, BrokerLifecycle]:
    """Open the log, register the node and recover; other nodes hear of it as soon as it is
    registered.
    """
    wal_uri = await locate_wal(settings.wal_uri)
    wal: WriteAheadLog | None = None
    lifecycle: BrokerLifecycle | None = None

    async def open_own_wal(owner: WalOwner) -> WriteAheadLog:
        nonlocal wal
        wal = await open_wal(
            wal_uri,
            rng=rng,
            node_id=owner.node_id,
            cluster_id=owner.cluster_id,
            host_id=settings.host_id,
            owner=owner,
            settings=settings.block_wal,
            on_stuck=on_stuck,
        )
        return wal

    async def admit(state: MetadataImage) -> None:
        refuse_other_cluster(state, settings.cluster_id, settings.store_uri)
        await refuse_duplicate_id(network, state, settings.node_id)

    def join(metadata: MetadataLog) -> None:
        nonlocal lifecycle
        lifecycle = BrokerLifecycle(
            metadata.state.nodes[settings.node_id],
            metadata,
            network,
            clock,
            scope,
            interval_s=settings.broker_heartbeat_interval_ms / 1000,
            session_s=settings.broker_session_timeout_ms / 1000,
            load=load.load,
        )
        lifecycle.start()

    host, port = advertised
    engine = await StreamEngine.open(
        store=store,
        open_wal=open_own_wal,
        node=NodeIdentity(
            node_id=settings.node_id,
            host=host,
            port=port,
            rack=settings.broker_rack or None,
            host_id=settings.host_id or host_name(),
            wal=public_address(wal_uri),
            process=HostProcesses().current().name,
            tables=tables_keeping(settings, is_lake_installed),
            accept_log_loss=settings.accepted_log_epoch,
        ),
        clock=clock,
        rng=rng,
        settings=settings.engine,
        scope=scope,
        admit=admit,
        on_registered=join,
    )
    assert wal is not None, "an engine that is open has opened its log"
    assert lifecycle is not None, "and has registered"
    lifecycle.recovered(engine.follower.nudge)
    return engine, wal, lifecycle


async def _close_engine(engine: StreamEngine, until: float) -> None:
    """Upload everything and close; give up at `until`, a time of the event loop."""
    try:
        async with asyncio.timeout_at(until):
            await engine.close()
    except TimeoutError:
        _log.warning(
            "shutdown_timed_out",
            node_id=engine.node.node_id,
            not_uploaded_bytes=engine.cache.uncommitted,
            recovered_from="the write-ahead log, at the next start",
        )


def _traffic(topics: TopicRegistry) -> Iterator[Traffic]:
    for partition in topics.led():
        yield Traffic(partition.stream.stream_id, partition.bytes_in, partition.bytes_out)
