"""Reads the record batches of a stream out of its objects, without a node."""

from collections.abc import AsyncIterator

from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.stream_object import check_item, iter_records, read_index
from lakehead.storage.metadata.state import StreamState
from lakehead.storage.object_store.protocol import ObjectStore


async def stored_batches(store: ObjectStore, stream: StreamState) -> AsyncIterator[memoryview]:
    """Yield the batches of a stream, in the order of offsets. Raises ObjectNotFound,
    StoreUnavailable, CorruptObject, UnsupportedFormat.
    """
    for extent in stream.extents:
        key = extent.object_key
        index = await read_index(store, key)
        for item in index.items_of(stream.stream_id):
            if item.end_offset <= extent.start_offset or item.start_offset >= extent.end_offset:
                continue
            data = await store.get_range(key, item.position, item.size)
            check_item(key, item, data)
            try:
                records = list(iter_records(data))
            except ValueError as error:
                raise CorruptObject(key, item.position, str(error)) from error
            for record in records:
                is_held = extent.start_offset <= record.base_offset < extent.end_offset
                if is_held and record.base_offset >= stream.start_offset:
                    yield memoryview(record.payload)
