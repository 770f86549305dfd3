"""Puts one object of a log under its number, for as long as it takes to know what became of it.

A put that is overdue is raced by a second try of the same bytes on another connection (see
`hedging`), and by a look for the object, since it may be the response alone that is late. The put
ends with the first of them that finds the object there by this writer's hand. The others go on, so
that their outcome is known too: an object is not deleted before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import (
    CorruptObject,
    Fenced,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StoreThrottled,
    StoreUnavailable,
    WalFailed,
)
from lakehead.storage.event_logger import event_logger
from lakehead.storage.format.object_writer import WrittenObject
from lakehead.storage.format.stream_object import ObjectIndex
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.wal.object.batching import Batching
from lakehead.storage.wal.object.hedging import Hedging, RacedPut
from lakehead.storage.wal.object.names import Seal
from lakehead.storage.wal.object.seal import read_wal_object
from lakehead.storage.wal.object.settings import ObjectWalSettings, ObjectWalStats
from lakehead.storage.wal.protocol import WalOwner

_log = event_logger("storage.wal")

_RETRY_S = 0.02
_RETRY_MAX_S = 2.0
_SLOWEST_BYTES_PER_S = 1_000_000
_TIMEOUT_MAX_S = 120.0
_TRIES_PER_WARNING = 10
_CLOSE_S = 5.0
_SPOILT_MAX = 6
"""Reads of an object that has a number of this log, of which none is right, before the log ends."""

Try = asyncio.Task[float | None]
"""A try on its way: its result is the seconds that it took, None if it has not succeeded."""


class Putter:
    """The put rule of one writer. `owner.incarnation` marks its objects as its own. `delete` is
    given the keys of which the last try has ended, of those that `deletable` kept back.
    """

    def __init__(
        self,
        store: ObjectStore,
        owner: WalOwner,
        batching: Batching,
        settings: ObjectWalSettings,
        stats: ObjectWalStats,
        delete: Callable[[Iterable[str]], None],
    ) -> None:
        self._store = store
        self._owner = owner
        self._batching = batching
        self._hedging = Hedging(settings.hedging)
        self._settings = settings
        self._stats = stats
        self._delete = delete
        self._late: dict[str, set[Try]] = {}  # by key: tries that have lost
        self._kept: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._is_stopped = False

    def stop(self) -> None:
        """Repeat no put any more: the log has failed."""
        self._is_stopped = True

    def deletable(self, keys: Iterable[str]) -> list[str]:
        """Return the keys that no try is on its way to. The others are deleted after its end: a
        try that arrived later would make the object again.
        """
        found = []
        for key in keys:
            if key in self._late:
                self._kept.add(key)
            else:
                found.append(key)
        return found

    async def close(self) -> None:
        """Give late tries a few seconds."""
        if self._late:
            await asyncio.wait(set().union(*self._late.values()), timeout=_CLOSE_S)

    async def put(self, key: str, written: WrittenObject) -> float:
        """Return once the object exists by our hand: the seconds that the try took which found so.

        Raises Fenced (the number is another's, or has a seal), CorruptObject, WalFailed
        (stopped before the outcome was known).
        """
        tries, backoff = 0, self._backoff()
        while not self._is_stopped:
            if tries == 0:
                latency_s = await self._put_first(key, written)
            else:
                latency_s = await self._try(key, written, tries)
            if latency_s is not None:
                return latency_s
            tries += 1
            self._stats.put_retries += 1
            self._batching.repeated()
            await backoff.wait()
        raise WalFailed(f"{key}: the log has stopped")

    async def _put_first(self, key: str, written: WrittenObject) -> float | None:
        """Try once, and once more beside it if that is overdue: see `_try`."""
        put = self._hedging.started(written.size)
        try:
            if not put.waits:
                return await self._first_try(key, written, put)
            spawn = self._owner.scope.spawn
            first = spawn(self._first_try(key, written, put), name=f"put {key}", is_awaited=True)
            for wait_s in put.waits:
                await asyncio.wait((first,), timeout=wait_s)
                if first.done() or self._hedging.overdue(self._loop.time(), put):
                    break
            if not put.is_raced:
                return await first
            self._stats.hedges += 1
            self._batching.repeated()
            second = spawn(
                self._try(key, written, 0, put), name=f"put {key} beside", is_awaited=True
            )
            look = spawn(self._look(key), name=f"look for {key}", is_awaited=True)
            return await self._race(key, put, (first, second, look))
        finally:
            self._hedging.settled(put)

    async def _race(self, key: str, put: RacedPut, tries: tuple[Try, ...]) -> float | None:
        """Return what the first try that succeeds returns; None: none has."""
        running = set(tries)
        latency_s: float | None = None
        try:
            while running and latency_s is None:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in tries:
                    if task in done and latency_s is None:
                        latency_s = task.result()
                        self._stats.hedges_won += latency_s is not None and task is not tries[0]
        finally:
            if not running:
                self._hedging.ended(put)
            for late in running:
                self._late.setdefault(key, set()).add(late)
                late.add_done_callback(lambda task: self._end_late(key, put, task))
        return latency_s

    def _end_late(self, key: str, put: RacedPut, task: Try) -> None:
        """Take note that a try has ended which has lost: its errors concern no put any more."""
        self._late[key].remove(task)
        if self._late[key]:
            return
        del self._late[key]
        self._hedging.ended(put)
        if key in self._kept and not task.cancelled():
            self._kept.remove(key)
            self._delete([key])

    async def _look(self, key: str) -> float | None:
        """Return the seconds until the object was found to exist by our hand: the slow try has put
        it, and its response is what is late. None: it is not there yet, or was spoilt on its way:
        then the tries know more. Raises Fenced.
        """
        began = self._loop.time()
        try:
            self._check_writer(key, await read_wal_object(self._store, key))
        except (ObjectNotFound, StoreUnavailable, CorruptObject):
            return None
        return self._loop.time() - began

    async def _first_try(self, key: str, written: WrittenObject, put: RacedPut) -> float | None:
        latency_s = await self._try(key, written, 0, put)
        if latency_s is not None:
            self._hedging.responded(put, latency_s)
        return latency_s

    async def _try(
        self, key: str, written: WrittenObject, tries: int, put: RacedPut | None = None
    ) -> float | None:
        """Return the seconds until the object was found to exist by our hand; None: it may have to
        be put again. Raises Fenced, CorruptObject.
        """
        began = self._loop.time()
        self._stats.puts += 1
        try:
            async with asyncio.timeout(self._timeout_s(written.size, tries)):
                await self._store.create(key, written.pieces)
            return self._loop.time() - began
        except ObjectExists:
            latency_s = self._loop.time() - began
            # Beside a try that has won it is ours. Else it may be gone since: a deleted object of
            # an ended epoch, or a listing's idea of existing.
            if (put is not None and put.is_settled) or await self._is_ours(key):
                return latency_s
        except (OutcomeUnknown, TimeoutError) as error:
            self._stats.put_unknown += 1
            self._warn(key, error, tries)
        except StoreUnavailable as error:
            if isinstance(error, StoreThrottled):
                self._batching.refused()
                self._hedging.refused(self._loop.time())
            self._warn(key, error, tries)
        return None

    def _backoff(self) -> Backoff:
        return Backoff(self._owner.rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)

    async def _is_ours(self, key: str) -> bool:
        """Return true if what has a number is this writer's own; False: nothing has it now. A read
        that is spoilt on its way is repeated a few times: the node would end by it.

        Raises Fenced, CorruptObject.
        """
        backoff, spoilt = self._backoff(), 0
        while True:
            try:
                self._check_writer(key, await read_wal_object(self._store, key))
                return True
            except ObjectNotFound:
                return False
            except StoreUnavailable as error:
                _log.warning("wal_read_back_failed", key=key, error=str(error))
            except CorruptObject as error:
                spoilt += 1
                if spoilt == _SPOILT_MAX:
                    raise
                _log.warning("wal_read_back_failed", key=key, error=str(error))
            await backoff.wait()

    def _check_writer(self, key: str, found: Seal | ObjectIndex) -> None:
        owner = self._owner
        if isinstance(found, Seal):
            raise Fenced(
                f"{key} was sealed by node {found.sealer_id}, incarnation {found.incarnation}"
            )
        writer = (found.cluster_id, found.node_id, found.writer_id)
        if writer != (owner.cluster_id, owner.node_id, owner.incarnation):
            raise Fenced(
                f"{key} was written by node {found.node_id} of cluster {found.cluster_id}, "
                f"incarnation {found.writer_id}"
            )

    def _timeout_s(self, size: int, tries: int) -> float:
        timeout_s = self._settings.put_timeout_s * (1 << min(tries, 10))
        return min(timeout_s, _TIMEOUT_MAX_S) + size / _SLOWEST_BYTES_PER_S

    def _warn(self, key: str, error: Exception, tries: int) -> None:
        if tries % _TRIES_PER_WARNING == 0:
            _log.warning("wal_put_repeated", key=key, error=repr(error), tries=tries + 1)
