"""The machine of a share-partition against a model that keeps each offset by itself: members that
acquire, acknowledge, release, renew, fall silent and invent things, a store that is slow or fails,
a log that loses its start, dead letters that come and go, and leaders that die. Every record is
delivered and finally accepted, rejected or archived, its deliveries are counted exactly, and no two
members ever have it. A record gets a dead letter if it is stored as ARCHIVING, and only then.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.share.dead_letters import DeadLetters, Reason
from lakehead.broker.share.record_state import AcknowledgeType, RecordState, ShareState, StateBatch
from lakehead.broker.share.share_partition import (
    Acknowledgement,
    AcquiredRecords,
    AcquireRequest,
    Change,
    OffsetRange,
    ShareLimits,
    SharePartition,
)
from tests.support.repetitions import examples

MEMBERS = ("a", "b", "c")
LOCK_MS = 100
LIMITS = ShareLimits(records_max=30, deliveries_max=4)
DONE = {RecordState.ACKNOWLEDGED, RecordState.ARCHIVED}


@dataclass
class Record:
    """An offset in flight, as the model keeps it."""

    state: RecordState
    count: int
    member: str = ""
    deadline_ms: int = -1
    is_changing: bool = False


@dataclass
class Pending:
    """A change that is not durable yet."""

    change: Change
    outcomes: dict[int, RecordState] = field(default_factory=dict)
    reasons: dict[int, Reason] = field(default_factory=dict)
    """Of the records that become ARCHIVING."""
    counts_already: bool = False


class SharePartitions(RuleBasedStateMachine):
    """Three members share a partition."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.log: list[OffsetRange] = []
        """The record batches; compaction has left holes between them."""
        self.log_end = 0
        self.machine = SharePartition(ShareState(0), LIMITS)
        self.model: dict[int, Record] = {}
        self.stored: dict[int, tuple[RecordState, int]] = {}
        self.stored_start = 0
        self.pending: list[Pending] = []
        """Writes to the store, in their order."""
        self.aborted: list[OffsetRange] = []
        self.verdicts: dict[int, RecordState] = {}
        self.letters: list[DeadLetters] = []
        """Dead letters that are to be written, of states that are stored, or whose store failed."""
        self.due: set[int] = set()
        """Records that were stored as ARCHIVING."""
        self.written: set[int] = set()
        """Records that have a dead letter."""

    # The log.

    @rule(
        sizes=st.lists(st.integers(1, 6), max_size=4),
        hole=st.integers(0, 2),
        is_aborted=st.booleans(),
    )
    def produce(self, sizes: list[int], hole: int, is_aborted: bool) -> None:
        for size in sizes:
            batch = OffsetRange(self.log_end + hole, self.log_end + hole + size - 1)
            self.log.append(batch)
            self.log_end = batch.last_offset + 1
            if is_aborted and size == 3:
                self.aborted.append(batch)

    @rule(count=st.integers(1, 8), is_so=st.integers(0, 4).map(lambda number: number == 0))
    def retain(self, count: int, is_so: bool) -> None:
        """Records are deleted, those that members have too."""
        start = min(self.machine.start_offset + count, self.log_end)
        if not is_so or start <= self.machine.start_offset:
            return
        self.machine.move_start(start)
        self.due -= set(range(start))
        self.model = {offset: one for offset, one in self.model.items() if offset >= start}
        assert self.machine.start_offset >= start

    # Members.

    @rule(
        member=st.sampled_from(MEMBERS),
        records_max=st.integers(1, 12),
        batch_size=st.integers(1, 5),
        is_strict=st.booleans(),
        is_sent=st.integers(0, 4).map(bool),
    )
    def acquire(
        self, member: str, records_max: int, batch_size: int, is_strict: bool, is_sent: bool
    ) -> None:
        offset = self.machine.next_fetch_offset()
        fetched = [one for one in self.log if one.last_offset >= offset][:6]
        if not fetched or not self.machine.can_acquire:
            return
        request = AcquireRequest(
            member, self.now_ms + LOCK_MS, records_max, batch_size, is_strict=is_strict
        )
        ranges = [*fetched, *(one.origin for one in self.machine.batches)]
        longest = max(last - first + 1 for first, last in ranges)
        acquired = self.machine.acquire(request, offset, fetched, self.aborted)
        for one in acquired:
            assert one.first_offset <= one.last_offset
            for number in range(one.first_offset, one.last_offset + 1):
                self.deliver(number, member, one.delivery_count)
        count = sum(one.last_offset - one.first_offset + 1 for one in acquired)
        if is_strict:
            assert count <= records_max
        else:
            assert count < records_max + longest + 2
        self.check_ranges(acquired, fetched)
        if not is_sent:
            self.machine.give_back(member, acquired)
            for one in acquired:
                for number in range(one.first_offset, one.last_offset + 1):
                    self.model[number] = Record(RecordState.AVAILABLE, one.delivery_count - 1)
        self.follow_machine()

    def deliver(self, offset: int, member: str, count: int) -> None:
        assert not any(first <= offset <= last for first, last in self.aborted)
        before = self.model.get(offset, Record(RecordState.AVAILABLE, 0))
        assert before.state is RecordState.AVAILABLE, f"{offset} is {before}"
        assert offset not in self.verdicts, "a record that is done was delivered"
        assert count == before.count + 1 <= LIMITS.deliveries_max
        self.model[offset] = Record(RecordState.ACQUIRED, count, member, self.now_ms + LOCK_MS)

    def check_ranges(self, acquired: list[AcquiredRecords], fetched: list[OffsetRange]) -> None:
        assert acquired == sorted(acquired)
        for one, other in pairwise(acquired):
            assert one.last_offset < other.first_offset
        for one in acquired:
            assert one.first_offset >= self.machine.start_offset or not acquired
            assert fetched[0].first_offset <= one.first_offset
            assert one.last_offset <= fetched[-1].last_offset

    @rule(data=st.data(), member=st.sampled_from(MEMBERS))
    def acknowledge(self, data: st.DataObject, member: str) -> None:
        mine = [offset for offset, one in self.model.items() if one.member == member]
        if not mine:
            return
        first = data.draw(st.sampled_from(mine))
        last = min(first + data.draw(st.integers(0, 5)), max(mine))
        kinds = data.draw(
            st.integers(0, 4).map(lambda kind: [kind])
            | st.lists(st.integers(0, 4), min_size=last - first + 1, max_size=last - first + 1)
        )
        self.send(member, first, last, kinds)

    @rule(
        member=st.sampled_from((*MEMBERS, "stranger")),
        first=st.integers(0, 60),
        size=st.integers(1, 5),
        kind=st.integers(-1, 5),
    )
    def invent(self, member: str, first: int, size: int, kind: int) -> None:
        self.send(member, first, first + size - 1, [kind])

    def send(self, member: str, first: int, last: int, kinds: list[int]) -> None:
        start, end = self.machine.start_offset, self.machine.end_offset
        touched = [self.model.get(offset) for offset in range(max(first, start), last + 1)]
        is_known = all(kind in set(AcknowledgeType) for kind in kinds)
        is_own = last < end and all(
            one is not None
            and one.state is RecordState.ACQUIRED
            and one.member == member
            and not one.is_changing
            for one in touched
        )
        before = repr(list(self.machine.batches))
        acknowledgement = Acknowledgement(first, last, kinds)
        until_ms = self.now_ms + 2 * LOCK_MS
        change, code = None, ErrorCode.none
        try:
            change = self.machine.acknowledge(member, [acknowledgement], until_ms)
        except KafkaError as error:
            code = error.code
        if change is None:
            assert not (is_known and is_own)
            is_beyond = last >= end and start < end
            expected = (
                ErrorCode.invalid_request
                if not is_known or is_beyond
                else ErrorCode.invalid_record_state
            )
            assert code is expected or len(set(kinds)) > 1
            assert repr(list(self.machine.batches)) == before, "a refused request changed something"
            return
        assert is_known
        assert is_own or last < start
        pending = Pending(change)
        for offset in range(max(first, start), last + 1):
            kind = AcknowledgeType(kinds[0] if len(kinds) == 1 else kinds[offset - first])
            one = self.model[offset]
            if kind is AcknowledgeType.RENEW:
                one.deadline_ms = self.now_ms + 2 * LOCK_MS
                continue
            one.is_changing = True
            if kind is AcknowledgeType.RELEASE:
                self.release(pending, offset)
            elif kind is AcknowledgeType.REJECT:
                self.give_up(pending, offset, Reason.REJECTED)
            else:
                is_accept = kind is AcknowledgeType.ACCEPT
                state = RecordState.ACKNOWLEDGED if is_accept else RecordState.ARCHIVED
                pending.outcomes[offset] = state
        self.begin(pending)

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member: str) -> None:
        pending = Pending(self.machine.release(member))
        for offset, one in self.model.items():
            if one.member == member and not one.is_changing:
                one.is_changing = True
                self.release(pending, offset)
        self.begin(pending)

    @rule(ms=st.integers(1, 2 * LOCK_MS))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        late = {
            offset: one
            for offset, one in self.model.items()
            if 0 <= one.deadline_ms <= self.now_ms and not one.is_changing
        }
        deadline = self.machine.next_deadline_ms
        assert (deadline is not None and deadline <= self.now_ms) == bool(late)
        change = self.machine.expire(self.now_ms)
        assert (change is not None) == bool(late)
        if change is not None:
            pending = Pending(change, counts_already=True)
            for offset in late:
                self.release(pending, offset)
            self.begin(pending)
            self.apply(pending.outcomes)

    # Dead letters.

    @rule(has_dead_letters=st.booleans())
    def configure(self, has_dead_letters: bool) -> None:
        self.machine.has_dead_letters = has_dead_letters

    @precondition(lambda self: self.letters)
    @rule(data=st.data())
    def letter_is_written(self, data: st.DataObject) -> None:
        """Or a part of it, which a batch has room for."""
        letters = self.letters.pop(data.draw(st.integers(0, len(self.letters) - 1)))
        last = data.draw(st.integers(letters.first_offset, letters.last_offset))
        if last < letters.last_offset:
            self.letters.append(letters._replace(first_offset=last + 1))
        self.archive(letters._replace(last_offset=last))

    def archive(self, letters: DeadLetters) -> None:
        offsets = set(range(letters.first_offset, letters.last_offset + 1))
        self.written |= offsets
        known = offsets & self.model.keys()
        assert all(self.model[offset].state is RecordState.ARCHIVING for offset in known)
        assert all(self.model[offset].count == letters.delivery_count for offset in known)
        change = self.machine.archive(letters)
        assert (change is not None) == bool(known)
        if change is not None:
            pending = Pending(change, dict.fromkeys(known, RecordState.ARCHIVED))
            pending.counts_already = True
            self.begin(pending)
            self.apply(pending.outcomes)

    # The store.

    def begin(self, pending: Pending) -> None:
        self.check_change(pending)
        self.pending.append(pending)

    def check_change(self, pending: Pending) -> None:
        told = {
            offset: (one.state, one.delivery_count)
            for one in pending.change.batches
            for offset in range(one.first_offset, one.last_offset + 1)
        }
        assert told == {
            offset: (state, self.model[offset].count) for offset, state in pending.outcomes.items()
        }
        assert pending.reasons == {
            offset: letters.reason
            for letters in pending.change.dead_letters
            for offset in range(letters.first_offset, letters.last_offset + 1)
        }

    @precondition(lambda self: self.pending)
    @rule()
    def stored_first(self) -> None:
        pending = self.pending.pop(0)
        self.store(pending.change)
        self.letters += pending.change.dead_letters
        if not pending.counts_already:
            self.machine.complete(pending.change)
            self.apply(pending.outcomes)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def not_stored(self, data: st.DataObject) -> None:
        pending = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        if pending.counts_already:
            self.letters += pending.change.dead_letters
            return
        self.machine.roll_back(pending.change)
        for offset in pending.outcomes:
            if offset in self.model:
                self.model[offset].is_changing = False

    def store(self, change: Change) -> None:
        """As the share coordinator does."""
        assert change.start_offset >= self.stored_start
        self.stored_start = change.start_offset
        for one in change.batches:
            for offset in range(one.first_offset, one.last_offset + 1):
                self.stored[offset] = one.state, one.delivery_count
                if one.state is RecordState.ARCHIVING and offset in self.model:
                    self.due.add(offset)

    @rule(is_so=st.integers(0, 3).map(lambda number: number == 0))
    def leader_dies(self, is_so: bool) -> None:
        """The next one knows what is stored, and that no member has records."""
        if not is_so:
            return
        self.pending.clear()
        batches = [
            StateBatch(offset, offset, state, count)
            for offset, (state, count) in sorted(self.stored.items())
            if offset >= self.stored_start
        ]
        self.machine = SharePartition(ShareState(self.stored_start, batches=tuple(batches)), LIMITS)
        self.letters = self.machine.archiving
        assert {
            offset
            for letters in self.letters
            for offset in range(letters.first_offset, letters.last_offset + 1)
        } == {
            offset
            for offset, (state, _) in self.stored.items()
            if state is RecordState.ARCHIVING and offset >= self.machine.start_offset
        }
        self.verdicts = {
            offset: state for offset, (state, _) in self.stored.items() if state in DONE
        }
        self.model = {
            offset: Record(state, count)
            for offset, (state, count) in self.stored.items()
            if offset >= self.machine.start_offset
        }
        for offset in range(self.machine.start_offset, self.machine.end_offset):
            self.model.setdefault(offset, Record(RecordState.AVAILABLE, 0))

    # Always.

    @invariant()
    def machine_and_model_agree(self) -> None:
        found = {
            offset: (one.state, one.member_id, one.deadline_ms, one.change is not None)
            for one in self.machine.batches
            for offset in range(one.first_offset, one.last_offset + 1)
        }
        assert sorted(found) == list(range(self.machine.start_offset, self.machine.end_offset))
        for offset, told in found.items():
            one = self.model[offset]
            assert told == (one.state, one.member, one.deadline_ms, one.is_changing), offset

    @invariant()
    def what_is_in_flight_is_bounded(self) -> None:
        assert len(list(self.machine.batches)) <= LIMITS.records_max + 12

    def teardown(self) -> None:
        """Whatever happened, members that do their work get every record in the end."""
        for pending in self.pending:
            if pending.counts_already:
                self.letters += pending.change.dead_letters
            self.machine.roll_back(pending.change)
        self.machine.has_dead_letters = False
        for letters in self.letters:
            self.archive(letters)
        for _ in range(50 + 2 * self.log_end):
            self.now_ms += 3 * LOCK_MS
            self.machine.expire(self.now_ms)
            offset = self.machine.next_fetch_offset()
            fetched = [one for one in self.log if one.last_offset >= offset][:6]
            if not fetched:
                break
            assert self.machine.can_acquire
            request = AcquireRequest("a", self.now_ms + LOCK_MS, 500, 500)
            for one in self.machine.acquire(request, offset, fetched):
                done = Acknowledgement(one.first_offset, one.last_offset, [1])
                self.machine.complete(self.machine.acknowledge("a", [done], 0))
        assert self.machine.start_offset == self.machine.end_offset >= self.log_end
        assert self.due <= self.written

    # Inside.

    def release(self, pending: Pending, offset: int) -> None:
        if self.model[offset].count >= LIMITS.deliveries_max:
            self.give_up(pending, offset, Reason.DELIVERIES_USED_UP)
        else:
            pending.outcomes[offset] = RecordState.AVAILABLE

    def give_up(self, pending: Pending, offset: int, reason: Reason) -> None:
        if self.machine.has_dead_letters:
            pending.outcomes[offset] = RecordState.ARCHIVING
            pending.reasons[offset] = reason
        else:
            pending.outcomes[offset] = RecordState.ARCHIVED

    def apply(self, outcomes: dict[int, RecordState]) -> None:
        for offset, state in outcomes.items():
            if offset in self.model:
                self.model[offset] = Record(state, self.model[offset].count)
            if state in DONE:
                self.verdicts[offset] = state
        self.follow_machine()

    def follow_machine(self) -> None:
        """Take over what it skipped (holes and aborted records) and what it dropped as done."""
        gone = {
            offset
            for one in self.machine.batches
            if one.state is RecordState.ARCHIVED
            for offset in range(one.first_offset, one.last_offset + 1)
        }
        for offset in range(self.machine.start_offset, self.machine.end_offset):
            one = self.model.setdefault(offset, Record(RecordState.AVAILABLE, 0))
            if offset in gone and one.state is RecordState.AVAILABLE:
                assert self.is_gone(offset), f"{offset} was skipped"
                self.model[offset] = Record(RecordState.ARCHIVED, 0)
        dropped = [offset for offset in self.model if offset < self.machine.start_offset]
        for offset in dropped:
            state = self.model.pop(offset).state
            assert state in DONE or self.is_gone(offset), f"{offset} was lost as {state}"

    def is_gone(self, offset: int) -> bool:
        is_there = any(first <= offset <= last for first, last in self.log)
        return not is_there or any(first <= offset <= last for first, last in self.aborted)


SharePartitions.TestCase.settings = settings(
    max_examples=examples(200), stateful_step_count=60, deadline=None
)
TestSharePartitions = SharePartitions.TestCase
