"""The store that topics are imported into, written to by an engine of its own.

Nodes of the cluster do not run meanwhile: the import registers as a node, and is retired at its
end. Its write-ahead log is in memory, so what counts is what is committed in the metadata; the end
of each partition there is where the next run goes on.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from lakehead.broker.cli.migration.imported_batch import encode_imported
from lakehead.broker.coordinator.group.record_formats import (
    CommittedOffset,
    OffsetKey,
    encode_key,
    encode_offset,
)
from lakehead.broker.coordinator.shards import partition_of
from lakehead.storage.clock import SystemClock
from lakehead.storage.compaction.batches import GAP_MAX, filler
from lakehead.storage.errors import RequestRefused
from lakehead.storage.format.batch_writer import encode_batch
from lakehead.storage.format.record_batch import NO_TIMESTAMP, patch
from lakehead.storage.format.records import KafkaRecord
from lakehead.storage.metadata.records import (
    CreateStream,
    CreateTopic,
    FenceNode,
    Record,
    RetireNode,
)
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import ObjectStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope, log_failure
from lakehead.storage.wal import MemoryWal, WalOwner, WriteAheadLog

IMPORT_NODE = 2_000_000_000
"""The node id of an import."""
_UPLOAD_BYTES = 64 * 1024 * 1024
_BATCH_RECORDS = 1000
_BATCH_BYTES = 512 * 1024


class TargetStore:
    """Topics and partitions in the store, while it is open (`opened_target`)."""

    def __init__(self, engine: StreamEngine, store: ObjectStore, codec: int) -> None:
        self._engine = engine
        self._store = store
        self._codec = codec
        self._waiting_bytes = 0

    @property
    def state(self) -> MetadataImage:
        """The metadata."""
        return self._engine.metadata.state

    async def topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> list[Stream]:
        """Return the streams of a topic, which is made if it is not there. Raises RequestRefused if
        it has another number of partitions.
        """
        topic_id = f"{random.SystemRandom().getrandbits(128):032x}"

        def plan(state: MetadataImage) -> Sequence[Record]:
            if name in state.topics:
                return ()
            first = state.next_stream_id
            return (
                CreateTopic(name=name, topic_id=topic_id, configs=dict(configs)),
                *(
                    CreateStream(stream_id=first + one, topic_id=topic_id, partition=one)
                    for one in range(partitions)
                ),
            )

        state = await self._engine.metadata.commit_with(plan)
        found = state.topics[name].partitions
        if len(found) != partitions:
            raise RequestRefused(
                f"topic {name} has {len(found)} partitions in {self._store.uri}, and {partitions} "
                "at the source"
            )
        return await self._engine.open_streams(list(found))

    async def begin_at(self, stream: Stream, offset: int) -> None:
        """Have an empty partition begin at an offset."""
        if stream.next_offset == 0 < offset:
            await self.fill(stream, offset)
            await self._engine.upload_now()
            await stream.trim(offset)

    async def add(self, stream: Stream, records: Sequence[KafkaRecord]) -> None:
        """Append records at their offsets, which are at or above the end of the stream."""
        some: list[KafkaRecord] = []
        size = 0
        for record in records:
            some.append(record)
            size += len(record.key or b"") + len(record.value or b"")
            if len(some) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
                await self._append_records(stream, some)
                some, size = [], 0
        if some:
            await self._append_records(stream, some)

    async def _append_records(self, stream: Stream, records: Sequence[KafkaRecord]) -> None:
        if records[-1].offset - stream.next_offset > GAP_MAX:
            await self.fill(stream, records[0].offset)
        base = stream.next_offset
        batch, newest = encode_imported(records, base, self._codec)
        await self._append(stream, batch, records[-1].offset + 1 - base, newest)

    async def fill(self, stream: Stream, end: int) -> None:
        """Cover offsets up to `end` that no record has."""
        while stream.next_offset < end:
            base = stream.next_offset
            until = min(end, base + GAP_MAX)
            batch = bytearray(filler(base, until, stream.epoch))
            await self._append(stream, batch, until - base, NO_TIMESTAMP)

    async def _append(self, stream: Stream, batch: bytearray, count: int, newest: int) -> None:
        patch(batch, 0, stream.next_offset, stream.epoch)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_done(error: Exception | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        stream.append(memoryview(batch), count=count, max_timestamp=newest, on_done=on_done)
        await done
        self._waiting_bytes += len(batch)
        if self._waiting_bytes >= _UPLOAD_BYTES:
            await self.upload()

    async def upload(self) -> None:
        """Commit all that was appended."""
        self._waiting_bytes = 0
        await self._engine.upload_now()

    async def commit_positions(
        self, group: str, offsets: Mapping[tuple[str, int], int], partitions: Sequence[Stream]
    ) -> None:
        """Commit offsets for a group, in the log of its coordinator."""
        stream = partitions[partition_of(group, len(partitions))]
        now_ms = SystemClock().now_ms()
        records = [
            (
                encode_key(OffsetKey(group_id=group, topic=topic, partition=partition)),
                encode_offset(
                    CommittedOffset(
                        offset=offset,
                        commit_timestamp_ms=now_ms,
                        topic_id=bytes.fromhex(self.state.topics[topic].topic_id),
                    )
                ),
            )
            for (topic, partition), offset in sorted(offsets.items())
        ]
        await self._append(stream, encode_batch(records, now_ms), len(records), now_ms)


@asynccontextmanager
async def opened_target(store: ObjectStore, codec: int) -> AsyncIterator[TargetStore]:
    """Open a store for an import, and give all streams back at the end.

    Raises RequestRefused if nodes were started on it, and what `StreamEngine.open` raises.
    """
    scope, wal = TaskScope(log_failure), MemoryWal()

    async def admit(state: MetadataImage) -> None:
        others = sorted(one for one in state.nodes if one != IMPORT_NODE)
        if others:
            raise RequestRefused(
                f"{store.uri}: node {others[0]} was started here: import into a new cluster, "
                "before its nodes start for the first time"
            )

    async def open_wal(_owner: WalOwner) -> WriteAheadLog:
        return wal

    try:
        engine = await StreamEngine.open(
            store=store,
            open_wal=open_wal,
            node=NodeIdentity(node_id=IMPORT_NODE, host="localhost", port=1),
            clock=SystemClock(),
            rng=random.SystemRandom(),
            settings=StorageSettings(),
            scope=scope,
            admit=admit,
        )
        yield TargetStore(engine, store, codec)
        await engine.upload_now()
        owned = [
            one.stream_id
            for one in engine.metadata.state.streams.values()
            if one.is_open and one.node_id == IMPORT_NODE
        ]
        await engine.hand_over(owned)
        epoch = engine.metadata.state.nodes[IMPORT_NODE].epoch
        await engine.close()
        await engine.metadata.commit(
            [FenceNode(node_id=IMPORT_NODE, epoch=epoch), RetireNode(node_id=IMPORT_NODE)]
        )
    finally:
        await scope.close()
