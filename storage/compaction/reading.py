"""Reads the items of a stream back from its objects, each once, in order."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lakehead.storage.format.stream_object import IndexItem, ObjectIndex, check_item
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.object_store.protocol import ObjectStore

RUN_SIZE_MAX = 8 * 1024 * 1024


class StoredBatch(NamedTuple):
    """A batch, the stream epoch that it was appended under, and the end of its offsets."""

    epoch: int
    end_offset: int
    payload: memoryview


class Scratch:
    """Memory that is read into again and again: new memory costs as much as what is done in it."""

    def __init__(self) -> None:
        self._data: Any = np.empty(0, np.uint8)

    def room(self, size: int) -> memoryview:
        """Return so many bytes; good until the next call, unless they are kept."""
        if len(self._data) < size:
            self._data = np.empty(size, np.uint8)
        return memoryview(self._data)[:size]

    def keep(self, data: memoryview) -> None:
        """Leave `data` alone from now on, if it lies in this memory: what comes is read into
        other memory.
        """
        if data.obj is self._data:
            self._data = np.empty(0, np.uint8)


async def stored_items(
    store: ObjectStore,
    index: ObjectIndex,
    stream_id: int,
    extent: Extent,
    scratch: Scratch,
) -> AsyncGenerator[tuple[IndexItem, memoryview], None]:
    """Yield the items of an extent, with their bytes; each is good until the next, unless
    `scratch`, where it lies, keeps it. Raises ObjectNotFound, StoreUnavailable, CorruptObject.
    """
    items = [
        item
        for item in index.items_of(stream_id)
        if item.start_offset < extent.end_offset and item.end_offset > extent.start_offset
    ]
    for run in item_runs(items):
        start = run[0].position
        size = run[-1].position + run[-1].size - start
        data = scratch.room(size)
        await store.get_range_into(index.key, start, data)
        for item in run:
            at = item.position - start
            piece = data[at : at + item.size]
            check_item(index.key, item, piece)
            yield item, piece


def item_runs(items: Sequence[IndexItem]) -> list[list[IndexItem]]:
    """Cut items into runs of neighbours that are read at once."""
    runs: list[list[IndexItem]] = []
    size, end = 0, -1
    for item in items:
        if item.position != end or size + item.size > RUN_SIZE_MAX:
            runs.append([])
            size = 0
        runs[-1].append(item)
        size += item.size
        end = item.position + item.size
    return runs
