"""The end of a run that is requested from outside: by a signal, or by Airflow."""

import threading

from lakehead.storage.clock import Clock


class Stop:
    """A request to end, which a signal handler or another thread makes, and the time that a run
    still has then for a cluster that does not respond.
    """

    def __init__(self, clock: Clock, *, within_s: float) -> None:
        self.within_s = within_s
        self._clock = clock
        self._requested = threading.Event()
        self._deadline_s = float("inf")

    def request(self) -> None:
        """Begin to end. The first request counts."""
        if not self.is_requested:
            self._deadline_s = self._clock.monotonic() + self.within_s
            self._requested.set()

    @property
    def is_requested(self) -> bool:
        """True if the run must begin nothing more."""
        return self._requested.is_set()

    @property
    def is_over(self) -> bool:
        """True if the run stops waiting for a cluster."""
        return self._clock.monotonic() >= self._deadline_s

    def wait(self, seconds: float) -> bool:
        """Wait that long, or until the end is requested; whether it is."""
        return self._requested.wait(seconds)

    def left_s(self, most_s: float) -> float:
        """Return how many of `most_s` seconds a call may take."""
        return max(0.0, min(most_s, self._deadline_s - self._clock.monotonic()))
