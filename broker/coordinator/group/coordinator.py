"""The group coordinator of a node: requests about the groups in `__consumer_offsets`.

Every method raises KafkaError when this node does not coordinate the group, or not yet.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.configs.group_configs import (
    ASSIGNMENT_INTERVAL,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    SHARE_ASSIGNMENT_INTERVAL,
    SHARE_HEARTBEAT_INTERVAL,
    SHARE_SESSION_TIMEOUT,
    number_in_force,
)
from lakehead.broker.coordinator.group.classic_group import ClassicGroup, refuse_request
from lakehead.broker.coordinator.group.consumer.assignors import assignors_of
from lakehead.broker.coordinator.group.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerGroupSettings,
    HeartbeatRequest,
    HeartbeatResult,
    MigrationPolicy,
)
from lakehead.broker.coordinator.group.consumer.consumer_members import ConsumerMember
from lakehead.broker.coordinator.group.consumer.topic_regex import IsVisible
from lakehead.broker.coordinator.group.group_metadata import (
    GroupCounts,
    GroupKind,
    GroupMetadata,
    Offsets,
    TopicPartition,
    Topics,
)
from lakehead.broker.coordinator.group.members import GroupMemory
from lakehead.broker.coordinator.group.messages import (
    TEXT_SIZE_MAX,
    GroupSettings,
    GroupSnapshot,
    GroupState,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
    TransactionalMember,
)
from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.coordinator.group.shard import GroupShard
from lakehead.broker.coordinator.group.share.share_group import (
    ShareGroup,
    ShareGroupSettings,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from lakehead.broker.coordinator.group.share.share_groups import ShareGroups, ShareStateStore
from lakehead.broker.coordinator.group.topic_catalog import TopicCatalog
from lakehead.broker.coordinator.log import BatchingLog, CoordinatorLog, SharedTimeout
from lakehead.broker.coordinator.shards import CoordinatorTopic, Shards, durable, refusal, slow_log
from lakehead.broker.coordinator.transaction.messages import Producer
from lakehead.broker.coordinator.work_in_pieces import WorkInPieces
from lakehead.broker.partition.partition import TopicRegistry
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.clock import Clock
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.tasks import TaskScope

_MEMBER_ID_BITS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group as ListGroups sees it."""

    group_id: str
    kind: GroupKind
    state: GroupState
    protocol_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription(GroupListing):
    """A group as DescribeGroups sees it. `snapshot` is None unless it is classic."""

    snapshot: GroupSnapshot | None
    has_members: bool
    consumed: Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    """A consumer group as ConsumerGroupDescribe sees it."""

    group_id: str
    state: GroupState
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[ConsumerMember, ...]


