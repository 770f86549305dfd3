"""The checker is itself tested: each kind of damage to a good history or log must be named."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from tests.checker.history import (
    Assign,
    History,
    Outcome,
    Poll,
    Read,
    Sent,
    Told,
    identity_of,
    value_of,
)
from tests.checker.rules import violations

SIZE = 100
GROUP = "g"
MutableLog = dict[int, list[tuple[int, bytes]]]


@dataclass
class Run:
    """A made-up run: two producers, a consumer that assigns and one that is rebalanced."""

    rng: random.Random
    now: float = 0.0
    log: MutableLog = field(default_factory=lambda: {0: [], 1: []})
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.history = History(clock=lambda: self.now)
        counters = {"a": 0, "b": 0}
        at = {"assigned": {0: 0, 1: 0}, "grouped": {0: 0, 1: 0}}
        self.history.record_assign("assigned", at["assigned"])
        self.history.record_assign("grouped", {0: None, 1: None})
        for _ in range(300):
            self.send(counters)
            for reader, position in at.items():
                if self.rng.random() < 0.15:
                    self.read(reader, position)
            if self.rng.random() < 0.05:
                at["grouped"] = {p: self.rng.randint(0, o) for p, o in at["grouped"].items()}
                self.history.record_assign("grouped", {0: None, 1: None})
        for partition in self.log:
            self.read("assigned", at["assigned"], partition)

    def send(self, counters: dict[str, int]) -> None:
        history, rng = self.history, self.rng
        producer, partition = rng.choice("ab"), rng.randrange(2)
        sent = Sent(producer, counters[producer])
        counters[producer] += 1
        self.now += 1
        history.record_sent(sent, partition)
        self.now += 1
        fate = rng.random()
        if fate < 0.05:
            history.record_failed(sent, "too large")
            return
        if fate < 0.15:
            history.record_unclear(sent, "timed out")
        if fate < 0.1:
            return
        offset = len(self.log[partition])
        self.log[partition].append((offset, value_of(sent, SIZE)))
        if fate >= 0.15:
            history.record_acknowledged(sent, partition, offset)
        if rng.random() < 0.2:
            history.record_end(partition, offset + 1, self.now)
        self.now += 1

    def read(self, reader: str, position: dict[int, int], partition: int | None = None) -> None:
        history = self.history
        partition = self.rng.randrange(2) if partition is None else partition
        start = position[partition]
        found = [(partition, offset, value) for offset, value in self.log[partition][start:]]
        history.record_poll(reader, found)
        position[partition] = start + len(found)
        if reader == "grouped" and found:
            self.now += 1
            history.record_commit(GROUP, partition, position[partition], self.now)
            self.now += 1
            highest = max(t.offset for t in history.commits[GROUP] if t.partition == partition)
            history.record_commit_asked(GROUP, partition, highest, self.now)

    def named(self) -> set[str]:
        return {line.split(":")[0] for line in violations(self.history, self.log)}

    def acknowledged(self, partition: int = 0) -> int:
        """Index of an acknowledged record that has a neighbour after it."""
        return self.rng.choice(
            [
                index
                for index, (_, value) in enumerate(self.log[partition][:-1])
                if identity_of(value) in self.history.acknowledged
            ]
        )

    def poll(self, reader: str = "assigned", reads: int = 3) -> tuple[int, Poll]:
        """A poll of several records that is neither the reader's first nor its last."""
        steps = self.history.readings[reader]
        found = [
            (index, step)
            for index, step in enumerate(steps)
            if isinstance(step, Poll)
            and len(step.reads) >= reads
            and any(_reads(other, step.reads[0].partition) for other in steps[:index])
            and any(_reads(other, step.reads[0].partition) for other in steps[index + 1 :])
        ]
        return self.rng.choice(found)

    def set_reads(self, index: int, reads: tuple[Read, ...], reader: str = "assigned") -> None:
        step = self.history.readings[reader][index]
        assert isinstance(step, Poll)
        self.history.readings[reader][index] = replace(step, reads=reads)


def _reads(step: Assign | Poll, partition: int) -> bool:
    return isinstance(step, Poll) and step.reads[0].partition == partition


