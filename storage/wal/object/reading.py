"""Reads the records of sealed objects, for a log whose objects cannot be committed as they are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence

from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.stream_object import (
    StreamRecord,
    check_item,
    iter_records,
    parse_index,
)
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.wal.object.calls import in_order
from lakehead.storage.wal.protocol import SealedObject

_READS_AT_ONCE = 16
_BYTES_AT_ONCE = 32 * 1024 * 1024


async def sealed_records(
    store: ObjectStore, objects: Sequence[SealedObject]
) -> AsyncGenerator[StreamRecord, None]:
    """Yield the records of objects in order: of one object, stream after stream.

    Raises ObjectNotFound, StoreUnavailable, CorruptObject.
    """
    at = 0
    while at < len(objects):
        some = _some(objects, at)
        at += len(some)
        bodies = await in_order(store.get, [item.key for item in some])
        for item, body in zip(some, bodies, strict=True):
            for record in _records(item.key, body):
                yield record


def _some(objects: Sequence[SealedObject], first: int) -> Sequence[SealedObject]:
    """Return what is read at once: bounded in number and, beyond one object, in bytes."""
    size, end = objects[first].size, first + 1
    while end < len(objects) and end - first < _READS_AT_ONCE:
        size += objects[end].size
        if size > _BYTES_AT_ONCE:
            break
        end += 1
    return objects[first:end]


def _records(key: str, body: bytes) -> Iterator[StreamRecord]:
    index = parse_index(key, body, len(body))
    view = memoryview(body)
    for item in index.items:
        data = view[item.position : item.position + item.size]
        check_item(key, item, data)
        try:
            yield from iter_records(data)
        except ValueError as error:
            raise CorruptObject(key, item.position, str(error)) from error
