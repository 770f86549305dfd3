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

A store that answers nobody must not stop consumers that read what is in memory. So when reading the
log has failed, one thing more is taken for a proof: every other registered node has answered since
the attempt began, and none of them knows more than this one. Then only a node that none of them
knows, and that reaches the store alone, could have fenced this one. Who slept has no such excuse: a
successor may have been started meanwhile, so the log itself, or who has read it, must speak first.
"""

import asyncio
from collections.abc import Callable

from lakehead.storage.clock import Clock
from lakehead.storage.errors import StorageError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.tasks import TaskScope

REQUEST_TIMEOUT_S = 1.0
"""A read waits this long for the metadata; then the other nodes have the word, or it is refused."""


class Session:
    """The proofs of one node. `is_unfenced` is what its own state says of it; `is_unanimous(since)`
    whether every other registered node has answered since then and knows no more than this one.
    """

    def __init__(
        self,
        metadata: MetadataLog,
        clock: Clock,
        scope: TaskScope,
        *,
        session_s: float,
        is_unfenced: Callable[[], bool],
        is_unanimous: Callable[[float], bool],
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._scope = scope
        self._session_s = session_s
        self.is_first = True
        """Whether this node is the one that reads the log before the others do."""
        self._is_unfenced = is_unfenced
        self._is_unanimous = is_unanimous
        self._told_at = float("-inf")
        self._told_state_at = float("-inf")
        self._slept_at = float("-inf")
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

    def note_sleep(self) -> None:
        """Take note that this node has slept until now, long enough to be fenced for it."""
        self._slept_at = self._clock.monotonic()

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
        if not self.is_current():
            await asyncio.shield(self._renew())
        return self.is_current()

    def _renew(self) -> asyncio.Task[None]:
        if self._renewal is None or self._renewal.done():
            self._renewal = self._scope.spawn(
                self._ask(), name="renew the session", is_awaited=True
            )
        return self._renewal

    async def _ask(self) -> None:
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._metadata.refresh(surely=True)
        except (TimeoutError, StorageError):
            if self._is_unanimous(began) and self.proven_at >= self._slept_at:
                self._told_at = max(self._told_at, began)
