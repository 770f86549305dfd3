"""A consumer group (KIP-848) in a simulated cluster, and the judgement of what its members saw.

Members join, read and commit; they are killed, some with a commit on its way, they are frozen, and
they leave. When nothing fails any more, a member comes to the end of each partition, and the rules
of `consumer_judge` hold.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING

from tests.simulation.cluster.clients import Clients
from tests.simulation.cluster.consumer_judge import ConsumerJudge
from tests.simulation.cluster.consumer_member import ConsumerMember
from tests.simulation.cluster.member import GROUP_SESSION_S
from tests.simulation.cluster.topics import EVENTS
from tests.simulation.ledger import Violation
from tests.simulation.lives import Life

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld

GROUP_ID = "readers"
DRAINED_S = 90.0
"""Once nothing fails any more, the group is at the end after so many seconds."""


class ConsumerClients(Clients):
    """The group of one world."""

    def __init__(self, world: ClusterWorld, seed: int) -> None:
        super().__init__(world, random.Random(f"consumer group of cluster {seed}"))
        self.group = ConsumerJudge(world, GROUP_SESSION_S)
        self._partitions = self.rng.choice([1, 2, 3, 4])
        self._seats = self.rng.choice([1, 2, 3])
        self._numbers = itertools.count()

    def start(self) -> None:
        """Begin."""
        for seat in range(self._seats):
            self.begin(self._keep(), f"{GROUP_ID} seat {seat}")

    def _member(self, *, is_tidy: bool = False) -> ConsumerMember:
        life = Life(self.world.loop, f"{GROUP_ID}.{next(self._numbers)}")
        life.on_death.append(lambda: self.group.gone(life.name))
        member = ConsumerMember(self.world, life, self.rng, GROUP_ID, self.group, is_tidy=is_tidy)
        life.spawn(self.guarded(member.run()), life.name)
        self.note(life.name, "joins")
        return member

    async def _keep(self) -> None:
        """Keep one member at work after the other."""
        rng = self.rng
        await self.ready(EVENTS, self._partitions)
        while not self.world.is_quiet:
            member = self._member()
            await asyncio.sleep(rng.uniform(3.0, 30.0))
            await self._end(member)
            await asyncio.sleep(rng.choice([0.1, 1.0, 3.0]) * rng.random())

    async def _end(self, member: ConsumerMember) -> None:
        rng = self.rng
        end = rng.choice(["kill", "last commit", "leave", "freeze"])
        self.ends[end] += 1
        self.note(member.life.name, end)
        match end:
            case "leave":
                member.is_leaving = True
                asyncio.get_running_loop().call_later(15.0, member.life.kill)
            case "last commit":
                member.send_last_commit()
                member.life.kill()
            case "freeze":
                member.life.freeze()
                await asyncio.sleep(rng.uniform(0.1, 2 * GROUP_SESSION_S))
                member.life.thaw()
                await asyncio.sleep(rng.uniform(0.1, 10.0))
                member.life.kill()
            case _:
                member.life.kill()

    async def judge(self) -> None:
        """Have the group come to its end, and judge. Raises Violation."""
        known = self.world.oracle.state.topics.get(EVENTS)
        if known is None:
            return
        ends = {}
        for index, stream_id in enumerate(known.partitions):
            found = self.world.led(stream_id)
            if found is None:
                raise Violation(f"{EVENTS}-{index} has lost its leader")
            ends[index] = found[1].high_watermark
        member = self._member(is_tidy=True)
        until = self.world.virtual_s + DRAINED_S
        committed: dict[int, int] = {}
        while self.world.virtual_s < until and committed != ends:
            await asyncio.sleep(1.0)
            committed = {index: self.group.committed(index) for index in ends}
        member.life.kill()
        if committed != ends:
            raise Violation(f"{GROUP_ID} hangs at {committed}, the ends are {ends}")
        for index, end in ends.items():
            self.group.judge(index, end)
