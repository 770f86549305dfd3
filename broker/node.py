"""A broker node: its parts, put together, started and stopped in order.

`start_node` builds: bind the listeners, so that the port is known and reserved; open the store, the
write-ahead log and the engine, which recovers what a crash left; make everything that needs them.
Then `Node.start` opens partitions, loads coordinators and accepts connections. `Node.close` stops:
hand leaderships over, accept no more connections, end delayed requests, upload everything, close.
When the engine fails (it is fenced, or its log is broken), the node acknowledges nothing more and
ends with an error.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from lakehead.broker import api
from lakehead.broker.cluster.broker_lifecycle import (
    BrokerLifecycle,
    Session,
    check_advertised_address,
    refuse_duplicate_id,
    refuse_early_encryption,
    refuse_other_cluster,
)
from lakehead.broker.cluster.controller import Controller, ControllerSettings
from lakehead.broker.cluster.inter_broker_client import (
    RESPONSE_MAX,
    InterBrokerClient,
    PeerNetwork,
    TcpNetwork,
)
from lakehead.broker.cluster.listener_network import ListenerNetwork
from lakehead.broker.cluster.load_meter import LoadMeter, Traffic
from lakehead.broker.cluster.log_recovery import LogRecovery
from lakehead.broker.cluster.metadata_image import MetadataCache
from lakehead.broker.cluster.node_producer import NodeProducer
from lakehead.broker.cluster.read_replicas import ReadReplicas, TailSource
from lakehead.broker.cluster.replica_manager import ReplicaManager
from lakehead.broker.cluster.replica_selector import ReplicaSelector
from lakehead.broker.cluster.replication_control import InternalTopic, ReplicationControl
from lakehead.broker.cluster.sasl_network import SaslNetwork
from lakehead.broker.cluster.standby_partitions import StandbyPartitions
from lakehead.broker.configs.entries import BrokerValues, broker_values
from lakehead.broker.configs.table_places import TablePlaces
from lakehead.broker.coordinator.group.coordinator import GroupCoordinator
from lakehead.broker.coordinator.share.coordinator import ShareCoordinator
from lakehead.broker.coordinator.transaction.add_partitions_manager import AddPartitionsToTxnManager
from lakehead.broker.coordinator.transaction.coordinator import TransactionCoordinator
from lakehead.broker.coordinator.transaction.markers import MarkerSender
from lakehead.broker.maintenance.beside import MaintenanceBeside
from lakehead.broker.maintenance.tables_beside import (
    TablesBeside,
    is_lake_installed,
    tables_keeping,
)
from lakehead.broker.network.authentication import Authenticator
from lakehead.broker.network.dispatcher import Dispatcher
from lakehead.broker.network.listeners import Listeners
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.network.sasl_listeners import sasl_listener, sasl_settings
from lakehead.broker.network.server import Server, bind_sockets
from lakehead.broker.network.tls_contexts import TlsContexts
from lakehead.broker.observability.health import health
from lakehead.broker.observability.page_access import PageAccess
from lakehead.broker.partition.cold_reads import ColdReads
from lakehead.broker.partition.fetch_session import FetchSessions
from lakehead.broker.partition.partition import (
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    TRANSACTIONS_TOPIC,
    TopicRegistry,
)
from lakehead.broker.producer_ids import ProducerIds
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.broker.quota.accept_rates import AcceptRates
from lakehead.broker.quota.client_quotas import ClientQuotas
from lakehead.broker.quota.connection_rates import ConnectionRates
from lakehead.broker.quota.rates import QuotaWindow
from lakehead.broker.quota.throttles import Throttles
from lakehead.broker.security.audit import AuditLog
from lakehead.broker.security.audit_topic import AuditTopic
from lakehead.broker.security.authorizer import AllowAll, Authorizer
from lakehead.broker.security.bootstrap_admin import admin_records, check_admin
from lakehead.broker.security.delegation_tokens import DelegationTokens, remove_expired
from lakehead.broker.security.sasl.credentials import ScramCredentials
from lakehead.broker.security.sasl.listener_settings import SaslListenerSettings
from lakehead.broker.security.standard_authorizer import (
    CLASS_NAME,
    StandardAuthorizer,
    super_users,
)
from lakehead.broker.services import BrokerServices, RequestCounts
from lakehead.broker.settings import RACK_AWARE, Settings
from lakehead.broker.share.dead_letter_writer import DeadLetterWriter
from lakehead.broker.share.partition_ends import PartitionEnds
from lakehead.broker.share.persister import Persister
from lakehead.broker.share.share_counts import ShareCounts
from lakehead.broker.share.share_partition_manager import SharePartitionManager
from lakehead.broker.share.share_settings import ShareSettings
from lakehead.broker.telemetry.client_telemetry import ClientTelemetry
from lakehead.broker.telemetry.otlp_forwarder import OtlpForwarder
from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.encryption.data_keys import DataKeys
from lakehead.storage.errors import LakeheadError, ReadOnlyCluster, SettingsError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import Record
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import ObjectStore, check_store, open_store
from lakehead.storage.object_store.counted import CountedStore
from lakehead.storage.object_store.encrypted import EncryptedStore, encrypted
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.read_replica import ReadReplicaServices, TailCache
from lakehead.storage.stream.settings import NodeIdentity
from lakehead.storage.stream.standby_engine import StandbyEngine
from lakehead.storage.stream.unrecovered_wals import UnrecoveredWals
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import WalOwner, WriteAheadLog, open_wal
from lakehead.storage.wal.address import locate_wal, public_address
from lakehead.storage.wal.deadline import OnStuck
from lakehead.storage.wal.holder import HostProcesses, host_name

if TYPE_CHECKING:
    from lakehead.broker.observability.page import ObservabilityPage
    from lakehead.broker.telemetry.request_traces import RequestTraces

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
    data_keys: DataKeys
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
    share_coordinator: ShareCoordinator
    share_partitions: SharePartitionManager
    transaction_coordinator: TransactionCoordinator
    transactions: AddPartitionsToTxnManager
    services: BrokerServices
    dispatcher: Dispatcher
    authenticator: Authenticator
    server: Server
    memory: RequestMemory
    quotas: ClientQuotas
    connection_rates: ConnectionRates
    listeners: Listeners
    fetch_sessions: FetchSessions
    cold_reads: ColdReads
    counts: RequestCounts
    backpressure: Backpressure
    audit_topic: AuditTopic | None
    """Writes audit events to a topic, if this node does that."""
    unrecovered_wals: UnrecoveredWals
    log_recovery: LogRecovery
    controller: Controller
    maintenance: MaintenanceBeside | None
    """Starts maintenance, if this node does that."""
    tables: TablesBeside | None
    """Runs the process that refreshes declared tables, if this node does that."""
    stop_reason: _Failure
    standby: StandbyPartitions | None
    """Moves the partitions on, if this node is a standby."""
    is_ready: bool = field(default=False, init=False)
    """True if this node serves."""
    is_stopping: bool = field(default=False, init=False)
    """True if this node has begun to stop."""
    page: "ObservabilityPage | None" = field(default=None, init=False)
    """The page of metrics, if this node serves one."""
    page_access: PageAccess = field(init=False)

    def __post_init__(self) -> None:
        self.page_access = PageAccess(self.settings)

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
        """The host by which clients of the first listener reach this broker."""
        return self.services.addresses[self.listeners.first.name].host

    @property
    def advertised_port(self) -> int:
        """The port by which clients of the first listener reach this broker."""
        return self.services.addresses[self.listeners.first.name].port

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
        if self.standby is None:
            self.share_coordinator.start()
            await self.transaction_coordinator.start()
        else:
            self.scope.spawn_loop(self.standby.run, name="move partitions on")
        self.scope.spawn_loop(self._expire_producers, name="expire producers")
        self.scope.spawn_loop(self.services.read_replicas.run, name="close idle read replicas")
        self.scope.spawn_loop(self.authenticator.run, name="keep validators of tokens")
        if self.services.delegation_tokens.is_enabled and self.standby is None:
            self.scope.spawn_loop(self._expire_tokens, name="remove expired delegation tokens")
        if settings.metrics_port >= 0:
            self._start_page(settings.metrics_port)
        await self.server.listen()
        await check_advertised_address(self.network, self.lifecycle.own, self.state)
        self.lifecycle.serve()
        if self.standby is None:
            self.log_recovery.start()
            self.scope.spawn_loop(self.unrecovered_wals.give_back_all, name="give volumes back")
            self.controller.start()
        if self.audit_topic is not None:
            self.scope.spawn_loop(self.audit_topic.run, name="write audit events")
        if (forwarder := self.services.telemetry.forwarder) is not None:
            self.scope.spawn_loop(forwarder.run, name="forward metrics of clients")
        self.dispatcher.traces = traces = _request_traces(self)
        if traces is not None:
            self.scope.spawn_loop(traces.run, name="trace requests")
            self.scope.spawn_loop(traces.forwarder.run, name="send traces")
        if self.maintenance is not None:
            self.scope.spawn_loop(self.maintenance.run, name="start maintenance")
        if self.tables is not None:
            self.scope.spawn_loop(self.tables.run, name="keep declared tables")
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

    def _start_page(self, port: int) -> None:
        from lakehead.broker.observability.page import ObservabilityPage

        self.page = ObservabilityPage(self, self.page_access)
        self.page.start(port)

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
        self.share_coordinator.shards.close()
        self.share_partitions.close()
        self.transaction_coordinator.shards.close()
        self.services.read_replicas.close()
        self.inter_broker_client.close()
        self.replica_manager.stop()
        await _close_engine(self.engine, now + timeout_s)
        await self.server.close()
        await self.scope.close()
        if self.page is not None:
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
                troubles="; ".join(health(self).troubles),
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
                with contextlib.suppress(ReadOnlyCluster):
                    await partition.expire_producers(before_ms)
            for _ in self.services.read_replicas.expire_producers(before_ms):
                await asyncio.sleep(0)

    async def _expire_tokens(self) -> None:
        interval_s = self.settings.delegation_token_expiry_check_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            if self.state.controller.node_id == self.node_id:
                await remove_expired(self.engine.metadata, self.clock.now_ms())


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


def _quota_windows(settings: Settings) -> tuple[QuotaWindow, QuotaWindow]:
    """Return the windows of quotas, and of the controller mutation quota."""
    return (
        QuotaWindow(settings.quota_window_num, float(settings.quota_window_size_seconds)),
        QuotaWindow(
            settings.controller_quota_window_num,
            float(settings.controller_quota_window_size_seconds),
        ),
    )


def _configs(metadata: MetadataLog, settings: Settings) -> BrokerValues:
    """Return the present configs of this broker."""
    return broker_values(metadata.state, settings)


def _load_meter(topics: TopicRegistry, clock: Clock, store: CountedStore) -> LoadMeter:
    """Return the meter of this process."""
    traffic = partial(_traffic, topics)
    return LoadMeter(traffic, topics.traffic, clock, time.process_time, store.stats.cost)


async def _build(
    settings: Settings,
    clock: Clock,
    rng: random.Random,
    object_store: ObjectStore,
    on_stuck: OnStuck | None,
    opened: AsyncExitStack,
) -> Node:
    """Return a node that is not started; `opened` closes what was opened if this fails."""
    # It loads the code of the APIs, for hundreds of milliseconds: a registered node would miss its
    # heartbeats on a slow machine.
    dispatcher = Dispatcher(api.registry())
    failure = _Failure()
    scope = TaskScope(failure.crashed)
    store = CountedStore(object_store, clock=clock)
    encrypting = await _encrypting(store, settings, clock, rng)
    listeners = Listeners(settings)
    sasl = sasl_settings(settings, listeners.all.values())
    tls = TlsContexts(listeners.all.values(), settings)
    network = _peer_network(settings, listeners, tls, rng)
    table_places = TablePlaces(settings)
    if not settings.standby:
        await check_store(object_store, rng=rng)
    sockets = bind_sockets(settings, listeners)
    for bound in sockets.values():
        opened.callback(bound.close)
    ports = {name: bound.getsockname()[1] for name, bound in sockets.items()}
    addresses = listeners.own_addresses(ports, settings.broker_rack or None)

    topics = TopicRegistry()
    opened.push_async_callback(scope.close)
    open_engine = _open_standby if settings.standby else _open_engine
    engine, wal, lifecycle = await open_engine(
        *(settings, clock, rng, encrypting, scope, network),
        addresses[listeners.inter_broker.name],
        listeners.endpoints(addresses),
        admin_records(settings, rng),
        _load_meter(topics, clock, store),
        on_stuck,
    )
    opened.push_async_callback(engine.close)
    metadata = engine.metadata
    check_admin(settings, metadata.state)
    replicas = ReplicaManager(topics, engine, settings, clock, rng, scope)
    control = ReplicationControl(metadata, replicas, settings, rng, lifecycle.ready)
    cache = MetadataCache(lambda: metadata.state, lifecycle.unreachable)
    producer_ids = ProducerIds(metadata, settings.node_id)

    delegation_tokens = _delegation_tokens(settings)
    audit = AuditLog(clock, logs_allowed=settings.audit_log_allowed)
    authenticator = _authenticator(
        *(settings, listeners, sasl, delegation_tokens, dispatcher, metadata),
        *(clock, rng, scope, audit),
    )
    client = _inter_broker_client(settings, network, metadata, dispatcher, lifecycle)
    configs = partial(_configs, metadata, settings)
    transaction_coordinator, transactions = _transactions(
        control, topics, cache, client, producer_ids, lifecycle.session, settings, clock, scope
    )
    memory = RequestMemory(settings.request_memory_size)
    producer = NodeProducer(client, cache, clock, node_id=settings.node_id)
    share_coordinator, share_partitions, share_states = _share_groups(
        *(control, topics, replicas, cache, client, metadata, lifecycle, memory, producer),
        *(settings, clock, scope),
    )
    offsets = InternalTopic(control, topics, OFFSETS_TOPIC)
    groups = GroupCoordinator(
        offsets, topics, settings, clock, rng, scope, lambda: metadata.state, share_states
    )
    replicas.on_deleted(groups.topics_deleted)
    replicas.add_listener(groups.shards)
    if not settings.standby:  # it would end transactions, which the copied cluster does
        replicas.add_listener(transaction_coordinator.shards)

    window, mutations = _quota_windows(settings)
    throttles = Throttles()
    quotas = ClientQuotas(lambda: metadata.state.quotas, clock, window, mutations, throttles)
    connection_rates = ConnectionRates(lambda: metadata.state.quotas, clock, window, throttles)
    server = Server(
        settings,
        clock,
        dispatcher,
        configs,
        memory,
        listeners.all,
        sockets,
        AcceptRates(configs, clock, window, throttles),
        connection_rates,
        tls,
        authenticator.watch,
        scope,
    )
    selector, read_replicas = _read_replicas(
        settings, engine, encrypting, lifecycle, client, clock, scope
    )
    fetch_sessions = FetchSessions(settings.max_incremental_fetch_session_cache_slots, clock, rng)
    cold_reads = ColdReads(scope)
    counts, backpressure = RequestCounts(), Backpressure(engine)
    audit_topic = _audit_topic(settings, audit, control, cache, producer, clock, backpressure)
    services = BrokerServices(
        settings=settings,
        node_id=settings.node_id,
        addresses=addresses,
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
        share_coordinator=share_coordinator,
        share_partitions=share_partitions,
        share_states=share_states,
        partition_ends=PartitionEnds(client, cache),
        transaction_coordinator=transaction_coordinator,
        transactions=transactions,
        metadata_cache=cache,
        producer_ids=producer_ids,
        lifecycle=lifecycle,
        session=lifecycle.session,
        listeners=listeners,
        table_places=table_places,
        authorizer=_authorizer(settings, metadata),
        audit=audit,
        delegation_tokens=delegation_tokens,
        quotas=quotas,
        memory=memory,
        fetch_sessions=fetch_sessions,
        cold_reads=cold_reads,
        telemetry=_client_telemetry(settings, metadata, clock, rng),
        is_writable=backpressure.is_writable,
        when_writable=backpressure.when_writable,
        counts=counts,
        read_replicas=read_replicas,
        replica_selector=selector,
        crashed=dispatcher.crashed,
        rejected=server.rejected,
    )
    dispatcher.serve(services)

    unrecovered_wals = UnrecoveredWals(
        engine, settings.wal_uri, settings=settings.block_wal, data_keys=encrypting.keys
    )
    maintenance, tables = _maintenance(metadata, settings, clock)
    return Node(
        settings=settings,
        clock=clock,
        rng=rng,
        scope=scope,
        store=store,
        data_keys=encrypting.keys,
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
        share_coordinator=share_coordinator,
        share_partitions=share_partitions,
        transaction_coordinator=transaction_coordinator,
        transactions=transactions,
        services=services,
        dispatcher=dispatcher,
        authenticator=authenticator,
        server=server,
        memory=memory,
        quotas=quotas,
        connection_rates=connection_rates,
        listeners=listeners,
        fetch_sessions=fetch_sessions,
        cold_reads=cold_reads,
        counts=counts,
        backpressure=backpressure,
        audit_topic=audit_topic,
        unrecovered_wals=unrecovered_wals,
        log_recovery=LogRecovery(settings.node_id, metadata, scope, unrecovered_wals.recover),
        controller=Controller(metadata, lifecycle, clock, scope, _controller_settings(settings)),
        maintenance=maintenance,
        tables=tables,
        stop_reason=failure,
        standby=_standby_partitions(settings, topics, metadata, clock, groups),
    )


def _standby_partitions(
    settings: Settings,
    topics: TopicRegistry,
    metadata: MetadataLog,
    clock: Clock,
    groups: GroupCoordinator,
) -> StandbyPartitions | None:
    if not settings.standby:
        return None
    return StandbyPartitions(topics, metadata, clock, groups.shards.on_advance)


def _transactions(
    control: ReplicationControl,
    topics: TopicRegistry,
    cache: MetadataCache,
    client: InterBrokerClient,
    producer_ids: ProducerIds,
    session: Session,
    settings: Settings,
    clock: Clock,
    scope: TaskScope,
) -> tuple[TransactionCoordinator, AddPartitionsToTxnManager]:
    states = InternalTopic(control, topics, TRANSACTIONS_TOPIC)
    coordinator = TransactionCoordinator(
        states,
        states.epoch,
        settings,
        clock,
        scope,
        producer_ids,
        MarkerSender(client, cache, scope),
        session.ensure,
    )
    manager = AddPartitionsToTxnManager(settings.node_id, coordinator, states, cache, client, scope)
    return coordinator, manager


def _share_groups(
    control: ReplicationControl,
    topics: TopicRegistry,
    replicas: ReplicaManager,
    cache: MetadataCache,
    client: InterBrokerClient,
    metadata: MetadataLog,
    lifecycle: BrokerLifecycle,
    memory: RequestMemory,
    producer: NodeProducer,
    settings: Settings,
    clock: Clock,
    scope: TaskScope,
) -> tuple[ShareCoordinator, SharePartitionManager, Persister]:
    states = InternalTopic(control, topics, SHARE_STATES_TOPIC)
    coordinator = ShareCoordinator(states, topics, settings, clock, scope, lifecycle.session.ensure)
    replicas.on_deleted(coordinator.topics_deleted)
    replicas.add_listener(coordinator.shards)
    timeout_s = settings.share_coordinator_write_timeout_ms / 1000
    persister = Persister(client, states, cache, scope, timeout_s=timeout_s)
    share_settings, counts = ShareSettings(settings, lambda: metadata.state), ShareCounts()
    dead_letters = DeadLetterWriter(
        *(producer, control, topics, memory, share_settings, lambda: metadata.state),
        *(partial(_configs, metadata, settings), clock, counts),
    )
    manager = SharePartitionManager(
        topics, persister, dead_letters, share_settings, counts, settings, clock, scope
    )
    replicas.add_listener(manager)
    return coordinator, manager, persister


def _controller_settings(settings: Settings) -> ControllerSettings:
    return ControllerSettings(
        is_balancing=settings.auto_leader_rebalance_enable,
        balance_s=settings.leader_imbalance_check_interval_seconds,
        imbalance=settings.leader_imbalance_per_broker_percentage / 100,
    )


def _inter_broker_client(
    settings: Settings,
    network: PeerNetwork,
    metadata: MetadataLog,
    dispatcher: Dispatcher,
    lifecycle: BrokerLifecycle,
) -> InterBrokerClient:
    """Return what sends this node's requests to nodes."""
    return InterBrokerClient(
        settings.node_id,
        network,
        lambda: metadata.state,
        dispatcher.handle_own,
        timeout_s=2 * lifecycle.session_s,
    )


