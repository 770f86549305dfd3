"""Batches that are appended and not durable yet, in the order of the log, and their callbacks."""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from lakehead.storage.stream.cache import CachedBatch
from lakehead.storage.stream.stream import OnDone, Stream


class PendingAppend(NamedTuple):
    """A batch on its way; its record in the log ends at `end_position`."""

    end_position: int
    stream: Stream
    batch: CachedBatch
    on_done: OnDone | None


class PendingAppends:
    """`waiting` is added to at the end, and nowhere else."""

    __slots__ = ("_barriers", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[PendingAppend] = deque()
        self._barriers: deque[tuple[int, asyncio.Future[None]]] = deque()

    def released(self, position: int) -> Iterator[PendingAppend]:
        """Take out what ends at or below `position`: it is durable."""
        waiting = self.waiting
        while waiting and waiting[0].end_position <= position:
            yield waiting.popleft()

    def fail(self, error: Exception) -> None:
        """End all that waits with an error, and wake the callers of `wait`."""
        while self.waiting:
            on_done = self.waiting.popleft().on_done
            if on_done is not None:
                on_done(error)
        self.wake(None)

    async def wait(self) -> None:
        """Wait until what has been appended so far is durable, or never will be."""
        if self.waiting:
            passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append((self.waiting[-1].end_position, passed))
            await asyncio.wait([passed])

    def wake(self, position: int | None) -> None:
        """Wake the callers of `wait` for whom the log is durable up to `position`; None: all."""
        barriers = self._barriers
        while barriers and (position is None or barriers[0][0] <= position):
            barriers.popleft()[1].set_result(None)
