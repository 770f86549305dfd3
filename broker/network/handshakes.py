"""TLS handshakes that have begun and not ended, within their number, and within a share of the time
of the event loop. Addresses share both, so that a flood from some holds up no other.

A handshake either waits for its client's bytes, or has them and waits for the loop. Beyond the
number one is closed: of the address with the most handshakes, the one that has waited for its
client for longest, since an honest client needs a round trip. Addresses take turns in the loop.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

LOOP_SHARE = 1 / 4
"""Of the event loop's time, for handshakes."""


class Handshake(Protocol):
    """A connection whose handshake has begun: `network.tls.TlsSocket`."""

    @property
    def client_host(self) -> str:
        """The address of the client."""

    def take_step(self) -> None:
        """Go on with the handshake as far as the client's bytes go."""

    def abort(self) -> None:
        """Close at once."""


class Handshakes:
    """The handshakes of a node: `most` at a time. `now` returns seconds of a monotonic clock."""

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self.most = most
        self.begun_total: int = 0
        self.evicted_total: int = 0
        self._now = now
        self._begun: dict[Handshake, None] = {}
        """Those that wait for their client last, by the time since when."""
        self._by_host: Counter[str] = Counter()
        self._ready: dict[str, deque[Handshake]] = {}
        """Those that have the client's bytes, by address, in the order of turns."""
        self._free_at = now()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def begun(self) -> int:
        """The number of handshakes that have begun."""
        return len(self._begun)

    def begin(self, one: Handshake) -> None:
        """Take note of the first bytes of a handshake."""
        self.begun_total += 1
        if len(self._begun) >= self.most:
            self._evict()
        self._begun[one] = None
        self._by_host[one.client_host] += 1

    def end(self, one: Handshake) -> None:
        """Forget a handshake that has ended."""
        if one not in self._begun:
            return
        del self._begun[one]
        host = one.client_host
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        queue = self._ready.get(host)
        if queue is not None and one in queue:
            queue.remove(one)
            if not queue:
                del self._ready[host]

    def step(self, one: Handshake) -> None:
        """Take a step of a handshake: now, or when the loop has time for it."""
        if self._ready or self._now() < self._free_at:
            self._ready.setdefault(one.client_host, deque()).append(one)
            self._schedule()
        else:
            self._work(one)

    def _evict(self) -> None:
        """Close a handshake to make room."""
        self.evicted_total += 1
        host = max(self._by_host, key=self._by_host.__getitem__)
        ready = set(self._ready.get(host, ()))
        own = [one for one in self._begun if one.client_host == host]
        oldest = next((one for one in own if one not in ready), own[0])
        self.end(oldest)
        oldest.abort()

    def _work(self, one: Handshake) -> None:
        began = self._now()
        one.take_step()
        ended = self._now()
        self._free_at = ended + (ended - began) * (1 / LOOP_SHARE - 1)
        if one in self._begun:  # behind those that have waited for their clients for longer
            del self._begun[one]
            self._begun[one] = None

    def _schedule(self) -> None:
        if self._timer is None and self._ready:
            delay = max(0.0, self._free_at - self._now())
            self._timer = asyncio.get_running_loop().call_later(delay, self._next)

    def _next(self) -> None:
        self._timer = None
        if self._ready:
            host = next(iter(self._ready))
            queue = self._ready.pop(host)
            one = queue.popleft()
            if queue:
                self._ready[host] = queue  # behind the others
            self._work(one)
        self._schedule()
