"""The signals that end a process: the first one gently, the second one at once."""

import asyncio
import os
import signal
from collections.abc import Callable

import structlog

_log = structlog.get_logger("broker.process")


class StopSignals:
    """The signals that stop a process: the first one sets `events`, a later one ends it at once,
    after `before_exit`.

    A second signal within REPEAT_S is taken for the same one: a terminal and a wrapper of the
    process both pass Ctrl-C on.
    """

    REPEAT_S = 1.0

    def __init__(
        self,
        monotonic: Callable[[], float],
        *events: asyncio.Event,
        before_exit: Callable[[], None] = lambda: None,
    ) -> None:
        self._monotonic = monotonic
        self._events = events
        self._before_exit = before_exit
        self._first_at: float | None = None

    def arrived(self, number: signal.Signals) -> None:
        """Take a signal."""
        now = self._monotonic()
        if self._first_at is None:
            self._first_at = now
            for event in self._events:
                event.set()
        elif now - self._first_at >= self.REPEAT_S:
            _log.warning("stop_forced", signal=number.name)
            self._before_exit()
            os._exit(128 + number)
