"""How fast uploads go: at twice the rate at which data comes in, so that they are a steady stream
beside the foreground and not a burst that it has to wait out; faster as memory and WAL fill up, and
without limit before producers would have to wait.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakehead.storage.clock import Clock

_HEADROOM = 2.0
_RATE_MIN = 32 * 1024 * 1024
"""Bytes per second: what an idle node does with what is left."""
_SAMPLE_S = 0.5
_WEIGHT = 0.3
_FILL_CALM = 0.5
_FILL_FULL = 0.75
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.001, 0.1


class UploadPace:
    """`produced()` tells the bytes that have come in since the start; `fill()` how full memory and
    WAL are, 1 being where producers wait.
    """

    def __init__(
        self, clock: Clock, *, produced: Callable[[], int], fill: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._produced = produced
        self._fill = fill
        self._rate = 0.0
        self._sampled_at = self._paid_at = clock.monotonic()
        self._sampled = produced()
        self._debt = 0.0
        self._hurries = 0

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """While somebody waits for the uploads: no limit."""
        self._hurries += 1
        try:
            yield
        finally:
            self._hurries -= 1

    def rate(self) -> float:
        """Return the bytes per second that may be uploaded now; infinity without a limit."""
        now = self._clock.monotonic()
        elapsed = now - self._sampled_at
        if elapsed >= _SAMPLE_S:
            produced = self._produced()
            weight = 1 - (1 - _WEIGHT) ** (elapsed / _SAMPLE_S)
            self._rate += weight * ((produced - self._sampled) / elapsed - self._rate)
            self._sampled, self._sampled_at = produced, now
        fill = self._fill()
        if self._hurries or fill >= _FILL_FULL:
            return float("inf")
        hurry = max(0.0, fill - _FILL_CALM) / (_FILL_FULL - fill)
        return max(_RATE_MIN, self._rate * _HEADROOM) * (1 + hurry)

    async def spend(self, size: int) -> None:
        """Wait until what was sent before has been paid for, then take `size` bytes."""
        while True:
            rate, now = self.rate(), self._clock.monotonic()
            self._debt = max(0.0, self._debt - min(rate, 1e15) * (now - self._paid_at))
            self._paid_at = now
            if rate == float("inf"):
                self._debt = 0.0
            if self._debt < 1:
                self._debt = float(size)
                return
            await asyncio.sleep(max(_PAUSE_MIN_S, min(self._debt / rate, _PAUSE_MAX_S)))
