"""A share-partition at the leader of its partition: the machine with its clock, timer and store.

It is loaded once, from the share coordinator. A member's acknowledgement is stored before it
counts. One write is under way, and changes that come meanwhile are the next one. A lock that runs
out counts at once. A write that is fenced, by a newer leader or because the group began again, ends
it: the next request loads it again, if this node still leads the partition.

A verdict on a record behind the start offset has no effect, as in Kafka. Unlike there, its response
waits until that start offset is stored: another leader might deliver the record again.

Dead letters are written once the state of their records (ARCHIVING) is stored, and these are
ARCHIVED after that. A leader that dies between leaves them to the next one: a dead letter may be
written twice, and none is lost. Those of a lock that ran out do not wait for a store that fails,
as nothing else would begin them.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.partition.partition import Partition
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.share.dead_letters import DeadLetters
from lakehead.broker.share.record_state import NO_START_OFFSET, ShareState
from lakehead.broker.share.share_counts import ShareCounts
from lakehead.broker.share.share_partition import (
    Acknowledgement,
    AcquiredRecords,
    AcquireRequest,
    Change,
    OffsetRange,
    SharePartition,
)
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.broker.share.share_settings import ShareSettings
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.failpoints import failpoint
from lakehead.storage.tasks import TaskScope

Outcome = asyncio.Future[None]

_CODES = {
    ErrorCode.not_coordinator: ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress: ErrorCode.coordinator_not_available,
    ErrorCode.fenced_leader_epoch: ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_state_epoch: ErrorCode.not_leader_or_follower,
    ErrorCode.invalid_request: ErrorCode.unknown_server_error,
}
"""Codes of the share coordinator as members get them."""
_ENDING = frozenset(
    {
        ErrorCode.fenced_leader_epoch,
        ErrorCode.fenced_state_epoch,
        ErrorCode.invalid_request,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Codes after which the state here is not that of the group any more."""
_log = structlog.get_logger(__name__)


