"""Reads the record batches of a stream out of its objects, without a node."""

from collections.abc import AsyncIterator

from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.stream_object import check_item, iter_records, read_index
from lakehead.storage.metadata.state import StreamState
from lakehead.storage.object_store.protocol import ObjectStore


async def stored_batches(store: ObjectStore, stream: StreamState) -> AsyncIterator[memoryview]:
    """Yield the batches of a stream, in the order of offsets; the first may begin below the start
    of the stream, where a trim was within it. Raises ObjectNotFound,
    StoreUnavailable, CorruptObject, UnsupportedFormat.
    """
    for extent in stream.extents:
        key = extent.object_key
        start = max(extent.start_offset, stream.start_offset)
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
                end = record.base_offset + record.offset_count
                if start < end and record.base_offset < extent.end_offset:
                    yield memoryview(record.payload)
