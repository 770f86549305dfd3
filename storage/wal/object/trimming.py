"""Deletes trimmed objects in the background: nobody waits, and what is lost the sweep finds."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from itertools import islice

import structlog

from lakehead.storage.errors import StorageError
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.tasks import TaskScope

_log = structlog.get_logger("storage.wal")

_BATCH = 500
_WAITING_MAX = 100_000
_RETRY_S = 0.1
_RETRY_MAX_S = 10.0
_CLOSE_S = 5.0


class Deleter:
    """A queue of keys to delete, bounded: the oldest are forgotten if a store refuses for long."""

    def __init__(self, store: ObjectStore, scope: TaskScope, rng: random.Random) -> None:
        self._store = store
        self._scope = scope
        self._rng = rng
        self._keys: deque[str] = deque(maxlen=_WAITING_MAX)
        self._task: asyncio.Task[None] | None = None

    def add(self, keys: Iterable[str]) -> None:
        """Delete these, some time."""
        self._keys.extend(keys)
        if self._keys and (self._task is None or self._task.done()):
            self._task = self._scope.spawn_apart(self._run(), name="delete trimmed WAL objects")

    async def close(self) -> None:
        """Give what waits a few seconds."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_CLOSE_S)

    async def _run(self) -> None:
        pause = _RETRY_S
        while self._keys:
            batch = list(islice(self._keys, _BATCH))
            try:
                await self._store.delete(batch)
            except StorageError as error:
                _log.warning("wal_delete_failed", objects=len(batch), error=str(error))
                await asyncio.sleep(pause * (0.5 + self._rng.random()))
                pause = min(2 * pause, _RETRY_MAX_S)
                continue
            pause = _RETRY_S
            for key in batch:  # some may have been forgotten meanwhile
                if self._keys and self._keys[0] == key:
                    self._keys.popleft()
