"""Reads the batches of a stream back from its objects, each once, in order."""

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

import numpy as np

from storage.errors import CorruptObject
from storage.format.stream_object import IndexItem, ObjectIndex, check_item, iter_records
from storage.metadata.extents import Extent
from storage.object_store.protocol import ObjectStore

RUN_SIZE_MAX = 8 * 1024 * 1024


class StoredBatch(NamedTuple):
    """A batch, the stream epoch that it was appended under, and the end of its offsets."""

    epoch: int
    end_offset: int
    payload: memoryview


class Scratch:
    """Memory that is read into again and again: new memory costs as much as what is done in it."""

    def __init__(self) -> None:
        self._data = bytearray()

    def room(self, size: int) -> memoryview:
        """Return so many bytes; good until the next call."""
        if len(self._data) < size:
            self._data = bytearray(size)
        return memoryview(self._data)[:size]


async def stored_batches(
    store: ObjectStore,
    index: ObjectIndex,
    stream_id: int,
    extent: Extent,
    *,
    scratch: Scratch | None = None,
) -> AsyncGenerator[StoredBatch, None]:
    """Yield the batches of an extent; each is good until the next, where there is `scratch` for
    them. Raises ObjectNotFound, StoreUnavailable, CorruptObject.
    """
    items = [
        item
        for item in index.items_of(stream_id)
        if item.start_offset < extent.end_offset and item.end_offset > extent.start_offset
    ]
    for run in item_runs(items):
        start = run[0].position
        size = run[-1].position + run[-1].size - start
        data = np.empty(size, np.uint8).data if scratch is None else scratch.room(size)
        await store.get_range_into(index.key, start, data)
        for item in run:
            at = item.position - start
            piece = data[at : at + item.size]
            check_item(index.key, item, piece)
            try:
                for record in iter_records(piece):
                    end = record.base_offset + record.offset_count
                    yield StoredBatch(record.epoch, end, record.payload)
            except ValueError as error:
                raise CorruptObject(index.key, item.position, str(error)) from error


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
