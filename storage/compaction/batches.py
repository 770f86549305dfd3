"""Read the batches of a stream's objects, write empty ones, and allocate memory for both.

Items are read from the objects once, in order, and become rows of the table of `kernels`. Memory
comes in large pages, since faulting in small ones costs as much as the work done in them. Numpy
requests large pages for arrays of four megabytes and more, but only pages that lie wholly within an
array become large. So the pieces are much larger than that; pages that are never touched cost
nothing.
"""

import mmap
import struct
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c

from lakehead.storage.compaction import kernels
from lakehead.storage.format.record_batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CRC_POSITION,
    DELETE_HORIZON,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
)
from lakehead.storage.format.stream_object import IndexItem, ObjectIndex, check_item
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.object_store.protocol import ObjectStore

PIECE_BYTES = 32 * 1024 * 1024


class Arena:
    """Hands out memory of pieces, from the first to the last byte of each. A piece goes when
    nothing refers to it any more.
    """

    def __init__(self) -> None:
        self.free: Any = np.empty(0, np.uint8)
        """The rest of the newest piece: a user of its start sets this to what remains."""

    def new(self, size: int) -> Any:
        """Return a new piece, of at least so many bytes, in place of what is free."""
        self.free = np.empty(max(size, PIECE_BYTES), np.uint8)
        return self.free

    def room(self, size: int) -> Any:
        """Return what is free: at least so many bytes."""
        return self.free if len(self.free) >= size else self.new(size)


def zeros(shape: tuple[int, int]) -> Any:
    """Return a table of int64, all 0, whose memory is taken as it is used."""
    rows, columns = shape
    # Private: memory that could be shared has small pages.
    memory = mmap.mmap(-1, 8 * rows * columns, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.int64).reshape(shape)


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


_PRODUCER = (kernels.PRODUCER, kernels.NEXT, kernels.PRODUCER_EPOCH)


class BatchRows:
    """One item after the other, in the same memory."""

    def __init__(self) -> None:
        self.count = 0
        self.table: Any = np.empty((64, kernels.COLUMNS), np.int64)
        self.data: memoryview = memoryview(b"")
        self.bytes: Any = np.empty(0, np.uint8)
        """The same, for kernels."""

    def read(self, stream_id: int, data: memoryview) -> None:
        """Take the data blocks of an item. Raises ValueError where they hold no batches."""
        most = len(data) // kernels.HEADERS + 1
        if most > len(self.table):
            self.table = np.empty((most, kernels.COLUMNS), np.int64)
        self.data, self.bytes, self.count = data, np.frombuffer(data, np.uint8), 0
        fault, position, rows, _ = kernels.scan_blocks(self.bytes, stream_id, 0, 0, self.table, 0)
        if fault:
            raise ValueError(f"{kernels.FAULTS[fault]}: byte {position}")
        self.count = rows

    def stored(self, row: int) -> StoredBatch:
        """Return one batch."""
        start, end, epoch, next_offset = self.table[
            row, (kernels.START, kernels.END, kernels.EPOCH, kernels.NEXT)
        ].tolist()
        return StoredBatch(epoch, next_offset, self.data[start + kernels.RECORD_HEADER : end])

    @property
    def rows(self) -> range:
        """The numbers of the rows."""
        return range(self.count)

    def end_offset(self, row: int) -> int:
        """Return the end of a batch's offsets."""
        return int(self.table[row, kernels.NEXT])

    def epoch(self, row: int) -> int:
        """Return the stream epoch of a batch."""
        return int(self.table[row, kernels.EPOCH])

    def senders(self, first: int, end: int) -> frozenset[int]:
        """Return whose records stay in rows from `first` to `end`, which were cleaned."""
        some = self.table[first:end]
        return frozenset(some[some[:, kernels.RUN] >= 0, kernels.PRODUCER].tolist()) - {-1}

    def producers(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """Return of rows from `first` to `end` each producer with the end offset and the epoch of
        its last batch.
        """
        found = self.table[first:end, _PRODUCER][::-1]
        ids, places = np.unique(found[:, 0], return_index=True)
        if not len(ids) or ids[-1] == -1:
            return []
        return [tuple(one) for one in found[places].tolist() if one[0] != -1]


GAP_MAX = 1 << 30
"""Offsets between two batches: beyond it, an empty batch is put there, for the sake of fields of 32
bits.
"""
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_LENGTH_POSITION = 8


def without_records(header: BatchHeader) -> bytes:
    """Return the batch with no record in it: what it says of its producer stays."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    bare = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
    return bytes(sealed(bare, memoryview(bytearray(HEADER_SIZE))))


def filler(base_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    """Return a batch without records and without a producer, which covers these offsets."""
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=end_offset - base_offset - 1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )
    return bytes(sealed(header, memoryview(bytearray(HEADER_SIZE))))


def sealed(header: BatchHeader, batch: memoryview) -> memoryview:
    """Return a batch of which the records are there: it gets this header, with its length and
    CRC.
    """
    _HEADER.pack_into(batch, 0, *header)
    _LENGTH.pack_into(batch, _LENGTH_POSITION, len(batch) - LENGTH_END)
    crc = crc32c(batch[ATTRIBUTES_POSITION:])
    batch[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
    return batch
