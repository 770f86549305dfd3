"""The share groups of one partition of `__consumer_offsets`: their machines, records and timers.

They share the log of the partition's other groups, and its lifetime. A response leaves once all
records before it are durable. States of new partitions are made in `__share_group_state`, off the
request that needs them: members have those partitions with a later heartbeat.

A state begins, or is deleted, once a note of it is durable: the share coordinator cannot know a
coordinator that another one has followed, but the log can.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, TypeVar

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer.consumer_members import JOIN_EPOCH, TopicPartitions
from lakehead.broker.coordinator.group.members import GROUP_COST, GroupMemory
from lakehead.broker.coordinator.group.record_formats import decode_key
from lakehead.broker.coordinator.group.share.share_group import (
    ShareGroup,
    ShareGroupSettings,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from lakehead.broker.coordinator.group.share.share_record_formats import (
    ShareGroupKey,
    ShareGroupRecord,
    decode_share_value,
    encode_share_key,
    encode_share_value,
)
from lakehead.broker.coordinator.group.topic_catalog import TopicCatalog
from lakehead.broker.coordinator.group.unstored_changes import (
    Outcome,
    UnstoredChanges,
    when_stored,
)
from lakehead.broker.coordinator.log import BatchingLog
from lakehead.broker.coordinator.shards import refusal
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.share.record_state import NO_START_OFFSET
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.tasks import TaskScope, for_each

_TICK_SECONDS_MIN = 0.001
_STATES_AT_ONCE = 500
"""States of a group that are begun, or deleted, by requests which share messages."""
_log = structlog.get_logger(__name__)
T = TypeVar("T")


class ShareStateStore(Protocol):
    """Makes and deletes states of share-partitions: `broker.share.persister.Persister`."""

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Begin a new state. Raises KafkaError."""

    async def delete(self, key: SharePartitionKey) -> None:
        """Delete a state. Raises KafkaError."""


class _LiveGroup:
    """A group with its timer."""

    __slots__ = (
        "changes",
        "charged",
        "group",
        "state_changes",
        "timer",
        "timer_deadline",
    )

    def __init__(self, group: ShareGroup) -> None:
        self.group = group
        self.state_changes = 0
        """Changes of its states that are under way."""
        self.timer: asyncio.TimerHandle | None = None
        self.timer_deadline = 0.0
        self.charged = 0
        self.changes = UnstoredChanges()


