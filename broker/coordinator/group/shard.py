"""The groups of one partition of `__consumer_offsets`: their machines, their offsets, their timers.

A shard is used by one event loop, between `load` and `close`. Its methods are synchronous: they
change state, append to the log and hand out futures; the callers await those. Offsets become
visible to fetches when they are durable.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.classic_group import (
    ClassicGroup,
    refuse_transactional_commit,
)
from lakehead.broker.coordinator.group.group_metadata import GroupMetadata, TopicPartition
from lakehead.broker.coordinator.group.members import GROUP_COST, GroupMemory
from lakehead.broker.coordinator.group.messages import (
    Effect,
    GroupSettings,
    GroupSnapshot,
    Joined,
    JoinRequest,
    JoinResult,
    Store,
    Synced,
    SyncRequest,
    SyncResult,
)
from lakehead.broker.coordinator.group.record_formats import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_key,
    encode_offset,
)
from lakehead.broker.coordinator.log import BatchingLog, CoordinatorLog, OnDone
from lakehead.broker.coordinator.record_reader import UnknownRecord
from lakehead.storage.clock import Clock
from lakehead.storage.format.batch_writer import KeyValue

_TICK_SECONDS_MIN = 0.01
_TopicName: TypeAlias = tuple[str, bytes | None]
"""The name of a topic, and its id where a commit recorded it."""
_log = structlog.get_logger(__name__)


class GroupShard:
    """One partition's groups."""

    def __init__(
        self,
        log: CoordinatorLog,
        settings: GroupSettings,
        clock: Clock,
        new_member_id: Callable[[str], str],
        is_current: Callable[[str, bytes | None], bool],
        memory: GroupMemory,
    ) -> None:
        self.groups: dict[str, GroupMetadata] = {}
        self._log = log
        self._gathered = BatchingLog(log)
        self._settings = settings
        self._clock = clock
        self._new_member_id = new_member_id
        self._is_current = is_current
        self._memory = memory
        self._is_closed = False

    # The life of a shard.

    async def load(self) -> None:
        """Read the log. Members go on where they were, if they show in time that they live. Offsets
        of topics that were deleted while no node served the shard are deleted now.
        """
        await self._log.replay()
        now = self._clock.monotonic()
        seen: set[_TopicName] = set()
        async for key_bytes, value in self._log.values():
            try:
                key = decode_key(key_bytes)
                if isinstance(key, OffsetKey):
                    offset = decode_offset(value)
                    self._live(key.group_id).offsets[key.topic, key.partition] = offset
                    seen.add((key.topic, offset.topic_id))
                else:
                    self._restore(key.group_id, decode_group(value), len(value), now)
            except UnknownRecord as error:
                _log.warning("group_record_unknown", error=str(error))
        for producer_id, key_bytes in self._log.pending_transactional():
            key = decode_key(key_bytes)
            if isinstance(key, OffsetKey):
                pending_transactional = self._live(key.group_id).pending_transactional
                pending_transactional.setdefault(producer_id, set()).add((key.topic, key.partition))
        # In one turn with the start of service: `delete_topics` knows of all later deletions.
        self._delete_stale({one for one in seen if not self._is_current(*one)})
        for live in self.groups.values():
            self._arm(live)

    def close(self, error: ErrorCode) -> None:
        """Refuse requests that wait with `error`, and take no more."""
        self._is_closed = True
        self._gathered.flush()
        for live in self.groups.values():
            self._perform(live, live.group.kill(error))
            self._let_go(live)
        self.groups.clear()

    # Members.

    def join(self, group_id: str, request: JoinRequest) -> asyncio.Future[JoinResult]:
        """Handle a JoinGroup; the future gets its response."""
        ticket: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        if group_id not in self.groups and request.member_id:
            ticket.set_result(
                JoinResult(error=ErrorCode.unknown_member_id, member_id=request.member_id)
            )
            return ticket
        room, is_new = self._memory.room, group_id not in self.groups
        if is_new and room < _cost_of_group(group_id):
            ticket.set_result(JoinResult(error=ErrorCode.group_max_size_reached, member_id=""))
            return ticket
        live = self._live(group_id)
        self._perform(live, live.group.join(request, ticket, self._clock.monotonic(), room))
        if is_new and live.is_empty:  # refused
            self.delete_group(group_id)
        return ticket

    def sync(self, group_id: str, request: SyncRequest) -> asyncio.Future[SyncResult]:
        """Handle a SyncGroup; the future gets its response."""
        ticket: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        live = self.groups.get(group_id)
        if live is None:
            ticket.set_result(SyncResult(error=ErrorCode.unknown_member_id))
            return ticket
        self._perform(live, live.group.sync(request, ticket, self._clock.monotonic()))
        return ticket

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Take a Heartbeat."""
        live = self.groups.get(group_id)
        if live is None:
            return ErrorCode.unknown_member_id
        return live.group.heartbeat(member_id, instance_id, generation, self._clock.monotonic())

    def leave(self, group_id: str, members: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Take a LeaveGroup, of (member id, instance id)."""
        live = self.groups.get(group_id)
        if live is None:
            return [ErrorCode.unknown_member_id] * len(members)
        codes, effects = live.group.leave(members, self._clock.monotonic())
        self._perform(live, effects)
        return codes

    # Offsets.

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Return the error of a commit by this member; an unknown group needs no members."""
        live = self.groups.get(group_id)
        if live is None:
            return ErrorCode.none if generation < 0 else ErrorCode.group_id_not_found
        now = self._clock.monotonic()
        return live.group.check_commit(member_id, instance_id, generation, now)

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], on_done: OnDone
    ) -> None:
        """Store offsets, one at least; `on_done` gets the error, or None."""
        live = self._live(group_id)
        records: list[KeyValue] = [
            (_offset_key(group_id, where), encode_offset(offset))
            for where, offset in offsets.items()
        ]
        live.begin_commit(offsets)

        def then(error: Exception | None) -> None:
            live.end_commit(offsets, is_kept=error is None)
            for place in offsets:
                self._hide_deleted(live, place)
            on_done(error)

        self._gathered.append(records, then)
        live.last_commit = self._gathered.outcome

    def check_transactional_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Return the error of a commit that a producer makes for this member."""
        live = self.groups.get(group_id)
        group = None if live is None else live.group
        error = refuse_transactional_commit(group, member_id, instance_id, generation)
        return error or ErrorCode.none

    def commit_in_transaction(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> asyncio.Future[Exception | None]:
        """Store offsets that count when the producer's transaction is committed; the future gets
        the outcome.
        """
        live = self._live(group_id)
        records: list[KeyValue] = [
            (_offset_key(group_id, where), encode_offset(offset))
            for where, offset in offsets.items()
        ]
        places = live.pending_transactional.setdefault(producer_id, set())
        before = set(places)
        places.update(offsets)
        future: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def on_done(error: Exception | None) -> None:
            if error is not None and live.pending_transactional.get(producer_id) is places:
                places.intersection_update(before)
                if not places:
                    del live.pending_transactional[producer_id]
            if not future.done():
                future.set_result(error)

        self._gathered.flush()
        self._log.append_transactional(records, producer_id, producer_epoch, on_done)
        return future

    def transaction_ended(self, producer_id: int, *, is_commit: bool) -> None:
        """A producer's transaction has its marker: its offsets count, or never will."""
        decided = self._log.end_transaction(producer_id, is_commit=is_commit)
        stale: set[_TopicName] = set()
        for key_bytes, value in decided.items():
            key = decode_key(key_bytes)
            if isinstance(key, OffsetKey) and value is not None:
                offset = decode_offset(value)
                self._live(key.group_id).offsets[key.topic, key.partition] = offset
                if not self._is_current(key.topic, offset.topic_id):
                    stale.add((key.topic, offset.topic_id))
        for live in self.groups.values():
            live.pending_transactional.pop(producer_id, None)
        self._delete_stale(stale)

    def commit_under_way(self, group_id: str) -> asyncio.Future[Exception | None] | None:
        """Return the newest commit that is not durable yet, None when all are."""
        live = self.groups.get(group_id)
        return live.last_commit if live is not None and live.uncommitted else None

    def delete_offsets(
        self, group_id: str, where: Iterable[TopicPartition]
    ) -> asyncio.Future[Exception | None]:
        """Delete offsets; the future gets the outcome."""
        live = self._live(group_id)
        gone = live.places.intersection(where)

        def then(error: Exception | None) -> None:
            if error is None:
                for place in gone:
                    live.offsets.pop(place, None)

        return self._append([(_offset_key(group_id, place), None) for place in gone], then)

    def delete_topics(self, topics: set[str]) -> None:
        """Forget every group's offsets of deleted topics: none is seen from now on, and soon the
        log has their tombstones.
        """
        for group_id, live in self.groups.items():
            gone = [where for where in live.places if where[0] in topics]
            if gone:
                self.delete_offsets(group_id, gone)
                for place in gone:
                    live.offsets.pop(place, None)

    def _hide_deleted(self, live: GroupMetadata, place: TopicPartition) -> None:
        """Show no offset that was on its way to the log while its topic was deleted."""
        offset = live.offsets.get(place)
        topic_id = None if offset is None else offset.topic_id
        if topic_id is not None and not self._is_current(place[0], topic_id):
            del live.offsets[place]

    def _delete_stale(self, topics: Collection[_TopicName]) -> None:
        """Forget offsets that were committed of topics that are deleted. If a newer commit is under
        way or in an open transaction, the log keeps the older one until that one counts.
        """
        if not topics:
            return
        for group_id, live in self.groups.items():
            newer, gone = live.unstable.union(live.uncommitted), []
            for place, offset in list(live.offsets.items()):
                if (place[0], offset.topic_id) in topics:
                    del live.offsets[place]
                    if place not in newer:
                        gone.append(place)
            if gone:
                _log.info("offsets_of_deleted_topics", group=group_id, partitions=len(gone))
                self._append([(_offset_key(group_id, place), None) for place in gone])

    def delete_group(self, group_id: str) -> asyncio.Future[Exception | None]:
        """Delete a group without members, and its offsets; the future gets the outcome."""
        self._gathered.flush()
        live = self.groups.pop(group_id)
        assert not live.group.members
        self._perform(live, live.group.kill(ErrorCode.coordinator_not_available))
        self._let_go(live)
        keys = [_offset_key(group_id, where) for where in live.places]
        group_key = encode_key(GroupKey(group_id=group_id))
        if group_key in self._log.latest:
            keys.append(group_key)
        return self._append([(key, None) for key in keys])

    def expire(self, retention_ms: int) -> None:
        """Forget offsets that have lived their time, and groups that have neither offsets nor
        members.
        """
        now_ms = self._clock.now_ms()
        for group_id, live in list(self.groups.items()):
            old = live.expired(now_ms, retention_ms)
            if live.is_empty and len(old) == len(live.places):
                self.delete_group(group_id)
            elif old:
                self.delete_offsets(group_id, old)

    # Inside.

    def _live(self, group_id: str) -> GroupMetadata:
        live = self.groups.get(group_id)
        if live is None:
            group = ClassicGroup(group_id, self._settings, self._new_member_id)
            live = self.groups[group_id] = GroupMetadata(group)
            self._charge(live)
        return live

    def _charge(self, live: GroupMetadata) -> None:
        """Have the memory of groups know what the group takes now, if it is one of them still."""
        if self.groups.get(live.group.group_id) is not live:
            return
        cost = _cost_of_group(live.group.group_id) + live.group.cost + live.stored_size
        self._memory.change(live.charged, cost)
        live.charged = cost

    def _let_go(self, live: GroupMetadata) -> None:
        self._memory.change(live.charged, 0)
        live.charged = 0

    def _restore(self, group_id: str, snapshot: GroupSnapshot, size: int, now: float) -> None:
        live = self._live(group_id)
        live.stored_size = size
        live.empty_since_ms = snapshot.state_timestamp_ms
        live.group = ClassicGroup.restored(
            group_id, self._settings, self._new_member_id, snapshot, now
        )
        self._charge(live)

    def _perform(self, live: GroupMetadata, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Joined() | Synced():
                    if not effect.ticket.done():  # done: its connection is gone
                        effect.ticket.set_result(effect.result)
                case Store():
                    self._store(live, effect)
        self._charge(live)
        self._arm(live)

    def _store(self, live: GroupMetadata, effect: Store) -> None:
        now_ms = self._clock.now_ms()
        if not effect.snapshot.members:
            live.empty_since_ms = now_ms
        snapshot = replace(effect.snapshot, state_timestamp_ms=now_ms)
        key, value = encode_key(GroupKey(group_id=live.group.group_id)), encode_group(snapshot)

        def then(code: ErrorCode | None) -> None:
            now = self._clock.monotonic()
            self._perform(live, live.group.stored(effect.token, code, now))

        growth = len(value) - live.stored_size
        if len(value) > self._settings.record_max or growth > max(self._memory.room, 0):
            _log.warning("group_too_large", group=live.group.group_id, bytes=len(value))
            asyncio.get_running_loop().call_soon(then, ErrorCode.unknown_server_error)
            return
        live.stored_size = len(value)
        self._gathered.append(
            [(key, value)],
            lambda error: then(None if error is None else ErrorCode.coordinator_not_available),
        )

    def _append(
        self, records: Sequence[KeyValue], then: Callable[[Exception | None], None] | None = None
    ) -> asyncio.Future[Exception | None]:
        future: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def on_done(error: Exception | None) -> None:
            if then is not None:
                then(error)
            if not future.done():
                future.set_result(error)

        if records:
            self._gathered.append(records, on_done)
        else:
            on_done(None)
        return future

    def _arm(self, live: GroupMetadata) -> None:
        """See to it that the group is ticked by its next deadline."""
        deadline = None if self._is_closed else live.group.next_deadline()
        if deadline is None:
            if live.timer is not None:
                live.timer.cancel()
                live.timer = None
            return
        if live.timer is not None:
            if live.timer_deadline <= deadline:
                return  # it will fire in time, find little to do and be armed again
            live.timer.cancel()
        delay = max(deadline - self._clock.monotonic(), _TICK_SECONDS_MIN)
        live.timer_deadline = deadline
        live.timer = asyncio.get_running_loop().call_later(delay, self._on_timer, live)

    def _on_timer(self, live: GroupMetadata) -> None:
        live.timer = None
        self._perform(live, live.group.tick(self._clock.monotonic()))


def _cost_of_group(group_id: str) -> int:
    return GROUP_COST + len(group_id)


def _offset_key(group_id: str, where: TopicPartition) -> bytes:
    return encode_key(OffsetKey(group_id=group_id, topic=where[0], partition=where[1]))
