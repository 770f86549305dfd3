"""The rules that a history and the log at its end must keep: those of Jepsen's Kafka workload.

`violations` names every breach on a line of its own that begins with its kind:

- lost: an acknowledged record is missing; moved: it is not at the offset it was acknowledged with;
- duplicate: a record is there twice (all producers are idempotent, or do not retry);
- order: a producer's records are not in the order in which it sent them;
- gap: an offset has no record; damaged: the log holds a value that nobody sent there;
- aborted: a record is visible whose send definitely failed;
- real time: a record was acknowledged before another was sent, and lies behind it;
- unsaid: a consumer saw a record at an offset where the log does not hold it;
- skip, backwards: a consumer passed a record over or went back, within a poll or between two, with
  no new assignment in between; unassigned: it was given what it does not read;
- stale end: a reported end of a partition leaves out records that had been acknowledged, reported
  or read by a consumer more than `staleness_s` before; end: the log does not reach a reported one;
- commit: a group was told of a commit older than one that had been acknowledged.

`tests.checker.transaction_rules` has the rules of transactions.
"""

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.checker.history import Assign, History, Log, Outcome, Poll, Sent, Told, identity_of

Place = tuple[int, int]
"""Partition and offset."""


def violations(history: History, log: Log, *, staleness_s: float = 0.0) -> list[str]:
    """Every broken promise, one line each; empty when all is well."""
    places = _places(log)
    known = {partition: {offset for offset, _ in records} for partition, records in log.items()}
    return [
        *history.contradictions,
        *_damage(history, log),
        *_gaps(log),
        *_misplaced(history, places),
        *_order(log),
        *_real_time(history),
        *_aborted(history, places),
        *_unsaid(history, places),
        *itertools.chain.from_iterable(
            _reading(reader, steps, known) for reader, steps in history.readings.items()
        ),
        *_ends(history, log, staleness_s),
        *_commits(history),
    ]


def _identified(log: Log) -> Iterator[tuple[int, int, Sent]]:
    for partition, records in log.items():
        for offset, value in records:
            identity = identity_of(value)
            if identity is not None:
                yield partition, offset, identity


def _places(log: Log) -> dict[Sent, list[Place]]:
    places: dict[Sent, list[Place]] = defaultdict(list)
    for partition, offset, identity in _identified(log):
        places[identity].append((partition, offset))
    return places


def _damage(history: History, log: Log) -> Iterator[str]:
    for partition, records in log.items():
        for offset, value in records:
            identity = identity_of(value)
            send = None if identity is None else history.sends.get(identity)
            if send is None or send.partition != partition:
                yield f"damaged: partition {partition} offset {offset} holds {value[:40]!r}"


def _gaps(log: Log) -> Iterator[str]:
    for partition, records in log.items():
        for expected, (offset, _) in enumerate(records):
            if offset != expected:
                yield f"gap: partition {partition} has offset {offset} where {expected} belongs"
                break


def _misplaced(history: History, places: Mapping[Sent, list[Place]]) -> Iterator[str]:
    for sent, offset in history.acknowledged.items():
        place = (history.sends[sent].partition, offset)
        if sent not in places:
            yield f"lost: {sent}, acknowledged at {place}"
        elif place not in places[sent]:
            yield f"moved: {sent}, acknowledged at {place}, is at {places[sent]}"
    for sent, found in places.items():
        if len(found) > 1:
            yield f"duplicate: {sent} at {found}"


def _order(log: Log) -> Iterator[str]:
    last: dict[tuple[int, str], int] = {}
    for partition, offset, (producer, number) in _identified(log):
        before = last.get((partition, producer), -1)
        if number < before:
            yield f"order: partition {partition} offset {offset}: {producer} {number} > {before}"
        last[partition, producer] = max(number, before)


def _real_time(history: History) -> Iterator[str]:
    """In the order of offsets, none may have been acknowledged before one in front was sent."""
    by_partition = defaultdict(list)
    for sent, send in history.sends.items():
        if send.outcome is Outcome.OK:
            by_partition[send.partition].append((send.offset, send.begun, send.ended, sent))
    for partition, sends in by_partition.items():
        latest, in_front = float("-inf"), None
        for offset, begun, ended, sent in sorted(sends):
            if ended < latest:
                yield (
                    f"real time: partition {partition}: {sent} at {offset} was acknowledged "
                    f"{latest - ended:.3f} s before {in_front} was sent, which lies in front"
                )
            if begun > latest:
                latest, in_front = begun, sent


