"""Deliveries of a share group to its members, and their acknowledgements with the responses.

Times are seconds of the monotonic clock, which all processes of a machine share.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

OK = "OK"


class Place(NamedTuple):
    """A record's partition and offset."""

    partition: int
    offset: int


class Verdict(StrEnum):
    """The judgement of a member on a record."""

    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"

    @property
    def is_final(self) -> bool:
        """Return true if the record is done with it."""
        return self is not Verdict.RELEASE


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record that a member was given, between `begun`, when the request that brought it may have
    been sent at the earliest, and `ended`, when the member had it.
    """

    member: str
    value: str
    count: int | None
    """Its delivery count; None if the client does not say it."""
    begun: float
    ended: float


@dataclass(slots=True)
class Acknowledgement:
    """A member's verdict on a record. It is sent at `begun` or later."""

    member: str
    verdict: Verdict
    begun: float
    ended: float = math.inf
    """When its response was there."""
    code: str = ""
    """OK, or the error of the response; empty without a response: it may count or not."""


@dataclass(slots=True)
class ShareHistory:
    """All of one group. Threads of several members write."""

    deliveries: dict[Place, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    acknowledgements: dict[Place, list[Acknowledgement]] = field(
        default_factory=lambda: defaultdict(list)
    )
    ends: list[tuple[str, float, float]] = field(default_factory=list)
    """Members that ended or were paused, with beginning and end: one may have been given records
    that it never showed.
    """
    contradictions: list[str] = field(default_factory=list)
    """Lines of members that nothing here understands."""
    latest: float = 0.0
    """The time of the last delivery."""
    delivered_total: int = 0
    _open: dict[tuple[str, Place], deque[Acknowledgement]] = field(
        default_factory=lambda: defaultdict(deque)
    )

    @property
    def counts(self) -> Counter[Verdict | None]:
        """How many acknowledgements were confirmed, by verdict; None for those that were not."""
        return Counter(
            one.verdict if one.code == OK else None
            for made in self.acknowledgements.values()
            for one in made
        )

    def record_delivery(self, place: Place, delivery: Delivery) -> None:
        """Note a delivery."""
        self.deliveries[place].append(delivery)
        self.latest = max(self.latest, delivery.ended)
        self.delivered_total += 1

    def record_verdict(self, place: Place, member: str, verdict: Verdict, begun: float) -> None:
        """Note an acknowledgement right before it is made."""
        made = Acknowledgement(member, verdict, begun)
        self.acknowledgements[place].append(made)
        self._open[member, place].append(made)

    def record_response(
        self, member: str, places: Iterable[Place], code: str, ended: float
    ) -> None:
        """Note the response to a member's acknowledgements of some records: of each the first
        without one. A record that was released may be back before the response is.
        """
        for place in places:
            if waiting := self._open.get((member, place)):
                made = waiting.popleft()
                made.ended, made.code = ended, code

    def record_end(self, member: str, begun: float, ended: float) -> None:
        """Note that a member did nothing from one time to another, or ended."""
        self.ends.append((member, begun, ended))