def _read_replicas(
    settings: Settings,
    engine: StreamEngine,
    store: ObjectStore,
    lifecycle: BrokerLifecycle,
    client: InterBrokerClient,
    clock: Clock,
    scope: TaskScope,
) -> tuple[ReplicaSelector, ReadReplicas]:
    """Return what chooses nodes for consumers of a zone, and what this node serves as one."""
    metadata = engine.metadata
    selector = ReplicaSelector(
        lambda: metadata.state,
        lifecycle.unreachable,
        is_enabled=settings.replica_selector_class == RACK_AWARE,
    )
    cache = TailCache(settings.replica_read_cache_size)
    replicas = ReadReplicas(
        ReadReplicaServices(cache, engine.reader, metadata),
        client,
        clock,
        scope,
        node_id=settings.node_id,
        tail=TailSource(settings.replica_read_tail),
        store=store,
    )
    return selector, replicas


def _maintenance(
    metadata: MetadataLog, settings: Settings, clock: Clock
) -> tuple[MaintenanceBeside | None, TablesBeside | None]:
    """Return what maintains objects, and what keeps tables, as far as the settings want them."""
    is_off = not settings.maintain or settings.standby
    if is_off or settings.store_uri.startswith("memory:"):
        return None, None
    has_tables = settings.maintain_tables
    tables = TablesBeside(metadata, settings, clock, is_lake_installed) if has_tables else None
    return MaintenanceBeside(metadata, settings, clock), tables


