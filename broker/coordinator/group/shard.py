"""The groups of one partition of `__consumer_offsets`: their machines, their offsets, their timers.

A shard is used by one event loop, between `load` and `close`. Its methods are synchronous: they
change state, append to the log and hand out futures; the callers await those. Offsets become
visible to fetches when they are durable.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.classic_group import (
    ClassicGroup,
    refuse_transactional_commit,
)
from lakehead.broker.coordinator.group.consumer import classic_members
from lakehead.broker.coordinator.group.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerGroupSettings,
    HeartbeatRequest,
    HeartbeatResult,
)
from lakehead.broker.coordinator.group.consumer.consumer_members import JOIN_EPOCH
from lakehead.broker.coordinator.group.consumer.consumer_record_formats import (
    ConsumerGroupKey,
    ConsumerGroupRecord,
    RecordKind,
    decode_consumer_value,
    encode_consumer_key,
    encode_consumer_value,
)
from lakehead.broker.coordinator.group.consumer.topic_regex import IsVisible, matching_topics
from lakehead.broker.coordinator.group.group_metadata import (
    GroupCounts,
    GroupMetadata,
    TopicPartition,
)
from lakehead.broker.coordinator.group.members import GROUP_COST, GroupMemory
from lakehead.broker.coordinator.group.messages import (
    NO_GENERATION,
    Effect,
    GroupSettings,
    GroupSnapshot,
    GroupState,
    Joined,
    JoinRequest,
    JoinResult,
    Store,
    Synced,
    SyncRequest,
    SyncResult,
    TransactionalMember,
)
from lakehead.broker.coordinator.group.migration import (
    downgraded_members,
    is_downgrade_due,
    upgrade,
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
from lakehead.broker.coordinator.group.share.share_groups import ShareGroups
from lakehead.broker.coordinator.group.share.share_record_formats import (
    ShareGroupKey,
    ShareGroupRecord,
    decode_share_value,
)
from lakehead.broker.coordinator.group.topic_catalog import TopicCatalog
from lakehead.broker.coordinator.group.unstored_changes import when_stored
from lakehead.broker.coordinator.log import BatchingLog, CoordinatorLog, OnDone
from lakehead.broker.coordinator.record_reader import UnknownRecord
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.clock import Clock
from lakehead.storage.format.batch_writer import KeyValue

_TICK_SECONDS_MIN = 0.001
_AT_ONCE = 1_000
"""Offsets, or records of members, that are looked at in one turn of the event loop, in whole
groups.
"""
_TopicName: TypeAlias = tuple[str, bytes | None]
"""The name of a topic, and its id where a commit recorded it."""
_log = structlog.get_logger(__name__)
T = TypeVar("T")


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
        consumer_settings: Callable[[str], ConsumerGroupSettings],
        catalog: Callable[[], TopicCatalog],
        counts: GroupCounts,
        new_shares: Callable[[BatchingLog, Callable[[str], bool]], ShareGroups],
    ) -> None:
        self.groups: dict[str, GroupMetadata] = {}
        self._log = log
        self._gathered = BatchingLog(log)
        self._settings = settings
        self._clock = clock
        self._new_member_id = new_member_id
        self._is_current = is_current
        self._memory = memory
        self._consumer_settings = consumer_settings
        self._catalog = catalog
        self._counts = counts
        self._groups_of: dict[int, set[str]] = {}
        """Groups with commits in open transactions, by producer id."""
        self._deleted_topics: list[str] = []
        """Topics that were deleted, until no group has offsets of them."""
        self._rid_of: dict[str, int] = {}
        """The number of these topics of which a group has no offsets any more: all of them when its
        offsets are read or get a commit. Without an entry: 0.
        """
        self._is_closed = False
        self.shares = new_shares(self._gathered, self.groups.__contains__)
        """The share groups."""

    # The life of a shard.

    async def load(self) -> None:
        """Read the log. Members go on where they were, if they show in time that they live. Offsets
        of topics that were deleted while no node served the shard are deleted now.
        """
        await self._log.replay()
        now = self._clock.monotonic()
        seen: set[_TopicName] = set()
        consumers: dict[str, list[ConsumerGroupRecord]] = {}
        shares: list[ShareGroupRecord] = []
        async for key_bytes, value in self._log.values():
            try:
                key = decode_key(key_bytes)
                if isinstance(key, OffsetKey):
                    offset = decode_offset(value)
                    self._live(key.group_id).offsets[key.topic, key.partition] = offset
                    seen.add((key.topic, offset.topic_id))
                elif isinstance(key, GroupKey):
                    self._restore(key.group_id, decode_group(value), len(value), now)
                elif isinstance(key, ShareGroupKey):
                    shares.append(ShareGroupRecord(key, decode_share_value(key.kind, value)))
                else:
                    known = decode_consumer_value(key.kind, value)
                    if known is not None:
                        record = ConsumerGroupRecord(key, known)
                        consumers.setdefault(key.group_id, []).append(record)
            except UnknownRecord as error:
                _log.warning("group_record_unknown", error=str(error))
        await self._restore_consumers(consumers, now)
        # Transactions may have ended meanwhile. From here to the start of service is one turn, so
        # `transaction_ended` is called for all that end later.
        seen |= self._count(await self._log.catch_up())
        for group_id in consumers:
            live = self.groups[group_id]
            assert isinstance(live.group, ConsumerGroup)
            self._store_consumer(live, live.group)
        self.shares.restore(shares)
        for producer_id, key_bytes in self._log.pending_transactional():
            key = decode_key(key_bytes)
            if isinstance(key, OffsetKey):
                places = self._pending_places(key.group_id, producer_id)
                places.add((key.topic, key.partition))
        # In the same turn: `delete_topics` knows of all later deletions.
        self._delete_stale(self.groups, {one for one in seen if not self._is_current(*one)})
        for live in self.groups.values():
            self._arm(live)

    def close(self, error: ErrorCode) -> None:
        """Refuse requests that wait with `error`, and take no more."""
        self._is_closed = True
        self._gathered.flush()
        self.shares.close()
        for live in self.groups.values():
            if isinstance(live.group, ClassicGroup):
                self._perform(live, live.group.kill(error))
            self._disarm(live)
            self._let_go(live)
        self.groups.clear()
        self._groups_of.clear()
        self._deleted_topics.clear()
        self._rid_of.clear()

    # Members.

    def join(self, group_id: str, request: JoinRequest) -> asyncio.Future[JoinResult]:
        """Handle a JoinGroup; the future gets its response."""
        ticket: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        if group_id in self.shares:
            code = ErrorCode.inconsistent_group_protocol
            ticket.set_result(JoinResult(error=code, member_id=""))
            return ticket
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
        group = live.group
        if isinstance(group, ConsumerGroup):
            if group.members:
                return self._join_consumer(live, group, request)
            self._become_classic(live)
            group = live.group
        assert isinstance(group, ClassicGroup)
        self._perform(live, group.join(request, ticket, self._clock.monotonic(), room))
        if is_new and live.is_empty:  # refused
            self.delete_group(group_id)
        return ticket

    def _join_consumer(
        self, live: GroupMetadata, group: ConsumerGroup, request: JoinRequest
    ) -> asyncio.Future[JoinResult]:
        now, new_id = self._clock.monotonic(), self._new_member_id(request.client_id)
        size = sum(len(name) + len(metadata) for name, metadata in request.protocols)
        try:
            if size > self._settings.record_max:
                raise KafkaError(ErrorCode.group_max_size_reached)
            result = classic_members.join(group, request, new_id, now, self._memory.room)
        except KafkaError as error:
            result = JoinResult(error=error.code, member_id=request.member_id)
        return self._stored(live, group, result)

    def sync(self, group_id: str, request: SyncRequest) -> asyncio.Future[SyncResult]:
        """Handle a SyncGroup; the future gets its response."""
        ticket: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        live = self.groups.get(group_id)
        if live is None:
            ticket.set_result(SyncResult(error=ErrorCode.unknown_member_id))
            return ticket
        now = self._clock.monotonic()
        if isinstance(live.group, ConsumerGroup):
            try:
                result = classic_members.sync(live.group, request, now)
            except KafkaError as error:
                result = SyncResult(error=error.code)
            return self._stored(live, live.group, result)
        self._perform(live, live.group.sync(request, ticket, now))
        return ticket

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Take a Heartbeat."""
        live = self.groups.get(group_id)
        if live is None:
            return ErrorCode.unknown_member_id
        now = self._clock.monotonic()
        if not isinstance(live.group, ConsumerGroup):
            return live.group.heartbeat(member_id, instance_id, generation, now)
        try:
            code = classic_members.heartbeat(live.group, member_id, instance_id, generation, now)
        except KafkaError as error:
            code = error.code
        self._arm(live)
        return code

    def leave(
        self, group_id: str, members: Sequence[tuple[str, str | None]]
    ) -> asyncio.Future[list[ErrorCode]] | list[ErrorCode]:
        """Take a LeaveGroup, of (member id, instance id)."""
        live = self.groups.get(group_id)
        if live is None:
            return [ErrorCode.unknown_member_id] * len(members)
        if isinstance(live.group, ConsumerGroup):
            return self._stored(live, live.group, classic_members.leave(live.group, members))
        codes, effects = live.group.leave(members, self._clock.monotonic())
        self._perform(live, effects)
        return codes

    # Members of the consumer protocol.

    def consumer_heartbeat(
        self, group_id: str, request: HeartbeatRequest, is_visible: IsVisible | None = None
    ) -> asyncio.Future[HeartbeatResult]:
        """Handle a ConsumerGroupHeartbeat; the future gets its response once what it says is
        durable. `is_visible` returns true for topics that the member may see; None: it may see
        all. Raises KafkaError.
        """
        now, room = self._clock.monotonic(), self._memory.room
        is_leaving = request.epoch < JOIN_EPOCH
        live, group = self._consumer_group(group_id, now, request.epoch)
        try:
            if is_leaving:
                result = group.leave(request.member_id, request.instance_id, request.epoch)
            else:
                result = group.heartbeat(request, now, room)
        except KafkaError:
            self._store_consumer(live, group)  # an upgrade, and that it was in vain
            if live.is_empty and not any(group.store.keys) and not live.places:
                self._forget(live)
            raise
        self._resolve_regexes(live, group, is_visible)
        return self._stored(live, group, result)

    def _resolve_regexes(
        self, live: GroupMetadata, group: ConsumerGroup, is_visible: IsVisible | None
    ) -> None:
        """Begin to resolve a group's regular expressions, off the event loop, if it is time."""
        regexes = group.regexes_to_resolve(self._clock.monotonic())
        if not regexes:
            return
        catalog, loop = group.catalog, asyncio.get_running_loop()
        matching = loop.run_in_executor(None, matching_topics, regexes, catalog.names, is_visible)

        def on_matched(matched: asyncio.Future[Mapping[str, frozenset[str]]]) -> None:
            if self._is_closed or live.group is not group:
                return
            error = matched.exception()
            if error is not None:
                _log.warning("regexes_not_resolved", group=group.group_id, error=str(error))
                group.not_resolved()
                return
            group.resolved(matched.result(), catalog, self._clock.now_ms())
            self._store_consumer(live, group)

        matching.add_done_callback(on_matched)

    def _consumer_group(
        self, group_id: str, now: float, epoch: int
    ) -> tuple[GroupMetadata, ConsumerGroup]:
        """Return a consumer group; if a member joins, one that is made or upgraded for it. Raises
        GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED.
        """
        is_joining, is_leaving = epoch == JOIN_EPOCH, epoch < JOIN_EPOCH
        live = self.groups.get(group_id)
        if live is not None and isinstance(live.group, ConsumerGroup):
            return live, live.group
        if group_id in self.shares:
            raise KafkaError(
                ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group."
            )
        if live is None and not is_joining:
            kind = "Group" if is_leaving else "Consumer group"
            raise KafkaError(ErrorCode.group_id_not_found, f"{kind} {group_id} not found.")
        if live is not None and not is_joining:
            raise KafkaError(
                ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group."
            )
        if live is None and self._memory.room < _cost_of_group(group_id):
            raise KafkaError(ErrorCode.group_max_size_reached)
        live = self._live(group_id)
        classic = live.group
        assert isinstance(classic, ClassicGroup)
        group = self._new_consumer_group(group_id)
        if classic.state is not GroupState.EMPTY:
            upgrade(classic, group, now)
            _log.info("group_upgraded", group=group_id, members=len(classic.members))
        self._perform(live, classic.kill(ErrorCode.rebalance_in_progress))
        self._delete_classic(live)
        live.group, live.stored_size = group, 0
        return live, group

    def _new_consumer_group(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(group_id, lambda: self._consumer_settings(group_id), self._catalog)

    def _delete_classic(self, live: GroupMetadata) -> None:
        key = encode_key(GroupKey(group_id=live.group.group_id))
        if live.stored_size or key in self._log.latest:
            self._append_change(live, [(key, None)])

    def _stored(self, live: GroupMetadata, group: ConsumerGroup, result: T) -> asyncio.Future[T]:
        """Store what an event changed in a consumer group. The future gets the event's result once
        this, and all that was changed before, is durable.
        """
        self._store_consumer(live, group)
        return when_stored(live.changes.newest, result)

    def _store_consumer(self, live: GroupMetadata, group: ConsumerGroup) -> None:
        records = []
        for key, value in group.take_records():
            if key.kind is RecordKind.GROUP:
                self._counts.rebalances_total += 1
            encoded = None if value is None else encode_consumer_value(value)
            records.append((encode_consumer_key(key), encoded))
        if records:
            if not group.members:
                live.empty_since_ms = self._clock.now_ms()
            self._append_change(live, records)
        if is_downgrade_due(group, self._settings.max_size):
            self._downgrade(live, group)
        self._charge(live)
        self._arm(live)

    def _append_change(self, live: GroupMetadata, records: Sequence[KeyValue]) -> None:
        """Append records, one at least, of what a group is."""
        live.changes.append(self._gathered, records, partial(self._go_back, live))

    def _go_back(self, live: GroupMetadata, error: Exception) -> None:
        """Make a group what the log has of it: one of the consumer protocol, or of the classic one,
        or none. It looks at keys of the group alone: a shard may have very many.
        """
        group, keys = live.group, live.changes.take_keys()
        group_id = group.group_id
        if self._is_closed or not keys or self.groups.get(group_id) is not live:
            return
        _log.warning("group_not_stored", group=group_id, error=str(error))
        if isinstance(group, ConsumerGroup):
            keys.update(map(encode_consumer_key, group.store.keys))
        else:
            self._perform(live, group.kill(ErrorCode.not_coordinator))
        latest, now = self._log.latest, self._clock.monotonic()
        records = []
        for key_bytes in keys:
            key, value = decode_key(key_bytes), latest.get(key_bytes)
            if isinstance(key, ConsumerGroupKey) and value is not None:
                known = decode_consumer_value(key.kind, value)
                if known is not None:
                    records.append(ConsumerGroupRecord(key, known))
        classic = latest.get(encode_key(GroupKey(group_id=group_id)))
        if records:
            self._restore_consumer(group_id, records, now)
        elif classic is not None:
            self._restore(group_id, decode_group(classic), len(classic), now)
        else:
            live.group = ClassicGroup(group_id, self._settings, self._new_member_id)
            live.stored_size = 0
        self._charge(live)
        self._arm(live)
        if not (records or classic or live.places):
            self._forget(live)

    async def _restore_consumers(
        self, records: Mapping[str, Sequence[ConsumerGroupRecord]], now: float
    ) -> None:
        restored = 0
        for group_id, found in records.items():
            self._restore_consumer(group_id, found, now)
            restored += len(found)
            if restored >= _AT_ONCE:
                await self._log.give_way()
                restored = 0

    def _restore_consumer(
        self, group_id: str, records: Sequence[ConsumerGroupRecord], now: float
    ) -> None:
        live = self._live(group_id)
        live.group = group = self._new_consumer_group(group_id)
        live.stored_size = 0
        group.restore(records, now)

    def _downgrade(self, live: GroupMetadata, group: ConsumerGroup) -> None:
        """Make a group whose members are all classic a classic one, which rebalances unless each
        member has its target.
        """
        now = self._clock.monotonic()
        is_stable = group.state is GroupState.STABLE
        # Not the group epoch, which grew when others left: members know their own.
        generation = max(member.current.epoch for member in group.members.values())
        classic = ClassicGroup.downgraded(
            group.group_id,
            self._settings,
            self._new_member_id,
            max(generation, 0),
            downgraded_members(group, now),
        )
        _log.info("group_downgraded", group=group.group_id, members=len(classic.members))
        self._become(live, group, classic)
        snapshot = replace(classic.snapshot(), state_timestamp_ms=self._clock.now_ms())
        value = encode_group(snapshot)
        live.stored_size = len(value)
        key = encode_key(GroupKey(group_id=group.group_id))
        self._append_change(live, [(key, value)])
        if not is_stable:
            self._perform(live, classic.rebalance(now))

    def _become_classic(self, live: GroupMetadata) -> None:
        """Make an empty consumer group a classic one."""
        group = live.group
        assert isinstance(group, ConsumerGroup)
        classic = ClassicGroup(group.group_id, self._settings, self._new_member_id)
        self._become(live, group, classic)

    def _become(self, live: GroupMetadata, group: ConsumerGroup, classic: ClassicGroup) -> None:
        records: list[KeyValue] = [(encode_consumer_key(key), None) for key in group.store.keys]
        live.group = classic
        if records:
            self._append_change(live, records)

    # Offsets.

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        places: Iterable[tuple[bytes, int]],
        *,
        has_epochs: bool,
    ) -> ErrorCode:
        """Return the error of a commit by this member for partitions, of (topic id, index); an
        unknown group needs no members. `has_epochs`: the version of the request has member epochs.
        """
        live = self.groups.get(group_id)
        if group_id in self.shares:
            return ErrorCode.group_id_not_found
        if live is None:
            unknown = ErrorCode.group_id_not_found if has_epochs else ErrorCode.illegal_generation
            return ErrorCode.none if generation < 0 else unknown
        if isinstance(live.group, ConsumerGroup):
            error = live.group.refuse_commit(
                member_id, generation, places, is_known_to_client=has_epochs
            )
            return error or ErrorCode.none
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
            self._forget_topics(group_id)
            live.end_commit(offsets, is_kept=error is None)
            for place in offsets:
                self._hide_deleted(live, place)
            on_done(error)

        self._gathered.append(records, then)
        live.last_commit = self._gathered.outcome

    def check_transactional_commit(
        self, member: TransactionalMember, places: Iterable[tuple[bytes, int]]
    ) -> ErrorCode:
        """Return the error of a commit that a producer makes for this member, for partitions, of
        (topic id, index).
        """
        group_id, member_id, instance_id, generation = member
        live = self.groups.get(group_id)
        if group_id in self.shares:
            return ErrorCode.group_id_not_found
        group = None if live is None else live.group
        if isinstance(group, ConsumerGroup):
            if not member_id and instance_id is None and generation == NO_GENERATION:
                return ErrorCode.none
            error = group.refuse_commit(member_id, generation, places)
            if error is ErrorCode.stale_member_epoch:  # which the API does not know
                return ErrorCode.illegal_generation
            return error or ErrorCode.none
        error = refuse_transactional_commit(group, member_id, instance_id, generation)
        return error or ErrorCode.none

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Return the error of a request for offsets in the name of a member. A share group has
        none, which is no error.
        """
        live = self.groups.get(group_id)
        if live is None or not isinstance(live.group, ConsumerGroup):
            return ErrorCode.none
        return live.group.refuse_fetch(member_id, epoch) or ErrorCode.none

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
        records: list[KeyValue] = [
            (_offset_key(group_id, where), encode_offset(offset))
            for where, offset in offsets.items()
        ]
        places = self._pending_places(group_id, producer_id)
        live, before = self._live(group_id), set(places)
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

    def _pending_places(self, group_id: str, producer_id: int) -> set[TopicPartition]:
        """Return the partitions of a group with commits in a producer's transaction, to add to."""
        self._groups_of.setdefault(producer_id, set()).add(group_id)
        return self._live(group_id).pending_transactional.setdefault(producer_id, set())

    def transaction_ended(self, producer_id: int, *, is_commit: bool) -> None:
        """A producer's transaction has its marker: its offsets count, or never will."""
        counted = self._count(self._log.end_transaction(producer_id, is_commit=is_commit))
        group_ids = self._groups_of.pop(producer_id, set())
        for group_id in group_ids:
            live = self.groups.get(group_id)
            if live is not None:
                live.pending_transactional.pop(producer_id, None)
        self._delete_stale(group_ids, {one for one in counted if not self._is_current(*one)})

    def _count(self, decided: Mapping[bytes, bytes | None]) -> set[_TopicName]:
        """Let offsets count that transactions have committed; return their topics."""
        topics: set[_TopicName] = set()
        for key_bytes, value in decided.items():
            key = decode_key(key_bytes)
            if isinstance(key, OffsetKey) and value is not None:
                offset = decode_offset(value)
                self._live(key.group_id).offsets[key.topic, key.partition] = offset
                topics.add((key.topic, offset.topic_id))
        return topics

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
        """Note that topics are deleted: no group's offsets of them are seen from now on.
        `forget_deleted_topics` has the log get their tombstones.
        """
        self._deleted_topics += topics

    def forget_deleted_topics(self) -> Iterator[None]:
        """Forget all offsets of deleted topics. Yields after each piece of the work."""
        count, looked_at = len(self._deleted_topics), 0
        if not count:
            return
        for group_id in list(self.groups):
            live = self.groups.get(group_id)
            looked_at += 1 if live is None else 1 + len(live.offsets)
            self._forget_topics(group_id)
            if looked_at >= _AT_ONCE:
                yield
                looked_at = 0
        if count == len(self._deleted_topics):  # else the next pass has those that came meanwhile
            self._deleted_topics.clear()
            self._rid_of.clear()

    def _forget_topics(self, group_id: str) -> None:
        """Forget a group's offsets of topics that were deleted."""
        count = len(self._deleted_topics)
        rid_of = self._rid_of.get(group_id, 0)
        if rid_of == count:
            return
        self._rid_of[group_id] = count
        live = self.groups.get(group_id)
        if live is None:
            return
        topics = set(self._deleted_topics[rid_of:])
        gone = [place for place in live.places if place[0] in topics]
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

    def _delete_stale(self, group_ids: Iterable[str], topics: Collection[_TopicName]) -> None:
        """Forget offsets of groups that were committed of topics that are deleted. If a newer
        commit is under way or in an open transaction, the log keeps the older one until that one
        counts.
        """
        if not topics:
            return
        for group_id in group_ids:
            live = self.groups.get(group_id)
            if live is None:
                continue
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
        """Delete a group without members, and its offsets; the future gets the outcome. The group
        stays if that could not be begun.
        """
        self._gathered.flush()
        live = self.groups.get(group_id)
        if live is None or live.group.members:  # its last change could not be stored
            refused: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
            refused.set_result(KafkaError(ErrorCode.not_coordinator))
            return refused
        keys = [_offset_key(group_id, where) for where in live.places]
        if isinstance(live.group, ConsumerGroup):
            keys += map(encode_consumer_key, live.group.store.keys)
        group_key = encode_key(GroupKey(group_id=group_id))
        if group_key in self._log.latest:
            keys.append(group_key)
        outcome = self._append([(key, None) for key in keys])
        self._gathered.flush()
        if outcome.done() and outcome.result() is not None:
            return outcome
        del self.groups[group_id]
        if isinstance(live.group, ConsumerGroup):
            self._disarm(live)
        else:
            self._perform(live, live.group.kill(ErrorCode.coordinator_not_available))
        self._let_go(live)
        return outcome

    def expire(self, retention_ms: int) -> Iterator[int]:
        """Forget offsets that have lived their time, and groups that have neither offsets nor
        members. Yields how many offsets, after each piece of the work.
        """
        looked_at = count = 0
        for group_id, live in list(self.groups.items()):
            if self.groups.get(group_id) is not live:
                continue
            old = live.expired(self._clock.now_ms(), retention_ms)
            if live.is_empty and len(old) == len(live.places):
                self.delete_group(group_id)
            elif old:
                self.delete_offsets(group_id, old)
            looked_at += 1 + len(live.offsets)
            count += len(old)
            if looked_at >= _AT_ONCE:
                yield count
                looked_at = count = 0
        yield count

    # Inside.

    def find(self, group_id: str) -> GroupMetadata | None:
        """Return a group, without offsets of topics that were deleted."""
        self._forget_topics(group_id)
        return self.groups.get(group_id)

    def _live(self, group_id: str) -> GroupMetadata:
        live = self.find(group_id)
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

    def _forget(self, live: GroupMetadata) -> None:
        """Forget a group of which the log has nothing."""
        del self.groups[live.group.group_id]
        self._disarm(live)
        self._let_go(live)

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

        group = live.group
        assert isinstance(group, ClassicGroup)

        def then(code: ErrorCode | None) -> None:
            self._perform(live, group.stored(effect.token, code, self._clock.monotonic()))

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
        is_still = self._is_closed or self._settings.is_standby
        deadline = None if is_still else live.group.next_deadline()
        if deadline is None:
            self._disarm(live)
            return
        if live.timer is not None:
            if live.timer_deadline <= deadline:
                return  # it will fire in time, find little to do and be armed again
            live.timer.cancel()
        delay = max(deadline - self._clock.monotonic(), _TICK_SECONDS_MIN)
        live.timer_deadline = deadline
        live.timer = asyncio.get_running_loop().call_later(delay, self._on_timer, live)

    @staticmethod
    def _disarm(live: GroupMetadata) -> None:
        if live.timer is not None:
            live.timer.cancel()
            live.timer = None

    def _on_timer(self, live: GroupMetadata) -> None:
        live.timer = None
        if isinstance(live.group, ConsumerGroup):
            live.group.tick(self._clock.monotonic())
            self._store_consumer(live, live.group)
        else:
            self._perform(live, live.group.tick(self._clock.monotonic()))


def _cost_of_group(group_id: str) -> int:
    return GROUP_COST + len(group_id)


def _offset_key(group_id: str, where: TopicPartition) -> bytes:
    return encode_key(OffsetKey(group_id=group_id, topic=where[0], partition=where[1]))
