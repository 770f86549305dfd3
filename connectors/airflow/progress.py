"""Progress of a job as lines of a task's log, few of them."""

from typing import Any

from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.jobs.job import in_bytes

_EVERY_S = 5.0


class ProgressLines:
    """Logs the bytes of a job that are done: at its first progress, and then at most once in
    `every_s` seconds.
    """

    def __init__(
        self, log: Any, what: str, *, every_s: float = _EVERY_S, clock: Clock | None = None
    ) -> None:
        self._log = log
        self._what = what
        self._every_s = every_s
        self._clock = clock or SystemClock()
        self._begun = self._clock.monotonic()
        self._reported: float | None = None

    def __call__(self, done: int, total: int) -> None:
        """Take note that `done` of `total` bytes are done."""
        now = self._clock.monotonic()
        if not total or (self._reported is not None and now - self._reported < self._every_s):
            return
        self._reported = now
        seconds = now - self._begun
        pace = f", {in_bytes(int(done / seconds))}/s" if done and seconds > 0 else ""
        self._log.info(
            "%s: %s of %s (%d %%)%s",
            self._what,
            in_bytes(done),
            in_bytes(total),
            done * 100 // total,
            pace,
        )