class ShareGroups:
    """The share groups of a shard, by id. `is_taken` returns true for the id of another group."""

    def __init__(
        self,
        log: BatchingLog,
        clock: Clock,
        scope: TaskScope,
        memory: GroupMemory,
        settings: Callable[[str], ShareGroupSettings],
        catalog: Callable[[], TopicCatalog],
        states: ShareStateStore,
        is_taken: Callable[[str], bool],
    ) -> None:
        self._log = log
        self._clock = clock
        self._scope = scope
        self._memory = memory
        self._settings = settings
        self._catalog = catalog
        self._states = states
        self._is_taken = is_taken
        self._groups: dict[str, _LiveGroup] = {}
        self._is_closed = False

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    @property
    def groups(self) -> list[ShareGroup]:
        """Every group."""
        return [live.group for live in self._groups.values()]

    def find(self, group_id: str) -> ShareGroup | None:
        """Return a group, None when there is none."""
        live = self._groups.get(group_id)
        return None if live is None else live.group

    def restore(self, records: Iterable[ShareGroupRecord]) -> None:
        """Take over the last records of the log."""
        by_group: dict[str, list[ShareGroupRecord]] = {}
        for record in records:
            by_group.setdefault(record.key.group_id, []).append(record)
        now = self._clock.monotonic()
        for group_id, found in by_group.items():
            live = self._live(group_id)
            live.group.restore(found, now)
            self._store(live)

    def close(self) -> None:
        """Take no more requests."""
        self._is_closed = True
        for live in self._groups.values():
            self._disarm(live)
            self._memory.change(live.charged, 0)
        self._groups.clear()

    def heartbeat(
        self, group_id: str, request: ShareHeartbeat
    ) -> asyncio.Future[ShareHeartbeatResult]:
        """Handle a ShareGroupHeartbeat; the future gets its response once it is durable. Raises
        KafkaError.
        """
        if self._is_taken(group_id):
            raise KafkaError(
                ErrorCode.group_id_not_found, f"Group {group_id} is not a share group."
            )
        live = self._groups.get(group_id)
        if live is None:
            if request.epoch != JOIN_EPOCH:
                raise KafkaError(ErrorCode.group_id_not_found, f"Share group {group_id} not found.")
            if self._memory.room < GROUP_COST + len(group_id):
                raise KafkaError(ErrorCode.group_max_size_reached)
            live = self._live(group_id)
        try:
            if request.epoch < JOIN_EPOCH:
                result = live.group.leave(request.member_id, request.epoch)
            else:
                result = live.group.heartbeat(request, self._clock.monotonic(), self._memory.room)
        except KafkaError:
            if not any(live.group.keys):
                self._forget(live)
            raise
        stored = self._stored(live, result)
        self._initialize_missing(live)
        return stored

    async def set_offsets(
        self, group_id: str, offsets: Mapping[SharePartitionKey, int], *, makes_group: bool
    ) -> None:
        """Begin new states at these offsets, of a group without members; it may be made if there is
        none. Raises KafkaError.
        """
        if self._is_taken(group_id):
            raise KafkaError(
                ErrorCode.group_id_not_found, f"Group {group_id} is not a share group."
            )
        live = self._groups.get(group_id)
        if live is not None:
            _refuse_members(live.group)
        if not offsets and not makes_group:
            return
        live = live or self._live(group_id)
        epoch = live.group.initializing_again(_by_topic(offsets))
        live.state_changes += 1
        try:
            await self._make(live, offsets, epoch, self._stored(live, None))
        finally:
            live.state_changes -= 1

    async def delete_states(self, group_id: str, topic_ids: Iterable[bytes]) -> frozenset[bytes]:
        """Delete the states of topics, of a group without members; return the topics that had
        some. Raises KafkaError.
        """
        group = self.known(group_id)
        _refuse_members(group)
        live = self._groups[group_id]
        partitions = group.deleting(topic_ids)
        live.state_changes += 1
        try:
            await self._delete_states(live, partitions)
        finally:
            live.state_changes -= 1
        return frozenset(partitions)

    async def _delete_states(self, live: _LiveGroup, partitions: TopicPartitions) -> None:
        group_id = live.group.group_id
        await self._stored(live, None)
        keys = [
            SharePartitionKey(group_id, topic_id, index)
            for topic_id, indexes in partitions.items()
            for index in sorted(indexes)
        ]
        await for_each(keys, self._states.delete, at_once=_STATES_AT_ONCE)
        if self._groups.get(group_id) is live:
            live.group.deleted(partitions)
            await self._stored(live, None)

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, with its states. Raises KafkaError."""
        known = self.known(group_id).partitions
        await self.delete_states(
            group_id, known.initializing.keys() | known.initialized.keys() | known.deleting.keys()
        )
        live = self._groups.get(group_id)
        if live is None:
            return
        _refuse_members(live.group)  # it may be another object, after a change was undone
        records = [(encode_share_key(key), None) for key in live.group.keys]
        if not records:
            self._forget(live)
            return
        self._log.append(records, _ignore)
        outcome = self._log.outcome
        self._log.flush()
        if not outcome.done() or outcome.result() is None:  # else nothing of it is in the log
            self._forget(live)
        error = await outcome
        if error is not None:
            raise refusal(error)

    def known(self, group_id: str) -> ShareGroup:
        """Return a group. Raises GROUP_ID_NOT_FOUND."""
        group = self.find(group_id)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        return group

    # Inside.

    def _live(self, group_id: str) -> _LiveGroup:
        live = self._groups.get(group_id)
        if live is None:
            live = self._groups[group_id] = _LiveGroup(self._new(group_id))
        return live

    def _stored(self, live: _LiveGroup, result: T) -> asyncio.Future[T]:
        """Store what changed in a group; the future gets the result once it is durable."""
        return when_stored(self._store(live), result)

    def _store(self, live: _LiveGroup) -> Outcome | None:
        records = [
            (encode_share_key(key), None if value is None else encode_share_value(value))
            for key, value in live.group.take_records()
        ]
        cost = GROUP_COST + len(live.group.group_id) + live.group.cost
        self._memory.change(live.charged, cost)
        live.charged = cost
        self._arm(live)
        if not records:
            return None
        live.changes.append(self._log, records, partial(self._go_back, live))
        return live.changes.newest

    def _go_back(self, live: _LiveGroup, error: Exception) -> None:
        """Make a group what the log has of it, after a change of it could not be stored. It looks
        at keys of the group alone: a shard may have very many.
        """
        group_id, keys = live.group.group_id, live.changes.take_keys()
        if self._is_closed or not keys or self._groups.get(group_id) is not live:
            return
        _log.warning("group_not_stored", group=group_id, error=str(error))
        keys.update(map(encode_share_key, live.group.keys))
        records = []
        for key_bytes in keys:
            key, value = decode_key(key_bytes), self._log.latest.get(key_bytes)
            if isinstance(key, ShareGroupKey) and value is not None:
                records.append(ShareGroupRecord(key, decode_share_value(key.kind, value)))
        live.group = self._new(group_id)
        live.group.restore(records, self._clock.monotonic())
        if records:
            self._store(live)
        else:
            self._forget(live)

    def _forget(self, live: _LiveGroup) -> None:
        del self._groups[live.group.group_id]
        self._disarm(live)
        self._memory.change(live.charged, 0)

    def _new(self, group_id: str) -> ShareGroup:
        return ShareGroup(group_id, lambda: self._settings(group_id), self._catalog)

    def _initialize_missing(self, live: _LiveGroup) -> None:
        """Begin to make the states of partitions that members subscribe to."""
        missing = live.group.to_initialize()
        if not missing or live.state_changes:
            return
        offsets = {
            SharePartitionKey(live.group.group_id, topic_id, index): NO_START_OFFSET
            for topic_id, indexes in missing.items()
            for index in sorted(indexes)
        }
        epoch = live.group.initializing(missing)
        live.state_changes += 1
        self._scope.spawn_apart(
            self._initialize(live, offsets, epoch, self._stored(live, None)),
            name=f"begin share-partitions of {live.group.group_id}",
        )

    async def _initialize(
        self,
        live: _LiveGroup,
        offsets: Mapping[SharePartitionKey, int],
        epoch: int,
        noted: asyncio.Future[None],
    ) -> None:
        try:
            await self._make(live, offsets, epoch, noted)
        except LakeheadError as error:  # a later heartbeat tries again
            _log.warning("share_partitions_not_begun", group=live.group.group_id, error=str(error))
        finally:
            live.state_changes -= 1

    async def _make(
        self,
        live: _LiveGroup,
        offsets: Mapping[SharePartitionKey, int],
        epoch: int,
        noted: asyncio.Future[None],
    ) -> None:
        """Begin states once it is `noted` that they are about to begin, then note in the group that
        it has them; some may fail.
        """
        await noted
        errors: list[LakeheadError] = []
        made: list[SharePartitionKey] = []

        async def begin(key: SharePartitionKey) -> None:
            try:
                await self._states.initialize(key, epoch, offsets[key])
            except LakeheadError as error:
                errors.append(error)
            else:
                made.append(key)

        await for_each(offsets.keys(), begin, at_once=_STATES_AT_ONCE)
        if made and self._groups.get(live.group.group_id) is live:
            live.group.initialized(_by_topic(made))
            await self._stored(live, None)
        if errors:
            raise errors[0]

    def _arm(self, live: _LiveGroup) -> None:
        """See to it that the group is ticked by its next deadline."""
        deadline = None if self._is_closed else live.group.next_deadline()
        if deadline is None:
            self._disarm(live)
            return
        if live.timer is not None:
            if live.timer_deadline <= deadline:
                return
            live.timer.cancel()
        delay = max(deadline - self._clock.monotonic(), _TICK_SECONDS_MIN)
        live.timer_deadline = deadline
        live.timer = asyncio.get_running_loop().call_later(delay, self._on_timer, live)

    @staticmethod
    def _disarm(live: _LiveGroup) -> None:
        if live.timer is not None:
            live.timer.cancel()
            live.timer = None

    def _on_timer(self, live: _LiveGroup) -> None:
        live.timer = None
        live.group.tick(self._clock.monotonic())
        self._store(live)


def _by_topic(keys: Iterable[SharePartitionKey]) -> TopicPartitions:
    found: dict[bytes, set[int]] = {}
    for key in keys:
        found.setdefault(key.topic_id, set()).add(key.partition)
    return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}


def _refuse_members(group: ShareGroup) -> None:
    if group.members:
        raise KafkaError(ErrorCode.non_empty_group)


def _ignore(_error: Exception | None) -> None:
    """Each request waits for the outcome of its turn."""