class GroupCoordinator:
    """Every group that this node coordinates."""

    def __init__(
        self,
        topic: CoordinatorTopic,
        topics: TopicRegistry,
        settings: Settings,
        clock: Clock,
        rng: Random,
        scope: TaskScope,
        image: Callable[[], MetadataImage],
        share_states: ShareStateStore,
    ) -> None:
        self._topics = topics
        self._settings = settings
        self._image = image
        self._share_states = share_states
        self._share_limits = ShareGroupSettings(
            session_timeout_ms=settings.group_share_session_timeout_ms,
            heartbeat_interval_ms=settings.group_share_heartbeat_interval_ms,
            max_size=settings.group_share_max_size,
            assignment_interval_ms=settings.group_share_assignment_interval_ms,
        )
        self._known_catalog = TopicCatalog(image())
        self._consumer_limits = ConsumerGroupSettings(
            session_timeout_ms=settings.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
            max_size=settings.group_consumer_max_size,
            assignors=assignors_of(settings.group_consumer_assignors),
            migration_policy=MigrationPolicy(settings.group_consumer_migration_policy),
            assignment_interval_ms=settings.group_consumer_assignment_interval_ms,
        )
        self._group_settings = GroupSettings(
            min_session_timeout_ms=settings.group_min_session_timeout_ms,
            max_session_timeout_ms=settings.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
            max_size=settings.group_max_size,
            record_max=settings.message_max_bytes,
            is_standby=settings.standby,
        )
        self.memory = GroupMemory(settings.group_memory_size)
        self.counts = GroupCounts()
        self._clock = clock
        self._rng = rng
        self._scope = scope
        self._commit_timeout = SharedTimeout(settings.offsets_commit_timeout_ms / 1000, slow_log)
        self.shards: Shards[GroupShard] = Shards(topic, clock, scope, self._new_shard)
        self._deletions = WorkInPieces(self._forget_deleted_topics)

    # The life of the coordinator.

    async def start(self) -> None:
        """Begin to load what this node holds, and to forget what is too old: unless that is up to
        the cluster that is copied here.
        """
        self.shards.load_all()
        if not self._settings.standby:
            self._scope.spawn_loop(self._expire_regularly, name="expire offsets")

    async def partition_for(self, group_id: str) -> int:
        """Return the partition that a group is kept in, making the topic if there is none."""
        _check_group_id(group_id)
        return await self.shards.partition_for(group_id)

    def topics_deleted(self, topics: set[str]) -> None:
        """Forget offsets of deleted topics."""
        for shard in self.shards.loaded():
            shard.delete_topics(topics)
        self._deletions.begin()

    # Members.

    async def join(self, group_id: str, request: JoinRequest) -> JoinResult:
        """JoinGroup; returns when the rebalance completes."""
        error = refuse_request(request, self._group_settings)
        if error is not None:
            raise KafkaError(error)
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
        """Handle LeaveGroup, of (member id, instance id); return a code for each."""
        shard = await self._shard(group_id)
        codes = shard.leave(group_id, members)
        return codes if isinstance(codes, list) else await codes

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors that members of consumer groups may choose."""
        return self._consumer_limits.assignors

    def new_member_id(self) -> str:
        """Return an id for a member of a consumer group that brings none."""
        return str(UUID(int=self._rng.getrandbits(_MEMBER_ID_BITS), version=4))

    def consumer_heartbeat(
        self, group_id: str, request: HeartbeatRequest, is_visible: IsVisible | None = None
    ) -> asyncio.Future[HeartbeatResult]:
        """Handle a ConsumerGroupHeartbeat, of a group that is loaded; the future gets the response
        once it is durable, or COORDINATOR_NOT_AVAILABLE where the log is slow. `is_visible` returns
        true for topics that the member may see.
        """
        stored = self._serving(group_id).consumer_heartbeat(group_id, request, is_visible)
        if not stored.done():
            self._commit_timeout.watch(stored)
        return stored

    # Share groups.

    async def share_heartbeat(self, group_id: str, request: ShareHeartbeat) -> ShareHeartbeatResult:
        """Handle a ShareGroupHeartbeat; returns when it is durable."""
        shard = await self._shard(group_id)
        return await shard.shares.heartbeat(group_id, request)

    async def share_group(self, group_id: str) -> ShareGroup:
        """Return a share group. Raises GROUP_ID_NOT_FOUND, also for another group."""
        shard = await self._shard(group_id)
        if group_id in shard.groups:
            raise KafkaError(
                ErrorCode.group_id_not_found, f"Group {group_id} is not a share group."
            )
        return shard.shares.known(group_id)

    async def set_share_offsets(
        self, group_id: str, offsets: Mapping[SharePartitionKey, int], *, makes_group: bool
    ) -> None:
        """Have a share group without members begin at these offsets; it may be made if there is
        none. Raises NON_EMPTY_GROUP.
        """
        shard = await self._shard(group_id)
        await shard.shares.set_offsets(group_id, offsets, makes_group=makes_group)

    async def delete_share_offsets(
        self, group_id: str, topic_ids: Iterable[bytes]
    ) -> frozenset[bytes]:
        """Forget where a share group without members is in topics, and return those of which it had
        offsets. Raises NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
        """
        shard = await self._shard(group_id)
        return await shard.shares.delete_states(group_id, topic_ids)

    # Offsets.

    async def loaded(self, group_id: str) -> None:
        """Return when this node serves the group's offsets, or could not in time."""
        await self._shard(group_id)

    def is_loaded(self, group_id: str) -> bool:
        """True where a commit has nothing to wait for."""
        return self.shard(group_id) is not None

    def shard(self, group_id: str) -> GroupShard | None:
        """Return the shard that serves a group in this turn, None while it is loaded."""
        _check_group_id(group_id)
        return self.shards.serving(group_id)

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        places: Iterable[tuple[bytes, int]] = (),
        *,
        has_epochs: bool = True,
    ) -> ErrorCode:
        """Return the error of a commit by this member for partitions, of (topic id, index).
        `has_epochs`: the version of the request has member epochs.
        """
        return self._serving(group_id).check_commit(
            group_id, member_id, instance_id, generation, places, has_epochs=has_epochs
        )

    async def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Return the error of a request for offsets by this member."""
        return (await self._shard(group_id)).check_fetch(group_id, member_id, epoch)

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> asyncio.Future[None]:
        """Store offsets, one at least; the future is done when they are durable, and raises as
        others here. To be called right after `check_commit`.
        """
        return self.commit_in(self._serving(group_id), group_id, offsets)

    def commit_in(
        self,
        shard: GroupShard,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> asyncio.Future[None]:
        """Store offsets in the shard that serves the group in this turn; see `commit`."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_done(error: Exception | None) -> None:
            if stored.done():  # the request was cancelled
                return
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(refusal(error))

        shard.commit(group_id, offsets, on_done)
        self._commit_timeout.watch(stored)
        return stored

    async def commit_in_transaction(
        self,
        member: TransactionalMember,
        producer: Producer,
        offsets: Mapping[TopicPartition, CommittedOffset],
        is_confirmed: Callable[[], bool],
    ) -> None:
        """Handle TxnOffsetCommit: store offsets that count when the producer's transaction is
        committed; return when they are durable. `is_confirmed` returns, at the last moment, whether
        the transaction is still open. Raises INVALID_TXN_STATE, UNKNOWN_TOPIC_OR_PARTITION if a
        topic was deleted meanwhile, and Kafka's errors for the member.
        """
        shard = await self._shard(member.group_id)
        for (topic, _), offset in offsets.items():
            if not self._topics.is_current(topic, offset.topic_id):
                raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if not is_confirmed():
            raise KafkaError(ErrorCode.invalid_txn_state)
        places = ((one.topic_id or b"", index) for (_, index), one in offsets.items())
        code = shard.check_transactional_commit(member, places)
        if code is not ErrorCode.none:
            raise KafkaError(code)
        await self._durable(shard.commit_in_transaction(member.group_id, *producer, offsets))

    def transaction_ended(self, index: int, producer_id: int, *, is_commit: bool) -> None:
        """A marker of this producer is durable in a partition of `__consumer_offsets`."""
        shard = self.shards.at(index)
        if shard is not None:  # else it is loaded from a log that has the marker
            shard.transaction_ended(producer_id, is_commit=is_commit)

    async def unstable(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions whose offset an open transaction may change."""
        live = (await self._shard(group_id)).find(group_id)
        return set() if live is None else live.unstable

    async def offsets(self, group_id: str) -> Offsets:
        """Return the committed offsets of a group."""
        shard = await self._shard(group_id)
        # Commits that were taken before are seen: Kafka handles a client's requests one by one.
        under_way = shard.commit_under_way(group_id)
        if under_way is not None:
            await self._durable(under_way)
            shard = await self._shard(group_id)  # it may be another node's by now
        live = shard.find(group_id)
        return {} if live is None else live.offsets

    async def delete_offsets(self, group_id: str, where: Iterable[TopicPartition]) -> None:
        """Forget offsets of a group; returns when that is durable."""
        shard = await self._shard(group_id)
        await self._durable(shard.delete_offsets(group_id, where))

    # Administration.

    async def describe(self, group_id: str) -> GroupDescription | None:
        """Return a group, None when there is none."""
        shard = await self._shard(group_id)
        share = shard.shares.find(group_id)
        if share is not None:
            return _share_description(share)
        live = shard.groups.get(group_id)
        return None if live is None else _description(live)

    async def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescription:
        """Return a consumer group. Raises GROUP_ID_NOT_FOUND, also for another group."""
        shard = await self._shard(group_id)
        live = shard.groups.get(group_id)
        if live is None and group_id not in shard.shares:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        group = None if live is None else live.group
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(
                ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group."
            )
        return ConsumerGroupDescription(
            group_id=group_id,
            state=group.state,
            epoch=group.store.epoch,
            target_epoch=group.store.target_epoch,
            assignor=group.assignor,
            members=tuple(group.members.values()),
        )

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id."""
        return self._catalog().name_of(topic_id)

    async def list_groups(self) -> list[GroupListing]:
        """Return every group that this node coordinates."""
        groups: list[GroupListing] = []
        for shard in await self.shards.every():
            await asyncio.sleep(0)  # a node may have very many
            groups += [
                GroupListing(
                    group_id=live.group.group_id,
                    kind=live.kind,
                    state=live.group.state,
                    protocol_type=live.protocol_type,
                )
                for live in shard.groups.values()
            ]
            groups += [
                GroupListing(
                    group_id=group.group_id,
                    kind=GroupKind.SHARE,
                    state=group.state,
                    protocol_type=GroupKind.SHARE.value,
                )
                for group in shard.shares.groups
            ]
        return groups

    def committed(self) -> Iterator[tuple[str, Offsets]]:
        """Yield the groups that this node coordinates and that have committed offsets. Any thread
        may call it.
        """
        for shard in self.shards.loaded():
            for group_id, live in list(shard.groups.items()):
                if live.offsets:
                    yield group_id, live.offsets

    def count_by_type(self) -> Mapping[str, int]:
        """Return how many groups this node coordinates, by type. Any thread may call it."""
        kinds = (
            live.kind for shard in self.shards.loaded() for live in list(shard.groups.values())
        )
        counted = Counter(kinds)
        counted[GroupKind.SHARE] = sum(len(shard.shares.groups) for shard in self.shards.loaded())
        return {kind.value: counted[kind] for kind in GroupKind}

    async def delete_group(self, group_id: str) -> None:
        """Forget a group; returns when that is durable. Raises GROUP_ID_NOT_FOUND,
        NON_EMPTY_GROUP.
        """
        shard = await self._shard(group_id)
        if group_id in shard.shares:
            await shard.shares.delete(group_id)
            return
        live = shard.groups.get(group_id)
        if live is None:
            raise KafkaError(ErrorCode.group_id_not_found)
        if live.group.members:
            raise KafkaError(ErrorCode.non_empty_group)
        await self._durable(shard.delete_group(group_id))

    # Inside.

    def _forget_deleted_topics(self) -> Iterator[None]:
        for shard in self.shards.loaded():
            yield from shard.forget_deleted_topics()

    def _new_shard(self, _index: int, log: CoordinatorLog) -> GroupShard:
        return GroupShard(
            log,
            self._group_settings,
            self._clock,
            self._new_member_id,
            self._topics.is_current,
            self.memory,
            self._consumer_settings,
            self._catalog,
            self.counts,
            self._new_shares,
        )

    def _new_shares(self, log: BatchingLog, is_taken: Callable[[str], bool]) -> ShareGroups:
        return ShareGroups(
            log,
            self._clock,
            self._scope,
            self.memory,
            self._share_settings,
            self._catalog,
            self._share_states,
            is_taken,
        )

    def _share_settings(self, group_id: str) -> ShareGroupSettings:
        """Return the limits of a share group, with the configs of its own."""
        own = self._image().group_configs.get(group_id)
        if not own:
            return self._share_limits
        return replace(
            self._share_limits,
            session_timeout_ms=number_in_force(SHARE_SESSION_TIMEOUT, own, self._settings),
            heartbeat_interval_ms=number_in_force(SHARE_HEARTBEAT_INTERVAL, own, self._settings),
            assignment_interval_ms=number_in_force(SHARE_ASSIGNMENT_INTERVAL, own, self._settings),
        )

    def _consumer_settings(self, group_id: str) -> ConsumerGroupSettings:
        """Return the limits of a consumer group, with the configs of its own."""
        own = self._image().group_configs.get(group_id)
        if not own:
            return self._consumer_limits
        return replace(
            self._consumer_limits,
            session_timeout_ms=number_in_force(SESSION_TIMEOUT, own, self._settings),
            heartbeat_interval_ms=number_in_force(HEARTBEAT_INTERVAL, own, self._settings),
            assignment_interval_ms=number_in_force(ASSIGNMENT_INTERVAL, own, self._settings),
        )

    def _catalog(self) -> TopicCatalog:
        """Return the topics as they are now: the same catalog until one of them changes."""
        image = self._image()
        if not self._known_catalog.is_of(image):
            self._known_catalog = TopicCatalog(image)
        return self._known_catalog

    async def _shard(self, group_id: str) -> GroupShard:
        _check_group_id(group_id)
        return await self.shards.of(group_id)

    def _serving(self, group_id: str) -> GroupShard:
        shard = self.shard(group_id)
        if shard is None:
            raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return shard

    async def _durable(self, outcome: asyncio.Future[Exception | None]) -> None:
        await durable(outcome, self._settings.offsets_commit_timeout_ms / 1000)

    async def _expire_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.offsets_retention_check_interval_ms / 1000)
            for shard in self.shards.loaded():
                for _ in shard.expire(self._settings.offsets_retention_minutes * 60_000):
                    await asyncio.sleep(0)

    def _new_member_id(self, prefix: str) -> str:
        number = f"{self._rng.getrandbits(_MEMBER_ID_BITS):032x}"
        groups = (number[:8], number[8:12], number[12:16], number[16:20], number[20:])
        return f"{prefix}-{'-'.join(groups)}"


def _check_group_id(group_id: str) -> None:
    if len(group_id.encode()) > TEXT_SIZE_MAX:
        raise KafkaError(ErrorCode.invalid_group_id)


def _share_description(group: ShareGroup) -> GroupDescription:
    return GroupDescription(
        group_id=group.group_id,
        kind=GroupKind.SHARE,
        state=group.state,
        protocol_type=GroupKind.SHARE.value,
        snapshot=None,
        has_members=bool(group.members),
        consumed=frozenset(),
    )


def _description(live: GroupMetadata) -> GroupDescription:
    group = live.group
    return GroupDescription(
        group_id=group.group_id,
        kind=live.kind,
        state=group.state,
        protocol_type=live.protocol_type,
        snapshot=group.snapshot() if isinstance(group, ClassicGroup) else None,
        has_members=bool(group.members),
        consumed=live.consumes(),
    )
