"""Rules of share groups that hold across leaders, coordinators and failovers, with books that know
nothing of the machines that they judge.

A share-partition has a new state for each state epoch: the group coordinator begins one, and a
later one where an operator moves the group. The books follow each by itself: what leaders loaded,
stored and gave out, and what members said of it and had confirmed.

1. A record that a member accepted or rejected is not delivered again once the member has the
   response.
2. A record has one member at a time at a leader, until it is released or its lock has ended.
3. A delivery has the number of the last one that is known to its leader, plus one; and a leader
   knows of every delivery before it that a confirmed release followed.
4. A leader loads every state that was stored before it loads, and nothing else.
5. A leader that another one has followed, and a leader of a state that has ended, store nothing.
6. A group's start offset is behind a record only after the record was accepted, rejected, or
   delivered as often as it may be; and in the end every record was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from lakehead.broker.share.led_share_partition import LedSharePartition
from lakehead.broker.share.record_state import AcknowledgeType, RecordState, ShareState
from lakehead.broker.share.share_partition import AcquiredRecords, AcquireRequest
from lakehead.broker.share.share_partition_key import SharePartitionKey
from tests.simulation.ledger import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld
    from tests.simulation.cluster.member import Member

_ENDING = frozenset({AcknowledgeType.ACCEPT, AcknowledgeType.REJECT})
_OVER = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVING, RecordState.ARCHIVED})
_Stored: TypeAlias = tuple[int, RecordState]
"""A delivery count and a state."""


class Delivery(NamedTuple):
    """A delivery of a record."""

    member_id: str
    number: int
    state_epoch: int


@dataclass(slots=True)
class Verdict:
    """Verdicts of a member on records of a partition, each of one type, and the state epoch in
    which the records were delivered.
    """

    key: SharePartitionKey
    member_id: str
    types: dict[int, AcknowledgeType]
    counts: dict[int, int]
    state_epoch: int


@dataclass(slots=True)
class _State:
    """The state of a share-partition in one state epoch. `begin` is its first offset."""

    begin: int
    members: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Members that got an offset."""
    used_up: set[int] = field(default_factory=set)
    """Offsets that were delivered as often as they may be."""
    verdicts: Counter[int] = field(default_factory=Counter)
    """The number of verdicts that may have ended an offset."""
    ended: set[int] = field(default_factory=set)
    """Offsets that are accepted or rejected, with a response."""
    released: dict[int, int] = field(default_factory=dict)
    """Delivery counts of releases with a response."""
    stored: dict[int, _Stored] = field(default_factory=dict)
    """Stored states, with a response."""
    most: dict[int, int] = field(default_factory=dict)
    """Highest delivery counts."""
    behind: int = 0
    """The start offset up to which rule 6 is checked."""

    def is_settled(self, offset: int) -> bool:
        """Return true if a record may be done."""
        return offset in self.used_up or self.verdicts[offset] > 0


@dataclass(slots=True)
class _Led:
    """A share-partition as a process has loaded it."""

    state_epoch: int
    leader_epoch: int
    counts: dict[int, int]
    held: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    """Member, delivery count and the end of its lock (ms), by offset."""


@dataclass(slots=True)
class _Book:
    states: dict[int, _State] = field(default_factory=dict)
    """By state epoch."""
    led: dict[str, _Led] = field(default_factory=dict)
    """By process."""
    leader_epoch: int = -1
    """The newest that has loaded a state."""
    last: dict[int, Delivery] = field(default_factory=dict)
    """The last delivery of each offset by a leader that is not stale."""
    given: dict[tuple[str, str, int], Delivery] = field(default_factory=dict)
    """The last delivery of an offset by a process to a member."""
    verdicts: Counter[tuple[str, int]] = field(default_factory=Counter)
    """The number of verdicts of a member that may have ended an offset, in any state."""

    @property
    def state_epoch(self) -> int:
        return max(self.states, default=-1)

    def is_settled(self, state: _State, offset: int) -> bool:
        """Return true if a record may be done in a state: also by a verdict on its delivery in
        another state, which names no epoch, of a member that has it again in this one.
        """
        members = state.members.get(offset, ())
        return state.is_settled(offset) or any(self.verdicts[one, offset] > 0 for one in members)


class Loading(NamedTuple):
    """Everything that was certain when a leader began to load a state."""

    state_epoch: int
    leader_epoch: int
    ended: frozenset[int]
    released: dict[int, int]
    stored: dict[int, _Stored]


class Writing(NamedTuple):
    """The newest epochs when a leader began to store a state."""

    state_epoch: int
    leader_epoch: int


