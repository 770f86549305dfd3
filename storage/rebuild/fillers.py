"""Bridges over offsets that no object holds any more: an object with empty batches, which readers
pass over as they do what compaction has removed.
"""

from crc32c import crc32c

from lakehead.storage.compaction.bare_batches import GAP_MAX, filler
from lakehead.storage.format.object_names import JobName
from lakehead.storage.format.object_writer import ObjectWriter, WrittenObject
from lakehead.storage.format.record_batch import NO_TIMESTAMP
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.records import COMPACTED
from lakehead.storage.rebuild.found import FoundRange


def filler_object(
    before: FoundRange, start: int, end: int, cluster_id: str, entry: int
) -> tuple[Extent, WrittenObject]:
    """Return the object that has offsets [start, end) of the stream of `before`, and its extent.
    The same hole gives the same name.
    """
    epoch = before.epochs[-1][0]
    writer = ObjectWriter(
        kind=COMPACTED,
        cluster_id=cluster_id,
        node_id=-1,
        node_epoch=-1,
        writer_id="rebuild-catalog",
        created_ms=before.created_ms,
    )
    writer.begin_stream(
        StreamInfo(
            stream_id=before.stream_id,
            topic_id=before.topic_id,
            topic=before.topic,
            partition=before.partition,
            headers=b"",
        )
    )
    at = start
    while at < end:
        until = min(end, at + GAP_MAX)
        writer.add(epoch, at, until - at, filler(at, until, epoch), NO_TIMESTAMP)
        at = until
    written = writer.finish()
    (held,) = written.ranges
    nonce = crc32c(f"{before.stream_id} {start} {end}".encode()) | (1 << 63)
    extent = Extent(
        start_offset=start,
        end_offset=end,
        object_key=JobName(entry, nonce).key,
        max_timestamp=held.max_timestamp,
        size=held.size,
    )
    return extent, written
