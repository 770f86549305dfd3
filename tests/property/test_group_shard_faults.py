"""Groups of both protocols over a log that is full at times: a shard shows what one that loads the
same log would show.
"""

import asyncio
import contextlib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.classic_group import ClassicGroup
from lakehead.broker.coordinator.group.consumer.consumer_group import (
    ConsumerGroup,
    HeartbeatRequest,
)
from lakehead.broker.coordinator.group.group_metadata import (
    GroupMetadata,
    Offsets,
    TopicPartition,
)
from lakehead.broker.coordinator.group.members import GroupMemory
from lakehead.broker.coordinator.group.messages import GroupState
from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.coordinator.group.shard import GroupShard
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.format.control_batch import Marker, encode_marker
from tests.support.repetitions import examples
from tests.unit.test_classic_group import join_request
from tests.unit.test_consumer_group_shard import SUBSCRIPTION, sync_request
from tests.unit.test_group_memory import Node

GROUPS = ("g", "h")
PROTOCOLS = (("range", bytes(SUBSCRIPTION)),)
PRODUCERS = (7, 8)


class World:
    """A shard, its log, and clients that do as they are told, or not."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.node = Node(GroupMemory())
        self.partition = self.node.partitions[0]
        self.shard = self.node.shards[0]
        self.epochs: dict[tuple[str, str], int] = {}
        """Of members of the consumer protocol, as far as they know."""
        self.ending: set[int] = set()
        self.in_transaction: set[int] = set()

    # Events.

    def consumer_heartbeat(self, group_id: str) -> None:
        member_id = self.rng.choice(("m", "n", "o"))
        place = group_id, member_id
        epoch = self.epochs.get(place, 0)
        if epoch and self.rng.random() < 0.3:
            epoch = -1
        request = HeartbeatRequest(
            member_id=member_id,
            epoch=epoch,
            rebalance_timeout_ms=5_000 if epoch == 0 else -1,
            topics=frozenset(self.rng.sample(("t", "u"), k=1)) if epoch == 0 else None,
            owned={} if epoch == 0 else None,
        )

        def heard(outcome: "asyncio.Future[Any]") -> None:
            if outcome.exception() is None and epoch >= 0:
                self.epochs[place] = outcome.result().epoch
            else:
                self.epochs.pop(place, None)

        try:
            self.shard.consumer_heartbeat(group_id, request).add_done_callback(heard)
        except KafkaError:
            self.epochs.pop(place, None)

    def classic_join(self, group_id: str) -> None:
        group = self._group(group_id)
        known = [] if group is None else sorted(map(_id, group.members))
        member_id = self.rng.choice(["", *known])
        _ignore(self.shard.join(group_id, join_request(member_id=member_id, protocols=PROTOCOLS)))

    def classic_sync(self, group_id: str) -> None:
        group = self._group(group_id)
        if isinstance(group, ClassicGroup) and group.state is GroupState.COMPLETING_REBALANCE:
            for member in list(group.members):
                request = sync_request(member.member_id, group.generation)
                _ignore(self.shard.sync(group_id, request))

    def classic_heartbeat(self, group_id: str) -> None:
        group = self._group(group_id)
        for member in [] if group is None else list(group.members):
            generation = (
                group.generation if isinstance(group, ClassicGroup) else self.rng.randrange(5)
            )
            self.shard.heartbeat(group_id, _id(member), None, generation)

    def classic_leave(self, group_id: str) -> None:
        group = self._group(group_id)
        members = [] if group is None else sorted(map(_id, group.members))
        if members:
            left = self.shard.leave(group_id, [(self.rng.choice(members), None)])
            if isinstance(left, asyncio.Future):
                _ignore(left)

    def commit(self, group_id: str) -> None:
        offset = CommittedOffset(offset=self.rng.randrange(100))
        self.shard.commit(group_id, {("t", self.rng.randrange(3)): offset}, lambda _: None)

    def commit_in_transaction(self, group_id: str) -> None:
        producer_id = self.rng.choice(PRODUCERS)
        if producer_id not in self.ending:
            offset = CommittedOffset(offset=self.rng.randrange(100))
            places = {("t", self.rng.randrange(3)): offset}
            self.shard.commit_in_transaction(group_id, producer_id, 0, places)
            self.in_transaction.add(producer_id)

    def end_transaction(self, _: str) -> None:
        if self.partition.stream.is_full or not self.in_transaction - self.ending:
            return
        producer_id = min(self.in_transaction - self.ending)
        commits = self.rng.random() < 0.7
        shard = self.shard

        def durable(_: Exception | None) -> None:
            self.ending.discard(producer_id)
            self.in_transaction.discard(producer_id)
            shard.transaction_ended(producer_id, is_commit=commits)

        self.ending.add(producer_id)
        marker = Marker(commits, 0)
        batch = encode_marker(marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=0)
        self.partition.append(memoryview(batch), durable)

    def delete(self, group_id: str) -> None:
        live = self.shard.groups.get(group_id)
        if live is not None and not live.group.members:
            self.shard.delete_group(group_id)

    def expire(self, _: str) -> None:
        sum(self.shard.expire(10**9))

    # Looking.

    def _group(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        live = self.shard.groups.get(group_id)
        return None if live is None else live.group

    async def check(self) -> None:
        """Compare with a shard that loads the log, once everything is durable."""
        self.partition.stream.is_full = False
        for _ in range(10):
            await asyncio.sleep(0)
            self.node.confirm()
        assert not self.ending
        loaded: GroupShard = self.node.shard(self.partition.left())
        await loaded.load()
        for group_id in GROUPS:
            ours, theirs = (one.groups.get(group_id) for one in (self.shard, loaded))
            assert _offsets(ours) == _offsets(theirs)
            # A later commit beside the transaction settles an offset; that is known after a load.
            assert _unstable(theirs) <= _unstable(ours)
            group = None if ours is None else ours.group
            if isinstance(group, ConsumerGroup):
                if _seen(group) != (1, 0, {}):
                    assert theirs is not None
                    assert isinstance(theirs.group, ConsumerGroup)
                    assert _seen(group) == _seen(theirs.group)
            elif theirs is not None:
                assert isinstance(theirs.group, ClassicGroup), "the log has another protocol"
                if group is not None and group.state is GroupState.STABLE:
                    assert group.generation == theirs.group.generation
                    assert set(map(_id, group.members)) == set(map(_id, theirs.group.members))
        loaded.close(ErrorCode.not_coordinator)

    async def run(self) -> None:
        events = (
            *(self.consumer_heartbeat,) * 5,
            *(self.classic_join, self.classic_sync, self.classic_sync, self.classic_heartbeat),
            *(self.classic_leave, self.commit, self.commit_in_transaction, self.end_transaction),
            *(self.delete, self.expire),
        )
        for _ in range(120):
            for _ in range(self.rng.randrange(1, 4)):
                self.rng.choice(events)(self.rng.choice(GROUPS))
            if self.rng.random() < 0.3:
                await asyncio.sleep(0)
            if self.rng.random() < 0.1:
                self.partition.stream.is_full = not self.partition.stream.is_full
            if self.rng.random() < 0.3:
                self.partition.stream.confirm(self.rng.randrange(4))
            if self.rng.random() < 0.1:
                await self.check()
        await self.check()
        self.shard.close(ErrorCode.not_coordinator)
        assert self.node.memory.used == 0
        with contextlib.suppress(KafkaError):
            await self.node.scope.close()


def _ignore(outcome: "asyncio.Future[Any]") -> None:
    """A client that is not there any more."""
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())


def _id(member: Any) -> str:
    return member if isinstance(member, str) else str(member.member_id)


def _offsets(live: GroupMetadata | None) -> Offsets:
    return {} if live is None else live.offsets


def _unstable(live: GroupMetadata | None) -> set[TopicPartition]:
    return set() if live is None else live.unstable


def _seen(group: ConsumerGroup) -> tuple[int, int, dict[str, tuple[Any, ...]]]:
    members = {
        member_id: (member.metadata, member.target, member.current)
        for member_id, member in group.members.items()
    }
    return group.store.epoch, group.store.target_epoch, members


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 2**32), st.sampled_from([200, 1 << 20]))
def test_a_shard_shows_what_its_log_has(seed: int, batch_size: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lakehead.broker.coordinator.log._BATCH_SIZE", batch_size)
        asyncio.run(World(seed).run())
