"""Lines from a process, each awaited for a bounded time."""

import os
import select

from lakehead.storage.clock import Clock


class Answers:
    """Reads lines of a pipe."""

    def __init__(self, descriptor: int, clock: Clock) -> None:
        self._descriptor = descriptor
        self._clock = clock
        self._read = b""
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN | select.POLLHUP)

    def line(self, timeout_s: float) -> str | None:
        """Return the next line, None at the end. Raises TimeoutError."""
        until = self._clock.monotonic() + timeout_s
        while b"\n" not in self._read:
            left_ms = (until - self._clock.monotonic()) * 1000
            if left_ms <= 0 or not self._poll.poll(left_ms):
                raise TimeoutError
            more = os.read(self._descriptor, 1 << 16)
            if not more:
                return None
            self._read += more
        line, self._read = self._read.split(b"\n", 1)
        return line.decode(errors="replace")
