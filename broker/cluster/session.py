"""Whether this node may still answer reads as a leader.

A node that was fenced while it slept, or while it was cut off, must not go on telling consumers
what is the end of a log that another node writes by now. So reads ask for a proof that this node
was not fenced, as of some moment within `broker.session.timeout.ms`. Two things prove it: the
metadata log, read at that moment; and another node that had read the log by then and answers a
heartbeat. That one says how long ago it knew all there was to know, so whatever was true at its
moment is proven as of `sent - age`: the answer was made after the heartbeat had been sent. Only
durations of each node's monotonic clock count; no clock is compared with another's. What is proven
of this node passes on to others only if this node has every entry that the answering one had.

One fresh reader of the log is thus enough for a cluster: the first node reads when half of its
session is over, the others only if nothing was heard from it by three quarters. Nobody reads while
nobody fetches. Produce needs none of this: the write-ahead log fences.
"""

import asyncio
from collections.abc import Callable

from storage.clock import Clock
from storage.errors import StorageError
from storage.metadata.log import MetadataLog
from storage.tasks import TaskScope

REQUEST_TIMEOUT_S = 1.0
"""A read waits this long for the metadata; then it is refused, and the client asks again."""


class Session:
    """The proofs of one node. `is_unfenced` says what its own state says of it."""

    def __init__(
        self,
        metadata: MetadataLog,
        clock: Clock,
        scope: TaskScope,
        *,
        session_s: float,
        is_unfenced: Callable[[], bool],
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._scope = scope
        self._session_s = session_s
        self.is_first = True
        """Whether this node is the one that reads the log before the others do."""
        self._is_unfenced = is_unfenced
        self._told_at = float("-inf")
        self._told_state_at = float("-inf")
        self._renewal: asyncio.Task[None] | None = None

    @property
    def proven_at(self) -> float:
        """As of when (monotonic seconds) this node is known not to have been fenced."""
        return max(self._told_at, self._metadata.fresh_at)

    def note_answer(self, sent_at: float, fresh_ms: int | None, next_entry: int) -> None:
        """Take note that another node, of such freshness and with the metadata below `next_entry`,
        knows this one and not as fenced.
        """
        if fresh_ms is None:
            return
        told_at = sent_at - fresh_ms / 1000
        self._told_at = max(self._told_at, told_at)
        if next_entry <= self._metadata.state.next_entry:
            self._told_state_at = max(self._told_state_at, told_at)

    def state_age_ms(self) -> int | None:
        """Return how many milliseconds ago this node's state was all there was, to tell others."""
        age = self._clock.monotonic() - max(self._told_state_at, self._metadata.fresh_at)
        return None if age == float("inf") else int(age * 1000) + 1

    def is_current(self) -> bool:
        """Whether reads may be answered now. A renewal is begun well before the session ends, so
        that who reads all the time never waits for one.
        """
        age = self._clock.monotonic() - self.proven_at
        if age >= self._session_s * (0.5 if self.is_first else 0.75):
            self._renew()
        return age < self._session_s and self._is_unfenced()

    async def ensure(self) -> bool:
        """Return whether reads may be answered, after asking the metadata if need be."""
        if self.is_current():
            return True
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await asyncio.shield(self._renew())
        except (TimeoutError, StorageError):
            return False
        return self.is_current()

    def _renew(self) -> asyncio.Task[None]:
        if self._renewal is None or self._renewal.done():
            self._renewal = self._scope.spawn(
                self._refresh(), name="renew the session", is_awaited=True
            )
        return self._renewal

    async def _refresh(self) -> None:
        await self._metadata.refresh(surely=True)
