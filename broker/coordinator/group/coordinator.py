"""The group coordinator of a node: which shard a group is in, loading shards, and what APIs ask.

A group belongs to the partition of `__consumer_offsets` that its id hashes to, and is coordinated
by the node that leads that partition: its groups are loaded when the partition is opened here, and
let go when it is handed over, when whoever waits is sent to look for the new coordinator. What was
committed here is in the partition's log by then. The topic is made when a coordinator is first
asked for. Every method raises KafkaError when this node does not coordinate the group, or not yet.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import structlog
from kio.schema.errors import ErrorCode

from broker.catalog import OFFSETS_TOPIC
from broker.coordinator.group.messages import (
    TEXT_SIZE_MAX,
    GroupSettings,
    GroupSnapshot,
    GroupState,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from broker.coordinator.group.record_formats import CommittedOffset
from broker.coordinator.group.shard import GroupShard, LiveGroup, Offsets, TopicPartition
from broker.coordinator.log import CoordinatorLog, LogPartition
from broker.partition.topic import Topic
from broker.protocol.errors import KafkaError, error_code
from broker.settings import Settings
from storage.clock import Clock
from storage.errors import LakeheadError
from storage.tasks import TaskScope

_LOAD_WAIT_SECONDS = 5.0
_MEMBER_ID_BITS = 128
_log = structlog.get_logger(__name__)


class OffsetsTopic(Protocol):
    """What the coordinator needs of its node: the internal topic's partitions."""

    def partition_count(self) -> int:
        """Partitions of the topic; 0 while it does not exist."""

    def partition(self, index: int) -> LogPartition | None:
        """The partition, if this node holds it."""

    async def create(self) -> None:
        """Create the topic if it does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as DescribeGroups and ListGroups see it."""

    group_id: str
    state: GroupState
    snapshot: GroupSnapshot


def partition_of(group_id: str, partition_count: int) -> int:
    """Return the partition a group is kept in: abs(Java's String.hashCode) modulo the count."""
    code = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    if code >= 0x80000000:
        code = 0x100000000 - code
    return 0 if code == 0x80000000 else code % partition_count


