"""Exponential backoff with jitter: the pauses between tries of a request that failed."""

import asyncio
import random


class Backoff:
    """The pauses of one series of tries, in seconds: the first about `first_s`, each twice as long
    as the one before, up to about `most_s`. Each is multiplied by a random factor from 0.5 to 1.5,
    so that nodes that failed together do not try again together.
    """

    __slots__ = ("_first_s", "_most_s", "_pause_s", "_rng")

    def __init__(self, rng: random.Random, *, first_s: float, most_s: float) -> None:
        self._rng = rng
        self._first_s = self._pause_s = first_s
        self._most_s = most_s

    def next_s(self) -> float:
        """Return the next pause."""
        pause_s = self._pause_s * (0.5 + self._rng.random())
        self._pause_s = min(self._pause_s * 2, self._most_s)
        return pause_s

    async def wait(self) -> None:
        """Sleep for the next pause."""
        await asyncio.sleep(self.next_s())

    def at_least(self, pause_s: float) -> None:
        """Make the next pause about `pause_s` long, unless it is longer already."""
        self._pause_s = max(self._pause_s, pause_s)

    def reset(self) -> None:
        """Begin again with the first pause: a try succeeded."""
        self._pause_s = self._first_s