def renumbered(records: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return [(offset, value) for offset, (_, value) in enumerate(records)]


def a_hole(run: Run) -> None:
    del run.log[0][run.acknowledged()]


def a_hole_closed(run: Run) -> None:
    del run.log[0][run.acknowledged()]
    run.log[0] = renumbered(run.log[0])


def a_lost_tail(run: Run) -> None:
    del run.log[0][run.acknowledged() :]


def a_record_again(run: Run) -> None:
    run.log[0] = renumbered([*run.log[0], run.log[0][run.acknowledged()]])


def neighbours_exchanged(run: Run) -> None:
    index = run.acknowledged()
    (first, one), (second, other) = run.log[0][index : index + 2]
    run.log[0][index : index + 2] = [(first, other), (second, one)]


def a_flipped_byte(run: Run) -> None:
    index = run.acknowledged()
    offset, value = run.log[0][index]
    run.log[0][index] = (offset, value[:-1] + b"!")


def a_stranger(run: Run) -> None:
    run.log[1].append((len(run.log[1]), value_of(Sent("stranger", 1), SIZE)))


def a_failed_record_in_the_log(run: Run) -> None:
    sent = Sent("a", 100_000)
    run.history.record_sent(sent, 0)
    run.history.record_failed(sent, "refused")
    run.log[0].append((len(run.log[0]), value_of(sent, SIZE)))


def a_failed_record_read(run: Run) -> None:
    sent = Sent("a", 100_000)
    run.history.record_sent(sent, 0)
    run.history.record_failed(sent, "refused")
    run.history.record_poll("assigned", [(0, len(run.log[0]), value_of(sent, SIZE))])


def acknowledged_in_another_partition(run: Run) -> None:
    sent = next(s for s, send in run.history.sends.items() if send.partition == 0)
    run.history.record_acknowledged(sent, 1, 5)


def an_acknowledgement_moved(run: Run) -> None:
    identity = identity_of(run.log[0][run.acknowledged()][1])
    assert identity is not None
    run.history.sends[identity].offset += 1


def sent_after_the_next_was_acknowledged(run: Run) -> None:
    identity = identity_of(run.log[0][run.acknowledged()][1])
    assert identity is not None
    run.history.sends[identity].begun = run.now + 1


def a_read_that_vanished(run: Run) -> None:
    sent = Sent("a", 100_000)
    run.history.record_sent(sent, 0)
    run.history.record_poll("assigned", [(0, len(run.log[0]), value_of(sent, SIZE))])


def another_value_at_an_offset(run: Run) -> None:
    index, poll = run.poll()
    read = poll.reads[1]
    other = next(s for s, send in run.history.sends.items() if s != read.sent)
    changed = (*poll.reads[:1], read._replace(sent=other), *poll.reads[2:])
    run.set_reads(index, changed)


def a_damaged_read(run: Run) -> None:
    run.history.record_poll("assigned", [(0, 0, b"not what anyone sent")])


def a_skip_in_a_poll(run: Run) -> None:
    index, poll = run.poll()
    run.set_reads(index, (poll.reads[0], *poll.reads[2:]))


def a_step_back_in_a_poll(run: Run) -> None:
    index, poll = run.poll()
    run.set_reads(index, (poll.reads[1], poll.reads[0], *poll.reads[2:]))


def a_skip_between_polls(run: Run) -> None:
    index, _ = run.poll()
    del run.history.readings["assigned"][index]


def a_poll_again(run: Run) -> None:
    index, poll = run.poll()
    run.history.readings["assigned"].insert(index, poll)


def a_start_passed_over(run: Run) -> None:
    steps = run.history.readings["assigned"]
    first = next(step for step in steps if isinstance(step, Poll) and step.reads[0].partition == 0)
    steps.remove(first)


def a_partition_that_is_not_its(run: Run) -> None:
    run.history.readings["assigned"][0] = Assign(begun=0, places={0: 0})


def an_end_that_went_back(run: Run) -> None:
    told = next(told for told in run.history.ends if told.offset > 5)
    later = Told(partition=told.partition, begun=run.now, ended=run.now, offset=told.offset - 2)
    run.history.ends.append(later)


def an_end_below_an_acknowledged_record(run: Run) -> None:
    run.history.ends.clear()
    run.history.record_end(0, 1, run.now)


def an_end_below_a_record_that_was_read(run: Run, reader: str = "of a zone") -> None:
    """It was not acknowledged, or later: its producer was dropped."""
    sent, offset = Sent("a", 100_000), len(run.log[0])
    value = value_of(sent, SIZE)
    run.history.record_sent(sent, 0)
    run.log[0].append((offset, value))
    run.history.record_poll(reader, [(0, offset, value)])
    run.now += 1
    run.history.record_end(0, offset, run.now)


def an_end_beyond_the_log(run: Run) -> None:
    run.history.record_end(0, len(run.log[0]) + 1, run.now)


def a_commit_forgotten(run: Run) -> None:
    highest = max(t.offset for t in run.history.commits[GROUP] if t.partition == 0)
    run.history.record_commit_asked(GROUP, 0, highest - 1, run.now)


MUTATIONS: dict[Callable[[Run], None], set[str]] = {
    a_hole: {"lost", "gap"},
    a_hole_closed: {"lost", "moved"},
    a_lost_tail: {"lost", "unsaid"},
    a_record_again: {"duplicate", "order"},
    neighbours_exchanged: {"moved"},
    a_flipped_byte: {"damaged", "lost"},
    a_stranger: {"damaged"},
    a_failed_record_in_the_log: {"aborted"},
    a_failed_record_read: {"aborted", "unsaid"},
    acknowledged_in_another_partition: set(),
    an_acknowledgement_moved: {"moved"},
    sent_after_the_next_was_acknowledged: {"real time"},
    a_read_that_vanished: {"unsaid"},
    another_value_at_an_offset: {"unsaid"},
    a_damaged_read: set(),
    a_skip_in_a_poll: {"skip"},
    a_step_back_in_a_poll: {"backwards"},
    a_skip_between_polls: {"skip"},
    a_poll_again: {"backwards"},
    a_start_passed_over: {"skip"},
    a_partition_that_is_not_its: {"unassigned"},
    an_end_that_went_back: {"stale end"},
    an_end_below_an_acknowledged_record: {"stale end"},
    an_end_below_a_record_that_was_read: {"stale end"},
    an_end_beyond_the_log: {"end"},
    a_commit_forgotten: {"commit"},
}


@pytest.mark.parametrize("seed", range(20))
def test_a_good_history_passes(seed: int) -> None:
    run = Run(random.Random(seed))
    assert violations(run.history, run.log) == []
    assert {send.outcome for send in run.history.sends.values()} == set(Outcome)
    assert run.history.seen > 300
    assert run.history.ends
    assert run.history.commits_asked


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mutate", MUTATIONS)
def test_each_damage_is_named(mutate: Callable[[Run], None], seed: int) -> None:
    run = Run(random.Random(seed))
    mutate(run)
    assert violations(run.history, run.log)
    assert run.named() >= MUTATIONS[mutate]


def test_each_lost_record_is_named() -> None:
    run = Run(random.Random(1))
    tail = [identity_of(value) for _, value in run.log[0][-10:]]
    del run.log[0][-10:]
    lost = [line for line in violations(run.history, run.log) if line.startswith("lost")]
    assert len(lost) == sum(identity in run.history.acknowledged for identity in tail)


def test_what_is_unclear_may_be_there_or_not() -> None:
    run = Run(random.Random(2))
    unclear = [s for s, send in run.history.sends.items() if send.outcome is Outcome.INFO]
    in_log = {identity_of(value) for records in run.log.values() for _, value in records}
    assert 0 < len(in_log.intersection(unclear)) < len(unclear)
    assert run.named() == set()


def test_a_rebalance_allows_going_back_and_an_assignment_elsewhere_a_skip() -> None:
    run = Run(random.Random(3))
    index, poll = run.poll()
    place = {poll.reads[0].partition: None}
    assign = Assign(begun=poll.begun, places={0: None, 1: None} | place)
    steps = run.history.readings["assigned"]
    steps[index : index + 1] = [assign]
    assert run.named() == set()
    steps[index + 1 : index + 1] = [poll, assign, poll]
    assert run.named() == set()


def test_a_consumer_that_reads_ahead_may_be_before_the_leader() -> None:
    run = Run(random.Random(4))
    run.history.readers_ahead.add("ahead")
    an_end_below_a_record_that_was_read(run, "ahead")
    assert run.named() == set()
    del run.log[0][-1]
    assert run.named() == {"unsaid"}


def test_an_end_may_be_as_old_as_the_session_allows() -> None:
    run = Run(random.Random(4))
    told = run.history.ends[-1]
    late = Told(partition=told.partition, begun=run.now + 2, ended=run.now + 2, offset=0)
    run.history.ends.append(late)
    assert run.named() == {"stale end"}
    assert violations(run.history, run.log, staleness_s=math.inf) == []