def _aborted(history: History, places: Mapping[Sent, list[Place]]) -> Iterator[str]:
    failed = {sent for sent, send in history.sends.items() if send.outcome is Outcome.FAILED}
    for sent in failed:
        if sent in places:
            yield f"aborted: {sent} failed ({history.sends[sent].reason}), is at {places[sent]}"
    for reader, poll in _polls(history):
        for read in poll.reads:
            if read.sent in failed:
                yield f"aborted: {reader} saw {read}, whose send failed"


def _unsaid(history: History, places: Mapping[Sent, Iterable[Place]]) -> Iterator[str]:
    for reader, poll in _polls(history):
        for partition, offset, sent in poll.reads:
            if (partition, offset) not in places.get(sent, ()):
                yield f"unsaid: {reader} saw {sent} at {(partition, offset)}; the log has it not"


def _polls(history: History) -> Iterator[tuple[str, Poll]]:
    for reader, steps in history.readings.items():
        for step in steps:
            if isinstance(step, Poll):
                yield reader, step


def _reading(
    reader: str, steps: Sequence[Assign | Poll], known: Mapping[int, set[int]]
) -> Iterator[str]:
    """A consumer goes on where it is, over every record that there is."""
    position: dict[int, int] = {}
    assigned: set[int] | None = None
    for step in steps:
        if isinstance(step, Assign):
            assigned = set(step.places)
            position = {p: offset for p, offset in step.places.items() if offset is not None}
            continue
        for partition, offset, _ in step.reads:
            if assigned is not None and partition not in assigned:
                yield f"unassigned: {reader} was given partition {partition}, which is not its"
            expected = position.get(partition, offset)
            if offset < expected:
                yield f"backwards: {reader}, partition {partition}: {offset} after {expected - 1}"
            passed = [o for o in range(expected, offset) if o in known.get(partition, ())]
            if passed:
                yield f"skip: {reader}, partition {partition}: {offset} given, {passed[:3]} passed"
            position[partition] = offset + 1


def _ends(history: History, log: Log, staleness_s: float) -> Iterator[str]:
    reached = {
        partition: records[-1][0] + 1 if records else 0 for partition, records in log.items()
    }
    floors = defaultdict(list)
    for send in history.sends.values():
        if send.outcome is Outcome.OK:
            floors[send.partition].append((send.ended, send.offset + 1))
    for told in history.ends:
        floors[told.partition].append((told.ended, told.offset))
    for reader, poll in _polls(history):
        if reader not in history.readers_ahead:
            for partition, offset, _ in poll.reads:
                floors[partition].append((poll.ended, offset + 1))
    rising = {partition: _Rising(facts) for partition, facts in floors.items()}
    for told in history.ends:
        if told.offset > reached.get(told.partition, 0):
            yield f"end: {told} told, the log ends at {reached.get(told.partition, 0)}"
        floor = rising[told.partition].before(told.begun - staleness_s)
        if told.offset < floor:
            yield f"stale end: {told} told, {floor} had been reached {staleness_s} s before"


def _commits(history: History) -> Iterator[str]:
    for group, asked in history.commits_asked.items():
        by_partition: dict[int, list[Told]] = defaultdict(list)
        for told in history.commits.get(group, ()):
            by_partition[told.partition].append(told)
        rising = {
            partition: _Rising([(told.ended, told.offset) for told in commits])
            for partition, commits in by_partition.items()
        }
        for told in asked:
            if told.partition not in rising:
                continue
            floor = rising[told.partition].before(told.begun)
            if told.offset < floor:
                yield f"commit: group {group} was told {told}, {floor} had been committed"


class _Rising:
    """The highest of all positions that were known before a time."""

    def __init__(self, facts: list[tuple[float, int]]) -> None:
        facts = sorted(facts)
        self._times = [when for when, _ in facts]
        self._highest = list(itertools.accumulate((position for _, position in facts), max))

    def before(self, when: float) -> int:
        index = bisect_left(self._times, when)
        return self._highest[index - 1] if index else 0
