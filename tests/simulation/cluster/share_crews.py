"""Share groups in a simulated cluster, and the judgement of what their members saw.

Members join, fetch, and acknowledge at random: accept, release, reject, renew, late or never. They
are killed and frozen, they leave in order, or leave first and work on. Now and then all
of a group are gone and an operator moves it to another offset. When nothing fails any more, a
member that accepts everything comes to the end of each partition, and the rules of `share_judge`
hold.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import suppress
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.metadata.records import GroupConfig
from tests.simulation.cluster.clients import Clients
from tests.simulation.cluster.share_worker import ShareWorker
from tests.simulation.cluster.topics import TASKS
from tests.simulation.cluster.transactional_producer import GROUP, find_coordinator
from tests.simulation.ledger import Violation
from tests.simulation.lives import Life

if TYPE_CHECKING:
    from tests.simulation.cluster.client_wire import ClientWire
    from tests.simulation.cluster.cluster_world import ClusterWorld
    from tests.simulation.cluster.member import Member

LOCK_S = 3.0
DRAINED_S = 120.0
"""Once nothing fails any more, a group is at the end after so many seconds."""
_DESCRIBE, _ALTER = (90, 1), (91, 0)


class _Group:
    """A group. `moved_to` is the offset of each partition to which an operator moved it last."""

    def __init__(self, group_id: str, seats: int, deliveries_max: int) -> None:
        self.group_id = group_id
        self.seats = seats
        self.deliveries_max = deliveries_max
        self.is_paused = asyncio.Event()
        """Set while members stop and no others take their place."""
        self.moved_to: dict[int, int] = {}


class ShareCrews(Clients):
    """All share groups of one world."""

    def __init__(self, world: ClusterWorld, seed: int) -> None:
        super().__init__(world, random.Random(f"share groups of cluster {seed}"))
        rng = self.rng
        self._partitions = rng.choice([1, 2, 3])
        self._groups = [
            _Group(f"crew-{number}", rng.choice([1, 2, 3]), rng.choice([2, 3, 5]))
            for number in range(rng.choice([1, 1, 2]))
        ]
        self._numbers = itertools.count()

    def start(self) -> None:
        """Begin."""
        for group in self._groups:
            self.world.share_judge.deliveries_max[group.group_id] = group.deliveries_max
            self.begin(self._run(group), group.group_id)

    async def _run(self, group: _Group) -> None:
        await self.ready(TASKS, self._partitions)
        await self._configure(group)
        for seat in range(group.seats):
            self.begin(self._keep(group), f"{group.group_id} seat {seat}")
        if self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.uniform(5.0, 40.0))
            if not self.world.is_quiet:
                await self._move(group)

    async def _configure(self, group: _Group) -> None:
        """Set the configs of a group, which begins at the start of the partitions."""
        while group.group_id not in self.world.oracle.state.group_configs:
            living = self.world.living()
            if living:
                member = self.rng.choice(living)
                setting = member.begin(self._set_configs(member, group), "set configs of a group")
                await asyncio.wait([setting], timeout=5.0)
            await asyncio.sleep(0.5)

    async def _set_configs(self, member: Member, group: _Group) -> None:
        assert member.engine is not None
        configs = {
            "share.auto.offset.reset": "earliest",
            "share.record.lock.duration.ms": str(int(LOCK_S * 1000)),
            "share.delivery.count.limit": str(group.deliveries_max),
        }
        record = GroupConfig(group=group.group_id, configs=dict(configs))
        await member.engine.metadata.commit([record])

    # ------------------------------------------------------------- members

    def _member(self, group: _Group, *, is_tidy: bool = False) -> ShareWorker:
        life = Life(self.world.loop, f"{group.group_id}.{next(self._numbers)}")
        member = ShareWorker(
            *(self.world, life, self.rng, group.group_id), lock_s=LOCK_S, is_tidy=is_tidy
        )
        life.spawn(self.guarded(member.run()), life.name)
        self.note(life.name, "joins")
        return member

    async def _keep(self, group: _Group) -> None:
        """Keep one member at work after the other."""
        rng = self.rng
        while not self.world.is_quiet:
            if not group.is_paused.is_set():
                member = self._member(group)
                with suppress(TimeoutError):
                    async with asyncio.timeout(rng.uniform(3.0, 30.0)):
                        await group.is_paused.wait()
                await self._end(group, member)
            await asyncio.sleep(rng.choice([0.1, 1.0, 3.0]) * rng.random())

    async def _end(self, group: _Group, member: ShareWorker) -> None:
        rng = self.rng
        ends = ["kill", "leave", "leave", "freeze", "freeze for ever"]
        end = "leave" if group.is_paused.is_set() else rng.choice(ends)
        self.ends[end] += 1
        self.note(member.life.name, end)
        if end.startswith("freeze"):
            member.life.freeze()
            await asyncio.sleep(rng.uniform(0.1, 3 * LOCK_S))
            member.life.thaw()
            if end == "freeze":
                await asyncio.sleep(rng.uniform(0.1, 10.0))
        if end == "leave":
            member.works_on = member.works_on or group.is_paused.is_set()
            member.is_leaving = True
            asyncio.get_running_loop().call_later(6 * LOCK_S, member.life.kill)
        else:
            member.life.kill()

    # ------------------------------------------------------------- operators

    async def _move(self, group: _Group) -> None:
        """Have a group begin elsewhere, once its members are gone."""
        group.is_paused.set()
        rng, ledger = self.rng, self.world.ledger
        known = self.world.oracle.state.topics[TASKS]
        offsets = {
            index: rng.randint(0, ledger.stream(stream_id).end)
            for index, stream_id in enumerate(known.partitions)
        }
        wire = self.wire()
        while not self.world.is_quiet:
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            if await self._is_moved(wire, group, offsets):
                group.moved_to = offsets
                self.ends["moved"] += 1
                self.note(group.group_id, f"is moved to {offsets}")
                break
        wire.close()
        group.is_paused.clear()

    async def _is_moved(self, wire: ClientWire, group: _Group, offsets: dict[int, int]) -> bool:
        module = schema(*_ALTER).request_module
        partitions = [
            entity(
                module,
                "AlterShareGroupOffsetsRequestPartition",
                partition_index=index,
                start_offset=offset,
            )
            for index, offset in offsets.items()
        ]
        topic = entity(
            module, "AlterShareGroupOffsetsRequestTopic", topic_name=TASKS, partitions=partitions
        )
        where = await find_coordinator(wire, self.rng, group.group_id, GROUP)
        if where is None:
            return False
        try:
            response = await wire.send(
                *(where, *_ALTER, "AlterShareGroupOffsetsRequest"),
                group_id=group.group_id,
                topics=[topic],
            )
        except (OSError, TimeoutError):
            return False
        codes = {one.error_code for topic in response.responses for one in topic.partitions}
        return response.error_code is ErrorCode.none and codes == {ErrorCode.none}

    # ------------------------------------------------------------- judgement

    async def judge(self) -> None:
        """Have each group come to its end, and judge. Raises Violation."""
        if TASKS not in self.world.oracle.state.topics:
            return
        for group in self._groups:
            if group.group_id in self.world.oracle.state.group_configs:
                await self._judge(group)

    async def _judge(self, group: _Group) -> None:
        member = self._member(group, is_tidy=True)
        ends = self._ends()
        until = self.world.virtual_s + DRAINED_S
        done, lags = dict.fromkeys(ends, 0), dict.fromkeys(ends, -1)
        wire = self.wire()
        while self.world.virtual_s < until and lags != done:
            await asyncio.sleep(1.0)
            lags = await self._lags(wire, group)
        wire.close()
        member.life.kill()
        known = self.world.oracle.state.topics[TASKS]
        for index, end in ends.items():
            key = SharePartitionKey(group.group_id, bytes.fromhex(known.topic_id), index)
            self.world.share_judge.judge(key, end, group.moved_to.get(index))
        if lags != done:
            raise Violation(f"{group.group_id} hangs {lags} before {ends}")

    def _ends(self) -> dict[int, int]:
        ends = {}
        for index, stream_id in enumerate(self.world.oracle.state.topics[TASKS].partitions):
            found = self.world.led(stream_id)
            if found is None:
                raise Violation(f"{TASKS}-{index} has lost its leader")
            ends[index] = found[1].high_watermark
        return ends

    async def _lags(self, wire: ClientWire, group: _Group) -> dict[int, int]:
        """Return how far a group is behind in each partition, as its coordinator says."""
        module = schema(*_DESCRIBE).request_module
        topic = entity(
            module,
            "DescribeShareGroupOffsetsRequestTopic",
            topic_name=TASKS,
            partitions=list(range(self._partitions)),
        )
        requested = entity(
            module,
            "DescribeShareGroupOffsetsRequestGroup",
            group_id=group.group_id,
            topics=[topic],
        )
        where = await find_coordinator(wire, self.rng, group.group_id, GROUP)
        if where is None:
            return {}
        try:
            response = await wire.send(
                *(where, *_DESCRIBE, "DescribeShareGroupOffsetsRequest"), groups=[requested]
            )
        except (OSError, TimeoutError):
            return {}
        return {
            one.partition_index: one.lag
            for found in response.groups
            for topic in found.topics
            for one in topic.partitions
            if one.error_code is ErrorCode.none
        }
