"""The rules of share groups: each record goes to one member at a time until it is done, and no
record is left out.

A breach is a line that begins with its kind:

- lost: a record is there that no member accepted or rejected, and that was not delivered as often
  as it may be;
- unsaid: a member got a record at an offset where the log does not have it;
- aborted: a member of a group that reads committed records got one of a transaction that was
  aborted, or whose commit was never requested;
- again: a record was delivered after its acceptance or rejection had a response;
- shared: a member's verdict was confirmed, though another member had got the record meanwhile and
  had it still. A late verdict on a record that is done is confirmed, and counts for nothing;
- taken: a verdict was refused within the time of the lock, and nothing had happened to the node;
- limit: a delivery count is above the limit, or below one;
- count: a delivery count is not above that of a delivery whose release was confirmed before, or
  leaves out a number, and nothing had happened to a member or a node that got a delivery unseen;
- refused: an acknowledgement has an error that none may have.

A member that dies may have got deliveries that it never showed, and each of them counts.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.checker.share_history import (
    OK,
    Acknowledgement,
    Delivery,
    Place,
    ShareHistory,
    Verdict,
)

Values = Mapping[int, Sequence[tuple[int, str]]]
"""By partition: (offset, value) of each record that the group is to get."""
Interval = tuple[float, float]
Reason = Callable[[str], str]
"""Returns why a value must not be seen, or nothing."""

UNSEEN_MAX = 2
"""Deliveries of a record that no member may have shown."""
SETTLE_S = 10.0
"""After a fault of a node leaders may move for this time."""
NOT_THE_MEMBERS = "INVALID_RECORD_STATE"
"""The member does not have the record. A verdict with another error may count: the leader may have
stored it, and not know.
"""
FORBIDDEN = frozenset({"UNKNOWN_SERVER_ERROR", "UNKNOWN", "INVALID_REQUEST", "CORRUPT_MESSAGE"})


def no_reason(_value: str) -> str:
    """Say of each value that it may be seen."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """Settings of the nodes, and the times of their faults."""

    deliveries_max: int
    lock_s: float
    faults: Sequence[Interval] = ()


def share_violations(
    history: ShareHistory,
    log: Values,
    limits: ShareLimits,
    *,
    unseen: Reason = no_reason,
) -> list[str]:
    """Return every breach in a history and the log at its end."""
    faults = _Times((begun, ended + SETTLE_S) for begun, ended in limits.faults)
    ends = _Times((begun, ended + SETTLE_S) for _, begun, ended in history.ends)
    paused: dict[str, list[Interval]] = {}
    for member, begun, ended in history.ends:
        paused.setdefault(member, []).append((begun, ended))
    pauses = {member: _Times(times) for member, times in paused.items()}
    found = [
        *history.contradictions,
        *_lost(history, log, limits.deliveries_max),
        *_values(history, log, unseen),
    ]
    for place, deliveries in history.deliveries.items():
        story = _Story(place, deliveries, history.acknowledgements.get(place, []))
        found += story.again()
        found += story.shared(limits.deliveries_max)
        found += story.limit(limits.deliveries_max)
        found += story.fell()
        found += story.skipped(faults, ends)
        found += story.taken(limits.lock_s, faults, pauses)
    found += [
        f"refused: {one.member}, {place}: {one.code}"
        for place, made in history.acknowledgements.items()
        for one in made
        if one.code in FORBIDDEN
    ]
    return found


def unfinished(history: ShareHistory, log: Values, deliveries_max: int) -> int:
    """Return how many records of a log no member ended, as far as it is known: if the group is
    done with them, deliveries that no member showed have used them up.
    """
    return sum(
        not _has_verdict(history, place) and _highest(history, place) < deliveries_max
        for place in _places(log)
    )


def _places(log: Values) -> Iterator[Place]:
    return (Place(p, offset) for p, records in log.items() for offset, _ in records)


def _lost(history: ShareHistory, log: Values, deliveries_max: int) -> Iterator[str]:
    for place in _places(log):
        highest = _highest(history, place)
        if not _has_verdict(history, place) and deliveries_max - highest > UNSEEN_MAX:
            yield f"lost: {place} was delivered {highest} times, without a verdict that ends it"


def _has_verdict(history: ShareHistory, place: Place) -> bool:
    """Return true if a member may have ended a record."""
    return any(
        one.verdict.is_final and one.code != NOT_THE_MEMBERS
        for one in history.acknowledgements.get(place, ())
    )


def _highest(history: ShareHistory, place: Place) -> int:
    """Return how often a record was delivered, as far as it is known."""
    deliveries = history.deliveries.get(place, ())
    uncounted = sum(one.count is None for one in deliveries)
    return max((one.count or 0 for one in deliveries), default=0) + uncounted


def _values(history: ShareHistory, log: Values, unseen: Reason) -> Iterator[str]:
    values = {Place(p, offset): value for p, records in log.items() for offset, value in records}
    for place, deliveries in history.deliveries.items():
        for one in deliveries:
            if reason := unseen(one.value):
                yield f"aborted: {one.member} got {one.value}, whose transaction {reason}"
            elif values.get(place) != one.value:
                yield f"unsaid: {one.member} got {one.value} at {place}, the log has it not"


class _Story:
    """The deliveries and the acknowledgements of one record."""

    def __init__(
        self, place: Place, deliveries: Iterable[Delivery], made: Iterable[Acknowledgement]
    ) -> None:
        self.place = place
        self.deliveries = sorted(deliveries, key=lambda one: one.ended)
        self.made = sorted(made, key=lambda one: one.begun)

    def again(self) -> Iterator[str]:
        """Yield deliveries that come after the end of the record."""
        ends = [one for one in self.made if one.code == OK and one.verdict.is_final]
        for end in ends:
            for one in self.deliveries:
                if one.begun > end.ended:
                    yield (
                        f"again: {one.member} got {self.place} {one.begun - end.ended:.3f} s and "
                        f"more after {end.member}'s {end.verdict} had its response"
                    )

    def shared(self, deliveries_max: int) -> Iterator[str]:
        """Yield verdicts that were confirmed though another member had the record."""
        for verdict, held in self._held():
            if verdict.code != OK or self._may_be_done(verdict, deliveries_max):
                continue
            for other in self.deliveries:
                if (
                    other.member != verdict.member
                    and held.ended <= other.begun
                    and other.ended <= verdict.begun
                ):
                    yield (
                        f"shared: {verdict.member}'s {verdict.verdict} of {self.place} counted, "
                        f"and {other.member} had got it {verdict.begun - other.ended:.3f} s before"
                    )

    def _may_be_done(self, verdict: Acknowledgement, deliveries_max: int) -> bool:
        """Return true if the record may be done by others when a verdict has its response."""
        return any(
            one.verdict.is_final
            and one.member != verdict.member
            and one.begun < verdict.ended
            and one.code != NOT_THE_MEMBERS
            for one in self.made
        ) or any((one.count or 0) >= deliveries_max for one in self.deliveries)

    def limit(self, deliveries_max: int) -> Iterator[str]:
        """Yield delivery counts that cannot be."""
        for one in self.deliveries:
            if one.count is not None and not 1 <= one.count <= deliveries_max:
                yield f"limit: {one.member} got {self.place} as delivery {one.count}"

    def fell(self) -> Iterator[str]:
        """Yield delivery counts that are not above that of a delivery whose release counted."""
        for verdict, held in self._held():
            if verdict.code != OK or verdict.verdict is not Verdict.RELEASE or held.count is None:
                continue
            for one in self.deliveries:
                if one.count is not None and one.count <= held.count and one.begun > verdict.ended:
                    yield (
                        f"count: {one.member} got {self.place} as delivery {one.count}, and "
                        f"delivery {held.count} had been released before"
                    )

    def skipped(self, faults: "_Times", ends: "_Times") -> Iterator[str]:
        """Yield delivery counts that leave numbers out, though no delivery can be unseen."""
        for one in self.deliveries:
            if one.count is None:
                continue
            others = [d for d in self.deliveries if d is not one and d.begun <= one.ended]
            counts = {d.count for d in others if d.count is not None and d.count < one.count}
            below = max(counts, default=0)
            since = min((d.begun for d in others if d.count == below), default=0.0)
            uncounted = sum(d.count is None for d in others)
            if one.count - below - 1 <= uncounted:
                continue
            if not faults.touch(since, one.ended) and not ends.touch(since, one.ended):
                yield (
                    f"count: {one.member} got {self.place} as delivery {one.count}, and the one "
                    f"before is {below}"
                )

    def taken(
        self, lock_s: float, faults: "_Times", pauses: Mapping[str, "_Times"]
    ) -> Iterator[str]:
        """Yield verdicts that were refused while the member had the record."""
        for verdict, held in self._held():
            if verdict.code != NOT_THE_MEMBERS or verdict.ended > held.begun + lock_s:
                continue
            if faults.touch(held.begun, verdict.ended):
                continue
            if verdict.member in pauses and pauses[verdict.member].touch(held.begun, verdict.ended):
                continue
            yield (
                f"taken: {verdict.member}'s {verdict.verdict} of {self.place} was refused "
                f"{verdict.ended - held.begun:.3f} s after it can have got it"
            )

    def _held(self) -> Iterator[tuple[Acknowledgement, Delivery]]:
        """Yield verdicts, each with the last delivery to its member before it. A member that got
        the record once more before the response may speak of either: those are left out.
        """
        for verdict in self.made:
            own = [one for one in self.deliveries if one.member == verdict.member]
            before = [one for one in own if one.ended <= verdict.begun]
            if before and not any(
                one.ended > verdict.begun and one.begun < verdict.ended for one in own
            ):
                yield verdict, before[-1]


class _Times:
    """Intervals of time, put together."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []
        for begun, ended in sorted(intervals):
            if self._ends and begun <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], ended)
            else:
                self._begins.append(begun)
                self._ends.append(ended)

    def touch(self, begun: float, ended: float) -> bool:
        """Return true if one of them has a moment in common with [begun, ended]."""
        index = bisect_right(self._begins, ended) - 1
        return index >= 0 and self._ends[index] >= begun