class StateStore(Protocol):
    """Stores states: `lakehead.broker.share.persister.Persister`."""

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state, for the leader of this epoch. Raises KafkaError."""

    async def write(self, key: SharePartitionKey, state: ShareState) -> None:
        """Add to the stored state. Raises KafkaError."""


class DeadLetterSink(Protocol):
    """Writes dead letters: `lakehead.broker.share.dead_letter_writer.DeadLetterWriter`."""

    async def write(
        self,
        key: SharePartitionKey,
        partition: Partition,
        letters: Sequence[DeadLetters],
        on_done: Callable[[DeadLetters], None],
    ) -> None:
        """Write the dead letters of a partition's records. `on_done` is called for each part of
        them that is written, or given up.
        """


class _Write(NamedTuple):
    """A change to store. The outcome of one that counts already is not waited for."""

    change: Change
    outcome: Outcome | None


class LedSharePartition:
    """One share-partition. `on_idle` is called each time nothing is being done any more, `on_end`
    when it is not to be used any more.
    """

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        store: StateStore,
        dead_letters: DeadLetterSink,
        settings: ShareSettings,
        clock: Clock,
        scope: TaskScope,
        counts: ShareCounts,
        on_idle: Callable[["LedSharePartition"], None],
        on_end: Callable[["LedSharePartition"], None],
    ) -> None:
        self.key = key
        self.partition = partition
        self._store = store
        self._dead_letters = dead_letters
        self._settings = settings
        self._clock = clock
        self._scope = scope
        self._counts = counts
        self._on_idle = on_idle
        self._on_end = on_end
        self._machine: SharePartition | None = None
        self._leader_epoch = partition.leader_epoch
        self._state_epoch = 0
        self._is_begun = False
        self._load_error: KafkaError | None = None
        self._stored_offset = NO_START_OFFSET
        """The start offset that is certainly stored."""
        self._writes: list[_Write] = []
        self._is_writing = False
        self._letters: list[DeadLetters] = []
        """Dead letters that are to be written next."""
        self._letters_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        """The time for which the timer is set, by the clock of locks."""
        self._waiters: dict[Callable[[], None], None] = {}
        self._is_ended = False

    # Loading.

    @property
    def is_loaded(self) -> bool:
        """Return true if records may be acquired and acknowledged."""
        return self._machine is not None and not self._is_ended

    @property
    def is_idle(self) -> bool:
        """Return true if no member has records, and nothing is being stored or written."""
        is_at_work = self._is_writing or self._letters_task is not None
        return not is_at_work and self.machine.next_deadline_ms is None

    @property
    def is_resigned(self) -> bool:
        """Return true if it is not to be used any more, though it could be loaded."""
        return self._is_ended and self._load_error is None

    def begin(self) -> None:
        """Begin to load the state, unless that has begun; waiters are called when it is there.
        Raises KafkaError if it could not be loaded.
        """
        if self._load_error is not None:
            raise self._load_error
        if not self._is_begun:
            self._is_begun = True
            self._scope.spawn_apart(self._load(), name=f"load share-partition {self.key.text}")

    async def _load(self) -> None:
        try:
            self._machine = await self._loaded()
            self._send(self._machine.archiving)
        except (LakeheadError, TimeoutError) as error:
            self._load_error = _refusal(error)
            self.end()
        self._wake()

    async def _loaded(self) -> SharePartition:
        stored = await self._store.read(self.key, self._leader_epoch)
        self._state_epoch = stored.state_epoch
        if stored.start_offset == NO_START_OFFSET:
            # It is stored at once: another leader would begin elsewhere.
            stored = stored._replace(
                start_offset=await self._first_offset(), delivery_complete_count=0
            )
            await self._store.write(self.key, stored)
        self._stored_offset = stored.start_offset
        return SharePartition(stored, self._settings.limits(self.key.group_id))

    async def _first_offset(self) -> int:
        """Return the offset at which the group begins."""
        reset = self._settings.reset(self.key.group_id)
        if reset.is_latest:
            return self.partition.high_watermark
        if reset.duration is not None:
            since_ms = self._clock.now_ms() - int(reset.duration.total_seconds() * 1000)
            found = await self.partition.stream.offset_for_timestamp(since_ms)
            return self.partition.high_watermark if found is None else found.offset
        return self.partition.log_start_offset

    def end(self, code: ErrorCode = ErrorCode.not_leader_or_follower) -> None:
        """Use it no more: acknowledgements that wait fail with `code`."""
        if self._is_ended:
            return
        self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._letters_task is not None:
            self._letters_task.cancel()
        writes, self._writes = self._writes, []
        for write in writes:
            _fail(write.outcome, KafkaError(code))
        self._on_end(self)
        self._wake()

    # Fetching.

    @property
    def machine(self) -> SharePartition:
        """The machine of a share-partition that is loaded, at the present start of the log and
        with the present config of its group; at the end as it was, since the log may be deleted.
        """
        assert self._machine is not None
        if self._is_ended:
            return self._machine
        self._machine.limits = self._settings.limits(self.key.group_id)
        self._machine.has_dead_letters = self._settings.dead_letters(self.key.group_id) is not None
        self._machine.move_start(self.partition.log_start_offset)
        return self._machine

    @property
    def is_committed(self) -> bool:
        """Return true if the group reads committed records only."""
        return self._settings.is_committed(self.key.group_id)

    def acquire(
        self,
        request: AcquireRequest,
        fetch_offset: int,
        fetched: Sequence[OffsetRange],
        aborted: Iterable[OffsetRange],
    ) -> list[AcquiredRecords]:
        """Acquire records; see `SharePartition.acquire`."""
        acquired = self.machine.acquire(request, fetch_offset, fetched, aborted)
        self._schedule(request.deadline_ms)
        return acquired

    def give_back(self, member_id: str, acquired: Iterable[AcquiredRecords]) -> None:
        """Undo deliveries that do not reach the member, unless this is over."""
        if not self._is_ended:
            self.machine.give_back(member_id, acquired)
            self._wake()

    def deadline_ms(self) -> int:
        """Return the end of a lock that is taken now, by the clock of locks."""
        return self._now_ms() + self._settings.lock_ms(self.key.group_id)

    def wait(self, waiter: Callable[[], None]) -> None:
        """Call `waiter` each time records may have become available, until `unwait`."""
        self._waiters[waiter] = None

    def unwait(self, waiter: Callable[[], None]) -> None:
        """Stop calling `waiter`."""
        self._waiters.pop(waiter, None)

    def _wake(self) -> None:
        for waiter in list(self._waiters):
            waiter()

    # Acknowledging.

    def acknowledge(self, member_id: str, batches: Iterable[Acknowledgement]) -> Outcome:
        """Begin a member's acknowledgements; return their outcome. Raises KafkaError."""
        may_renew = self._settings.may_renew(self.key.group_id)
        renewed_until_ms = self.deadline_ms() if may_renew else None
        change = self.machine.acknowledge(member_id, batches, renewed_until_ms)
        self._schedule(renewed_until_ms)
        return self._stored(change)

    def release(self, member_id: str) -> Outcome:
        """Begin to release all that a member has; return the outcome."""
        return self._stored(self.machine.release(member_id))

    def _stored(self, change: Change) -> Outcome:
        outcome: Outcome = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(_look_at)
        if change.batches or (change.is_late and self._stored_offset < change.start_offset):
            self._write(_Write(change, outcome))
        else:
            outcome.set_result(None)
        return outcome

    def _write(self, write: _Write) -> None:
        self._writes.append(write)
        if not self._is_writing:
            self._is_writing = True
            self._scope.spawn_apart(
                self._write_all(), name=f"store share-partition {self.key.text}"
            )

    async def _write_all(self) -> None:
        try:
            while self._writes:
                writes, self._writes = self._writes, []
                error: Exception | None = None
                state = self._state(writes)
                try:
                    await self._store.write(self.key, state)
                except (LakeheadError, TimeoutError) as caught:
                    error = caught
                else:
                    self._stored_offset = max(self._stored_offset, state.start_offset)
                self._settle(writes, error)
        finally:
            self._is_writing = False
        self._rest()

    def _rest(self) -> None:
        """Report it if nothing is being done any more."""
        if not self._is_ended and self.is_idle:
            self._on_idle(self)

    def _state(self, writes: Iterable[_Write]) -> ShareState:
        """Return what is to be stored of some changes."""
        machine = self.machine
        done = machine.delivery_complete_count
        for change, outcome in writes:
            if outcome is not None:  # else it is counted already
                done += sum(
                    one.last_offset - one.first_offset + 1
                    for one in change.batches
                    if one.state.is_terminal
                )
        return ShareState(
            machine.start_offset,
            self._state_epoch,
            self._leader_epoch,
            done,
            tuple(one for write in writes for one in write.change.batches),
        )

    def _settle(self, writes: Iterable[_Write], error: Exception | None) -> None:
        """Changes were stored, or not."""
        machine = self.machine
        letters: list[DeadLetters] = []
        for change, outcome in writes:
            if error is None or outcome is None:
                letters += change.dead_letters
            if outcome is None:
                continue
            if error is None:
                machine.complete(change)
                self._counts.ended(change.batches, is_expired=False)
                if not outcome.done():
                    outcome.set_result(None)
            else:
                machine.roll_back(change)
                _fail(outcome, _refusal(error))
        if error is not None:
            _log.warning("share_state_not_stored", share_partition=self.key.text, error=str(error))
            if isinstance(error, KafkaError) and error.code in _ENDING:
                self.end(_refusal(error).code)
        self._send(letters)
        self._schedule()
        self._wake()

    # Dead letters.

    def _send(self, letters: Sequence[DeadLetters]) -> None:
        """Have dead letters written, behind those that are being written."""
        self._letters += letters
        if self._letters and self._letters_task is None and not self._is_ended:
            self._letters_task = self._scope.spawn_apart(
                self._write_letters(), name=f"write dead letters of {self.key.text}"
            )

    async def _write_letters(self) -> None:
        try:
            while self._letters:
                letters, self._letters = self._letters, []
                failpoint("dead_letters_begun")
                await self._dead_letters.write(self.key, self.partition, letters, self._archive)
        finally:
            self._letters_task = None
        self._rest()

    def _archive(self, letters: DeadLetters) -> None:
        """Records have their dead letters, or never will."""
        failpoint("dead_letters_written")
        change = None if self._is_ended else self.machine.archive(letters)
        if change is not None:
            self._write(_Write(change, None))
            self._wake()

    # Locks.

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _schedule(self, new_ms: int | None = None) -> None:
        """Have the timer run when the first lock ends. `new_ms` is the end of new locks, which may
        be before those of older ones: the group's config may have changed.
        """
        if self._is_ended:
            return
        if self._timer is not None:
            if new_ms is None or new_ms >= self._timer_ms:
                return
            self._timer.cancel()
            self._timer = None
        deadline_ms = self.machine.next_deadline_ms
        if deadline_ms is not None:
            self._timer_ms = deadline_ms
            delay_s = max(0.001, (deadline_ms - self._now_ms()) / 1000)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        change = self.machine.expire(self._now_ms())
        if change is not None:
            self._counts.ended(change.batches, is_expired=True)
            self._write(_Write(change, None))
            self._wake()
        self._schedule()


def _refusal(error: Exception) -> KafkaError:
    """Return the error that a member gets when a state could not be read or stored."""
    if isinstance(error, KafkaError):
        return KafkaError(_CODES.get(error.code, error.code), error.message)
    return KafkaError(ErrorCode.coordinator_not_available, str(error))


def _fail(outcome: Outcome | None, error: KafkaError) -> None:
    if outcome is not None and not outcome.done():
        outcome.set_exception(error)


def _look_at(outcome: Outcome) -> None:
    """A request that is given up does not look at its outcome."""
    if not outcome.cancelled():
        outcome.exception()
