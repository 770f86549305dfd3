"""The index cache: one GET for an object's index however many ask at once, none while it is kept.

Bounded in bytes, least recently used first to go; what is being read is not charged yet.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

import structlog

from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.object_writer import BLOCK_SIZE
from lakehead.storage.format.stream_object import SUFFIX_GUESS, ObjectIndex, read_index
from lakehead.storage.metadata.state import ClusterState
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.tasks import TaskScope

_log = structlog.get_logger("storage.reader")

# What extension and index of an object take at the most, as a rule, for a guess.
_MARGIN = 8 * 1024
_ITEM_BYTES = 50
_STREAM_BYTES = 300
_SUFFIX_MAX = 4 * 1024 * 1024


def suffix_size(state: ClusterState, key: str) -> int:
    """Guess how long extension and index of an object are, to get them with one read."""
    known = state.objects.get(key)
    if known is None:
        return SUFFIX_GUESS
    streams = len(known.stream_ids)
    items = known.size // BLOCK_SIZE + streams
    guess = _MARGIN + _ITEM_BYTES * items + _STREAM_BYTES * streams
    return max(SUFFIX_GUESS, min(guess, _SUFFIX_MAX))


class IndexCache:
    """Indexes by object key. `capacity` in bytes; the newest stays, however large it is.

    `suffix_size(key)` guesses how long an object's index is, so that one GET will do.
    """

    def __init__(
        self,
        store: ObjectStore,
        scope: TaskScope,
        *,
        capacity: int,
        suffix_size: Callable[[str], int],
    ) -> None:
        self.capacity = capacity
        self.size = 0
        self.reads = 0
        """Indexes read from the store."""
        self.corrupt = 0
        """Indexes that failed their checksums twice."""
        self._store = store
        self._scope = scope
        self._suffix_size = suffix_size
        self._indexes: OrderedDict[str, ObjectIndex] = OrderedDict()
        self._reading: dict[str, asyncio.Task[ObjectIndex]] = {}

    def get_cached(self, key: str) -> ObjectIndex | None:
        """Return an index if it is here."""
        index = self._indexes.get(key)
        if index is not None:
            self._indexes.move_to_end(key)
        return index

    async def get(self, key: str) -> ObjectIndex:
        """Return an object's index.

        Raises ObjectNotFound, StoreUnavailable, CorruptObject, UnsupportedFormat.
        """
        index = self.get_cached(key)
        if index is not None:
            return index
        # Shielded: another may wait for the same index when this one is cancelled.
        return await asyncio.shield(self._reading.get(key) or self._begin(key))

    def expect(self, key: str) -> None:
        """Begin to read an index that will be asked for soon."""
        if key not in self._indexes and key not in self._reading:
            self._begin(key)

    def _begin(self, key: str) -> asyncio.Task[ObjectIndex]:
        task = self._scope.spawn(self._read(key), name=f"index of {key}", is_awaited=True)
        self._reading[key] = task
        return task

    def drop(self, key: str) -> None:
        """Forget the index of an object that is gone."""
        index = self._indexes.pop(key, None)
        if index is not None:
            self.size -= index.memory

    async def _read(self, key: str) -> ObjectIndex:
        try:
            index = await self._read_twice(key)
        finally:
            del self._reading[key]
        self._indexes[key] = index
        self.size += index.memory
        while self.size > self.capacity and len(self._indexes) > 1:
            self.size -= self._indexes.popitem(last=False)[1].memory
        return index

    async def _read_twice(self, key: str) -> ObjectIndex:
        """Read an index; once more if it seems damaged: it may have been spoilt on its way."""
        suffix_size = self._suffix_size(key)
        self.reads += 1
        try:
            return await read_index(self._store, key, suffix_size)
        except CorruptObject:
            self.reads += 1
        try:
            return await read_index(self._store, key, suffix_size)
        except CorruptObject as error:
            self.corrupt += 1
            _log.error("index_corrupt", key=key, position=error.position)
            raise
