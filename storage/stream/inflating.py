"""Memory for batches that are decompressed to look into their records, over the whole node.

The size that a batch inflates to is not known before; 6 KB may be 64 MiB. The buffer grows in
steps. Between two steps a batch holds nothing, neither its buffer nor its own bytes (which pin what
they were read with), so any number of them may wait.
"""

import asyncio
import mmap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from lakehead.storage.format.compression import BufferTooSmall, inflate_into
from lakehead.storage.format.record_batch import HEADER_SIZE, BatchHeader, read_header
from lakehead.storage.memory_pool import MemoryPool

SMALL_SIZE = 1 << 20
"""Buffers up to this size have a quarter of the memory to themselves: they never wait for the large
ones, which are held for seconds.
"""
_INLINE_SIZE = 256 << 10
"""Larger buffers are filled in a thread."""
RECORD_SIZE_MIN = 7
"""Bytes of the shortest record: length, attributes, the deltas of timestamp and offset, the
lengths of key and value, the number of headers.
"""
_SIZE_MIN = 256 << 10
_GROWTH = 4


class InflatedBatch(NamedTuple):
    """A batch's header, and its records, decompressed."""

    header: BatchHeader
    records: memoryview


class InflatedBatches:
    """Lends the buffers, at most `capacity` bytes of them; one alone may be larger."""

    def __init__(self, capacity: int) -> None:
        self.small = MemoryPool(capacity // 4)
        self.large = MemoryPool(capacity - capacity // 4)
        self.turns = asyncio.Lock()
        """Held by the one batch whose records are looked at in this iteration of the loop."""

    @property
    def capacity(self) -> int:
        """Bytes that may be lent."""
        return self.small.capacity + self.large.capacity

    @property
    def used(self) -> int:
        """Bytes that are lent."""
        return self.small.used + self.large.used

    @property
    def waiting(self) -> int:
        """The number of batches that wait for a buffer."""
        return self.small.waiting + self.large.waiting

    @property
    def waits_total(self) -> int:
        """The number of batches that had to wait for a buffer since the start."""
        return self.small.waits_total + self.large.waits_total

    @asynccontextmanager
    async def inflated(
        self, read: Callable[[], Awaitable[memoryview]], size_max: int, record_count: int = 0
    ) -> AsyncIterator[InflatedBatch]:
        """Give the batch that `read` returns, one whole batch, for as long as the context is open.

        `record_count`: how many records it has, where that is known before. It begins with a buffer
        that can hold them then, and waits once, behind those that came before it; one that no
        buffer can hold waits for none.

        Raises what `read` raises, and ValueError: an unknown codec, bad data, more than `size_max`
        bytes of records.
        """
        for size in _sizes(size_max, record_count * RECORD_SIZE_MIN):
            pool = self.small if size <= SMALL_SIZE else self.large
            async with pool.borrowed(size):
                batch = await read()
                is_inline = size <= _INLINE_SIZE
                inflated = _inflate(batch, size) if is_inline else await _in_thread(batch, size)
                del batch
                if inflated is not None:
                    yield inflated
                    return
        raise ValueError(f"a batch inflates beyond {size_max} bytes")


def _sizes(size_max: int, size_min: int) -> Iterator[int]:
    """Yield the sizes of buffers to try, from `size_min` up to `size_max`."""
    size = _SIZE_MIN
    while size < size_max:
        if size >= size_min:
            yield size
        size *= _GROWTH
    if size_min <= size_max:
        yield size_max


async def _in_thread(batch: memoryview, size: int) -> InflatedBatch | None:
    """Inflate off the event loop; even one that is cancelled lasts until its buffer is free."""
    work = asyncio.get_running_loop().run_in_executor(None, _inflate, batch, size)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def _inflate(batch: memoryview, size: int) -> InflatedBatch | None:
    """Return a batch with its records in a new buffer of `size` bytes; None: they do not fit."""
    header = read_header(batch)
    body = batch[HEADER_SIZE : header.size]
    if len(body) > size:
        return None
    if header.codec == 0:
        return InflatedBatch(header, memoryview(bytes(body)))
    # Zeroing a bytearray of 64 MiB would hold up all threads; these pages come as they are filled.
    target = memoryview(bytearray(size) if size <= SMALL_SIZE else mmap.mmap(-1, size))
    try:
        filled = inflate_into(header.codec, body, target)
    except BufferTooSmall:
        return None
    return InflatedBatch(header, target[:filled])
