"""A bounded amount of memory that requests share, as Kafka's MemoryPool is (KIP-72).

A taker is let in while less than the capacity is used, whatever its own size: so the pool may be
exceeded by one of them, and one that is larger than the whole pool gets its turn, alone. A taker
never waits for one pool while it holds a part of the same one, so a wait always ends.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol


class PoolWait:
    """A taker that waits for its turn. `granted` is called once the memory is taken for it."""

    __slots__ = ("granted", "share", "size")

    def __init__(self, size: int, share: float, granted: Callable[[], None]) -> None:
        self.size = size
        self.share = share
        self.granted = granted


class Waiters(Protocol):
    """Requests that wait for memory of a pool by an order of their own."""

    @property
    def waiting(self) -> int:
        """Their number."""

    def freed(self) -> None:
        """Take note that bytes were given back."""


class MemoryPool:
    """`capacity` bytes. A taker with a `share` below 1 is let in while less than that share of the
    capacity is used: the rest is kept for others. Among those that wait, a larger share goes first,
    then the one that has waited longest.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.waits_total = 0
        self._others: list[Waiters] = []
        self._queues: dict[float, deque[PoolWait]] = {}
        self._is_wake_due = False

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        others = sum(one.waiting for one in self._others)
        return sum(map(len, self._queues.values())) + others

    def add_waiters(self, others: "Waiters") -> None:
        """Have requests that wait by another order counted, and called when bytes are free."""
        self._others.append(others)

    def has_room(self, share: float = 1.0) -> bool:
        """Return true if a taker with this share would be let in at once."""
        if self.used >= self.capacity * share:
            return False
        return not self._queues or all(kept < share for kept in self._queues)

    def try_take(self, size: int, share: float = 1.0) -> bool:
        """Take `size` bytes if there is room."""
        if not self.has_room(share):
            return False
        self.used += size
        return True

    def take(self, size: int) -> None:
        """Take `size` bytes, room or not: of what is there already, or cannot wait."""
        self.used += size

    def give_back(self, size: int) -> None:
        """Return what was taken. Those that wait are let in soon, not within this call."""
        self.used -= size
        assert self.used >= 0, "more was given back than taken"
        if size:
            if self._queues:
                self._wake_soon()
            for one in self._others:
                one.freed()

    def wait(self, size: int, share: float, granted: Callable[[], None]) -> PoolWait:
        """Have `size` bytes taken, and `granted` called, when there is room; `leave` ends that."""
        found = PoolWait(size, share, granted)
        self.waits_total += 1
        self._queues.setdefault(share, deque()).append(found)
        return found

    def leave(self, wait: PoolWait) -> None:
        """Wait no more. Nothing was taken."""
        queue = self._queues[wait.share]
        queue.remove(wait)
        if not queue:
            del self._queues[wait.share]

    async def acquire(self, size: int, share: float = 1.0) -> None:
        """Take `size` bytes as soon as there is room; one that is cancelled takes nothing."""
        if self.try_take(size, share):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def granted() -> None:
            if turn.cancelled():
                self.give_back(size)
            else:
                turn.set_result(None)

        wait = self.wait(size, share, granted)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give_back(size)  # its turn had come already
            elif wait in self._queues.get(share, ()):
                self.leave(wait)
            raise

    def borrowed(self, size: int, share: float = 1.0) -> "Borrowed":
        """Hold `size` bytes for the block of an `async with`, once there is room."""
        return Borrowed(self, size, share)

    def _wake(self) -> None:
        """Let in those that wait now; those that come meanwhile have the next turn."""
        self._is_wake_due = False
        for share in sorted(self._queues, reverse=True):
            queue = self._queues.get(share)
            for _ in range(len(queue or ())):
                if not queue or self.used >= self.capacity * share:
                    break
                wait = queue.popleft()
                if not queue:
                    del self._queues[share]
                self.used += wait.size
                wait.granted()
        if any(self.used < self.capacity * share for share in self._queues):
            self._wake_soon()

    def _wake_soon(self) -> None:
        if not self._is_wake_due:
            self._is_wake_due = True
            asyncio.get_running_loop().call_soon(self._wake)


class Borrowed:
    """Memory of a pool for the block of an `async with`; see `MemoryPool.borrowed`."""

    __slots__ = ("_pool", "_share", "_size")

    def __init__(self, pool: MemoryPool, size: int, share: float) -> None:
        self._pool = pool
        self._size = size
        self._share = share

    async def __aenter__(self) -> None:
        await self._pool.acquire(self._size, self._share)

    async def __aexit__(self, *_: object) -> None:
        self._pool.give_back(self._size)
