"""The right of a node to serve reads as a leader, in virtual time, over real metadata logs."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from lakehead.broker.cluster.broker_lifecycle import BrokerLifecycle, Session
from lakehead.broker.cluster.heartbeat import NodeLoad
from lakehead.broker.cluster.inter_broker_client import PeerChannel
from lakehead.storage.clock import Clock
from lakehead.storage.errors import StoreUnavailable
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import FenceNode, RegisterNode, RetireNode
from lakehead.storage.object_store.memory import MemoryStore
from lakehead.storage.tasks import TaskScope
from tests.simulation.loop import LoopClock, simulate

SESSION = 3.0


class World:
    """One store, nodes with a log and a session each."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.store = MemoryStore()
        self.crashes: list[str] = []
        self.agreed_at = float("-inf")
        self.scope = TaskScope(lambda name, error: self.crashes.append(f"{name}: {error!r}"))

    async def node(self, node_id: int) -> tuple[MetadataLog, Session]:
        log = await MetadataLog.open(
            self.store, writer_id=f"{node_id}", clock=self.clock, rng=random.Random(node_id)
        )
        await log.create_cluster("c")
        await log.commit(
            [RegisterNode(node_id=node_id, epoch=0, incarnation="i", host="h", port=1)]
        )
        session = Session(
            log,
            self.clock,
            self.scope,
            session_s=SESSION,
            is_unfenced=lambda: not log.state.nodes[node_id].is_fenced,
            is_unanimous=lambda since: since <= self.agreed_at,
        )
        return log, session


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def world() -> None:
        made = World(LoopClock(asyncio.get_running_loop()))
        try:
            await scenario(made)
        finally:
            await made.scope.close()
        assert made.crashes == []

    simulate(world, seed=1)


def test_a_node_alone_reads_the_log_when_somebody_fetches() -> None:
    async def scenario(world: World) -> None:
        log, session = await world.node(0)
        assert session.is_current()
        await asyncio.sleep(SESSION)
        before = log.fresh_at
        await asyncio.sleep(100)
        assert log.fresh_at == before
        assert not session.is_current()
        assert await session.ensure()
        assert session.is_current()

    run(scenario)


def test_who_reads_all_the_time_never_waits() -> None:
    async def scenario(world: World) -> None:
        _, session = await world.node(0)
        for _ in range(200):
            await asyncio.sleep(0.1)
            assert session.is_current()

    run(scenario)


def test_a_fenced_node_that_wakes_answers_nothing() -> None:
    async def scenario(world: World) -> None:
        _, session = await world.node(0)
        other, _ = await world.node(1)
        await asyncio.sleep(10)  # asleep: nothing runs that would renew
        await other.commit([FenceNode(node_id=0, epoch=0)])
        assert not session.is_current()
        assert not await session.ensure()

    run(scenario)


def test_what_another_node_knows_counts_from_when_it_was_asked() -> None:
    async def scenario(world: World) -> None:
        log, session = await world.node(0)
        await asyncio.sleep(10)
        sent_at = world.clock.monotonic()
        await asyncio.sleep(0.5)
        session.note_response(sent_at, 1000, log.state.next_entry)
        assert session.proven_at == sent_at - 1.0
        session.note_response(sent_at, None, log.state.next_entry)
        assert session.proven_at == sent_at - 1.0
        assert session.is_current()

    run(scenario)


def test_a_proof_passes_on_only_with_the_entries_it_rests_on() -> None:
    async def scenario(world: World) -> None:
        log, session = await world.node(0)
        other, _ = await world.node(1)
        await asyncio.sleep(10)
        await other.refresh(surely=True)
        assert log.state.next_entry < other.state.next_entry
        asked_at = world.clock.monotonic()
        session.note_response(asked_at, 0, other.state.next_entry)
        assert session.proven_at == asked_at  # of this node it is proven
        age = session.state_age_ms()
        assert age is not None
        assert age >= 10_000  # but what it says of others is as old as its state
        await log.refresh()
        session.note_response(asked_at, 0, other.state.next_entry)
        assert session.state_age_ms() == 1

    run(scenario)


