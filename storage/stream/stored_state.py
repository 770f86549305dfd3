"""The state of a partition as objects have it: states that uploads took, and the batches since."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from lakehead.storage.errors import CorruptObject, OffsetOutOfRange
from lakehead.storage.format.producer_headers import StateBatch, parse_producer_headers, state_batch
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import HEADERS, TAIL
from lakehead.storage.metadata.state import ObjectState, StreamState
from lakehead.storage.metadata.table import Table
from lakehead.storage.stream.log_cache import CachedBatch
from lakehead.storage.stream.reader import INDEXES_AHEAD, ColdReader
from lakehead.storage.tasks import task_group

_REPLAY_BYTES = 1024 * 1024
_YIELD_HEADERS = 500
_STATES_AT_ONCE = 16


class StoredState(NamedTuple):
    """A partition's state in objects: of those that reach beyond `since`, the oldest first; true up
    to `end_offset`, which is below the start offset where it outlived the records. Without any
    `end_offset` is where to begin.
    """

    states: list[bytes]
    since: int
    end_offset: int


class BatchCache(Protocol):
    """The newest batches of streams, in memory: `LogCache`."""

    def fetch(self, stream_id: int, offset: int, max_bytes: int) -> list[memoryview] | None:
        """See `LogCache.fetch`."""

    def batches_from(self, stream_id: int, offset: int) -> list[CachedBatch]:
        """See `LogCache.batches_from`."""


class StateServices(Protocol):
    """The services of its node's engine by which the state of a stream is read."""

    reader: ColdReader
    metadata: MetadataLog

    @property
    def cache(self) -> BatchCache:
        """The newest batches."""


class StoredStateReader:
    """Reads the state of one stream. `state` returns the stream's entry in the metadata; it raises
    StreamClosed where there is none.
    """

    def __init__(
        self, services: StateServices, stream_id: int, state: Callable[[], StreamState]
    ) -> None:
        self._services = services
        self._stream_id = stream_id
        self._state = state

    async def load(self) -> StoredState:
        """See `Stream.load_state`."""
        objects, state = self._services.metadata.state.objects, self._state()
        sources = state.state_sources
        # Group commits of a WAL have none, and after a crash they are many; nor have tails.
        newest_first = [
            extent
            for extent in reversed(sources)
            if extent.end_offset > state.state_from and not _has_no_state(objects, extent)
        ]
        found: list[bytes] = []
        end_offset = -1
        first, is_whole = 0, False
        while first < len(newest_first) and not is_whole:
            some = newest_first[first : first + (_STATES_AT_ONCE if first else 1)]
            first += len(some)
            for extent, info in zip(some, await self._infos(some), strict=True):
                if info.state is not None and not is_whole:
                    end_offset = max(end_offset, extent.end_offset)
                    found.append(info.state)
                    is_whole = info.state_since < 0
        if not found:
            end_offset = sources[0].start_offset if sources else state.end_offset
        return StoredState(found[::-1], state.state_from, end_offset)

    async def _infos(self, extents: Sequence[Extent]) -> list[StreamInfo]:
        """Return the descriptions of this stream in its objects, read side by side."""
        index = self._services.reader.index
        async with task_group() as group:
            reads = [group.create_task(index(extent.object_key)) for extent in extents]
        return [read.result().streams[self._stream_id] for read in reads]

    async def batches(self, offset: int) -> AsyncGenerator[StateBatch, None]:
        """See `Stream.state_batches`."""
        reader = self._services.reader
        sources = self._state().state_sources
        extents = [extent for extent in sources if extent.end_offset > offset]
        for number, extent in enumerate(extents):
            first = number + INDEXES_AHEAD - 1 if number else 0
            for ahead in extents[first : number + INDEXES_AHEAD]:
                reader.indexes.expect(ahead.object_key)
            index = await reader.index(extent.object_key)
            headers = index.streams[self._stream_id].headers
            try:
                if headers is None:
                    start = max(offset, extent.start_offset)
                    found = iter(await self._batches_between(start, extent.end_offset))
                else:
                    found = parse_producer_headers(headers)
                while some := list(islice(found, _YIELD_HEADERS)):
                    for batch in some:
                        if batch.header.end_offset > offset:
                            yield batch
                    await asyncio.sleep(0)
            except ValueError as error:
                raise CorruptObject(extent.object_key, 0, str(error)) from error
        for cached in self._services.cache.batches_from(self._stream_id, self._state().end_offset):
            if cached.end_offset > offset:
                yield state_batch(cached.payload)

    async def _batches_between(self, offset: int, end: int) -> list[StateBatch]:
        found: list[StateBatch] = []
        while offset < end:
            payloads = await self._services.reader.fetch(
                self._stream_id, lambda: self._state().state_sources, offset, _REPLAY_BYTES
            )
            if not payloads:
                raise OffsetOutOfRange(f"stream {self._stream_id}: offset {offset} is gone")
            found += map(state_batch, payloads)
            offset = found[-1].header.end_offset
        return found


def _has_no_state(objects: Table[str, ObjectState], extent: Extent) -> bool:
    known = objects.get(extent.object_key)
    return known is not None and known.kind in {"wal", TAIL, HEADERS}