def _client_telemetry(
    settings: Settings, metadata: MetadataLog, clock: Clock, rng: random.Random
) -> ClientTelemetry:
    """Return what takes the metrics of clients. Raises SettingsError."""
    endpoint, headers = settings.telemetry_otlp_endpoint, settings.telemetry_otlp_headers
    return ClientTelemetry(
        lambda: metadata.state.client_metrics_configs,
        clock,
        rng,
        settings.telemetry_max_bytes,
        OtlpForwarder(endpoint, headers, "telemetry", "metrics") if endpoint else None,
    )


def _request_traces(node: Node) -> "RequestTraces | None":
    """Return what traces requests, if there is a collector. Raises SettingsError."""
    settings = node.services.settings
    if not settings.trace_otlp_endpoint:
        return None
    from lakehead.broker.telemetry.request_traces import RequestTraces

    endpoint, headers = settings.trace_otlp_endpoint, settings.trace_otlp_headers
    forwarder = OtlpForwarder(endpoint, headers, "trace", "traces")
    return RequestTraces(settings.node_id, node.configs, node.clock, node.services.rng, forwarder)


def _audit_topic(
    settings: Settings,
    audit: AuditLog,
    control: ReplicationControl,
    cache: MetadataCache,
    producer: NodeProducer,
    clock: Clock,
    backpressure: Backpressure,
) -> AuditTopic | None:
    """Return the topic that gets the events of `audit`, if the settings name one."""
    if not settings.audit_topic or settings.standby:
        return None
    topic = AuditTopic(
        settings.audit_topic,
        control,
        cache,
        producer,
        clock,
        node_id=settings.node_id,
        is_writable=backpressure.is_writable,
    )
    audit.sinks.append(topic.offer)
    return topic


