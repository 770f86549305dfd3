"""Fair shares of a pool of memory, by dynamic thresholds (Choudhury and Hahne, 1998: *Dynamic queue
length thresholds for shared-memory packet switches*): a client that holds as much as is free waits
until it holds less. So one that gives nothing back has half of the memory at most, two have a third
each, and something is free for the others.

A client is a principal at an address, with all of its connections.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from weakref import WeakValueDictionary

from lakehead.storage.memory_pool import MemoryPool


class ClientShare:
    """The part of one client."""

    __slots__ = ("__weakref__", "held", "waiting")

    def __init__(self) -> None:
        self.held = 0
        """Bytes that the client holds."""
        self.waiting: dict[float, deque[ShareWait]] = {}
        """Its requests that wait, by the fraction of the pool that they may use."""


class ShareWait:
    """A request that waits for `size` bytes of a `fraction` of the pool. `granted` is called once
    they are taken for it.
    """

    __slots__ = ("fraction", "granted", "holding", "share", "size")

    def __init__(
        self,
        share: ClientShare,
        fraction: float,
        holding: "Holding",
        size: int,
        granted: Callable[[], None],
    ) -> None:
        self.share = share
        self.fraction = fraction
        self.holding = holding
        self.size = size
        self.granted = granted


class MemoryShares:
    """The shares of a pool. Some requests may use only a fraction of it: the rest is for others,
    which do not wait behind them.
    """

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool
        self._shares: WeakValueDictionary[tuple[str, str], ClientShare] = WeakValueDictionary()
        self.clients_waiting: dict[ClientShare, None] = {}
        """Clients with requests that wait, in the order of their turns."""
        self._is_wake_due = False
        pool.add_waiters(self)

    def of(self, principal: str, host: str) -> ClientShare:
        """Return the share of a client."""
        share = self._shares.get((principal, host))
        if share is None:
            share = self._shares[principal, host] = ClientShare()
        return share

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return sum(len(queue) for share in self.clients_waiting for queue in share.waiting.values())

    def admit(
        self, holding: "Holding", size: int, granted: Callable[[], None], fraction: float = 1.0
    ) -> ShareWait | None:
        """Take `size` bytes for a request of a client, of this fraction of the pool: None. Or else
        return what waits for them; `granted` is called when they are taken.
        """
        free = self._free(fraction)
        if (
            self.pool.used < free and not self.clients_waiting
        ):  # no client can hold more than is free
            holding.take(size)
            return None
        share = holding.share
        if fraction not in share.waiting and share.held < free:
            holding.take(size)
            return None
        wait = ShareWait(share, fraction, holding, size, granted)
        share.waiting.setdefault(fraction, deque()).append(wait)
        self.clients_waiting[share] = None
        self.pool.waits_total += 1
        return wait

    def leave(self, wait: ShareWait) -> None:
        """Wait no more. Nothing was taken."""
        share = wait.share
        queue = share.waiting[wait.fraction]
        queue.remove(wait)
        if not queue:
            del share.waiting[wait.fraction]
        if not share.waiting:
            del self.clients_waiting[share]

    def freed(self) -> None:
        """Let requests that wait take what was given back: soon, not within this call."""
        if self.clients_waiting and not self._is_wake_due:
            self._is_wake_due = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _free(self, fraction: float) -> float:
        return self.pool.capacity * fraction - self.pool.used

    def _wake(self) -> None:
        """Let one request of each client in whose turn it is: what it holds then is seen next."""
        self._is_wake_due = False
        is_granted = False
        for share in list(self.clients_waiting):
            for fraction in sorted(share.waiting, reverse=True):
                if share.held < self._free(fraction):
                    wait = share.waiting[fraction][0]
                    self.leave(wait)
                    if share.waiting:  # behind the others
                        del self.clients_waiting[share]
                        self.clients_waiting[share] = None
                    is_granted = True
                    wait.holding.take(wait.size)
                    wait.granted()
                    break
        if is_granted:
            self.freed()


class Holding:
    """The bytes that one connection holds of its client's share. `client` returns the principal,
    which may authenticate meanwhile, and the address.
    """

    __slots__ = ("_client", "_held", "_share", "_shares")

    def __init__(self, shares: MemoryShares, client: Callable[[], tuple[str, str]]) -> None:
        self._shares = shares
        self._client = client
        self._held = 0
        self._share: ClientShare | None = None

    @property
    def share(self) -> ClientShare:
        """The share of the client: as it was when the connection began to hold something."""
        if self._share is None or not self._held:
            self._share = self._shares.of(*self._client())
        return self._share

    def end(self) -> None:
        """Forget the client of a lost connection. Bytes that it holds may be given back."""
        self._client = _no_client

    def take(self, size: int) -> None:
        """Take bytes of the pool."""
        if size:
            self._shares.pool.take(size)
            self.note(size)

    def give_back(self, size: int) -> None:
        """Return bytes to the pool."""
        if size:
            self.note(-size)
            self._shares.pool.give_back(size)

    def note(self, size: int) -> None:
        """Count bytes, for which the pool is charged elsewhere, as held; negative ones no more."""
        share = self.share
        self._held += size
        share.held += size
        assert self._held >= 0, "more was given back than held"
        if size < 0:  # the pool may have nothing back yet, and the client's turn has come
            self._shares.freed()


def _no_client() -> tuple[str, str]:
    return "", ""
