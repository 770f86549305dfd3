"""Reads from the object store, shared by the requests that want the same."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter, itemgetter

from lakehead.storage.errors import StorageError
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope

_BUFFER_MAX = 8
"""The batches of a read keep at most this many times their bytes in memory, of each buffer that
brought them.
"""

_BUFFER, _BATCH = attrgetter("obj"), itemgetter(1)

Found = Sequence[memoryview] | StorageError


class ColdReads:
    """Reads at work, by stream and offset. A read goes on when its request has stopped waiting:
    what it brings is in the block cache for the next one.
    """

    def __init__(self, scope: TaskScope) -> None:
        self._scope = scope
        self._tasks: dict[tuple[int, int], asyncio.Task[Found]] = {}
        self._uploads: dict[tuple[int, int], asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, stream: Stream, offset: int, max_bytes: int) -> asyncio.Task[Found]:
        """Return the task that reads from `offset`: one that runs, or a new one."""
        place = (stream.stream_id, offset)
        task = self._tasks.get(place)
        if task is None:
            task = self._scope.spawn_apart(
                _read(stream, offset, max_bytes), name=f"cold read of stream {stream.stream_id}"
            )
            self._tasks[place] = task
            task.add_done_callback(lambda _: self._tasks.pop(place, None))
        return task

    def upload_of(self, stream: Stream, offset: int) -> asyncio.Task[None] | None:
        """Return the task that waits for the upload of the record at an offset, if it lies in an
        inherited tail; None: `start` can read it. There is one for each tail: clients decide at how
        many offsets they fetch. Raises StreamClosed.
        """
        start = stream.tail_start(offset)
        if start is None:
            return None
        place = (stream.stream_id, start)
        task = self._uploads.get(place)
        if task is None:
            task = self._scope.spawn_apart(
                _wait_uploaded(stream, start), name=f"wait for stream {stream.stream_id}"
            )
            self._uploads[place] = task
            task.add_done_callback(lambda _: self._uploads.pop(place, None))
        return task


class UploadWaits:
    """The uploads that a request waits for; `wake` is called at the end of each."""

    def __init__(self, reads: ColdReads, wake: Callable[[], None]) -> None:
        self._reads = reads
        self._wake = wake
        self._tasks: set[asyncio.Task[None]] = set()

    def is_due(self, stream: Stream, offset: int) -> bool:
        """Return true if the record at an offset is not uploaded yet, and wait for that. Raises
        StreamClosed.
        """
        task = self._reads.upload_of(stream, offset)
        if task is not None and task not in self._tasks:
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        return task is not None

    def close(self) -> None:
        """Wait no more."""
        for task in self._tasks:
            task.remove_done_callback(self._ended)
        self._tasks.clear()

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._wake()


async def _wait_uploaded(stream: Stream, offset: int) -> None:
    with suppress(StorageError):  # the stream was closed, which the request finds out itself
        await stream.wait_uploaded(offset)


async def _read(stream: Stream, offset: int, max_bytes: int) -> Found:
    try:
        return spared(await stream.fetch(offset, max_bytes))
    except StorageError as error:
        return error


def spared(batches: Sequence[memoryview]) -> Sequence[memoryview]:
    """Return batches, as copies where they would keep a much larger buffer from being freed."""
    ids = list(map(id, map(_BUFFER, batches)))
    if len(set(ids)) <= 1:  # almost always
        return _whole(batches)
    found: list[memoryview] = []
    for _, group in groupby(zip(ids, batches, strict=True), itemgetter(0)):
        found += _whole(list(map(_BATCH, group)))
    return found


def _whole(batches: Sequence[memoryview]) -> Sequence[memoryview]:
    """Return batches of one buffer, as copies if they are a small part of it."""
    if batches and memoryview(batches[0].obj).nbytes > _BUFFER_MAX * sum(map(len, batches)):
        return [memoryview(bytes(batch)) for batch in batches]
    return batches