def _authenticator(
    settings: Settings,
    listeners: Listeners,
    sasl: Mapping[str, SaslListenerSettings],
    delegation_tokens: DelegationTokens,
    dispatcher: Dispatcher,
    metadata: MetadataLog,
    clock: Clock,
    rng: random.Random,
    scope: TaskScope,
    audit: AuditLog,
) -> Authenticator:
    credentials = ScramCredentials(
        lambda: metadata.state, delegation_tokens, clock.now_ms, rng.randbytes(32)
    )
    return Authenticator(
        {
            name: sasl_listener(listeners.all[name], own, credentials, clock, rng)
            for name, own in sasl.items()
        },
        dispatcher,
        clock,
        scope,
        audit,
        delay_s=settings.connection_failed_authentication_delay_ms / 1000,
    )


def _delegation_tokens(settings: Settings) -> DelegationTokens:
    return DelegationTokens(
        settings.delegation_token_secret_key,
        max_lifetime_ms=settings.delegation_token_max_lifetime_ms,
        expiry_time_ms=settings.delegation_token_expiry_time_ms,
    )


def _peer_network(
    settings: Settings, listeners: Listeners, tls: TlsContexts, rng: random.Random
) -> ListenerNetwork:
    """Return the network to other nodes, by each listener that one of them may have for nodes."""
    networks: dict[str, PeerNetwork] = {}
    for one in listeners.all.values():
        networks[one.name] = TcpNetwork(
            partial(tls.client_context, one.name),
            # A response to a read replica has the first batch whole, as long as a request could be.
            response_max=RESPONSE_MAX + settings.socket_request_max_bytes,
        )
        if one.protocol.is_sasl:
            mechanism = settings.sasl_mechanism_inter_broker_protocol
            inner = networks[one.name]
            networks[one.name] = SaslNetwork(inner, settings.node_id, mechanism, rng)
    protocols = {one.name: one.protocol.value for one in listeners.all.values()}
    network = ListenerNetwork(listeners.inter_broker.name, networks, protocols)
    for channel in networks.values():
        if isinstance(channel, SaslNetwork):
            channel.secret = lambda: network.state().node_secret
    return network


