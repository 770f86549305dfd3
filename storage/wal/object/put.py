"""Puts one object of a log under its number, for as long as it takes to know what became of it."""

from __future__ import annotations

import asyncio

import structlog

from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import (
    Fenced,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StoreThrottled,
    StoreUnavailable,
    WalFailed,
)
from lakehead.storage.format.object_writer import WrittenObject
from lakehead.storage.format.stream_object import ObjectIndex
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.wal.object.batching import Batching
from lakehead.storage.wal.object.names import Seal
from lakehead.storage.wal.object.seal import read_wal_object
from lakehead.storage.wal.object.settings import ObjectWalSettings, ObjectWalStats
from lakehead.storage.wal.protocol import WalOwner

_log = structlog.get_logger("storage.wal")

_RETRY_S = 0.02
_RETRY_MAX_S = 2.0
_SLOWEST_BYTES_PER_S = 1_000_000
_TIMEOUT_MAX_S = 120.0
_TRIES_PER_WARNING = 10


class Putter:
    """The put rule of one writer. `owner.incarnation` marks its objects as its own."""

    def __init__(
        self,
        store: ObjectStore,
        owner: WalOwner,
        batching: Batching,
        settings: ObjectWalSettings,
        stats: ObjectWalStats,
    ) -> None:
        self._store = store
        self._owner = owner
        self._batching = batching
        self._settings = settings
        self._stats = stats
        self._is_stopped = False

    def stop(self) -> None:
        """Repeat no put any more: the log has failed."""
        self._is_stopped = True

    async def put(self, key: str, written: WrittenObject) -> float:
        """Return once the object exists by our hand: the seconds that its last put took.

        Raises Fenced (the number is another's, or has a seal), CorruptObject, WalFailed
        (stopped before the outcome was known).
        """
        loop = asyncio.get_running_loop()
        tries, backoff = 0, self._backoff()
        while not self._is_stopped:
            began = loop.time()
            self._stats.puts += 1
            try:
                async with asyncio.timeout(self._timeout_s(written.size, tries)):
                    await self._store.create(key, written.pieces)
                return loop.time() - began
            except ObjectExists:
                if await self._is_ours(key):
                    return loop.time() - began
                # gone since: a deleted object of an ended epoch, or a listing's idea of existing
            except (OutcomeUnknown, TimeoutError) as error:
                self._stats.put_unknown += 1
                self._warn(key, error, tries)
            except StoreUnavailable as error:
                if isinstance(error, StoreThrottled):
                    self._batching.refused()
                self._warn(key, error, tries)
            tries += 1
            self._stats.put_retries += 1
            self._batching.repeated()
            await backoff.wait()
        raise WalFailed(f"{key}: the log has stopped")

    def _backoff(self) -> Backoff:
        return Backoff(self._owner.rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)

    async def _is_ours(self, key: str) -> bool:
        """Return true if what has a number is this writer's own; False: nothing has it now.

        Raises Fenced, CorruptObject.
        """
        backoff = self._backoff()
        while True:
            try:
                self._check_writer(key, await read_wal_object(self._store, key))
                return True
            except ObjectNotFound:
                return False
            except StoreUnavailable as error:
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
