"""Counts of the records that a node delivers to share groups, since its start."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from lakehead.broker.share.record_state import RecordState, StateBatch


class Outcome(Enum):
    """The ends of deliveries; the values are labels of metrics."""

    ACCEPTED = "accepted"
    RELEASED = "released"
    ARCHIVED = "archived"
    """Rejected, a gap, or delivered as often as it may be."""
    EXPIRED = "expired"
    """The lock ended before a verdict."""


_OF_STATES = {
    RecordState.ACKNOWLEDGED: Outcome.ACCEPTED,
    RecordState.AVAILABLE: Outcome.RELEASED,
    RecordState.ARCHIVING: Outcome.ARCHIVED,
    RecordState.ARCHIVED: Outcome.ARCHIVED,
}


class LetterOutcome(Enum):
    """The ends of dead letters, and of their batches; the values are labels of metrics."""

    WRITTEN = "written"
    FAILED = "failed"


@dataclass(slots=True)
class ShareCounts:
    """Records that were acquired, the ends of their deliveries, and dead letters."""

    acquired_total: int = 0
    outcomes_total: Counter[Outcome] = field(default_factory=Counter)
    dead_letters_total: Counter[LetterOutcome] = field(default_factory=Counter)
    """In records."""
    dead_letter_requests_total: Counter[LetterOutcome] = field(default_factory=Counter)
    """Batches that were sent to the leader of a dead letter partition."""

    def acquired(self, records: int) -> None:
        """Count records that a member acquired."""
        self.acquired_total += records

    def ended(self, batches: Iterable[StateBatch], *, is_expired: bool) -> None:
        """Count the ends of deliveries: by the ends of locks, or by verdicts."""
        for one in batches:
            outcome = Outcome.EXPIRED if is_expired else _OF_STATES[one.state]
            self.outcomes_total[outcome] += one.last_offset - one.first_offset + 1
