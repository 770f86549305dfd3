"""Time and money of a sandbox day: a clock that can be passed in, waits that end, and the point at
which nothing more is begun.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from lakehead.storage.clock import Clock, SystemClock

_POLL_S = 2.0


class DayClock(Clock, Protocol):
    """A clock that also passes time."""

    def sleep(self, seconds: float) -> None:
        """Return when so much time has passed."""


class PatientClock(SystemClock):
    """The machine's time."""

    def sleep(self, seconds: float) -> None:
        """Wait."""
        threading.Event().wait(seconds)


class HastyClock(SystemClock):
    """The machine's time, in which waits take none: for a dry run."""

    def __init__(self) -> None:
        self._skipped_s = 0.0

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, with what was skipped."""
        return super().now_ms() + int(self._skipped_s * 1000)

    def monotonic(self) -> float:
        """Return seconds, with what was skipped."""
        return super().monotonic() + self._skipped_s

    def sleep(self, seconds: float) -> None:
        """Skip so much time."""
        self._skipped_s += seconds


class OverLimit(Exception):
    """Time or money of the day, or of one trial, is spent. The message says which."""


class NotInTime(Exception):
    """What a trial waited for did not come. The message says what that was."""


@dataclass(slots=True, kw_only=True)
class Spending:
    """Dollars by estimate: what ran, by the hour and rounded up, and what was paid at once."""

    clock: DayClock
    hourly: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of each cluster that runs, dollars an hour and since when."""
    paid: float = 0.0

    def begin(self, name: str, dollars_an_hour: float) -> None:
        """Count a cluster from now on."""
        self.hourly[name] = (dollars_an_hour, self.clock.monotonic())

    def end(self, name: str) -> None:
        """Stop counting it, and keep what it cost."""
        if name in self.hourly:
            self.paid += self._cost(*self.hourly.pop(name))

    def pay(self, dollars: float) -> None:
        """Count what is paid at once."""
        self.paid += dollars

    def dollars(self) -> float:
        """Return what was spent until now."""
        return self.paid + sum(self._cost(*one) for one in self.hourly.values())

    def _cost(self, dollars_an_hour: float, since: float) -> float:
        return dollars_an_hour * hours_paid(self.clock.monotonic() - since)


def hours_paid(seconds: float) -> int:
    """Return how many hours are paid for: whole ones, at the least one."""
    return max(1, -int(-seconds // 3600))


@dataclass(slots=True, kw_only=True)
class Limits:
    """The hard stop: nothing is begun, and no wait goes on, behind it. Teardown has none."""

    clock: DayClock
    spending: Spending
    budget: float
    ends_at: float
    """In the clock's monotonic seconds."""

    def check(self) -> None:
        """Raise OverLimit when time or money is spent."""
        if self.clock.monotonic() >= self.ends_at:
            raise OverLimit("its time is over")
        if (spent := self.spending.dollars()) > self.budget:
            raise OverLimit(f"{spent:.2f} of {self.budget:.2f} dollars are spent, by estimate")

    def until(self, what: str, seconds: float, holds: Callable[[], bool]) -> float:
        """Wait until something holds; return how many seconds that took. Raises NotInTime and
        OverLimit.
        """
        began = self.clock.monotonic()
        while not holds():
            self.check()
            if self.clock.monotonic() - began > seconds:
                raise NotInTime(f"{what}: not within {seconds:.0f} s")
            self.clock.sleep(_POLL_S)
        return self.clock.monotonic() - began

    def within(self, seconds: float) -> "Limits":
        """Return the limits of a part that may take so long at the most."""
        return Limits(
            clock=self.clock,
            spending=self.spending,
            budget=self.budget,
            ends_at=min(self.ends_at, self.clock.monotonic() + seconds),
        )
