"""A seeded world: several nodes on one bucket, with weather, crashes, zombies and clients, and the
judgement at its end.

`run_world(seed)` runs one and raises `Violation`, or whatever else went wrong. A seed decides
everything: the write-ahead log, the number of nodes, the faults, the schedule.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from lakehead.storage.format.object_names import JobName
from lakehead.storage.garbage import SweepTimes, check_leaks, find_garbage, perform
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store.faulty import FaultProfile
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.stream.stream import Stream
from lakehead.storage.wal.object.names import is_seal_size
from tests.simulation.bucket import Bucket, RemoteStore, StoreWeather
from tests.simulation.compacting import Maintenance
from tests.simulation.encryption import WorldKeys, seen_by
from tests.simulation.ledger import Ledger, Violation
from tests.simulation.lives import Life
from tests.simulation.loop import LoopClock, SimulationLoop
from tests.simulation.node import SETTINGS, Incarnation
from tests.simulation.oracle import MetadataOracle
from tests.simulation.sweeping import Sweeping
from tests.simulation.wals import WALS, NodeWal
from tests.simulation.world_trace import Trace

START_MS = 1_700_000_000_000
SETTLE_S = 40.0
HELD_S_MAX = 90.0
HOUR_MS = 3_600_000
TOPICS_MAX = 3
CALM = FaultProfile(latency_s_max=0.02)
OPERATIONS = ("topic", "adopt", "upload", "read", "trim", "delete")


class SkewedClock:
    """The clock of one node: wall time jumps when the world says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.skew_ms = 0

    def now_ms(self) -> int:
        """See `lakehead.storage.clock.Clock`."""
        return START_MS + int(self._loop.time() * 1000) + self.skew_ms

    def monotonic(self) -> float:
        """See `lakehead.storage.clock.Clock`."""
        return self._loop.time()


@dataclass(slots=True)
class Node:
    """What of a node outlives its processes: a clock, a WAL, and who ran here."""

    node_id: int
    clock: SkewedClock
    wal: NodeWal
    incarnations: list[Incarnation] = field(default_factory=list)