async def _encrypting(
    store: ObjectStore, settings: Settings, clock: Clock, rng: random.Random
) -> EncryptedStore:
    """Return the store with encryption by the settings. A wrong key is refused now: raises
    SettingsError, KeyUnavailable, StoreUnavailable.
    """
    made = encrypted(store, settings.encryption, clock=clock, rng=rng)
    if made.keys.is_on and not settings.standby:
        await made.keys.current()
    return made


def _refuse_other_settings(state: MetadataImage, settings: Settings) -> None:
    """Raise SettingsError if a cluster is not one that a node with such settings may join."""
    refuse_other_cluster(state, settings.cluster_id, settings.store_uri)
    refuse_early_encryption(state, settings.encryption)
    check_admin(settings, state)


async def _open_engine(
    settings: Settings,
    clock: Clock,
    rng: random.Random,
    store: EncryptedStore,
    scope: TaskScope,
    network: ListenerNetwork,
    advertised: Address,
    endpoints: str,
    founding: Sequence[Record],
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
            data_keys=store.keys,
        )
        return wal

    async def admit(state: MetadataImage) -> None:
        _refuse_other_settings(state, settings)
        network.state = lambda: state
        await refuse_duplicate_id(network, state, settings.node_id)

    def join(metadata: MetadataLog) -> None:
        nonlocal lifecycle
        network.state = lambda: metadata.state
        lifecycle = _lifecycle(settings, metadata, network, clock, scope, load)
        lifecycle.start()

    engine = await StreamEngine.open(
        store=store,
        open_wal=open_own_wal,
        node=_identity(settings, advertised, endpoints, public_address(wal_uri)),
        clock=clock,
        rng=rng,
        settings=settings.engine,
        scope=scope,
        admit=admit,
        founding=founding,
        on_registered=join,
    )
    assert wal is not None, "an engine that is open has opened its log"
    assert lifecycle is not None, "and has registered"
    lifecycle.recovered(engine.follower.nudge)
    return engine, wal, lifecycle


