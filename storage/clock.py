"""Time: everything in the core reads a `Clock`, so that a simulation can control it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for timestamps, monotonic time for durations. Timers come from the event loop."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch. May jump; no guarantee rests on it."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point. Never goes back."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return the machine's wall time in milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return the machine's monotonic time in seconds."""
        return time.monotonic()
