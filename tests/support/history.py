"""What producers were told and what the log holds; the rules that say whether the two agree.

Every record's value names its producer and its number there, and carries a filling made of both,
so a value found in the log is known to be whole and to be that one. The rules are those of
Jepsen's Kafka workload that concern one log without transactions.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Log = Mapping[int, Sequence[tuple[int, bytes]]]
"""By partition: (offset, value) of every record, as a consumer that began at 0 saw them."""


class Sent(NamedTuple):
    """The identity of a record: which producer sent it, and as its how-manieth."""

    producer: str
    number: int


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
    """What the producers did and were told, and what consumers saw while they did it."""

    sent: dict[Sent, int] = field(default_factory=dict)  # partition of each record
    acknowledged: dict[Sent, int] = field(default_factory=dict)  # offset of each
    refused: dict[Sent, str] = field(default_factory=dict)  # failed: it may be there or not
    seen: dict[tuple[int, int], Sent] = field(default_factory=dict)  # (partition, offset) read
    contradictions: list[str] = field(default_factory=list)

    def record_sent(self, sent: Sent, partition: int) -> None:
        self.sent[sent] = partition

    def record_acknowledged(self, sent: Sent, partition: int, offset: int) -> None:
        if self.sent.get(sent) != partition:
            self.contradictions.append(f"{sent} acknowledged in partition {partition}")
        self.acknowledged[sent] = offset

    def record_refused(self, sent: Sent, reason: str) -> None:
        self.refused[sent] = reason

    def record_seen(self, partition: int, offset: int, value: bytes) -> None:
        """Note a record that a consumer saw; the same place must never show another."""
        identity = identity_of(value)
        if identity is None:
            self.contradictions.append(f"partition {partition} offset {offset}: damaged value")
            return
        known = self.seen.setdefault((partition, offset), identity)
        if known != identity:
            self.contradictions.append(
                f"partition {partition} offset {offset} showed {known}, then {identity}"
            )


def violations(history: History, log: Log) -> list[str]:
    """Every broken promise, one line each; empty when all is well.

    Lost: an acknowledged record is missing. Moved: it is not at the offset it was acknowledged
    with. Duplicate: it is there twice. Order: a producer's records are not in the order in which
    it sent them. Gap: an offset has no record. Damaged: a value that nobody sent. Unsaid: a
    consumer saw a record that the log does not hold there.
    """
    places = _places(log)
    return [
        *history.contradictions,
        *_damage(history, log),
        *_gaps(log),
        *_misplaced(history, places),
        *_order(log),
        *_unsaid(history, places),
    ]


def _places(log: Log) -> dict[Sent, list[tuple[int, int]]]:
    places: dict[Sent, list[tuple[int, int]]] = defaultdict(list)
    for partition, offset, identity in _identified(log):
        places[identity].append((partition, offset))
    return places


def _identified(log: Log) -> Iterator[tuple[int, int, Sent]]:
    for partition, records in log.items():
        for offset, value in records:
            identity = identity_of(value)
            if identity is not None:
                yield partition, offset, identity


def _damage(history: History, log: Log) -> Iterator[str]:
    for partition, records in log.items():
        for offset, value in records:
            identity = identity_of(value)
            if identity is None or history.sent.get(identity) != partition:
                yield f"damaged: partition {partition} offset {offset} holds {value[:40]!r}"


def _gaps(log: Log) -> Iterator[str]:
    for partition, records in log.items():
        for expected, (offset, _) in enumerate(records):
            if offset != expected:
                yield f"gap: partition {partition} has offset {offset} where {expected} belongs"
                break


def _misplaced(history: History, places: Mapping[Sent, list[tuple[int, int]]]) -> Iterator[str]:
    for sent, offset in history.acknowledged.items():
        place = (history.sent[sent], offset)
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


def _unsaid(history: History, places: Mapping[Sent, Iterable[tuple[int, int]]]) -> Iterator[str]:
    for place, sent in history.seen.items():
        if place not in places.get(sent, ()):
            yield f"unsaid: a consumer saw {sent} at {place}, which the log does not hold there"
