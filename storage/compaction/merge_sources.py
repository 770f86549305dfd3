"""What a merge reads: of each object what is wanted, once, and several objects at a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.stream_object import (
    IndexItem,
    ObjectIndex,
    check_item,
    parse_index,
    read_index,
)
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.tasks import task_group

_READS_AT_ONCE = 8
_WHOLE_SHARE = 2
"""An object of which at least this part is wanted is read whole."""
_NEAR = 64 * 1024
"""Bytes between two items that are rather read than asked for apart."""


class Piece(NamedTuple):
    """Bytes of an object from `start` on."""

    start: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class SourceObject:
    """An object's index, and the bytes of its wanted streams."""

    index: ObjectIndex
    pieces: tuple[Piece, ...]

    def items(self, stream_id: int) -> Iterator[tuple[IndexItem, memoryview]]:
        """Yield the items of a stream with their bytes, checked. Raises CorruptObject."""
        for item in self.index.items_of(stream_id):
            data = self._bytes(item)
            check_item(self.index.key, item, data)
            yield item, data

    def _bytes(self, item: IndexItem) -> memoryview:
        for piece in self.pieces:
            at = item.position - piece.start
            if at >= 0 and at + item.size <= len(piece.data):
                return piece.data[at : at + item.size]
        raise CorruptObject(self.index.key, item.position, "the index points outside the object")


class Sources:
    """Objects that were read, each until it has been used by every stream that wants it: what is
    merged then takes its place in memory.
    """

    def __init__(
        self, objects: dict[str, SourceObject], wanted: Mapping[str, Sequence[int]]
    ) -> None:
        self._objects = objects
        self._uses = {key: len(streams) for key, streams in wanted.items()}

    def index(self, key: str) -> ObjectIndex:
        """Return the index of an object that is still to be used."""
        return self._objects[key].index

    def take(self, key: str) -> SourceObject:
        """Return an object, for one of the streams that want it."""
        self._uses[key] -= 1
        return self._objects[key] if self._uses[key] else self._objects.pop(key)


async def read_sources(
    store: ObjectStore, wanted: Mapping[str, Sequence[int]], sizes: Mapping[str, tuple[int, int]]
) -> Sources:
    """Return objects with what they hold of the streams that are wanted of each. `sizes` are of
    the object, and of what is wanted.

    Raises ObjectNotFound, StoreUnavailable, CorruptObject, UnsupportedFormat.
    """
    found: dict[str, SourceObject] = {}
    keys = list(wanted)
    for first in range(0, len(keys), _READS_AT_ONCE):
        some = keys[first : first + _READS_AT_ONCE]
        memory = _memory(some, sizes)
        async with task_group() as group:
            tasks = {
                key: group.create_task(_read(store, key, wanted[key], memory.get(key)))
                for key in some
            }
        found |= {key: task.result() for key, task in tasks.items()}
    return Sources(found, wanted)


def _memory(keys: Sequence[str], sizes: Mapping[str, tuple[int, int]]) -> dict[str, memoryview]:
    """Return memory for objects that are read whole: one piece for all, since large pages come with
    megabytes.
    """
    whole = [key for key in keys if sizes[key][1] * _WHOLE_SHARE >= sizes[key][0]]
    ends = list(accumulate(sizes[key][0] for key in whole))
    piece = np.empty(ends[-1] if ends else 0, np.uint8).data
    return {key: piece[end - sizes[key][0] : end] for key, end in zip(whole, ends, strict=True)}


async def _read(
    store: ObjectStore, key: str, streams: Sequence[int], whole: memoryview | None
) -> SourceObject:
    if whole is not None:
        await store.get_range_into(key, 0, whole)
        return SourceObject(parse_index(key, whole, len(whole)), (Piece(0, whole),))
    index = await read_index(store, key)
    items = [item for stream_id in streams for item in index.items_of(stream_id)]
    items.sort(key=lambda item: item.position)
    pieces = []
    for start, end in _ranges(items):
        pieces.append(Piece(start, memoryview(await store.get_range(key, start, end - start))))
    return SourceObject(index, tuple(pieces))


def _ranges(items: Sequence[IndexItem]) -> list[tuple[int, int]]:
    """Return what to read, (start, end), for items in the order of their positions."""
    found: list[tuple[int, int]] = []
    for item in items:
        end = item.position + item.size
        if found and item.position - found[-1][1] <= _NEAR:
            found[-1] = (found[-1][0], end)
        else:
            found.append((item.position, end))
    return found
