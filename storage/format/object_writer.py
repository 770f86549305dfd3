"""Writes stream objects: records in, pieces of bytes out. Payloads are referenced, never copied."""

import operator
import struct
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, chain, repeat
from operator import itemgetter
from typing import NamedTuple

from crc32c import crc32c

from lakehead.storage.format.record_batch import CONTROL, HEADER_SIZE
from lakehead.storage.format.stream_object import (
    BLOCK_FLAGS,
    BLOCK_HEADER,
    BLOCK_HEADER_SIZE,
    BLOCK_MAGIC,
    FOOTER,
    FOOTER_MAGIC,
    FORMAT_VERSION,
    INDEX_ITEM,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    RECORD_MAGIC,
    UNKNOWN_COUNT,
    Extension,
    IndexItem,
    StreamInfo,
    encode_extension,
    record_headers,
)
from lakehead.storage.object_store.protocol import Buffer

BLOCK_SIZE = 1024 * 1024
_DELTA_MAX = 2**31 - 1
_FIRST, _SECOND = itemgetter(0), itemgetter(1)
_ATTRIBUTES_AND_COUNT = struct.Struct(">21xh34xi")
"""Of the header of a record batch (`record_batch`)."""


class StreamRange(NamedTuple):
    """The range of one stream in an object: offsets [start, end), newest timestamp in milliseconds,
    bytes.
    """

    stream_id: int
    start_offset: int
    end_offset: int
    max_timestamp: int
    size: int


class WrittenObject(NamedTuple):
    """A finished object: its bytes in pieces, its size, and what it holds."""

    pieces: list[Buffer]
    size: int
    ranges: tuple[StreamRange, ...]


