"""Who makes topics and moves leadership in a simulated cluster, by any node that serves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.metadata.records import AssignStreams, DeleteTopic, DrainNode
from tests.simulation.cluster.topics import KEPT

if TYPE_CHECKING:
    from lakehead.storage.metadata.state import MetadataImage
    from tests.simulation.cluster.cluster_world import ClusterWorld
    from tests.simulation.cluster.member import Member

TOPICS_MAX = 3


class Administrator:
    """Acts now and then, until the world settles."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._rng = world.rng

    async def work(self) -> None:
        """Do one thing after the other."""
        rng, world = self._rng, self._world
        while True:
            await asyncio.sleep(rng.expovariate(0.5))
            living = world.living()
            if not living:
                continue
            member = rng.choice(living)
            topics = len(deletable(world.oracle.state))
            kind = rng.choice(["topic", "reassign", "reassign", "drain", "undrain", "delete"])
            if topics == 0 or (kind == "topic" and topics < TOPICS_MAX):
                member.begin(self._guarded(self._create(member)), "create a topic")
            elif kind == "reassign":
                member.begin(self._guarded(self._reassign(member)), "reassign")
            elif kind in {"drain", "undrain"}:
                is_draining = kind == "drain" and rng.random() < 0.4
                member.begin(self._guarded(self._drain(member, is_draining)), kind)
            elif kind == "delete" and rng.random() < 0.3:
                member.begin(self._guarded(self._delete(member)), "delete a topic")

    async def _guarded(self, coro: object) -> None:
        try:
            await coro  # type: ignore[misc]
        except KafkaError:
            pass  # the name is taken, nobody may lead, …

    async def _create(self, member: Member) -> None:
        assert member.replication_control is not None
        name = f"t{self._rng.randrange(TOPICS_MAX)}"
        topic = await member.replication_control.create(name, self._rng.randint(1, 6))
        member.note(f"made topic {name}: {topic.stream_ids}")

    async def _reassign(self, member: Member) -> None:
        assert member.engine is not None
        state = member.engine.metadata.state
        if not state.streams:
            return
        target = self._rng.choice(sorted(state.nodes))
        chosen = [s for s in sorted(state.streams) if self._rng.random() < 0.4]
        await member.engine.metadata.commit(
            [AssignStreams(node_id=target, stream_ids=tuple(chosen), is_preferred=True)]
        )
        member.note(f"streams {chosen} are to go to node {target}")

    async def _drain(self, member: Member, is_draining: bool) -> None:
        assert member.engine is not None
        state = member.engine.metadata.state
        node = state.nodes[self._rng.choice(sorted(state.nodes))]
        await member.engine.metadata.commit(
            [DrainNode(node_id=node.node_id, epoch=node.epoch, is_draining=is_draining)]
        )
        member.note(f"node {node.node_id} is {'' if is_draining else 'not '}to be drained")

    async def _delete(self, member: Member) -> None:
        assert member.engine is not None
        state = member.engine.metadata.state
        names = deletable(state)
        if not names:
            return
        topic = state.topics[self._rng.choice(names)]
        ledgers = [self._world.ledger.stream(stream_id) for stream_id in topic.partitions]
        for ledger in ledgers:
            ledger.deleting = True
        await member.engine.metadata.commit([DeleteTopic(topic_id=topic.topic_id)])
        for ledger in ledgers:
            ledger.deleted = True
        member.note(f"deleted topic {topic.name}: {topic.partitions}")


def deletable(state: MetadataImage) -> list[str]:
    """Return the names of the topics that are not kept for clients."""
    return sorted(name for name in state.topics if name not in KEPT)
