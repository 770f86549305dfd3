"""A member of a consumer group as Kafka's clients are (KIP-848): heartbeats that give partitions
back before they take others, fetches, commits in its member epoch.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.storage.format.record_batch import iter_headers
from tests.simulation.cluster.client_wire import ClientWire, encoded
from tests.simulation.cluster.clients import HOST
from tests.simulation.cluster.consumer_judge import ConsumerJudge
from tests.simulation.cluster.share_worker import COORDINATOR_AGAIN
from tests.simulation.cluster.topics import EVENTS
from tests.simulation.cluster.transactional_producer import GROUP, find_coordinator
from tests.simulation.ledger import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld
    from tests.simulation.lives import Life

HEARTBEAT_S = 0.7
REBALANCE_MS = 30_000
LATE_S = (1.0, 8.0, 11.0)
"""Delays of last commits: while the session of the dead member lasts, and after it."""
_HEARTBEAT, _COMMIT, _OFFSETS, _FETCH = (68, 1), (8, 9), (9, 9), (1, 13)
_JOIN, _LEAVE = 0, -1
_SIZE = 64 << 10
_REJOIN = frozenset(
    {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found}
)
_NOT_MINE = _REJOIN | {ErrorCode.stale_member_epoch}
_PASSING = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_id,
        ErrorCode.offset_out_of_range,  # of a leader that has not recovered all yet
        ErrorCode.kafka_storage_error,
    }
)


class ConsumerMember:
    """One life of a member, which works until it is to leave, or killed."""

    def __init__(
        self,
        world: ClusterWorld,
        life: Life,
        rng: random.Random,
        group_id: str,
        judge: ConsumerJudge,
        *,
        is_tidy: bool = False,
    ) -> None:
        self.life = life
        self.is_leaving = False
        self._world = world
        self._rng = rng
        self._group_id = group_id
        self._judge = judge
        self._id = life.name
        self._epoch = _JOIN
        self._target: frozenset[int] = frozenset()
        self._position: dict[int, int] = {}
        """Of the partitions that it reads."""
        self._adopted: set[int] = set()
        """Those, and partitions of which it does not know the committed offset yet."""
        self._coordinator: Address | None = None
        self._coordinator_wire = ClientWire(world, life, HOST)
        self._wire = ClientWire(world, life, HOST)
        self._pace_s = 0.05 if is_tidy else rng.choice([0.1, 0.5])
        self._commits = 1.0 if is_tidy else 0.5

    async def run(self) -> None:
        """Take part in the group until it is to leave."""
        staying = asyncio.get_running_loop().create_task(self._stay(), name=f"{self._id} stays")
        while not self.is_leaving:
            for index in sorted(self._position):
                await self._read(index)
            await asyncio.sleep(self._rng.expovariate(1 / self._pace_s))
            if staying.done():
                staying.result()
        staying.cancel()
        for index in sorted(self._position):
            await self._commit(index)
        self._judge.gone(self._id)
        await self._beat(_LEAVE)
        self.life.kill()

    def send_last_commit(self) -> None:
        """Let a commit arrive late, of a member that is about to die."""
        for index, offset in self._position.items():
            if self._coordinator is not None:
                frame = encoded(*_COMMIT, "OffsetCommitRequest", **self._commit_of(index, offset))
                self._wire.send_late(self._coordinator, frame, self._rng.choice(LATE_S))

    # ------------------------------------------------------------- membership

    async def _stay(self) -> None:
        while True:
            await self._beat(self._epoch)
            await asyncio.sleep(HEARTBEAT_S * self._rng.uniform(0.5, 1.0))
            await self._reconcile()

    @property
    def _topic_id(self) -> UUID:
        return UUID(self._world.oracle.state.topics[EVENTS].topic_id)

    async def _where(self) -> Address | None:
        """Return where the coordinator is, None if no node says so."""
        if self._coordinator is None:
            self._coordinator = await find_coordinator(
                self._coordinator_wire, self._rng, self._group_id, GROUP
            )
        return self._coordinator

    async def _to_coordinator(self, api: tuple[int, int], name: str, **fields: Any) -> Any:
        """Send a request to the coordinator and return its response, None if there is none."""
        where = await self._where()
        if where is None:
            return None
        try:
            return await self._coordinator_wire.send(*(where, *api, name), **fields)
        except (OSError, TimeoutError):
            self._coordinator = None
            return None

    async def _beat(self, epoch: int) -> None:
        """Send a heartbeat, and take what the response says."""
        sent_s = self._world.virtual_s
        owned = [
            entity(
                schema(*_HEARTBEAT).request_module,
                "TopicPartitions",
                topic_id=self._topic_id,
                partitions=sorted(self._position),
            )
        ]
        where = await self._where()
        response = await self._to_coordinator(
            _HEARTBEAT,
            "ConsumerGroupHeartbeatRequest",
            group_id=self._group_id,
            member_id=self._id,
            member_epoch=epoch,
            rebalance_timeout=REBALANCE_MS if epoch == _JOIN else -1,
            subscribed_topic_names=[EVENTS] if epoch == _JOIN else None,
            topic_partitions=[] if epoch in {_JOIN, _LEAVE} else owned if self._position else [],
        )
        if response is None or epoch == _LEAVE:
            return
        code = response.error_code
        if code is ErrorCode.none:
            if where is not None and self._world.coordinates(where, self._group_id):
                self._judge.beats(self._id, sent_s)
            self._epoch = response.member_epoch
            if response.assignment is not None:
                self._target = frozenset(
                    index
                    for topic in response.assignment.topic_partitions
                    for index in topic.partitions
                )
            for index in self._target:
                self._judge.assigned(index, self._id, self._epoch)
        elif code in _REJOIN:
            self._lose_all()
        elif code in COORDINATOR_AGAIN:
            self._coordinator = None
        else:
            raise Violation(f"a member of a consumer group got {code.name}")

    def _lose_all(self) -> None:
        self._judge.gone(self._id)
        self._epoch, self._target = _JOIN, frozenset()
        self._position.clear()
        self._adopted.clear()

    async def _reconcile(self) -> None:
        """Give back what it is not to have; take what it is to have, at the committed offset."""
        for index in sorted(self._adopted - self._target):
            if index in self._position and self._rng.random() < 0.7:
                await self._commit(index)
            self._judge.give_back(index, self._id)
            self._adopted.discard(index)
            self._position.pop(index, None)
        for index in sorted(self._target - self._position.keys()):
            self._judge.adopt(index, self._id)
            self._adopted.add(index)
            offset = await self._committed(index)
            if offset is not None and index in self._target:
                self._position[index] = offset

    # ------------------------------------------------------------- offsets

    def _commit_of(self, index: int, offset: int) -> dict[str, Any]:
        module = schema(*_COMMIT).request_module
        place = entity(
            module,
            "OffsetCommitRequestPartition",
            partition_index=index,
            committed_offset=offset,
            committed_metadata="",
        )
        return {
            "group_id": self._group_id,
            "generation_id_or_member_epoch": self._epoch,
            "member_id": self._id,
            "topics": [entity(module, "OffsetCommitRequestTopic", name=EVENTS, partitions=[place])],
        }

    async def _commit(self, index: int) -> None:
        offset, before = self._position[index], self._judge.committed(index)
        response = await self._to_coordinator(
            _COMMIT, "OffsetCommitRequest", **self._commit_of(index, offset)
        )
        if response is None:
            return
        code = response.topics[0].partitions[0].error_code
        if code is ErrorCode.none:
            self._judge.commit(index, self._id, offset, before)
        elif code in COORDINATOR_AGAIN:
            self._coordinator = None
        elif code not in _NOT_MINE:
            raise Violation(f"a commit of a consumer group got {code.name}")

    async def _committed(self, index: int) -> int | None:
        """Return the committed offset of a partition, None if no coordinator says so."""
        module = schema(*_OFFSETS).request_module
        topic = entity(module, "OffsetFetchRequestTopics", name=EVENTS, partition_indexes=[index])
        group = entity(
            module,
            "OffsetFetchRequestGroup",
            group_id=self._group_id,
            member_id=self._id,
            member_epoch=self._epoch,
            topics=[topic],
        )
        before, where = self._judge.committed(index), await self._where()
        response = await self._to_coordinator(
            _OFFSETS, "OffsetFetchRequest", groups=[group], require_stable=True
        )
        if response is None:
            return None
        (found,) = response.groups
        codes = {found.error_code}
        codes |= {one.error_code for topic in found.topics for one in topic.partitions}
        if codes != {ErrorCode.none}:
            if codes & COORDINATOR_AGAIN:
                self._coordinator = None
            elif codes - _NOT_MINE - {ErrorCode.none}:
                raise Violation(f"a consumer group's offsets got {codes}")
            return None
        offset = max(found.topics[0].partitions[0].committed_offset, 0)
        if where is not None and self._world.coordinates(where, self._group_id):
            self._judge.fetch_committed(index, self._id, offset, before)
        return int(offset)

    # ------------------------------------------------------------- records

    async def _read(self, index: int) -> None:
        """Fetch once from a partition, and commit perhaps."""
        world, where = self._world, self._wire.leader(EVENTS, index)
        position = self._position.get(index)
        if where is None or position is None:
            return
        module = schema(*_FETCH).request_module
        wanted = entity(
            module,
            "FetchPartition",
            partition=index,
            fetch_offset=position,
            partition_max_bytes=_SIZE,
        )
        topic = entity(module, "FetchTopic", topic_id=self._topic_id, partitions=[wanted])
        try:
            response = await self._wire.send(
                *(where, *_FETCH, "FetchRequest"),
                max_wait=300,
                min_bytes=1,
                max_bytes=_SIZE,
                topics=[topic],
                forgotten_topics_data=(),
            )
        except (OSError, TimeoutError):
            return
        found = response.responses[0].partitions[0]
        if found.error_code in _PASSING or self._position.get(index) != position:
            return
        if found.error_code is not ErrorCode.none:
            raise Violation(f"a consumer group's member fetched {found.error_code.name}")
        stream_id = world.oracle.state.topics[EVENTS].partitions[index]
        data = memoryview(found.records or b"")
        for place, header in iter_headers(data):
            batch = data[place : place + header.size]
            world.ledger.saw(stream_id, [batch], max(position, header.base_offset))
            self._judge.read(index, max(position, header.base_offset), header.end_offset)
            position = header.end_offset
        self._position[index] = position
        if self._rng.random() < self._commits:
            await self._commit_if_owned(index)

    async def _commit_if_owned(self, index: int) -> None:
        if index in self._position:
            await self._commit(index)