def _identity(settings: Settings, advertised: Address, endpoints: str, wal: str) -> NodeIdentity:
    return NodeIdentity(
        node_id=settings.node_id,
        host=advertised.host,
        port=advertised.port,
        rack=settings.broker_rack or None,
        host_id=settings.host_id or host_name(),
        wal=wal,
        process=HostProcesses().current().name,
        tables=tables_keeping(settings, is_lake_installed),
        endpoints=endpoints,
        accept_log_loss=settings.accepted_log_epoch,
    )


async def _open_standby(
    settings: Settings,
    clock: Clock,
    rng: random.Random,
    store: EncryptedStore,
    scope: TaskScope,
    network: ListenerNetwork,
    advertised: Address,
    endpoints: str,
    _founding: Sequence[Record],
    load: LoadMeter,
    _on_stuck: OnStuck | None,
) -> tuple[StreamEngine, WriteAheadLog, BrokerLifecycle]:
    """Open the copy of a cluster. The node is registered nowhere, and sends no heartbeats."""

    async def admit(state: MetadataImage) -> None:
        refuse_other_cluster(state, settings.cluster_id, settings.store_uri)
        network.state = lambda: state

    engine = await StandbyEngine.open_copy(
        store=store,
        node=_identity(settings, advertised, endpoints, ""),
        clock=clock,
        rng=rng,
        settings=settings.engine,
        scope=scope,
        admit=admit,
    )
    metadata = engine.metadata
    _log.info("standby_opened", node_id=settings.node_id, store=settings.store_uri)
    network.state = lambda: metadata.state
    return engine, engine.wal, _lifecycle(settings, metadata, network, clock, scope, load)


