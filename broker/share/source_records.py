"""Keys and values of a partition's records, for their dead letters: from memory or from objects."""

import asyncio
from typing import NamedTuple

from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.partition.partition import Partition
from lakehead.broker.partition.record_checks import INFLATION_MAX
from lakehead.storage.errors import StorageError
from lakehead.storage.format.record_batch import BatchHeader, read_header
from lakehead.storage.format.records import INFLATED_SIZE_MAX, iter_inflated_records

_COLD_SIZE = 1 << 20
"""Bytes of a read from objects."""
_COLD_SHARE = 0.5
"""Share of the memory for responses that these reads may use."""


class Content(NamedTuple):
    """The key and the value of a record."""

    key: bytes | None
    value: bytes | None


NO_CONTENT = Content(None, None)


class SourceRecords:
    """Reads records in the order of their offsets, a record batch at a time. At most `size_max`
    bytes of keys and values are kept, and one that is larger is none.
    """

    def __init__(self, partition: Partition, memory: RequestMemory, size_max: int) -> None:
        self._partition = partition
        self._memory = memory
        self._size_max = size_max
        self._found: dict[int, Content] = {}
        self._known_until = -1
        """The last offset that was looked for."""

    async def content(self, offset: int, last_offset: int) -> Content:
        """Return the content of a record, of a range of which the rest will be wanted too. It is
        empty where there is none: the record is gone, or its batch cannot be read.
        """
        if offset > self._known_until:
            self._found = {}
            self._known_until = last_offset
            await self._read(offset, last_offset)
        return self._found.get(offset, NO_CONTENT)

    async def _read(self, offset: int, last_offset: int) -> None:
        try:
            batch = await self._batch_at(offset)
        except StorageError:
            return
        header = read_header(batch)
        if header.base_offset > offset:  # compaction has removed those before
            self._known_until = min(last_offset, header.base_offset - 1)
            return
        self._known_until = min(last_offset, header.end_offset - 1)

        async def read() -> memoryview:
            return batch

        rules = self._partition.topic.rules
        size_max = min(INFLATED_SIZE_MAX, INFLATION_MAX * rules.batch_size_max)
        loop, count = asyncio.get_running_loop(), header.record_count
        try:
            async with self._memory.inflated.inflated(read, size_max, count) as (header, records):
                await loop.run_in_executor(None, self._pick, header, records, offset, last_offset)
        except ValueError:
            self._found = {}

    async def _batch_at(self, offset: int) -> memoryview:
        """Return the batch with an offset, else the first one behind it. Raises StorageError."""
        stream = self._partition.stream
        found = stream.fetch_cached(offset, 1)
        if found is None:
            async with self._memory.responses.borrowed(_COLD_SIZE, _COLD_SHARE):
                found = await stream.fetch(offset, 1)
        return found[0][: read_header(found[0]).size]

    def _pick(
        self, header: BatchHeader, records: memoryview, first_offset: int, last_offset: int
    ) -> None:
        """Keep what is wanted of a batch's decompressed records."""
        size = 0
        for one in iter_inflated_records(header, records):
            if not first_offset <= one.offset <= last_offset:
                continue
            length = len(one.key or b"") + len(one.value or b"")
            if length > self._size_max:
                continue
            size += length
            if size > self._size_max:
                self._known_until = one.offset - 1
                return
            self._found[one.offset] = Content(one.key, one.value)
