"""A seeded cluster: nodes with everything but sockets, a network and a store that misbehave, an
administrator, and the judgement at its end.

`run_cluster(seed)` runs one and raises `Violation`, or whatever else went wrong.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from lakehead.broker.cluster.read_replicas import TailSource
from lakehead.broker.coordinator.shards import partition_of
from lakehead.broker.partition.partition import OFFSETS_TOPIC, Partition
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import NodeState
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.wal import WriteAheadLog
from lakehead.storage.wal.protocol import WalOwner
from tests.simulation.bucket import Bucket, RemoteStore, StoreWeather
from tests.simulation.cluster.administrator import Administrator
from tests.simulation.cluster.clients import Clients
from tests.simulation.cluster.consumer_clients import ConsumerClients
from tests.simulation.cluster.faults import Faults
from tests.simulation.cluster.judge import ClusterJudge
from tests.simulation.cluster.member import SETTINGS, Member
from tests.simulation.cluster.peer_network import SimulatedNetwork
from tests.simulation.cluster.share_crews import ShareCrews
from tests.simulation.cluster.share_judge import ShareJudge
from tests.simulation.cluster.transactions import Transactions
from tests.simulation.cluster.zone_readers import ZoneReaders
from tests.simulation.encryption import WorldKeys, seen_by
from tests.simulation.ledger import Ledger, Violation
from tests.simulation.lives import Life
from tests.simulation.loop import LoopClock, SimulationLoop
from tests.simulation.oracle import MetadataOracle
from tests.simulation.wals import WALS, NodeWal
from tests.simulation.world import CALM, START_MS, SkewedClock
from tests.simulation.world_trace import Trace

LED_S = 60.0
"""Once nothing fails any more, every partition is led after so many seconds."""
SETTLED_S = 75.0
"""And after so many more, nothing moves any more: preferred leaders lead again half a minute after
their nodes began to serve, and balance is checked half a minute after that.
"""
REST_S = 60.0
"""For which this is watched."""


class Kind(StrEnum):
    """Kinds of clients."""

    TRANSACTIONS = "transactions"
    SHARE_GROUPS = "share groups"
    CONSUMER_GROUPS = "consumer groups"
    ZONES = "zones"


WAL_ADDRESSES = {
    "block": "block:/wal",
    "memory": "",
    "object": "object:",
    "object-elsewhere": "object:elsewhere",
}
"""What a node tells others of its log; the one in memory is out of their reach."""


@dataclass(slots=True)
class Machine:
    """What of a node outlives its processes."""

    node_id: int
    clock: SkewedClock
    wal: NodeWal
    weather: StoreWeather
    members: list[Member] = field(default_factory=list)

    @property
    def newest(self) -> Member:
        """Its newest process that lives, or the last of the dead."""
        living = [member for member in self.members if not member.life.is_dead]
        return (living or self.members)[-1]


class ClusterWorld:
    """See the module's docstring. `run` is its main task."""

    def __init__(
        self,
        seed: int,
        loop: SimulationLoop,
        wal: str,
        trace: Trace,
        kinds: Collection[Kind],
        *,
        is_encrypted: bool = False,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.trace = trace
        self.ledger = Ledger()
        self.is_quiet = False
        """Clients have stopped."""
        self.interval_s, self.session_s = rng.choice([(0.5, 3.0), (0.2, 1.0), (1.0, 6.0)])
        self.host_id = "h"
        self.wal_address = WAL_ADDRESSES[wal]
        self.loop = self._loop = loop
        self._clock = LoopClock(loop, start_ms=START_MS)
        self.bucket = Bucket(self._clock.now_ms)
        self.other_bucket = Bucket(self._clock.now_ms)
        self.keys = WorldKeys(seed, self._clock) if is_encrypted else None
        if self.keys is not None:
            self.bucket.plain = self.other_bucket.plain = self.keys.plain
        self.oracle = MetadataOracle(
            self.bucket,
            self.other_bucket,
            fail=self.fail,
            now_s=loop.time,
            grace_s=SETTINGS.garbage_grace_s,
        )
        self.judge = ClusterJudge(self)
        self.share_judge = ShareJudge(self)
        self.network = SimulatedNetwork(rng)
        self.faults = Faults(self)
        self.administrator = Administrator(self)
        count = rng.choice([2, 3, 3, 4])
        self.machines = [
            Machine(n, SkewedClock(loop), WALS[wal](self), StoreWeather(CALM)) for n in range(count)
        ]
        self.clients: dict[Kind, Clients] = {}
        if Kind.TRANSACTIONS in kinds:
            self.clients[Kind.TRANSACTIONS] = Transactions(self, seed)
        if Kind.SHARE_GROUPS in kinds:
            self.clients[Kind.SHARE_GROUPS] = ShareCrews(self, seed)
        if Kind.CONSUMER_GROUPS in kinds:
            self.clients[Kind.CONSUMER_GROUPS] = ConsumerClients(self, seed)
        self.zones = ZoneReaders(self, seed) if Kind.ZONES in kinds else None
        if self.zones is not None:
            self.clients[Kind.ZONES] = self.zones
        self.led_after_s = 0.0
        self._lost: Machine | None = None
        """It burned down in the end, and others must do its work."""
        self._failure: asyncio.Future[None] = loop.create_future()
        trace.add("world", f"{wal} WAL, {count} nodes, sessions of {self.session_s} s")

    @property
    def virtual_s(self) -> float:
        """Return how long the world has lasted, in its own seconds."""
        return self._loop.time()

    def fail(self, error: Exception) -> None:
        """Something must not have happened: the world ends here."""
        if not self._failure.done():
            self.trace.add("world", f"broken: {error!r}")
            self._failure.set_exception(error)

    def store_of(self, name: str, bucket: Bucket | None = None) -> ObjectStore:
        """Return a bucket, the world's own or another, as a process of this name reaches it."""
        weather = self.machines[int(name.partition(".")[0])].weather
        remote = RemoteStore(
            bucket or self.bucket, weather, rng=self.rng, name=name, trace=self.trace
        )
        return seen_by(remote, self.keys, name)

    async def open_left_log(
        self, member: Member, node: NodeState, owner: WalOwner
    ) -> WriteAheadLog | None:
        """Open what a fenced node left: see `StreamEngine.take_over`."""
        return await self.machines[node.node_id].wal.take(member.life, owner)

    def living(self) -> list[Member]:
        """Return the newest processes of the nodes that serve."""
        return [
            machine.newest
            for machine in self.machines
            if machine.members and machine.newest.is_serving and not machine.newest.life.is_dead
        ]

    def begin(self, machine: Machine, *, dies_at: int | None = None) -> Member:
        """Start a process of a node."""
        number = len(machine.members)
        life = Life(self._loop, f"{machine.node_id}.{number}", dies_at=dies_at)
        opener = machine.wal.opener(life)
        member = Member(self, life, machine.node_id, number, machine.clock, opener)
        machine.members.append(member)
        self.trace.add(life.name, f"starts, dies at step {dies_at}" if dies_at else "starts")
        member.start()
        return member

    async def run(self) -> None:
        """Let it all happen, then judge."""
        story = self._loop.create_task(self._story(), name="story")
        await asyncio.wait([story, self._failure], return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()
        story.result()

    async def _story(self) -> None:
        for machine in self.machines:
            await machine.wal.prepare()
        work = [
            self._loop.create_task(self.faults.of_network(), name="network faults"),
            self._loop.create_task(self.faults.of_store(), name="store faults"),
            self._loop.create_task(self.administrator.work(), name="administrator"),
        ]
        for clients in self.clients.values():
            clients.start()
        async with asyncio.TaskGroup() as group:
            for machine in self.machines:
                group.create_task(self.faults.of_node(machine), name=f"keeper {machine.node_id}")
        for task in work:
            if task.done():
                task.result()  # what broke it
            task.cancel()
        await self._settle()
        await self._judge()

    # ------------------------------------------------------------- judgement

    async def _settle(self) -> None:
        """Heal everything and start what is down; every partition must be led before long."""
        self.trace.add("world", "heals")
        self.faults.heal()
        if self.wal_address and self.rng.random() < 0.5:
            self._lose(self.rng.choice(self.machines))
        healed_at = self.virtual_s
        while self.virtual_s < healed_at + LED_S:
            machines = [machine for machine in self.machines if machine is not self._lost]
            for machine in machines:
                if machine.newest.life.is_dead:
                    self.begin(machine)
            if not self._unled() and all(self._is_well(machine) for machine in machines):
                self.led_after_s = self.virtual_s - healed_at
                self.trace.add("world", f"all is led after {self.led_after_s:.1f} s")
                break
            await asyncio.sleep(0.2)
        else:
            raise Violation(f"not led {LED_S} s after the last fault: {self._unled()}")
        await asyncio.sleep(5.0)
        self.is_quiet = True
        await asyncio.sleep(SETTLED_S)
        self.judge.moves = 0
        await asyncio.sleep(REST_S)
        if self.judge.moves:
            raise Violation(f"{self.judge.moves} streams moved though nothing happens")
        for machine in self.machines:
            for member in machine.members:
                if not member.life.is_dead and member is not machine.newest:
                    raise Violation(f"{member.name} lives on after its epoch has ended")

    def _lose(self, machine: Machine) -> None:
        self.trace.add("world", f"node {machine.node_id} is lost for good")
        self._lost = machine
        for member in machine.members:
            member.life.kill()

    def _is_well(self, machine: Machine) -> bool:
        member = machine.newest
        return (
            member.is_serving
            and member.engine is not None
            and self.oracle.is_current(machine.node_id, member.engine.node_epoch)
        )

    def _unled(self) -> list[str]:
        """Return which streams nobody serves, and what is known of them."""
        return [
            f"stream {stream.stream_id} assigned {stream.assigned} owner {stream.node_id} "
            f"open {stream.is_open}"
            for stream in self.oracle.state.streams.values()
            if self.led(stream.stream_id) is None
        ]

    def process_at(self, where: Address) -> str:
        """Return the name of the process that listens at an address, or did."""
        return self.member_at(where).name

    def member_at(self, where: Address) -> Member:
        """Return the process that listens at an address, or did."""
        return self.machines[int(where.host.removeprefix("host-"))].members[where.port]

    def rack_of(self, node_id: int) -> str | None:
        """Return the zone of a node, None if the cluster has none."""
        return None if self.zones is None else self.zones.rack_of(node_id)

    @property
    def tail(self) -> TailSource:
        """The source of records for read replicas that no object holds."""
        return TailSource.LEADER if self.zones is None else self.zones.tail

    def coordinates(self, where: Address, group_id: str) -> bool:
        """Return true if the process at an address coordinates a group now, by the log."""
        known = self.oracle.state.topics.get(OFFSETS_TOPIC)
        if known is None:
            return False
        found = self.led(known.partitions[partition_of(group_id, len(known.partitions))])
        return found is not None and found[0].name == self.process_at(where)

    def led(self, stream_id: int) -> tuple[Member, Partition] | None:
        """Return the process that leads a stream, by the log and by itself."""
        stream = self.oracle.state.streams[stream_id]
        if not stream.is_open or stream.assigned not in {-1, stream.node_id}:
            return None
        member = self.machines[stream.node_id].newest
        if member.life.is_dead or not member.is_serving or member.replica_manager is None:
            return None
        topic = member.replica_manager.topics.by_id.get(bytes.fromhex(stream.topic_id))
        partition = None if topic is None else topic.partitions[stream.partition]
        if partition is None or partition.stream.epoch != stream.epoch:
            return None
        return member, partition

    async def _judge(self) -> None:
        """Read everything from its leaders, and compare with what clients know."""
        state = self.oracle.state
        for stream_id, ledger in self.ledger.streams.items():
            if stream_id not in state.streams:
                if not ledger.deleting:
                    raise Violation(f"stream {stream_id} is gone, and nobody deleted it")
                continue
            if ledger.deleted:
                raise Violation(f"stream {stream_id} is back from deletion")
            found = self.led(stream_id)
            if found is None:
                raise Violation(f"stream {stream_id} has lost its leader")
            member, partition = found
            await self._audit(member, partition)
        self._judge_spread()
        for clients in self.clients.values():
            await clients.judge()
        for machine in self.machines:
            machine.newest.life.kill()
        log = await MetadataLog.open(
            seen_by(self.bucket, self.keys, "auditor"),
            writer_id="auditor",
            clock=self._clock,
            rng=self.rng,
        )
        if log.state != self.oracle.state:
            raise Violation("a newcomer sees another state than all entries make")

    def _judge_spread(self) -> None:
        """Every node leads something, unless it is drained; and a drained one nothing."""
        state = self.oracle.state
        draining = {known.node_id for known in state.nodes.values() if known.is_draining}
        leaders = {stream.node_id for stream in state.streams.values()}
        fenced = {known.node_id for known in state.nodes.values() if known.is_fenced}
        idle = set(state.nodes) - draining - leaders - fenced
        if idle and len(state.streams) >= 2 * len(self.machines):
            raise Violation(
                f"nodes {idle} lead nothing, {leaders} all {len(state.streams)} streams"
            )
        if leaders & draining and len(draining | fenced) < len(self.machines):
            raise Violation(f"nodes {leaders & draining} lead streams and are to be empty")

    async def _audit(self, member: Member, partition: Partition) -> None:
        done = asyncio.Event()

        async def audit() -> None:
            await member.read_all(partition)
            done.set()

        member.begin(audit(), "audit")
        with suppress(TimeoutError):
            async with asyncio.timeout(60.0):
                await done.wait()
        if not done.is_set():
            raise Violation(f"{member.name} does not come to read {partition.stream.stream_id}")


def kinds_of(seed: int) -> Collection[Kind]:
    """Return the kinds of clients that the cluster of a seed has: transactions, and half of the
    others.
    """
    rng = random.Random(f"kinds of clients of cluster {seed}")
    return [kind for kind in Kind if kind is Kind.TRANSACTIONS or rng.random() < 0.5]


def run_cluster(
    seed: int,
    *,
    wal: str | None = None,
    kinds: Collection[Kind] | None = None,
    echo: Callable[[str], None] | None = None,
    is_encrypted: bool = False,
) -> ClusterWorld:
    """Run the cluster of a seed to its end, with these kinds of clients (None: each seed says).

    Raises Violation, or what else went wrong.
    """
    wals = sorted(WAL_ADDRESSES)
    wal = wal or wals[seed % len(wals)]
    kinds = kinds_of(seed) if kinds is None else kinds
    loop = SimulationLoop(seed, time_limit=20_000)
    loop.set_exception_handler(lambda loop, context: None)
    asyncio.set_event_loop(loop)
    try:
        world = ClusterWorld(seed, loop, wal, Trace(loop, echo), kinds, is_encrypted=is_encrypted)
        loop.run_until_complete(world.run())
        return world
    finally:
        asyncio.set_event_loop(None)
        loop.dispose()