def _lifecycle(
    settings: Settings,
    metadata: MetadataLog,
    network: ListenerNetwork,
    clock: Clock,
    scope: TaskScope,
    load: LoadMeter,
) -> BrokerLifecycle:
    return BrokerLifecycle(
        metadata.state.nodes[settings.node_id],
        metadata,
        network,
        clock,
        scope,
        interval_s=settings.broker_heartbeat_interval_ms / 1000,
        session_s=settings.broker_session_timeout_ms / 1000,
        load=load.load,
    )


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


def _authorizer(settings: Settings, metadata: MetadataLog) -> Authorizer:
    """Return what decides about access. Raises SettingsError."""
    users = super_users(settings.super_users)
    if not settings.authorizer_class_name:
        return AllowAll()
    if settings.authorizer_class_name != CLASS_NAME:
        raise SettingsError(
            f"authorizer.class.name: {settings.authorizer_class_name!r} is not {CLASS_NAME}"
        )
    if not metadata.state.node_secret:
        raise SettingsError(
            "authorizer.class.name: the nodes of this cluster cannot prove yet that they are such: "
            "run `lakehead features upgrade` first"
        )
    authorizer = StandardAuthorizer(
        metadata.state, users, by_default=settings.allow_everyone_if_no_acl_found
    )
    metadata.follow(authorizer.follow)
    return authorizer


def _traffic(topics: TopicRegistry) -> Iterator[Traffic]:
    for partition in topics.led():
        yield Traffic(partition.stream.stream_id, partition.bytes_in, partition.bytes_out)
