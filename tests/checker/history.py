"""What clients of a cluster did and were told: sends, reads, ends asked for, commits, with times.

Every record's value names its producer and its number there, and carries a filling made of both,
so a value found in a log is known to be whole and to be that one. `tests.checker.rules` says
whether a history and a log agree.

An operation without a clear answer is *info*: it may have happened or not. Only a definite refusal
is *failed*. Clients write from threads of their own; times are seconds of one clock.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Log = Mapping[int, Sequence[tuple[int, bytes]]]
"""By partition: (offset, value) of every record, as a consumer that began at 0 saw them."""


class Sent(NamedTuple):
    """The identity of a record: which producer sent it, and as its how-manieth."""

    producer: str
    number: int


class Outcome(StrEnum):
    """What is known of a send."""

    INFO = "info"
    OK = "ok"
    FAILED = "failed"


@dataclass(slots=True)
class Send:
    """One record's way into a partition."""

    partition: int
    begun: float
    ended: float = math.inf
    outcome: Outcome = Outcome.INFO
    offset: int = -1
    """Where it was acknowledged; -1 if it was not."""
    reason: str = ""


class Read(NamedTuple):
    """A record that a consumer was given."""

    partition: int
    offset: int
    sent: Sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """One call of a consumer that gave records, in the order in which it gave them."""

    begun: float
    ended: float
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """A consumer reads these partitions from now on, and no others; by assign or by a rebalance.

    With an offset it begins there, with None wherever its group or its policy puts it.
    """

    begun: float
    places: Mapping[int, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A position that a broker told: a partition's end, or what a group has committed in it."""

    partition: int
    begun: float
    ended: float
    offset: int


def value_of(sent: Sent, size: int) -> bytes:
    """The value of a record: its identity, then filling that follows from it; about `size` long."""
    head = f"{sent.producer}:{sent.number}:".encode()
    filling = hashlib.sha256(head).hexdigest().encode()
    return head + (filling * (size // len(filling) + 1))[: max(size - len(head), 16)]


def identity_of(value: bytes) -> Sent | None:
    """The identity in a value, or None if it is not exactly what some producer sent."""
    try:
        producer, number, _ = value.decode("ascii").split(":")
        sent = Sent(producer, int(number))
    except ValueError:
        return None
    return sent if value_of(sent, len(value)) == value else None


@dataclass(slots=True)
class History:
    """What the clients did and were told."""

    clock: Callable[[], float] = time.monotonic
    sends: dict[Sent, Send] = field(default_factory=dict)
    readings: dict[str, list[Assign | Poll]] = field(default_factory=dict)
    """By consumer, in its own order."""
    readers_ahead: set[str] = field(default_factory=set)
    """Consumers that may see a durable record before its leader knows that it is durable."""
    ends: list[Told] = field(default_factory=list)
    commits: dict[str, list[Told]] = field(default_factory=dict)
    """By group: the commits that were acknowledged."""
    commits_asked: dict[str, list[Told]] = field(default_factory=dict)
    """By group: what it was told it had committed."""
    latest: dict[int, float] = field(default_factory=dict)
    """By partition: when a record was last acknowledged."""
    acknowledged_total: int = 0
    """About how many acknowledgements there were: threads count together."""
    contradictions: list[str] = field(default_factory=list)
    """What a client could see to be wrong by itself."""

    @property
    def acknowledged(self) -> dict[Sent, int]:
        """The offset of every acknowledged record."""
        return {
            sent: send.offset for sent, send in self.sends.items() if send.outcome is Outcome.OK
        }

    @property
    def seen(self) -> int:
        """How many records consumers were given."""
        return sum(
            len(step.reads)
            for steps in self.readings.values()
            for step in steps
            if isinstance(step, Poll)
        )

    def record_sent(self, sent: Sent, partition: int) -> None:
        """Note a send right before it is made; until more is known it is info."""
        self.sends.setdefault(sent, Send(partition, self.clock()))

    def record_acknowledged(self, sent: Sent, partition: int, offset: int) -> None:
        """Note an acknowledgement right after it came."""
        send = self.sends.get(sent)
        if send is None or send.partition != partition:
            self.contradictions.append(f"{sent} acknowledged in partition {partition}")
            return
        send.ended, send.outcome, send.offset = self.clock(), Outcome.OK, offset
        self.latest[partition] = send.ended
        self.acknowledged_total += 1

    def record_unclear(self, sent: Sent, reason: str) -> None:
        """Note that a send was given up: it may be there or not, now or later."""
        self.sends[sent].reason = reason

    def record_failed(self, sent: Sent, reason: str) -> None:
        """Note a definite refusal: the record must never be seen."""
        send = self.sends[sent]
        send.ended, send.outcome, send.reason = self.clock(), Outcome.FAILED, reason

    def record_assign(self, reader: str, places: Mapping[int, int | None]) -> None:
        """Note which partitions a consumer reads from now on, and from where."""
        self.readings.setdefault(reader, []).append(Assign(begun=self.clock(), places=dict(places)))

    def record_poll(
        self, reader: str, records: Iterable[tuple[int, int, bytes]], begun: float | None = None
    ) -> None:
        """Note what a consumer was given: (partition, offset, value) of each record."""
        reads: list[Read] = []
        for partition, offset, value in records:
            identity = identity_of(value)
            if identity is None:
                self.contradictions.append(f"partition {partition} offset {offset}: damaged value")
            else:
                reads.append(Read(partition, offset, identity))
        if reads:
            now = self.clock()
            poll = Poll(begun=now if begun is None else begun, ended=now, reads=tuple(reads))
            self.readings.setdefault(reader, []).append(poll)

    def record_end(self, partition: int, offset: int, begun: float) -> None:
        """Note where a broker said that a partition ends."""
        self.ends.append(self._told(partition, offset, begun))

    def record_commit(self, group: str, partition: int, offset: int, begun: float) -> None:
        """Note a commit that was acknowledged."""
        self.commits.setdefault(group, []).append(self._told(partition, offset, begun))

    def record_commit_asked(self, group: str, partition: int, offset: int, begun: float) -> None:
        """Note what a group was told it had committed; 0 for nothing."""
        self.commits_asked.setdefault(group, []).append(self._told(partition, offset, begun))

    def _told(self, partition: int, offset: int, begun: float) -> Told:
        return Told(partition=partition, begun=begun, ended=self.clock(), offset=offset)