class ShareJudge:
    """Follows all share-partitions of a world. `deliveries_max` is each group's limit."""

    def __init__(self, world: ClusterWorld) -> None:
        self.deliveries_max: dict[str, int] = {}
        self.deliveries = 0
        self.redeliveries = 0
        self.stale_deliveries = 0
        self.loads = 0
        self.confirmed: dict[AcknowledgeType, int] = defaultdict(int)
        self._world = world
        self._books: dict[SharePartitionKey, _Book] = defaultdict(_Book)

    # ------------------------------------------------------------- states, as leaders see them

    def initialized(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """A new state is stored."""
        book = self._books[key]
        begin = max(start_offset, 0)
        known = book.states.setdefault(state_epoch, _State(begin, behind=begin))
        self._expect(known.begin == begin, f"{key.text} begins twice in {state_epoch}")

    def loading(self, key: SharePartitionKey) -> Loading:
        """A leader begins to load a state."""
        book = self._books[key]
        state = book.states.get(book.state_epoch, _State(0))
        return Loading(
            book.state_epoch,
            book.leader_epoch,
            frozenset(state.ended),
            dict(state.released),
            dict(state.stored),
        )

    def loaded(
        self, process: str, key: SharePartitionKey, before: Loading, state: ShareState
    ) -> None:
        """A leader has loaded a state: see rules 3, 4 and 6."""
        self.loads += 1
        book, what = self._books[key], f"{process} loads {key.text}"
        epoch = state.state_epoch
        self._expect(
            epoch >= before.state_epoch and state.leader_epoch >= before.leader_epoch,
            f"{what} in state epoch {epoch} and leader epoch {state.leader_epoch} after {before}",
        )
        known = book.states.get(epoch)
        if known is None:  # the response to its beginning is on its way
            begin = max(state.start_offset, 0)
            known = book.states[epoch] = _State(begin, behind=begin)
        found = {
            offset: (one.delivery_count, one.state)
            for one in state.batches
            for offset in range(one.first_offset, one.last_offset + 1)
        }
        if epoch == before.state_epoch:
            self._expect_all(what, before, state.start_offset, found)
        for offset, (count, _) in found.items():
            most = known.most.get(offset, 0)
            self._expect(
                count <= most, f"{what}: {count} deliveries of {offset}, there were {most}"
            )
        for offset in range(known.behind, state.start_offset):
            self._expect(
                book.is_settled(known, offset),
                f"{what} from {state.start_offset}, and {offset} is not done",
            )
        known.behind = max(known.behind, state.start_offset)
        book.leader_epoch = max(book.leader_epoch, state.leader_epoch)
        counts = {offset: count for offset, (count, _) in found.items()}
        led = book.led.get(process)
        # A response to the process as an earlier leader may come late, and counts no more.
        if led is None or led.leader_epoch <= state.leader_epoch:
            book.led[process] = _Led(epoch, state.leader_epoch, counts)

    def _expect_all(
        self, what: str, before: Loading, start_offset: int, found: dict[int, _Stored]
    ) -> None:
        """Everything that was certain is there, or behind the start offset."""
        nothing = (0, RecordState.AVAILABLE)
        for offset, stored in before.stored.items():
            self._expect(
                offset < start_offset or found.get(offset, nothing) >= stored,
                f"{what}: {offset} is {found.get(offset)}, {stored} was stored",
            )
        for offset in before.ended:
            self._expect(
                offset < start_offset or found.get(offset, nothing)[1] in _OVER,
                f"{what}: {offset} is {found.get(offset)}, and a member knows that it is done",
            )
        for offset, count in before.released.items():
            self._expect(
                offset < start_offset or found.get(offset, nothing)[0] >= count,
                f"{what}: {offset} is {found.get(offset)}, it was released after delivery {count}",
            )

    def writing(self, key: SharePartitionKey) -> Writing:
        """A leader begins to store a state."""
        book = self._books[key]
        return Writing(book.state_epoch, book.leader_epoch)

    def written(
        self, process: str, key: SharePartitionKey, before: Writing, state: ShareState
    ) -> None:
        """A leader has stored a state, with a response: see rule 5."""
        book = self._books[key]
        self._expect(
            state.state_epoch >= before.state_epoch and state.leader_epoch >= before.leader_epoch,
            f"{process} stored {key.text} in state epoch {state.state_epoch} and leader epoch "
            f"{state.leader_epoch} after {before}",
        )
        known, led = book.states.get(state.state_epoch), book.led.get(process)
        for batch in state.batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                if known is not None:
                    stored = (batch.delivery_count, batch.state)
                    known.stored[offset] = max(stored, known.stored.get(offset, stored))
                if led is not None and led.leader_epoch == state.leader_epoch:
                    held = led.held.get(offset)
                    if held is not None and held[1] == batch.delivery_count:
                        del led.held[offset]

    # ------------------------------------------------------------- deliveries

    def acquired(
        self,
        member: Member,
        led: LedSharePartition,
        request: AcquireRequest,
        acquired: Iterable[AcquiredRecords],
    ) -> None:
        """A leader gives records to a member: see rules 1, 2 and 3."""
        stream = led.partition.stream
        owner = self._world.oracle.state.streams.get(stream.stream_id)
        is_stale = owner is None or owner.epoch != stream.epoch
        self._world.judge.reads(member, stream.stream_id)
        book = self._books[led.key]
        mine = book.led[member.name]
        known = book.states[mine.state_epoch]
        now_ms = int(member.clock.monotonic() * 1000)
        limit = self.deliveries_max[led.key.group_id]
        for first_offset, last_offset, count in acquired:
            for offset in range(first_offset, last_offset + 1):
                self.deliveries += 1
                self.redeliveries += count > 1
                self.stale_deliveries += is_stale
                what = f"{member.name} gives {led.key.text} {offset} to {request.member_id}"
                expected = mine.counts.get(offset, 0) + 1
                self._expect(count == expected, f"{what} as delivery {count}, not {expected}")
                self._expect(count <= limit, f"{what} as delivery {count}, {limit} are allowed")
                holder, _, deadline_ms = mine.held.get(offset, ("", 0, 0))
                self._expect(
                    now_ms >= deadline_ms, f"{what}, {holder} has it for {deadline_ms - now_ms} ms"
                )
                self._expect(
                    is_stale or offset not in known.ended, f"{what}, and a member has ended it"
                )
                mine.counts[offset] = count
                mine.held[offset] = (request.member_id, count, request.deadline_ms)
                known.members[offset].add(request.member_id)
                known.most[offset] = max(count, known.most.get(offset, 0))
                if count >= limit:
                    known.used_up.add(offset)
                delivery = Delivery(request.member_id, count, mine.state_epoch)
                book.given[member.name, request.member_id, offset] = delivery
                if not is_stale:
                    book.last[offset] = delivery

    def delivered(
        self, process: str, key: SharePartitionKey, member_id: str, acquired: AcquiredRecords
    ) -> int:
        """A member has the response with its records; return the state epoch of the leader."""
        given = self._books[key].given
        first_offset, last_offset, count = acquired
        found = {
            given.get((process, member_id, offset))
            for offset in range(first_offset, last_offset + 1)
        }
        (one,) = found if len(found) == 1 else (None,)
        if one is None or one.number != count:
            raise Violation(f"{member_id} has {key.text} {acquired}, {process} gave {found}")
        return one.state_epoch

    # ------------------------------------------------------------- verdicts

    def sent(self, verdict: Verdict) -> None:
        """A member sends its verdicts: from now on they may count."""
        ended = _endings(verdict)
        self._state(verdict).verdicts.update(ended)
        self._books[verdict.key].verdicts.update((verdict.member_id, one) for one in ended)

    def refused(self, verdict: Verdict) -> None:
        """A member's verdicts certainly do not count."""
        ended = _endings(verdict)
        self._state(verdict).verdicts.subtract(ended)
        self._books[verdict.key].verdicts.subtract((verdict.member_id, one) for one in ended)

    def confirm(self, verdict: Verdict) -> None:
        """A member's verdicts were taken, with a response."""
        book, state = self._books[verdict.key], self._state(verdict)
        for offset, kind in verdict.types.items():
            self.confirmed[kind] += 1
            if kind in _ENDING:
                last = book.last.get(offset)
                is_mine = (
                    last is None
                    or last.state_epoch != verdict.state_epoch
                    or last.member_id == verdict.member_id
                )
                # As in Kafka, a verdict on a record that is done already has no effect. So has one
                # of a state that has ended: an operator has moved the group.
                is_over = max(book.states) > verdict.state_epoch
                is_done = is_over or offset in state.used_up or state.verdicts[offset] > 1
                what = f"{verdict.member_id} has ended {verdict.key.text} {offset}"
                self._expect(is_mine or is_done, f"{what}, which {last} has")
                state.ended.add(offset)
            elif kind is AcknowledgeType.RELEASE:
                before = state.released.get(offset, 0)
                state.released[offset] = max(before, verdict.counts[offset])

    def _state(self, verdict: Verdict) -> _State:
        return self._books[verdict.key].states[verdict.state_epoch]

    # ------------------------------------------------------------- the end

    def judge(self, key: SharePartitionKey, end_offset: int, moved_to: int | None) -> None:
        """Every record of a share-partition up to its end is done: see rule 6. `moved_to` is the
        offset that an operator has moved the group to last, with a response.
        """
        book = self._books[key]
        if not book.states:
            raise Violation(f"{key.text} was never begun")
        state = book.states[book.state_epoch]
        if moved_to is not None and state.begin != moved_to:
            raise Violation(f"{key.text} begins at {state.begin}, it was moved to {moved_to}")
        lost = [o for o in range(state.begin, end_offset) if not book.is_settled(state, o)]
        if lost:
            raise Violation(f"{key.text}: offsets {lost[:5]} of {end_offset} were never done")

    def _expect(self, condition: bool, otherwise: str) -> None:
        if not condition:
            self._world.fail(Violation(otherwise))


def _endings(verdict: Verdict) -> list[int]:
    """Return the offsets that a verdict ends."""
    return [offset for offset, kind in verdict.types.items() if kind in _ENDING]


def ranges(types: dict[int, AcknowledgeType]) -> Iterator[tuple[int, int, Sequence[int]]]:
    """Yield (first offset, last offset, types) of the runs of neighbouring offsets."""
    run: list[int] = []
    for offset in sorted(types):
        if run and offset != run[-1] + 1:
            yield run[0], run[-1], [types[one] for one in run]
            run = []
        run.append(offset)
    if run:
        yield run[0], run[-1], [types[one] for one in run]