def test_a_store_that_does_not_answer_ends_the_session() -> None:
    async def scenario(world: World) -> None:
        log, session = await world.node(0)

        async def hang(**_: object) -> None:
            await asyncio.sleep(1e6)

        log.refresh = hang  # type: ignore[method-assign, assignment]
        await asyncio.sleep(SESSION)
        began = world.clock.monotonic()
        assert not await session.ensure()
        assert world.clock.monotonic() - began == 1.0

        async def fail(**_: object) -> None:
            raise StoreUnavailable("down")

        log.refresh = fail  # type: ignore[method-assign, assignment]
        assert not await session.ensure()
        world.agreed_at = world.clock.monotonic()
        assert await session.ensure()  # nobody reads the log, and everybody knows this node
        await asyncio.sleep(SESSION)
        assert not await session.ensure()

    run(scenario)


def test_who_slept_takes_nobodys_silence_for_a_proof() -> None:
    """A node that knows of no others is unanimous with itself, and may have a successor by now."""

    async def scenario(world: World) -> None:
        log, session = await world.node(0)
        refresh = log.refresh

        async def fail(**_: object) -> None:
            raise StoreUnavailable("down")

        log.refresh = fail  # type: ignore[method-assign, assignment]
        world.agreed_at = float("inf")
        await asyncio.sleep(2 * SESSION)
        assert await session.ensure()
        await asyncio.sleep(2 * SESSION)
        session.note_sleep()
        assert not await session.ensure()
        log.refresh = refresh  # type: ignore[method-assign]
        assert await session.ensure()

    run(scenario)


def test_a_node_that_lacks_a_named_entry_has_no_proof_from_those_that_lack_it_too() -> None:
    """The node that named it may have fenced this one: one that came back, and that none of the
    others knows.
    """

    async def scenario(world: World) -> None:
        log, session = await world.node(0)
        refresh = log.refresh

        async def fail(**_: object) -> None:
            raise StoreUnavailable("down")

        log.refresh = fail  # type: ignore[method-assign, assignment]
        world.agreed_at = float("inf")
        session.note_entry(log.state.next_entry)
        await asyncio.sleep(2 * SESSION)
        assert await session.ensure()
        session.note_entry(10**9)
        await asyncio.sleep(2 * SESSION)
        assert not await session.ensure()
        log.refresh = refresh  # type: ignore[method-assign]
        assert await session.ensure(), "no node has written that entry"
        log.refresh = fail  # type: ignore[method-assign, assignment]
        await asyncio.sleep(2 * SESSION)
        assert await session.ensure()

    run(scenario)


class CutOff:
    """A network that lets nothing through."""

    async def connect(self, host: str, port: int, on_closed: Callable[[], None]) -> PeerChannel:
        await asyncio.Event().wait()
        raise AssertionError

    async def probe(self, host: str, port: int) -> None:
        await self.connect(host, port, lambda: None)


def cut_off(world: World, log: MetadataLog) -> Session:
    """Return the session of node 0, which no other node hears, and which loses the store now."""
    lifecycle = BrokerLifecycle(
        log.state.nodes[0],
        log,
        CutOff(),
        world.clock,
        world.scope,
        interval_s=0.5,
        session_s=SESSION,
        load=NodeLoad,
    )
    lifecycle.start()

    async def fail(**_: object) -> None:
        raise StoreUnavailable("down")

    log.refresh = fail  # type: ignore[method-assign, assignment]
    return lifecycle.session


def test_a_node_that_is_cut_off_from_a_fenced_one_serves_no_read_without_the_log() -> None:
    """The fenced node may be back in another epoch, and may have fenced this one."""

    async def scenario(world: World) -> None:
        log, _ = await world.node(0)
        other, _ = await world.node(1)
        await log.refresh()
        await log.commit([FenceNode(node_id=1, epoch=0)])
        session = cut_off(world, log)
        assert await session.ensure()
        await other.refresh()
        await other.commit(
            [
                RegisterNode(node_id=1, epoch=1, incarnation="j", host="h", port=1),
                FenceNode(node_id=0, epoch=0),
            ]
        )
        await asyncio.sleep(SESSION)
        assert not await session.ensure()
        assert not await session.ensure_state()

    run(scenario)


def test_a_node_whose_others_are_retired_serves_reads_while_the_store_is_gone() -> None:
    async def scenario(world: World) -> None:
        log, _ = await world.node(0)
        await world.node(1)
        await log.refresh()
        await log.commit([FenceNode(node_id=1, epoch=0), RetireNode(node_id=1)])
        session = cut_off(world, log)
        await asyncio.sleep(SESSION)
        assert await session.ensure()
        assert await session.ensure_state()

    run(scenario)