class GroupCoordinator:
    """Every group that this node coordinates."""

    def __init__(
        self,
        topic: OffsetsTopic,
        settings: Settings,
        clock: Clock,
        rng: Random,
        scope: TaskScope,
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._group_settings = GroupSettings(
            min_session_timeout_ms=settings.group_min_session_timeout_ms,
            max_session_timeout_ms=settings.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
            max_size=settings.group_max_size,
        )
        self._clock = clock
        self._rng = rng
        self._scope = scope
        self._shards: dict[int, GroupShard] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._is_closed = False

    # The life of the coordinator.

    async def start(self) -> None:
        """Begin to load what this node holds, and to forget what is too old."""
        self._load_all()
        self._scope.spawn(self._expire_regularly(), name="expire offsets")

    def close(self) -> None:
        """Answer whoever waits with NOT_COORDINATOR; for the end of the node."""
        self._is_closed = True
        for shard in self._shards.values():
            shard.close(ErrorCode.not_coordinator)
        self._shards.clear()

    def partition_opened(self, topic: Topic, index: int) -> None:
        """Load the groups of a partition that this node leads from now on."""
        if topic.name == OFFSETS_TOPIC:
            self._load(index)

    def partition_closed(self, topic: Topic, index: int) -> None:
        """Let go of the groups of a partition that this node does not lead any more."""
        if topic.name != OFFSETS_TOPIC:
            return
        self._loading.pop(index, None)
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close(ErrorCode.not_coordinator)

    async def partition_for(self, group_id: str) -> int:
        """Return the partition that a group is kept in, making the topic if there is none."""
        _check_group_id(group_id)
        if self._topic.partition_count() == 0:
            await self._topic.create()
        index = partition_of(group_id, self._topic.partition_count())
        self._load_all()
        return index

    def topics_deleted(self, topics: set[str]) -> None:
        """Forget offsets of topics that are no more."""
        for shard in self._shards.values():
            shard.delete_topics(topics)

    # Members.

    async def join(self, group_id: str, request: JoinRequest) -> JoinResult:
        """JoinGroup; returns when the rebalance completes."""
        shard = await self._shard(group_id)
        return await shard.join(group_id, request)

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResult:
        """SyncGroup; returns when there is an assignment."""
        shard = await self._shard(group_id)
        return await shard.sync(group_id, request)

    async def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Heartbeat."""
        shard = await self._shard(group_id)
        return shard.heartbeat(group_id, member_id, instance_id, generation)

    async def leave(
        self, group_id: str, members: Sequence[tuple[str, str | None]]
    ) -> list[ErrorCode]:
        """LeaveGroup, of (member id, instance id); one answer for each."""
        shard = await self._shard(group_id)
        return [shard.leave(group_id, *member) for member in members]

    # Offsets.

    async def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Whether this member may commit."""
        shard = await self._shard(group_id)
        return shard.check_commit(group_id, member_id, instance_id, generation)

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Store offsets; returns when they are durable. To be called right after `check_commit`."""
        shard = await self._shard(group_id)
        await self._durable(shard.commit(group_id, offsets))

    async def offsets(self, group_id: str) -> Offsets:
        """Return the committed offsets of a group."""
        shard = await self._shard(group_id)
        # Commits that were taken before are seen: Kafka handles a client's requests one by one.
        under_way = shard.commit_under_way(group_id)
        if under_way is not None:
            await self._durable(under_way)
            shard = await self._shard(group_id)  # it may be another node's by now
        live = shard.groups.get(group_id)
        return {} if live is None else live.offsets

    async def delete_offsets(self, group_id: str, where: Iterable[TopicPartition]) -> None:
        """Forget offsets of a group; returns when that is durable."""
        shard = await self._shard(group_id)
        await self._durable(shard.delete_offsets(group_id, where))

    # Administration.

    async def describe(self, group_id: str) -> GroupDescription | None:
        """Return a group, None when there is none."""
        live = (await self._shard(group_id)).groups.get(group_id)
        return None if live is None else _description(live)

    async def list_groups(self) -> list[GroupDescription]:
        """Return every group that this node coordinates."""
        self._load_all()
        for task in list(self._loading.values()):
            await self._loaded(task)
        return [
            _description(live)
            for _, shard in sorted(self._shards.items())
            for live in shard.groups.values()
        ]

    async def delete_group(self, group_id: str) -> None:
        """Forget a group; returns when that is durable. Raises GROUP_ID_NOT_FOUND,
        NON_EMPTY_GROUP.
        """
        shard = await self._shard(group_id)
        live = shard.groups.get(group_id)
        if live is None:
            raise KafkaError(ErrorCode.group_id_not_found)
        if not live.is_empty:
            raise KafkaError(ErrorCode.non_empty_group)
        await self._durable(shard.delete_group(group_id))

    # Inside.

    async def _shard(self, group_id: str) -> GroupShard:
        _check_group_id(group_id)
        count = self._topic.partition_count()
        if count == 0 or self._is_closed:
            raise KafkaError(ErrorCode.not_coordinator)
        index = partition_of(group_id, count)
        if self._topic.partition(index) is None:
            raise KafkaError(ErrorCode.not_coordinator)
        shard = self._shards.get(index)
        if shard is None:
            task = self._load(index)
            if task is None:
                raise KafkaError(ErrorCode.not_coordinator)
            await self._loaded(task)
            shard = self._shards.get(index)
            if shard is None:
                raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return shard

    def _load_all(self) -> None:
        if not self._is_closed:
            for index in range(self._topic.partition_count()):
                self._load(index)

    def _load(self, index: int) -> asyncio.Task[None] | None:
        task = self._loading.get(index)
        if task is None and index not in self._shards:
            partition = self._topic.partition(index)
            if partition is None:
                return None
            name = f"{OFFSETS_TOPIC}-{index}"
            task = self._scope.spawn(self._read(index, partition, name), name=f"load {name}")
            self._loading[index] = task
        return task

    async def _read(self, index: int, partition: LogPartition, name: str) -> None:
        log = CoordinatorLog(partition, self._clock, self._scope, name=name)
        shard = GroupShard(log, self._group_settings, self._clock, self._new_member_id)
        try:
            await shard.load()
        except (LakeheadError, ValueError) as error:
            _log.warning("groups not loaded", partition=name, error=str(error))
        else:
            if not self._is_closed and self._topic.partition(index) is partition:
                self._shards[index] = shard
        finally:
            if self._loading.get(index) is asyncio.current_task():
                del self._loading[index]

    async def _loaded(self, task: asyncio.Task[None]) -> None:
        """Wait for a shard, but not for ever: clients know how to ask again."""
        try:
            async with asyncio.timeout(_LOAD_WAIT_SECONDS):
                await asyncio.shield(task)
        except TimeoutError:
            raise KafkaError(ErrorCode.coordinator_load_in_progress) from None

    async def _durable(self, outcome: asyncio.Future[Exception | None]) -> None:
        try:
            async with asyncio.timeout(self._settings.offset_commit_timeout_ms / 1000):
                error = await asyncio.shield(outcome)
        except TimeoutError:
            raise KafkaError(ErrorCode.coordinator_not_available, "the log is slow") from None
        if error is not None:
            code = error_code(error)
            if code is ErrorCode.not_leader_or_follower:
                code = ErrorCode.not_coordinator
            raise KafkaError(code, str(error))

    async def _expire_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.offsets_retention_check_interval_ms / 1000)
            for shard in self._shards.values():
                shard.expire(self._settings.offsets_retention_minutes * 60_000)

    def _new_member_id(self, prefix: str) -> str:
        number = f"{self._rng.getrandbits(_MEMBER_ID_BITS):032x}"
        groups = (number[:8], number[8:12], number[12:16], number[16:20], number[20:])
        return f"{prefix}-{'-'.join(groups)}"


def _check_group_id(group_id: str) -> None:
    if len(group_id.encode()) > TEXT_SIZE_MAX:
        raise KafkaError(ErrorCode.invalid_group_id)


def _description(live: LiveGroup) -> GroupDescription:
    group = live.group
    return GroupDescription(group_id=group.group_id, state=group.state, snapshot=group.snapshot())
