"""The share coordinator of a node: the states in `__share_group_state`, for the leaders of
partitions and for group coordinators.

Methods raise KafkaError: INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION, the refusals of
`ShareShard`, and NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE when
this node does not coordinate the share-partition, or not yet.
"""

from collections.abc import Awaitable, Callable, Iterator

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.log import CoordinatorLog
from lakehead.broker.coordinator.shards import CoordinatorTopic, Shards, durable
from lakehead.broker.coordinator.share.shard import NO_EPOCH, Outcome, ShareShard, StateWrite
from lakehead.broker.coordinator.work_in_pieces import WorkInPieces
from lakehead.broker.partition.partition import TopicRegistry
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings
from lakehead.broker.share.record_state import NO_START_OFFSET, ShareState
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.clock import Clock
from lakehead.storage.tasks import TaskScope

_UNINITIALIZED = ShareState(NO_START_OFFSET, 0, 0)


class ShareCoordinator:
    """Every share-partition that this node coordinates."""

    def __init__(
        self,
        topic: CoordinatorTopic,
        topics: TopicRegistry,
        settings: Settings,
        clock: Clock,
        scope: TaskScope,
        is_current: Callable[[], Awaitable[bool]],
    ) -> None:
        """`is_current` returns whether this node was certainly not fenced while it slept."""
        self._topics = topics
        self._clock = clock
        self._updates_max = settings.share_coordinator_snapshot_update_records_per_snapshot
        self._timeout_s = settings.share_coordinator_write_timeout_ms / 1000
        self._is_current = is_current
        self.shards: Shards[ShareShard] = Shards(topic, clock, scope, self._new_shard)
        self._deletions = WorkInPieces(self._forget_deleted)

    def start(self) -> None:
        """Begin to load what this node holds."""
        self.shards.load_all()

    async def partition_for(self, key: str) -> int:
        """Return the partition that the text of a key is kept in, making the topic if there is
        none.
        """
        return await self.shards.partition_for(key)

    def topics_deleted(self, _topics: set[str]) -> None:
        """Forget states of deleted topics."""
        self._deletions.begin()

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Begin a new state, for a new member of a group or by an operator's request."""
        shard = await self._shard(key)
        await self._durable(shard.initialize(key, state_epoch, start_offset))

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state for a leader. Once this returns, leaders before it are fenced."""
        shard = await self._shard(key)
        state, outcome = shard.read(key, leader_epoch)
        await self._durable(outcome)
        return state

    async def write(self, key: SharePartitionKey, write: StateWrite) -> None:
        """Store a leader's write; returns when it is durable."""
        shard = await self._shard(key)
        await self._durable(shard.write(key, write))

    async def delete(self, key: SharePartitionKey) -> None:
        """Delete a state. There need not be one."""
        shard = await self._shard(key)
        await self._durable(shard.delete(key))

    async def summary(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return a state without changing it; without start offset if there is none. A leader's
        epoch (-1: not a leader) must not be behind. Raises FENCED_LEADER_EPOCH.
        """
        shard = await self._shard(key)
        state = shard.find(key) or _UNINITIALIZED
        if NO_EPOCH != leader_epoch < state.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch)
        return state

    def _forget_deleted(self) -> Iterator[None]:
        for shard in self.shards.loaded():
            yield from shard.forget_deleted()

    def _new_shard(self, _index: int, log: CoordinatorLog) -> ShareShard:
        return ShareShard(log, self._clock, self._updates_max, self._topics.by_id.__contains__)

    async def _shard(self, key: SharePartitionKey) -> ShareShard:
        if not key.group_id or not any(key.topic_id) or key.partition < 0:
            raise KafkaError(ErrorCode.invalid_request)
        topic = self._topics.by_id.get(key.topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if not await self._is_current():
            raise KafkaError(ErrorCode.not_coordinator)
        return await self.shards.of(key.text)

    async def _durable(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            await durable(outcome, self._timeout_s)
