"""Reads objects from code that is not asynchronous: Spark's workers, scans, jobs.

The store lives on an event loop in a thread of its own, made at the first use in each process: a
forked worker makes its own and never touches its parent's (which would hang).
"""

import asyncio
import atexit
import os
import random
import threading
import time
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from lakehead.lake.catalog import Catalog
from lakehead.lake.planner import ByteRange
from lakehead.storage.encryption.settings import EncryptionSettings, of_environment
from lakehead.storage.errors import ObjectNotFound
from lakehead.storage.format.stream_object import ObjectIndex, read_index
from lakehead.storage.object_store import Buffer, ObjectStore, open_retrying_store
from lakehead.storage.tasks import for_each

T = TypeVar("T")

FETCH_BYTES = 8 * 1024 * 1024
_FETCHES_AHEAD = 3
_INDEXES_AT_ONCE = 32
_END_S = 5.0
_GIL_S = 0.02
"""About four turns of the interpreter's lock."""


class Fetched(NamedTuple):
    """Whole index items: `data` lies at `position` of its range's object. `items` are their sizes
    and checksums, which the decoder checks.
    """

    range: ByteRange
    position: int
    data: Buffer
    items: tuple[tuple[int, int], ...]


class ObjectReader(Protocol):
    """The part of `StoreReader` that plans and decoders use."""

    def open_catalog(self) -> Catalog:
        """See `StoreReader.open_catalog`."""

    def read_indexes(self, keys: Sequence[str]) -> dict[str, ObjectIndex]:
        """See `StoreReader.read_indexes`."""

    def read(self, ranges: Sequence[ByteRange]) -> Iterator[Fetched]:
        """See `StoreReader.read`."""


class StoreReader:
    """One store, for blocking callers. Safe for use by several threads."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="store-reader", daemon=True)
        self._thread.start()
        atexit.register(self._end_with_process)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry out work with the store, on its loop, and return the result."""
        return self._submit(work).result()

    def open_catalog(self) -> Catalog:
        """Return the newest snapshot of the metadata. Raises as `Catalog.open`."""
        return self.run(Catalog.open(self.store))

    def read_indexes(self, keys: Sequence[str]) -> dict[str, ObjectIndex]:
        """Return the indexes of objects, read side by side; an object that is gone is left out."""
        return self.run(self._read_indexes(keys))

    def read(self, ranges: Sequence[ByteRange]) -> Iterator[Fetched]:
        """Yield the bytes of `ranges` in order, in pieces of about `FETCH_BYTES`.

        The next few pieces are fetched while the caller works on one, so what is in memory is
        bounded. Raises CorruptObject, ObjectNotFound, StoreUnavailable.
        """
        # Only what reads records needs Arrow: planners start quicker without.
        import numpy as np

        from lakehead.lake.decode.memory import empty

        waiting: deque[tuple[_Piece, memoryview, Future[None]]] = deque()
        pieces = _pieces(ranges)
        try:
            while True:
                while len(waiting) <= _FETCHES_AHEAD and (piece := next(pieces, None)):
                    data = empty(piece.length, np.uint8).data
                    work = self.store.get_range_into(piece.range.key, piece.position, data)
                    waiting.append((piece, data, self._submit(work)))
                if not waiting:
                    return
                piece, data, future = waiting.popleft()
                future.result()
                yield Fetched(piece.range, piece.position, data, piece.items)
        finally:
            for _, _, future in waiting:
                future.cancel()

    def end(self) -> None:
        """End the thread; the store stays open, it is its opener's."""
        atexit.unregister(self._end_with_process)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _end_with_process(self) -> None:
        """Wait until the threads of the store's library have finished with the loop: a callback
        while the interpreter shuts down aborts the process and loses its exit status.
        """
        self.end()
        self._thread.join(_END_S)
        time.sleep(_GIL_S)

    def _run(self) -> None:
        self._loop.run_forever()
        if left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _read_indexes(self, keys: Sequence[str]) -> dict[str, ObjectIndex]:
        found: dict[str, ObjectIndex] = {}

        async def read(key: str) -> None:
            with suppress(ObjectNotFound):
                found[key] = await read_index(self.store, key)

        await for_each(keys, read, at_once=_INDEXES_AT_ONCE)
        return found


class _Readers:
    """The readers of this process, by path and the environment's settings of encryption."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[str, EncryptionSettings], StoreReader] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def of(self, path: str) -> StoreReader:
        place = path, of_environment()
        with self._lock:
            if place not in self._by_place:
                self._by_place[place] = StoreReader(open_retrying_store(path, rng=random.Random()))
            return self._by_place[place]

    def _forget(self) -> None:
        """In a forked child: the parent's threads are not here, and it may have held the lock."""
        self._by_place = {}
        self._lock = threading.Lock()


_readers = _Readers()


def store_reader(path: str | ObjectStore) -> StoreReader:
    """Return this process's reader of the store at `path`, made at the first use.

    Raises SettingsError for a URI that names no store.
    """
    return _readers.of(path) if isinstance(path, str) else StoreReader(path)


class _Piece(NamedTuple):
    range: ByteRange
    position: int
    length: int
    items: tuple[tuple[int, int], ...]


def _pieces(ranges: Sequence[ByteRange]) -> Iterator[_Piece]:
    """Cut ranges at items into pieces of at most `FETCH_BYTES`, or of one item."""
    for range_ in ranges:
        position, length, first = range_.position, 0, 0
        for number, (size, _) in enumerate(range_.items):
            if length and length + size > FETCH_BYTES:
                yield _Piece(range_, position, length, range_.items[first:number])
                position, length, first = position + length, 0, number
            length += size
        if length:
            yield _Piece(range_, position, length, range_.items[first:])