class ObjectWriter:
    """Builds one object. Streams must come in ascending id, each stream's records in offset order
    without a gap, unless `skip` says that there is one.
    """

    def __init__(
        self,
        *,
        kind: str,
        cluster_id: str,
        node_id: int,
        node_epoch: int,
        writer_id: str,
        created_ms: int,
    ) -> None:
        self._kind = kind
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._node_epoch = node_epoch
        self._writer_id = writer_id
        self._created_ms = created_ms
        self._pieces: list[Buffer] = []
        self._size = 0
        self._items: list[IndexItem] = []
        self._infos: dict[int, StreamInfo] = {}
        self._stream_id = -1
        self._block: list[Buffer] = []
        self._block_size = 0
        self._block_records = 0
        self._block_start = 0
        self._block_timestamp = -1
        self._block_kafka_records = 0
        self._end_offset = 0
        self._skipped_from = -1

    @property
    def size(self) -> int:
        """Bytes so far, without index and footer."""
        return self._size + self._block_size

    def begin_stream(self, info: StreamInfo) -> None:
        """Start the next stream."""
        if info.stream_id <= self._stream_id:
            raise ValueError(f"stream {info.stream_id} after stream {self._stream_id}")
        self._close_block()
        self._stream_id = info.stream_id
        self._infos[info.stream_id] = info

    def skip(self, start_offset: int, end_offset: int) -> None:
        """Say that no batch has these offsets of the current stream, since compaction removed
        them: the next batch begins at or above `end_offset`, and is found by them too.
        """
        if self._skipped_from < 0:
            self._skipped_from = start_offset
        self._end_offset = end_offset

    def add(
        self, epoch: int, base_offset: int, count: int, payload: Buffer, max_timestamp: int
    ) -> None:
        """Add one RecordBatch of the current stream: `count` offsets from `base_offset`."""
        end_offset, size = base_offset + count, len(payload)
        self._begin_record(base_offset, end_offset)
        self._block += (
            RECORD_HEADER.pack(RECORD_MAGIC, self._stream_id, epoch, base_offset, count, size),
            payload,
        )
        self._block_size += RECORD_HEADER_SIZE + size
        self._block_records += 1
        self._end_offset = end_offset
        self._block_timestamp = max(self._block_timestamp, max_timestamp)
        self._count(payload, 0, size, count)

    def add_run(
        self,
        epochs: Sequence[int],
        base_offsets: list[int],
        counts: list[int],
        payloads: Sequence[Buffer],
        max_timestamps: Sequence[int],
    ) -> None:
        """Add RecordBatches as `add` does one after the other, each column by built-in functions:
        an upload may have a million batches.
        """
        sizes, ends = list(map(len, payloads)), list(map(operator.add, base_offsets, counts))
        totals = list(accumulate(map(RECORD_HEADER_SIZE.__add__, sizes), initial=0))
        begin = 0
        while begin < len(sizes):
            self._begin_record(base_offsets[begin], ends[begin])
            full = totals[begin] + BLOCK_SIZE - self._block_size
            end = min(bisect_left(totals, full, begin + 1), len(sizes))
            is_gapless = ends[begin : end - 1] == base_offsets[begin + 1 : end]
            if not is_gapless or ends[end - 1] - self._block_start > _DELTA_MAX:
                end = begin + 1  # one at a time, up to the one that does not fit
            part = slice(begin, end)
            headers = map(
                RECORD_HEADER.pack,
                repeat(RECORD_MAGIC),
                repeat(self._stream_id),
                epochs[part],
                base_offsets[part],
                counts[part],
                sizes[part],
            )
            self._block += chain.from_iterable(zip(headers, payloads[part], strict=True))
            self._block_size += totals[end] - totals[begin]
            self._block_records += end - begin
            self._end_offset = ends[end - 1]
            self._block_timestamp = max(self._block_timestamp, *max_timestamps[part])
            self._count_run(payloads[part], sizes[part], counts[part])
            begin = end

    def add_stored(
        self, start_offset: int, end_offset: int, count: int, max_timestamp: int, records: Buffer
    ) -> None:
        """Add `count` records of the current stream as another object holds them, from its bytes:
        offsets [start_offset, end_offset).
        """
        self._begin_record(start_offset, end_offset)
        self._block.append(records)
        self._block_size += len(records)
        self._block_records += count
        self._end_offset = end_offset
        self._block_timestamp = max(self._block_timestamp, max_timestamp)
        headers, starts = record_headers(records, is_in_block=True)
        for (_, _, _, _, offsets, size), start in zip(headers, starts, strict=True):
            self._count(records, start, size, offsets)

    def _count(self, data: Buffer, start: int, size: int, offsets: int) -> None:
        """Add the records that a reader finds in a batch, by its header, to those of the block.
        These are unknown if one is not a batch, or says of itself what cannot be.
        """
        if self._block_kafka_records == UNKNOWN_COUNT:
            return
        if size < HEADER_SIZE:
            self._block_kafka_records = UNKNOWN_COUNT
            return
        attributes, records = _ATTRIBUTES_AND_COUNT.unpack_from(data, start)
        if attributes & CONTROL:
            return
        if 0 <= records <= offsets:
            self._block_kafka_records += records
        else:
            self._block_kafka_records = UNKNOWN_COUNT

    def _count_run(self, payloads: Sequence[Buffer], sizes: list[int], counts: list[int]) -> None:
        """Add the records of batches, at once where each has one for each of its offsets."""
        if self._block_kafka_records != UNKNOWN_COUNT and min(sizes) >= HEADER_SIZE:
            found = list(map(_ATTRIBUTES_AND_COUNT.unpack_from, payloads))
            is_data = not any(map(CONTROL.__and__, map(_FIRST, found)))
            if is_data and list(map(_SECOND, found)) == counts:
                self._block_kafka_records += sum(counts)
                return
        for payload, size, count in zip(payloads, sizes, counts, strict=True):
            self._count(payload, 0, size, count)

    def _begin_record(self, base_offset: int, end_offset: int) -> None:
        start_offset = base_offset if self._skipped_from < 0 else self._skipped_from
        if (self._block or self._skipped_from >= 0) and base_offset != self._end_offset:
            raise ValueError(
                f"stream {self._stream_id}: offset {base_offset} after {self._end_offset}"
            )
        self._skipped_from = -1
        if self._block and (
            self._block_size >= BLOCK_SIZE or end_offset - self._block_start > _DELTA_MAX
        ):
            self._end_offset = start_offset
            self._close_block()
        if not self._block:
            self._block_start = start_offset

    def finish(self) -> WrittenObject:
        """Close the object. The writer cannot be used any more."""
        self._close_block()
        extension = encode_extension(
            Extension(
                kind=self._kind,
                cluster_id=self._cluster_id,
                node_id=self._node_id,
                node_epoch=self._node_epoch,
                writer_id=self._writer_id,
                created_ms=self._created_ms,
                item_crcs=tuple(item.crc for item in self._items),
                item_max_timestamps=tuple(item.max_timestamp for item in self._items),
                streams=tuple(self._infos.values()),
                item_record_counts=tuple(item.kafka_records for item in self._items),
            )
        )
        index = b"".join(
            INDEX_ITEM.pack(
                item.stream_id,
                item.start_offset,
                item.end_offset - item.start_offset,
                item.record_count,
                item.position,
                item.size,
            )
            for item in self._items
        )
        extension_at = self._size
        index_at = extension_at + len(extension)
        footer = FOOTER.pack(
            index_at,
            len(index),
            FORMAT_VERSION,
            0,
            extension_at,
            len(extension),
            crc32c(index),
            crc32c(extension),
            FOOTER_MAGIC,
        )
        self._pieces += (extension, index, footer)
        return WrittenObject(
            self._pieces, index_at + len(index) + len(footer), _ranges(self._items)
        )

    def _close_block(self) -> None:
        if self._skipped_from >= 0:
            raise ValueError(f"stream {self._stream_id}: no batch follows what was skipped")
        if not self._block:
            return
        header = BLOCK_HEADER.pack(BLOCK_MAGIC, BLOCK_FLAGS, self._block_records, self._block_size)
        crc = crc32c(header)
        for piece in self._block:
            crc = crc32c(piece, crc)
        size = BLOCK_HEADER_SIZE + self._block_size
        self._items.append(
            IndexItem(
                self._stream_id,
                self._block_start,
                self._end_offset,
                self._block_records,
                self._size,
                size,
                crc,
                self._block_timestamp,
                self._block_kafka_records,
            )
        )
        self._pieces.append(header)
        self._pieces += self._block
        self._size += size
        self._block = []
        self._block_size = self._block_records = 0
        self._block_timestamp = -1
        self._block_kafka_records = 0


def _ranges(items: Sequence[IndexItem]) -> tuple[StreamRange, ...]:
    ranges: list[StreamRange] = []
    for item in items:
        if ranges and ranges[-1].stream_id == item.stream_id:
            last = ranges[-1]
            if last.end_offset != item.start_offset:
                raise ValueError(
                    f"stream {item.stream_id}: offset {item.start_offset} after {last.end_offset}"
                )
            ranges[-1] = StreamRange(
                item.stream_id,
                last.start_offset,
                item.end_offset,
                max(last.max_timestamp, item.max_timestamp),
                last.size + item.size,
            )
        else:
            ranges.append(
                StreamRange(
                    item.stream_id,
                    item.start_offset,
                    item.end_offset,
                    item.max_timestamp,
                    item.size,
                )
            )
    return tuple(ranges)
