"""Who recovers a dead node, and when: in virtual time, over a real metadata log."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from lakehead.broker.cluster.log_recovery import STEP_IN_S, LogRecovery, recoverers, unrecovered
from lakehead.storage.errors import StoreUnavailable
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import NodeState
from lakehead.storage.object_store.memory import MemoryStore
from lakehead.storage.tasks import TaskScope
from tests.simulation.loop import LoopClock, simulate

TOPIC = f"{7:032x}"


class World:
    """A cluster whose nodes only recover each other; a recovery says when it was tried."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.store = MemoryStore()
        self.crashes: list[str] = []
        self.scope = TaskScope(lambda name, error: self.crashes.append(f"{name}: {error!r}"))
        self.tried: list[tuple[int, int, float]] = []
        self.is_broken: set[int] = set()
        self.is_defective = False
        self.logs: dict[int, MetadataLog] = {}

    async def log(self, node_id: int) -> MetadataLog:
        self.logs[node_id] = await MetadataLog.open(
            self.store,
            writer_id=f"{node_id}",
            clock=LoopClock(self.loop),
            rng=random.Random(node_id),
        )
        return self.logs[node_id]

    async def join(self, node_id: int, **fields: Any) -> LogRecovery:
        log = await self.log(node_id)
        await log.create_cluster("c")
        fields = {"wal": "object:", **fields}
        await log.commit(
            [r.RegisterNode(node_id=node_id, epoch=0, incarnation="i", host="h", port=1, **fields)]
        )

        async def take_over(dead: NodeState) -> int:
            self.tried.append((node_id, dead.node_id, self.loop.time()))
            if node_id in self.is_broken:
                raise StoreUnavailable("not from here")
            if self.is_defective:
                raise ZeroDivisionError("a defect")
            await log.commit(
                [
                    r.CommitObjects(
                        node_id=dead.node_id,
                        node_epoch=dead.epoch,
                        objects=(),
                        wal_epoch=dead.epoch + 1,
                        taker_id=node_id,
                        taker_epoch=0,
                    )
                ]
            )
            return 1

        recoveries = LogRecovery(node_id, log, self.scope, take_over)
        recoveries.start()
        return recoveries

    async def give_stream(self, stream_id: int, node_id: int) -> None:
        log = self.logs[node_id]
        await log.refresh()
        if stream_id == 0:
            await log.commit([r.CreateTopic(name="t", topic_id=TOPIC)])
        await log.commit(
            [
                r.CreateStream(stream_id=stream_id, topic_id=TOPIC, partition=stream_id),
                r.OpenStream(stream_id=stream_id, epoch=0, node_id=node_id, node_epoch=0),
            ]
        )

    async def fence(self, *node_ids: int, by: int) -> None:
        await self.logs[by].refresh()
        await self.logs[by].commit([r.FenceNode(node_id=one, epoch=0) for one in node_ids])
        await self.spread()

    async def spread(self) -> None:
        for log in self.logs.values():
            await log.refresh()

    async def live(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            await asyncio.sleep(1)
            await self.spread()


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def world() -> None:
        made = World()
        try:
            await scenario(made)
        finally:
            await made.scope.close()
        assert made.crashes == []

    simulate(world, seed=1)


def test_one_survivor_recovers_and_at_once() -> None:
    async def scenario(world: World) -> None:
        for node_id in range(3):
            await world.join(node_id)
        await world.give_stream(0, 2)
        await world.fence(2, by=0)
        await world.live(60)
        assert [who for who, _, _ in world.tried] == [0]
        assert world.logs[1].state.nodes[2].is_recovered

    run(scenario)


def test_several_dead_are_spread_over_the_survivors() -> None:
    async def scenario(world: World) -> None:
        for node_id in range(6):
            await world.join(node_id)
        for stream_id, owner in enumerate((3, 4, 5)):
            await world.give_stream(stream_id, owner)
        await world.fence(3, 4, 5, by=0)
        await world.live(2)
        assert sorted((dead, who) for who, dead, _ in world.tried) == [(3, 0), (4, 1), (5, 2)]

    run(scenario)


def test_a_taker_that_is_fenced_is_replaced_at_once_and_one_that_fails_after_a_while() -> None:
    async def scenario(world: World) -> None:
        for node_id in range(4):
            await world.join(node_id)
        await world.give_stream(0, 3)
        world.is_broken = {0, 1}
        began = world.loop.time()
        await world.fence(3, by=2)
        await world.live(3)
        assert {who for who, _, _ in world.tried} == {0}  # 3 % 3 = 0
        await world.fence(0, by=2)
        await world.live(1)
        assert {who for who, _, _ in world.tried} == {0, 2}  # of 1 and 2: 3 % 2 = 1
        assert world.loop.time() - began < STEP_IN_S
        assert world.logs[1].state.nodes[3].is_recovered

    run(scenario)


def test_others_step_in_for_one_that_does_not_get_it_done() -> None:
    async def scenario(world: World) -> None:
        for node_id in range(3):
            await world.join(node_id)
        await world.give_stream(0, 2)
        world.is_broken = {0}
        began = world.loop.time()
        await world.fence(2, by=1)
        await world.live(STEP_IN_S + 2)
        (stepped_in,) = [when for who, _, when in world.tried if who == 1]
        assert stepped_in - began >= STEP_IN_S
        await world.live(100)
        tried = len(world.tried)
        await world.live(100)
        assert len(world.tried) == tried  # done is done

    run(scenario)


def test_an_unexpected_error_of_a_recovery_is_not_its_end() -> None:
    """The same node tries it again, and goes on to serve."""

    async def scenario(world: World) -> None:
        failures: list[str] = []
        world.scope.on_failure = lambda name, error: failures.append(f"{name}: {error}")
        for node_id in range(2):
            await world.join(node_id)
        await world.give_stream(0, 1)
        world.is_defective = True
        await world.fence(1, by=0)
        await world.live(10)
        assert {who for who, _, _ in world.tried} == {0}
        assert len(failures) > 1
        assert set(failures) == {"recover node 1: a defect"}
        world.is_defective = False
        await world.live(10)
        assert world.logs[0].state.nodes[1].is_recovered

    run(scenario)


def test_a_node_without_open_streams_is_left_to_its_next_start() -> None:
    async def scenario(world: World) -> None:
        for node_id in range(2):
            await world.join(node_id)
        await world.fence(1, by=0)
        await world.live(60)
        assert world.tried == []
        assert unrecovered(world.logs[0].state) == []

    run(scenario)


def test_a_block_log_is_recovered_on_its_machine_or_not_at_all() -> None:
    async def scenario(world: World) -> None:
        await world.join(0, host_id="a")
        await world.join(1, wal="block:/w", host_id="b")
        await world.give_stream(0, 1)
        await world.fence(1, by=0)
        await world.live(60)
        assert world.tried == []
        await world.join(2, host_id="b")
        await world.live(1)
        assert [who for who, _, _ in world.tried] == [2]

    run(scenario)


def test_everyone_says_the_same_of_whose_turn_it_is() -> None:
    async def scenario(world: World) -> None:
        for node_id in range(5):
            await world.join(node_id)
        await world.spread()
        state = world.logs[0].state
        dead = replace(state.nodes[4], is_fenced=True)
        state = replace(state, nodes=state.nodes.set(4, dead))
        assert recoverers(state, dead) == [0, 1, 2, 3]
        assert recoverers(state, replace(dead, node_id=7)) == [3, 0, 1, 2]

    run(scenario)
