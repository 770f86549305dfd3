"""What has been appended and is not durable yet, in the order of the log, and who waits for it."""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from storage.stream.cache import CachedBatch
from storage.stream.stream import OnDone, Stream


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
        """Answer all that waits with an error, and wake whoever waits for it."""
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
        """Wake who waits for the log to be durable up to `position`; None: whoever waits."""
        barriers = self._barriers
        while barriers and (position is None or barriers[0][0] <= position):
            barriers.popleft()[1].set_result(None)
