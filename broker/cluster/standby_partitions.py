"""The partitions of a standby, which move on as the copy of the cluster grows.

A standby has every partition open, up to the end that it has in the copy. When the metadata of the
copy move on, the headers of the new batches are read, and only then the high watermark moves: the
last stable offset and the aborted transactions are right at each moment. Then the fetches that wait
are woken, and the coordinator of groups reads what is new in its log.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from lakehead.broker.partition.partition import (
    Partition,
    Topic,
    TopicRegistry,
    follow_committed,
)
from lakehead.storage.backup.led_streams import Head, stream_heads
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import Entry
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.tasks import for_each

OnAdvance = Callable[[Topic, int], None]
_AT_ONCE = 16
_RETRY_S = 0.5
_log = structlog.get_logger("broker.standby")


class StandbyPartitions:
    """Moves every partition in `topics` on. `on_advance` is called with the topic and the index of
    one that has moved.
    """

    def __init__(
        self, topics: TopicRegistry, metadata: MetadataLog, clock: Clock, on_advance: OnAdvance
    ) -> None:
        self._topics = topics
        self._metadata = metadata
        self._clock = clock
        self._on_advance = on_advance
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow the metadata until this is cancelled."""
        self._metadata.follow(self._follow)
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            heads = stream_heads(self._metadata.state.streams)
            if not await self._move_all([one for one in self._topics.led() if is_due(one, heads)]):
                await asyncio.sleep(_RETRY_S)
                self._changed.set()

    async def _move_all(self, partitions: Sequence[Partition]) -> bool:
        """Move partitions on, and return true if each was."""
        has_moved: list[bool] = []

        async def move(partition: Partition) -> None:
            has_moved.append(await self._move(partition))

        await for_each(partitions, move, at_once=_AT_ONCE)
        return all(has_moved)

    def _follow(self, _state: MetadataImage, _entry: Entry | None) -> None:
        self._changed.set()

    async def _move(self, partition: Partition) -> bool:
        """Move a partition to its end in the copy; return false if that could not be read."""
        stream, producers = partition.stream, partition.producers
        before = stream.confirmed_offset
        try:
            await follow_committed(stream, producers, before, self._clock)
            producers.transactions.trim(stream.start_offset)
        except LakeheadError as error:
            if partition.topic.partitions[partition.index] is not partition:
                return True  # its topic was deleted meanwhile
            where = f"{partition.topic.name}-{partition.index}"
            _log.warning("standby_partition_waits", partition=where, error=str(error))
            return False
        partition.wake()
        if stream.confirmed_offset > before:
            self._on_advance(partition.topic, partition.index)
        return True


def is_due(partition: Partition, heads: Mapping[int, Head]) -> bool:
    """Return true if the copy, whose streams have these heads, has more of a partition, or another
    leader epoch, than it shows.
    """
    stream = partition.stream
    head = heads.get(stream.stream_id)
    if head is None or not stream.is_open:
        return False
    epoch, end_offset = head
    return max(epoch, 0) != stream.epoch or end_offset > stream.confirmed_offset
