"""Nothing that waits for a log waits for ever.

All wait equally long, so the first to begin is the first to end: one timer serves them all, where
one each would cost as much as the commit.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple


class _Waiting(NamedTuple):
    until: float
    future: asyncio.Future[Any]


class Patience:
    """Gives futures that are not done `patience_s` after they came an error."""

    def __init__(self, patience_s: float, error: Callable[[], Exception]) -> None:
        self._patience_s = patience_s
        self._error = error
        self._waiting: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, future: asyncio.Future[Any]) -> None:
        """See to it that this future ends in time."""
        waiting = self._waiting
        while waiting and waiting[0].future.done():
            waiting.popleft()
        loop = future.get_loop()
        waiting.append(_Waiting(loop.time() + self._patience_s, future))
        if self._timer is None:
            self._timer = loop.call_at(waiting[0].until, self._look)

    def _look(self) -> None:
        self._timer = None
        waiting, loop = self._waiting, asyncio.get_running_loop()
        now = loop.time()
        while waiting and (waiting[0].future.done() or waiting[0].until <= now):
            future = waiting.popleft().future
            if not future.done():
                future.set_exception(self._error())
        if waiting:
            self._timer = loop.call_at(waiting[0].until, self._look)