class World:
    """See the module's docstring. `run` is its main task."""

    def __init__(
        self,
        seed: int,
        loop: SimulationLoop,
        wal: str,
        trace: Trace,
        *,
        merges: bool,
        sweeps: bool,
        is_encrypted: bool = False,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.mistakes: random.Random = random.Random(f"mistakes of {seed}")
        """What operators do wrong; apart, so that other worlds stay what they are without it."""
        self._may_mistake = self.mistakes.random() < 0.5
        self.trace = trace
        self.ledger = Ledger()
        self._loop = loop
        self._clock = LoopClock(loop, start_ms=START_MS)
        self.bucket = Bucket(self._clock.now_ms)
        self.other_bucket: Bucket = Bucket(self._clock.now_ms)
        """For write-ahead logs that lie elsewhere."""
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
        self._fair = _weather(rng)
        self._weather = StoreWeather(self._fair)
        self._weather.held, self._weather.held_s_max = rng.choice([(0.0, 0.0), (0.02, HELD_S_MAX)])
        count = rng.choice([1, 2, 2, 3])
        self.nodes = [Node(n, SkewedClock(loop), WALS[wal](self)) for n in range(count)]
        self.operations = [op for op in OPERATIONS if rng.random() < 0.7] or ["upload"]
        if wal == "object" and rng.random() < 0.5:
            self.operations.append("take over")
        self._lives = rng.choice([2, 3, 5])
        self._maintenance = (
            Maintenance(self, loop, self._clock, seed, merges=merges) if seed % 3 else None
        )
        self._sweeping = Sweeping(self, loop, self._clock, seed) if sweeps else None
        self._failure: asyncio.Future[None] = loop.create_future()
        trace.add("world", f"{wal} WAL, {count} nodes, {self._fair}, {self.operations}")

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
        remote = RemoteStore(
            bucket or self.bucket, self._weather, rng=self.rng, name=name, trace=self.trace
        )
        return seen_by(remote, self.keys, name)

    @property
    def _audited(self) -> ObjectStore:
        """The bucket as an auditor sees it."""
        return seen_by(self.bucket, self.keys, "auditor")

    def wants_topic(self) -> bool:
        """Return true if there is room for one more topic in the budget."""
        return len(self.oracle.state.topics) < TOPICS_MAX

    def is_alone(self, one: Incarnation) -> bool:
        """Return true if no earlier incarnation of the same node lives, and no later one has
        started.
        """
        *earlier, newest = self.nodes[one.node_id].incarnations
        return newest is one and all(other.life.is_dead for other in earlier)

    def is_superseded(self, one: Incarnation) -> bool:
        """Return true if an incarnation of the same node with a later epoch has come to run."""
        return one.engine is not None and any(
            other.engine is not None and other.engine.node_epoch > one.engine.node_epoch
            for other in self.nodes[one.node_id].incarnations
        )

    def _is_past(self, one: Incarnation) -> bool:
        """Return true if a process has been superseded or fenced."""
        return one.engine is not None and not self.oracle.is_current(
            one.node_id, one.engine.node_epoch
        )

    async def run(self) -> None:
        """Let it all happen, then judge."""
        story = self._loop.create_task(self._story(), name="story")
        await asyncio.wait([story, self._failure], return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()
        story.result()

    async def _story(self) -> None:
        for node in self.nodes:
            await node.wal.prepare()
        others = [self._loop.create_task(self._change_weather(), name="weather")]
        if self._maintenance is not None:
            others.append(self._loop.create_task(self._maintenance.keep(), name="maintenance"))
        if self._sweeping is not None:
            others.append(self._loop.create_task(self._sweeping.keep(), name="sweeping"))
        async with asyncio.TaskGroup() as group:
            for node in self.nodes:
                group.create_task(self._keep(node), name=f"keeper of {node.node_id}")
        for task in others:
            task.cancel()
        await self._settle()
        await self._judge()

    # ------------------------------------------------------------- what befalls the nodes

    def _start(self, node: Node, *, dies_at: int | None) -> Incarnation:
        number = len(node.incarnations)
        life = Life(self._loop, f"{node.node_id}.{number}", dies_at=dies_at)
        one = Incarnation(self, life, node.node_id, node.clock, node.wal.opener(life))
        node.incarnations.append(one)
        self.trace.add(life.name, f"starts, dies at step {dies_at}" if dies_at else "starts")
        return one

    async def _keep(self, node: Node) -> None:
        """Start a node again and again, and let each life end in one of many ways."""
        rng = self.rng
        for _ in range(self._lives):
            dies_at = int(10 ** rng.uniform(0.5, 3.7)) if rng.random() < 0.5 else None
            one = self._start(node, dies_at=dies_at)
            one.start(one.serve)
            await self._wait_dead(one, rng.uniform(0.1, 8.0))
            if not one.life.is_dead:
                await self._end(node, one)
            if rng.random() < 0.3:
                node.clock.skew_ms += rng.choice([-2, -1, 1]) * HOUR_MS
            if rng.random() < 0.2:
                node.wal.lose_power()
            if self._may_mistake and all(known.life.is_dead for known in node.incarnations):
                node.wal.note_dead(self.mistakes)
                if self.mistakes.random() < 0.4:
                    await self._start_on_another_log(node)
            await asyncio.sleep(rng.uniform(0.0, 2.0))

    async def _start_on_another_log(self, node: Node) -> None:
        """Start a node on a log that is not its own: an empty one, or an older copy. Either it is
        refused, or nothing is lost, and from then on that log is the node's.
        """
        own, other = node.wal, await node.wal.wrong_log(self.mistakes)
        if other is None:
            return
        node.wal = other
        known = self._known_log_epoch(node)
        one = self._start(node, dies_at=None)
        self.trace.add(one.name, "has another log")
        one.start(one.serve)
        while not one.life.is_dead and one.engine is None:
            await self._wait_dead(one, 0.5)
        if one.engine is None:
            await asyncio.sleep(HELD_S_MAX)  # what was held on its way arrives
            # The registration of an earlier start may have arrived meanwhile, with its own log.
            if one.refused_log or self._known_log_epoch(node) == known:
                node.wal = own
            return
        await self._wait_dead(one, self.mistakes.uniform(0.1, 8.0))
        self._kill(one)

    def _known_log_epoch(self, node: Node) -> int:
        """Return the epoch that a node has last begun a log with, by the metadata."""
        known = self.oracle.state.nodes.get(node.node_id)
        return -1 if known is None else known.log.epoch

    async def _end(self, node: Node, one: Incarnation) -> None:
        rng = self.rng
        match rng.choice(["kill", "stop", "pause", "zombie", "twin", "break", "slow", "hang"]):
            case "stop" if one.is_serving:
                self.trace.add(one.name, "is told to stop")
                one.begin(one.stop(), "stop")
                await self._wait_dead(one, 120.0)
            case "pause":
                self.trace.add(one.name, "is frozen")
                one.life.freeze()
                await asyncio.sleep(rng.uniform(0.1, 20.0))
                self.trace.add(one.name, "thaws")
                one.life.thaw()
                await self._wait_dead(one, rng.uniform(0.1, 5.0))
            case "zombie":
                self.trace.add(one.name, "is frozen, to come back")
                one.life.freeze()
                self._loop.call_later(rng.uniform(0.5, 30.0), self._thaw, one)
                return
            case "twin":
                self.trace.add(one.name, "gets a successor while it runs")
                return
            case "break":
                self.trace.add(one.name, "gets a failing WAL")
                node.wal.break_soon()
                await self._wait_dead(one, rng.uniform(0.1, 10.0))
            case "slow":
                self.trace.add(one.name, "gets a slow WAL")
                node.wal.slow_down()
                await self._wait_dead(one, rng.uniform(0.1, 10.0))
            case "hang":
                self.trace.add(one.name, "gets a WAL that does not answer")
                node.wal.hang()
                await self._wait_dead(one, rng.uniform(0.1, 20.0))
            case _:
                pass
        self._kill(one)

    def _kill(self, one: Incarnation) -> None:
        if not one.life.is_dead:
            self.trace.add(one.name, "is killed")
            one.life.kill()

    def _thaw(self, one: Incarnation) -> None:
        if one.life.is_frozen:
            self.trace.add(one.name, "thaws")
            one.life.thaw()

    async def _wait_dead(self, one: Incarnation, most_s: float) -> None:
        if one.life.is_dead:
            return
        died = asyncio.Event()
        one.life.on_death.append(died.set)
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await died.wait()

    async def _change_weather(self) -> None:
        """Now and then nobody reaches the store: for seconds, or for ten minutes."""
        rng = self.rng
        if rng.random() < 0.5:
            return
        while True:
            await asyncio.sleep(rng.expovariate(0.2))
            length = 600.0 if rng.random() < 0.05 else rng.uniform(0.2, 8.0)
            self.trace.add("world", f"the store is gone for {length:.1f} s")
            self._weather.faults = FaultProfile(unavailable=1.0, latency_s_max=0.1)
            await asyncio.sleep(length)
            self.trace.add("world", "the store is back")
            self._weather.faults = self._fair

    # ------------------------------------------------------------- judgement

    async def _settle(self) -> None:
        """Heal everything, let the frozen wake, and wait: the superseded must have gone by then."""
        self.trace.add("world", "heals")
        self._weather.faults, self._weather.held = CALM, 0.0
        for node in self.nodes:
            for one in node.incarnations:
                self._thaw(one)
        await asyncio.sleep(SETTLE_S)
        for node in self.nodes:
            for one in node.incarnations:
                if not one.life.is_dead and self._is_past(one):
                    raise Violation(f"{one.name} lives on after its epoch has ended")
                self._kill(one)

    async def _judge(self) -> None:
        """Open every node once more, read everything, and compare with what clients know."""
        for node in self.nodes:
            one = self._start(node, dies_at=None)
            one.start(partial(self._audit, one))
            await self._wait_dead(one, 600.0)
            if not one.life.is_dead:
                raise Violation(f"{one.name} has not come to its end")
            if one.engine is None:
                raise Violation(f"{one.name} does not start though nothing is wrong")
        state = self.oracle.state
        for stream_id, ledger in self.ledger.streams.items():
            if stream_id in state.streams:
                if ledger.deleted:
                    raise Violation(f"stream {stream_id} is back from deletion")
                if state.stream(stream_id).is_open:
                    raise Violation(f"stream {stream_id} was not audited")
            elif not ledger.deleting:
                raise Violation(f"stream {stream_id} is gone, and nobody deleted it")
        await asyncio.sleep(HELD_S_MAX)  # what was held on its way arrives
        await self._judge_bucket(await self._judge_metadata())

    async def _audit(self, one: Incarnation) -> None:
        """What an auditor does on a fresh incarnation of a node: read all it owns, and stop."""
        assert one.engine is not None
        state = one.engine.metadata.state
        mine = [
            s.stream_id
            for s in state.streams.values()
            if s.node_id == one.node_id or (s.node_id < 0 and one.node_id == 0)
        ]
        for stream in await one.engine.open_streams(sorted(mine)):
            one.check_offsets(stream)
            await self._read_all(stream)
        one.begin(one.stop(), "stop")

    async def _read_all(self, stream: Stream) -> None:
        offset = start = stream.start_offset
        seen: set[int] = set()
        while offset < stream.confirmed_offset:
            found = await stream.fetch(offset, 64 * 1024)
            seen.update(int.from_bytes(payload[:8], "big") for payload in found)
            offset = self.ledger.saw(stream.stream_id, found, offset)
        self.ledger.check_log(stream.stream_id, start, seen)

    async def _judge_metadata(self) -> MetadataLog:
        """What a newcomer makes of the bucket is what all entries make, one after the other."""
        log = await MetadataLog.open(
            self._audited, writer_id="auditor", clock=self._clock, rng=self.rng
        )
        if log.state != self.oracle.state:
            raise Violation("a newcomer sees another state than all entries make")
        return log

    async def _judge_bucket(self, metadata: MetadataLog) -> None:
        """After a sweep, the bucket holds what streams refer to, and the seals of the past."""
        self.oracle.grace_s = 0.0
        settings = SweepTimes(grace_ms=0, margin_ms=0)
        later = SkewedClock(self._loop)
        later.skew_ms = 100 * HOUR_MS  # beyond what any node's clock said when it committed
        plan = await find_garbage(self._audited, metadata, later, settings)
        await perform(plan, self._audited, metadata)
        report = await check_leaks(self._audited, metadata)
        # What a killed job left may be committed until the log has gone on for long.
        left = {key for key in report.uploading if JobName.parse(key)}
        if not report.is_clean or set(report.uploading) != left or report.wal:
            raise Violation(f"the bucket holds more or less than it should: {report}")
        referred = {
            extent.object_key
            for stream in self.oracle.state.streams.values()
            for extent in stream.state_sources
        }
        there = {
            key
            for key, body in self.bucket.objects.items()
            if not key.startswith("meta/") and not is_seal_size(len(body))
        } - left
        if there != referred:
            raise Violation(f"leaked: {there - referred}, missing: {referred - there}")


def _weather(rng: random.Random) -> FaultProfile:
    """A quarter of the worlds has fair weather; no fault is always there."""
    if rng.random() < 0.25:
        return CALM

    def sometimes(most: float) -> float:
        return rng.random() * most if rng.random() < 0.6 else 0.0

    return FaultProfile(
        unavailable=sometimes(0.2),
        lost_request=sometimes(0.1),
        lost_response=sometimes(0.15),
        latency_s_max=rng.choice([0.0, 0.03, 0.3]),
    )


def run_world(
    seed: int,
    *,
    wal: str | None = None,
    echo: Callable[[str], None] | None = None,
    merges: bool | None = None,
    sweeps: bool | None = None,
    is_encrypted: bool = False,
) -> World:
    """Run the world of a seed to its end. In every other one small objects are merged, in every
    fifth processes sweep beside the nodes, or as `merges` and `sweeps` say. Raises Violation, or
    what else went wrong.
    """
    wal = wal or sorted(WALS)[seed % len(WALS)]
    loop = SimulationLoop(seed, time_limit=20_000)
    loop.set_exception_handler(lambda loop, context: None)
    asyncio.set_event_loop(loop)
    try:
        merges = seed % 2 == 1 if merges is None else merges
        sweeps = seed % 5 == 3 if sweeps is None else sweeps
        world = World(
            seed,
            loop,
            wal,
            Trace(loop, echo),
            merges=merges,
            sweeps=sweeps,
            is_encrypted=is_encrypted,
        )
        loop.run_until_complete(world.run())
        return world
    finally:
        asyncio.set_event_loop(None)
        loop.dispose()
