"""One process of a simulated cluster: the real engine, replica manager, lifecycle, controller and
log recovery, put together as a broker does it, and clients at work on what it leads.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakehead.broker.cluster.broker_lifecycle import BrokerLifecycle, refuse_duplicate_id
from lakehead.broker.cluster.controller import Controller, ControllerSettings
from lakehead.broker.cluster.load_meter import LoadMeter, Traffic
from lakehead.broker.cluster.log_recovery import LogRecovery
from lakehead.broker.cluster.replica_manager import ReplicaManager
from lakehead.broker.cluster.replication_control import ReplicationControl
from lakehead.broker.partition.partition import Partition, Topic, TopicRegistry
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.broker.settings import RACK_AWARE, Settings
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError, OffsetOutOfRange, WalFull
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal.protocol import WalOwner, WriteAheadLog
from tests.simulation.cluster.broker import Broker
from tests.simulation.cluster.peer_network import NodeNetwork
from tests.simulation.cluster.topics import RESERVED
from tests.simulation.ledger import Violation
from tests.simulation.lives import Life
from tests.simulation.node import SETTINGS as ALONE
from tests.simulation.wals import OpenWal

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld

SETTINGS = replace(
    ALONE,
    upload_age_s=2.0,
    garbage_interval_s=5.0,
    garbage_sweep_s=20.0,
    metadata_poll_s=1.0,
    metadata_poll_max_s=4.0,
    metadata_checkpoint_entries=50,
)
GROUP_SESSION_S = 6.0
"""Session timeout of members of groups."""
IN_FLIGHT_MAX = 5
LEAVE_S = 30.0


class Member:
    """An incarnation of a node: starts, serves, and dies of whatever ends it."""

    def __init__(
        self, world: ClusterWorld, life: Life, node_id: int, port: int, clock: Clock, wal: OpenWal
    ) -> None:
        self.world = world
        self.life = life
        self.name = life.name
        self.node_id = node_id
        self.host = f"host-{node_id}"
        self.rng: random.Random = world.rng
        self.clock = clock
        self.engine: StreamEngine | None = None
        self.lifecycle: BrokerLifecycle | None = None
        self.replica_manager: ReplicaManager | None = None
        self.replication_control: ReplicationControl | None = None
        self.broker: Broker | None = None
        self.controller: Controller | None = None
        self.is_serving = False
        self.topics = TopicRegistry()
        self._port = port
        self._open_wal = wal
        self._scope = TaskScope(self._crashed, on_failure=self._crashed)

    def note(self, what: str) -> None:
        """Say something in the world's trace."""
        self.world.trace.add(self.name, what)

    # ------------------------------------------------------------- from start to end

    def start(self) -> None:
        """Open everything and serve; exit when the engine fails."""
        self.life.spawn(self._guarded(self._run()), f"{self.name} main")

    def exit(self, reason: str) -> None:
        """End the process."""
        self.note(f"exits: {reason}")
        self.is_serving = False
        self.life.kill()

    async def stop(self) -> None:
        """Leave cleanly, as a broker does."""
        assert self.engine is not None
        assert self.lifecycle is not None
        assert self.replica_manager is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self.lifecycle.controlled_shutdown(self.replica_manager)
        if self.broker is not None:
            self.broker.close()
        self.replica_manager.stop()
        await self.engine.close()
        self.exit("stopped")

    async def _run(self) -> None:
        try:
            await self._start()
        except (LakeheadError, OSError) as error:
            self.exit(f"did not start: {error!r}")
            return
        assert self.engine is not None
        failure = await self.engine.wait_failed()
        self.note(f"failed: {failure!r}")
        self.is_serving = False
        await asyncio.sleep(self.rng.random())  # lives on for a while, and must do no harm
        self.exit("failed")

    async def _open_engine(self, network: NodeNetwork) -> StreamEngine:
        """Register with the cluster: the lifecycle begins then."""
        world = self.world

        async def admit(state: MetadataImage) -> None:
            await refuse_duplicate_id(network, state, self.node_id)

        def join(metadata: MetadataLog) -> None:
            self.lifecycle = BrokerLifecycle(
                metadata.state.nodes[self.node_id],
                metadata,
                network,
                self.clock,
                self._scope,
                interval_s=world.interval_s,
                session_s=world.session_s,
                load=LoadMeter(self._traffic, self.topics.traffic, self.clock, lambda: 0.0).load,
            )
            self.lifecycle.start()

        return await StreamEngine.open(
            store=world.store_of(self.name),
            open_wal=self._open_wal,
            node=NodeIdentity(
                node_id=self.node_id,
                host=self.host,
                port=self._port,
                rack=world.rack_of(self.node_id),
                host_id=world.host_id,
                wal=world.wal_address,
            ),
            clock=self.clock,
            rng=self.rng,
            settings=SETTINGS,
            scope=self._scope,
            admit=admit,
            on_registered=join,
        )

    async def _start(self) -> None:
        world = self.world
        network = world.network.of(self.host, self.life)
        engine = self.engine = await self._open_engine(network)
        assert self.lifecycle is not None
        self.note(f"has epoch {engine.node_epoch}")
        rack = world.rack_of(self.node_id)
        settings = Settings(
            node_id=self.node_id,
            broker_rack=rack or "",
            replica_selector_class=RACK_AWARE if rack else "",
            replica_read_tail=world.tail,
            transaction_state_log_num_partitions=2,
            offsets_topic_num_partitions=1,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=1000,
            share_coordinator_state_topic_num_partitions=2,
            share_coordinator_snapshot_update_records_per_snapshot=20,
            group_share_min_record_lock_duration_ms=1_000,
            group_share_min_session_timeout_ms=int(GROUP_SESSION_S * 1000),
            group_share_session_timeout_ms=int(GROUP_SESSION_S * 1000),
            group_consumer_session_timeout_ms=int(GROUP_SESSION_S * 1000),
            group_consumer_min_session_timeout_ms=int(GROUP_SESSION_S * 1000),
            group_consumer_heartbeat_interval_ms=500,
            group_consumer_min_heartbeat_interval_ms=500,
        )
        self.lifecycle.recovered(engine.follower.nudge)
        replicas = ReplicaManager(self.topics, engine, settings, self.clock, self.rng, self._scope)
        self.replica_manager = replicas
        self.replication_control = ReplicationControl(
            engine.metadata, replicas, settings, self.rng, self.lifecycle.ready
        )
        replicas.add_listener(self)
        lifecycle = self.lifecycle
        broker = self.broker = Broker(
            self,
            Address(self.host, self._port),
            engine,
            lifecycle,
            replicas,
            self.replication_control,
            network,
            settings,
            self.clock,
            self.rng,
            self._scope,
            self._crashed,
        )
        await replicas.start()
        await broker.start()
        world.network.listen(
            self.host,
            self._port,
            self.life,
            lambda heartbeat, is_proven: lifecycle.handle_heartbeat(
                heartbeat, is_from_node=is_proven
            ),
            broker.accept,
        )
        self.lifecycle.serve()
        LogRecovery(self.node_id, engine.metadata, self._scope, self._take_over).start()
        self.controller = Controller(
            engine.metadata, self.lifecycle, self.clock, self._scope, ControllerSettings()
        )
        self.controller.start()
        self.is_serving = True
        self.note("serves")

    async def _take_over(self, dead: NodeState) -> int:
        assert self.engine is not None
        found = await self.engine.take_over(dead, self._open_left)
        self.note(f"recovered node {dead.node_id} of epoch {dead.epoch}: {found} objects")
        return found

    async def _open_left(self, node: NodeState, owner: WalOwner) -> WriteAheadLog | None:
        return await self.world.open_left_log(self, node, owner)

    def _traffic(self) -> Iterator[Traffic]:
        for partition in self.topics.led():
            yield Traffic(partition.stream.stream_id, partition.bytes_in, partition.bytes_out)

    def begin(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start something that may end by any error of storage, and by no other."""
        return self.life.spawn(self._guarded(coro), f"{self.name} {name}")

    async def _guarded(self, coro: Coroutine[Any, Any, None]) -> None:
        try:
            await coro
        except (LakeheadError, OSError) as error:
            self.note(f"gave up: {error!r}")
        except Exception as error:
            self.world.fail(error)

    def _crashed(self, name: str, error: BaseException) -> None:
        if isinstance(error, (LakeheadError, OSError)):
            self.note(f"task {name} ended: {error!r}")
            self.exit(f"task {name} crashed")
        elif isinstance(error, Exception):
            self.world.fail(error)

    # ------------------------------------------------------------- what clients do

    def on_resignation(self, topic: Topic, index: int) -> None:
        """See `LeadershipListener.on_resignation`: its clients see that the stream is closed."""

    def on_election(self, topic: Topic, index: int) -> None:
        partition = topic.partitions[index]
        assert partition is not None
        stream = partition.stream
        self.note(f"leads {topic.name}-{index} (stream {stream.stream_id}) in {stream.epoch}")
        self.world.judge.opened(self, stream)
        if topic.name in RESERVED:
            return
        self.begin(self._produce(partition), f"producer of {stream.stream_id}")
        self.begin(self._consume(partition), f"consumer of {stream.stream_id}")

    async def _produce(self, partition: Partition) -> None:
        in_flight: list[asyncio.Future[None]] = []
        pace = self.rng.choice([0.1, 1.0, 3.0])
        while partition.stream.is_open and not self.world.is_quiet:
            await asyncio.sleep(self.rng.expovariate(1 / pace))
            done = self._append(partition)
            if done is not None:
                in_flight.append(done)
            if len(in_flight) == IN_FLIGHT_MAX:
                await asyncio.wait([in_flight.pop(0)])

    def _append(self, partition: Partition) -> asyncio.Future[None] | None:
        """Append a batch; the future ends when it is answered. None: not now."""
        assert self.engine is not None
        stream = partition.stream
        if not (stream.is_open and self.engine.writable()):
            return None
        offset, count = stream.next_offset, self.rng.randint(1, 4)
        size = self.rng.choice([20, 200, 2000])
        batch = self.world.ledger.attempt(
            stream.stream_id, stream.epoch, offset, count, size, self.clock.now_ms()
        )
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_past = self.world.judge.is_recovered(self)
        self.world.judge.accepts(self, stream)

        def answer(error: Exception | None) -> None:
            if not done.done():
                done.set_result(None)
            if error is None:
                if is_past:
                    self.world.fail(Violation(f"{self.name} took a batch after its recovery"))
                self.world.ledger.acknowledge(stream.stream_id, offset, bytes(batch))

        with suppress(WalFull):
            partition.append(batch, answer)
            return done
        return None

    async def _consume(self, partition: Partition) -> None:
        assert self.lifecycle is not None
        stream, end = partition.stream, 0
        while stream.is_open and not self.world.is_quiet:
            await asyncio.sleep(self.rng.expovariate(0.7))
            is_current = await self.lifecycle.session.ensure()
            if not (is_current and partition.stream.is_open):
                continue  # the client is told to go elsewhere
            self.world.judge.reads(self, stream.stream_id)
            if partition.high_watermark < end:
                raise Violation(f"{self.name}: {stream.stream_id}'s high watermark went back")
            end = partition.high_watermark
            if stream.start_offset < end:
                offset = self.rng.randrange(stream.start_offset, end)
                with suppress(OffsetOutOfRange):
                    found = await stream.fetch(offset, 4096)
                    self.world.ledger.saw(stream.stream_id, found, offset)

    async def read_all(self, partition: Partition) -> None:
        """Read a partition from its start to its end, and judge what is there."""
        stream = partition.stream
        ledger = self.world.ledger
        ledger.check_offsets(stream.stream_id, stream.start_offset, stream.confirmed_offset)
        offset = start = stream.start_offset
        seen: set[int] = set()
        while offset < stream.confirmed_offset:
            found = await stream.fetch(offset, 64 * 1024)
            seen.update(int.from_bytes(payload[:8], "big") for payload in found)
            offset = ledger.saw(stream.stream_id, found, offset)
        ledger.check_log(stream.stream_id, start, seen)
