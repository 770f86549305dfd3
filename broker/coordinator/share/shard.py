"""The share-partitions of one partition of `__share_group_state`: their states, and their log.

A shard is used by one event loop, between `load` and `close`. Each write is an update of its
share-partition, after many of them a snapshot. A request completes when its record is durable.
Writes of one turn of the event loop are one batch of the log.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.log import BatchingLog, CoordinatorLog
from lakehead.broker.coordinator.share.record_formats import (
    ShareSnapshot,
    ShareUpdate,
    encode_key,
    encode_snapshot,
    encode_update,
)
from lakehead.broker.coordinator.share.share_states import ShareStates, StoredState
from lakehead.broker.coordinator.share.state_batches import combined
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.share.record_state import NO_START_OFFSET, ShareState, StateBatch
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.clock import Clock

Outcome: TypeAlias = asyncio.Future[Exception | None]

NO_EPOCH = -1
_AT_ONCE = 1_000
"""States that are looked at in one turn of the event loop."""


class StateWrite(NamedTuple):
    """A leader's write: of its epoch (-1: unchecked), at a state epoch (-1: unchecked).

    `batches` need not be in order. A later one need not be apart from an earlier one.
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class ShareShard:
    """One partition's share-partitions. A snapshot follows `updates_max` updates. `has_topic` says
    whether a topic of an id exists.
    """

    def __init__(
        self,
        log: CoordinatorLog,
        clock: Clock,
        updates_max: int,
        has_topic: Callable[[bytes], bool],
    ) -> None:
        self._states = ShareStates()
        log.keep_in(self._states)
        self._replaying = log
        self._log = BatchingLog(log)
        self._clock = clock
        self._updates_max = updates_max
        self._has_topic = has_topic
        self._gathered: set[SharePartitionKey] = set()
        """Share-partitions with records of this turn that are not in the log yet."""
        self._is_closed = False

    async def load(self) -> None:
        """Read the log, and delete states of topics that were deleted meanwhile."""
        await self._replaying.replay()
        for _ in self.forget_deleted():
            pass  # in one turn: no deletion may come between

    def close(self, _error: ErrorCode, /) -> None:
        """Accept no more requests. Those that wait for the log get an error by it."""
        self._log.flush()
        self._is_closed = True

    def forget_deleted(self) -> Iterator[None]:
        """Delete the states of deleted topics. Yields after each piece of the work."""
        for number, key in enumerate(list(self._states.by_key), 1):
            if self._is_closed:
                return
            if not self._has_topic(key.topic_id):
                self.delete(key)
            if not number % _AT_ONCE:
                yield

    def find(self, key: SharePartitionKey) -> ShareState | None:
        """Return a state, None if there is none."""
        stored = self._find(key)
        return None if stored is None else stored.state

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Outcome:
        """Begin a new state. Raises FENCED_STATE_EPOCH.

        A state begins once in a state epoch. Unlike in Kafka, a request that comes twice changes
        nothing: it may come late, when the group has verdicts in that epoch already.
        """
        stored = self._find(key)
        if stored is not None and state_epoch != NO_EPOCH:
            if state_epoch < stored.state.state_epoch:
                raise KafkaError(ErrorCode.fenced_state_epoch)
            if state_epoch == stored.state.state_epoch:
                return self._write(key, stored, _unchanged(stored.state))
        now_ms = self._clock.now_ms()
        leader_epoch = 0 if stored is None else stored.state.leader_epoch
        state = ShareState(start_offset, state_epoch, leader_epoch)
        if start_offset != NO_START_OFFSET:
            state = state._replace(delivery_complete_count=0)
        snapshot = ShareSnapshot(
            epoch=0 if stored is None else stored.snapshot.epoch + 1,
            state=state,
            created_ms=now_ms,
            written_ms=now_ms,
        )
        return self._append(key, encode_snapshot(snapshot))

    def read(self, key: SharePartitionKey, leader_epoch: int) -> tuple[ShareState, Outcome | None]:
        """Return the state for a leader, and the outcome of noting its epoch, which fences the
        leaders before it; None where it is known already.

        Raises KafkaError: INVALID_REQUEST for a state that was never initialized,
        FENCED_LEADER_EPOCH.
        """
        stored = self._stored(key, "Read")
        if leader_epoch < stored.state.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch)
        if leader_epoch in {NO_EPOCH, stored.state.leader_epoch}:
            return stored.state, None
        state = stored.state
        write = _unchanged(state)._replace(leader_epoch=leader_epoch)
        return state, self._write(key, stored, write)

    def write(self, key: SharePartitionKey, write: StateWrite) -> Outcome:
        """Add to a state. Raises KafkaError: INVALID_REQUEST for a state that was never
        initialized, FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH.
        """
        stored = self._stored(key, "Write")
        state = stored.state
        if NO_EPOCH != write.leader_epoch < state.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch)
        if NO_EPOCH != write.state_epoch < state.state_epoch:
            raise KafkaError(ErrorCode.fenced_state_epoch)
        return self._write(key, stored, write)

    def delete(self, key: SharePartitionKey) -> Outcome | None:
        """Delete a state; None if there is none."""
        return None if self._find(key) is None else self._append(key, None)

    def _find(self, key: SharePartitionKey) -> StoredState | None:
        """Return a state with all that was written, in this turn too."""
        if key in self._gathered:
            self._flush()
        return self._states.by_key.get(key)

    def _flush(self) -> None:
        self._log.flush()
        self._gathered.clear()

    def _stored(self, key: SharePartitionKey, verb: str) -> StoredState:
        stored = self._find(key)
        if stored is None:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"{verb} operation on uninitialized share partition not allowed.",
            )
        return stored

    def _write(self, key: SharePartitionKey, stored: StoredState, write: StateWrite) -> Outcome:
        if stored.updates < self._updates_max:
            update = ShareUpdate(
                stored.snapshot.epoch,
                write.leader_epoch,
                write.start_offset,
                write.delivery_complete_count,
                combined((), write.batches, write.start_offset),
            )
            return self._append(key, encode_update(update), is_update=True)
        whole = ShareUpdate(stored.snapshot.epoch, *write[1:])
        snapshot = ShareSnapshot(
            epoch=stored.snapshot.epoch + 1,
            state=stored.with_update(whole),
            created_ms=stored.snapshot.created_ms,
            written_ms=self._clock.now_ms(),
        )
        return self._append(key, encode_snapshot(snapshot))

    def _append(
        self, key: SharePartitionKey, value: bytes | None, *, is_update: bool = False
    ) -> Outcome:
        if self._is_closed:
            raise KafkaError(ErrorCode.not_coordinator)
        self._log.append([(encode_key(key, is_update=is_update), value)], _ignore)
        if not self._gathered:  # the log's flush at the end of the turn comes first
            asyncio.get_running_loop().call_soon(self._flush)
        self._gathered.add(key)
        return self._log.outcome


def _unchanged(state: ShareState) -> StateWrite:
    """Return a write that leaves a state as it is."""
    return StateWrite(NO_EPOCH, NO_EPOCH, NO_START_OFFSET, state.delivery_complete_count, ())


def _ignore(_error: Exception | None) -> None:
    """Each request waits for the outcome of its turn."""
