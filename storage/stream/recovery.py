"""What a write-ahead log still holds that is not in committed objects."""

from collections.abc import AsyncIterator

from storage.format.record_batch import read_header
from storage.metadata.state import ClusterState
from storage.stream.cache import CacheBlock, CachedBatch
from storage.wal.protocol import WriteAheadLog


async def recovered_blocks(
    wal: WriteAheadLog, state: ClusterState, node_id: int, block_size: int
) -> AsyncIterator[tuple[CacheBlock, int]]:
    """Yield blocks of about `block_size` bytes to upload, with the WAL position each ends at.

    A record counts if its stream is still open on this node under the epoch it was written in, and
    continues the stream's committed end. Others are in objects already, or belong to a stream that
    was deleted or has moved on: whoever owns it now had all that was acknowledged before it took
    over.
    """
    ends: dict[int, int] = {}
    block = CacheBlock()
    position = None
    async for record in wal.recover():
        position = record.end_position
        stream = state.streams.get(record.stream_id)
        if stream is None or not stream.is_open or stream.node_id != node_id:
            continue
        if record.epoch != stream.epoch:
            continue
        end = ends.get(record.stream_id, stream.end_offset)
        if record.base_offset != end:
            continue
        end = ends[record.stream_id] = record.base_offset + record.count
        timestamp = read_header(record.payload).max_timestamp
        batch = CachedBatch(record.base_offset, end, record.epoch, timestamp, record.payload)
        block.add(record.stream_id, batch)
        if block.size >= block_size:
            yield block, position
            block = CacheBlock()
    if position is not None:
        yield block, position
