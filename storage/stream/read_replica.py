"""Streams that other nodes have open, to be read here.

Storage is shared: every node can read what is in committed objects. Newer batches are in the log of
the owner alone: a node copies them into a tail here, as far as there is room, and keeps them until
they are committed.
"""

from bisect import bisect_right
from typing import NoReturn

from lakehead.storage.errors import StreamClosed
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.stream.log_cache import BATCH_OVERHEAD, CachedBatch
from lakehead.storage.stream.reader import ColdReader
from lakehead.storage.stream.stream import OnDone, Stream


class TailCache:
    """The tails of streams, each contiguous. `capacity` in bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._tails: dict[int, list[CachedBatch]] = {}

    @property
    def has_room(self) -> bool:
        """Return true if more may be copied."""
        return self.size < self.capacity

    def add(self, stream_id: int, batch: CachedBatch) -> None:
        """Add the next batch of a stream. It continues the tail, or the committed objects."""
        self._tails.setdefault(stream_id, []).append(batch)
        self.size += _charge(batch)

    def fetch(self, stream_id: int, offset: int, max_bytes: int) -> list[memoryview] | None:
        """See `LogCache.fetch`."""
        tail = self._tails.get(stream_id, [])
        first = bisect_right(tail, offset, key=lambda batch: batch.base_offset) - 1
        if first < 0:
            return None
        found: list[memoryview] = []
        for batch in tail[first:]:
            max_bytes -= len(batch.payload)
            if max_bytes < 0 and found:
                break
            found.append(batch.payload)
        return found

    def batches_from(self, stream_id: int, offset: int) -> list[CachedBatch]:  # noqa: ARG002
        """Return nothing: a partition's state takes the batches of its tail one by one."""
        return []

    def committed(self, stream_id: int, end_offset: int) -> None:
        """Drop what lies below an offset: committed objects hold it."""
        tail = self._tails.get(stream_id, [])
        count = bisect_right(tail, end_offset, key=lambda batch: batch.end_offset)
        self.size -= sum(map(_charge, tail[:count]))
        del tail[:count]
        if not tail:
            self._tails.pop(stream_id, None)

    def forget(self, stream_id: int) -> None:
        """Drop the tail of a stream."""
        self.size -= sum(map(_charge, self._tails.pop(stream_id, ())))


def _charge(batch: CachedBatch) -> int:
    return len(batch.payload) + BATCH_OVERHEAD


class ReadReplicaServices:
    """The services for streams that are only read here (`stream.StreamServices`)."""

    def __init__(self, cache: TailCache, reader: ColdReader, metadata: MetadataLog) -> None:
        self.cache = cache
        self.reader = reader
        self.metadata = metadata

    def append(
        self,
        stream: Stream,
        payload: memoryview,  # noqa: ARG002
        count: int,  # noqa: ARG002
        max_timestamp: int,  # noqa: ARG002
        on_done: OnDone | None,  # noqa: ARG002
    ) -> NoReturn:
        """Raise StreamClosed: only the owner of a stream appends."""
        raise StreamClosed(f"stream {stream.stream_id} is not open here")

    def broke_off(self, error: BaseException) -> None:
        """Do nothing: nothing is appended here."""

    async def upload_now(self) -> None:
        """Do nothing: the owner of a stream uploads it."""

    def stream(self, stream_id: int) -> Stream:
        """Return a stream up to the end of its committed objects. Raises EntryRejected without such
        a stream.
        """
        return Stream(self, self.metadata.state.stream(stream_id))
