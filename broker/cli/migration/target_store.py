"""The store that topics are imported into, written to by an engine of its own.

Nodes of the cluster do not run meanwhile: the import registers as a node, and is retired at its
end. Its write-ahead log is in memory, so what counts is what is committed in the metadata; the end
of each partition there is where the next run goes on.
"""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from operator import itemgetter

from lakehead.broker.cli.migration.imported_batch import as_stored, encode_imported
from lakehead.broker.cli.migration.source_batches import SourceBatch
from lakehead.broker.cli.migration.source_cluster import SourcePosition
from lakehead.broker.cluster.replication_control import unassigned_streams
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
from lakehead.storage.format.record_batch import CODECS, NO_TIMESTAMP, patch
from lakehead.storage.format.records import KafkaRecord, iter_kafka_records
from lakehead.storage.metadata.records import (
    AclBinding,
    AclCreate,
    AclDelete,
    ClientQuota,
    CreateTopic,
    FenceNode,
    Record,
    RetireNode,
    TopicConfig,
)
from lakehead.storage.metadata.state import MetadataImage, QuotaEntity
from lakehead.storage.object_store import ObjectStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope, log_failure
from lakehead.storage.wal import MemoryWal, WalOwner, WriteAheadLog

IMPORT_NODE = 2_000_000_000
"""The node id of an import."""
_UPLOAD_BYTES = 64 * 1024 * 1024
_CACHE_BYTES = 4 * _UPLOAD_BYTES
_BATCH_RECORDS = 1000
_BATCH_BYTES = 512 * 1024
_ENCODED = CODECS.index("zstd")
"""The codec of batches that are built again, where others are left as they are."""


class TargetStore:
    """Topics and partitions in the store, while it is open (`opened_target`)."""

    def __init__(self, engine: StreamEngine, store: ObjectStore, codec: int | None) -> None:
        self._engine = engine
        self._store = store
        self._codec = codec

    @property
    def state(self) -> MetadataImage:
        """The metadata."""
        return self._engine.metadata.state

    async def topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> list[Stream]:
        """Return the streams of a topic, with these configs: it is made if it is not there, and
        gets partitions that were added at the source. Raises RequestRefused if it has more than
        that.
        """
        new_id = f"{random.SystemRandom().getrandbits(128) | 1:032x}"

        def plan(state: MetadataImage) -> Sequence[Record]:
            known = state.topics.get(name)
            if known is None:
                created = CreateTopic(name=name, topic_id=new_id, configs=dict(configs))
                return created, *unassigned_streams(state, new_id, range(partitions))
            changed: dict[str, str | None] = dict.fromkeys(set(known.configs) - set(configs))
            changed |= {one: to for one, to in configs.items() if known.configs.get(one) != to}
            missing = range(len(known.partitions), partitions)
            return (
                *([TopicConfig(topic_id=known.topic_id, configs=changed)] if changed else ()),
                *unassigned_streams(state, known.topic_id, missing),
            )

        state = await self._engine.metadata.commit_with(plan)
        found = state.topics[name].partitions
        if len(found) > partitions:
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

    async def add(self, stream: Stream, batches: Sequence[SourceBatch]) -> int:
        """Append batches at their offsets, of one that reaches below the end of the stream the rest
        only; return the number of records. Raises RequestRefused for one that does not decode.
        """
        count = 0
        for batch in batches:
            header = batch.header
            try:
                if header.base_offset < stream.next_offset:
                    rest = [
                        one
                        for one in iter_kafka_records(batch.data)
                        if one.offset >= stream.next_offset
                    ]
                    await self.add_records(stream, rest)
                    count += len(rest)
                    continue
                data = as_stored(batch, self._codec)
            except ValueError as error:
                raise RequestRefused(
                    f"the batch at offset {header.base_offset} of the source: {error}"
                ) from None
            self._fill(stream, header.base_offset)
            self._append(stream, data, header.last_offset_delta + 1, header.max_timestamp)
            count += header.record_count
        await self._settle()
        return count

    async def add_records(self, stream: Stream, records: Sequence[KafkaRecord]) -> None:
        """Append records at their offsets, which are at or above the end of the stream."""
        some: list[KafkaRecord] = []
        size = 0
        for record in records:
            some.append(record)
            size += len(record.key or b"") + len(record.value or b"")
            if len(some) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
                self._append_records(stream, some)
                some, size = [], 0
        if some:
            self._append_records(stream, some)
        await self._settle()

    def _append_records(self, stream: Stream, records: Sequence[KafkaRecord]) -> None:
        if records[-1].offset - stream.next_offset > GAP_MAX:
            self._fill(stream, records[0].offset)
        base = stream.next_offset
        codec = _ENCODED if self._codec is None else self._codec
        batch, newest = encode_imported(records, base, codec)
        self._append(stream, memoryview(batch), records[-1].offset + 1 - base, newest)

    async def fill(self, stream: Stream, end: int) -> None:
        """Cover offsets up to `end` that no record has."""
        self._fill(stream, end)
        await self._settle()

    def _fill(self, stream: Stream, end: int) -> None:
        while stream.next_offset < end:
            base = stream.next_offset
            until = min(end, base + GAP_MAX)
            batch = bytearray(filler(base, until, stream.epoch))
            self._append(stream, memoryview(batch), until - base, NO_TIMESTAMP)

    @staticmethod
    def _append(stream: Stream, batch: memoryview, count: int, newest: int) -> None:
        patch(batch, 0, stream.next_offset, stream.epoch)
        stream.append(batch, count=count, max_timestamp=newest)

    async def _settle(self) -> None:
        """Wait until the log has what was appended, and memory has room for more."""
        await self._engine.wait_durable()
        if not self._engine.writable():
            await self._engine.upload_now()

    async def upload(self) -> None:
        """Commit all that was appended."""
        await self._engine.upload_now()

    async def set_acls(self, acls: frozenset[AclBinding]) -> None:
        """Have these ACLs and no others."""

        def plan(state: MetadataImage) -> Sequence[Record]:
            present = frozenset(state.acls)
            gone, new = (
                sorted(present - acls, key=_acl_order),
                sorted(acls - present, key=_acl_order),
            )
            return (
                *([AclDelete(acls=tuple(gone))] if gone else ()),
                *([AclCreate(acls=tuple(new))] if new else ()),
            )

        await self._engine.metadata.commit_with(plan)

    async def set_quotas(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Have these quotas and no others."""

        def plan(state: MetadataImage) -> Sequence[Record]:
            found: list[Record] = []
            for entity in sorted({*state.quotas, *quotas}, key=repr):
                present: Mapping[str, float] = state.quotas.get(entity, {})
                wanted = quotas.get(entity, {})
                changed: dict[str, float | None] = dict.fromkeys(set(present) - set(wanted))
                changed |= {key: to for key, to in wanted.items() if present.get(key) != to}
                if changed:
                    found.append(ClientQuota(entity=dict(entity), values=changed))
            return found

        await self._engine.metadata.commit_with(plan)

    async def commit_positions(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], SourcePosition],
        partitions: Sequence[Stream],
    ) -> None:
        """Commit offsets for a group, in the log of its coordinator."""
        stream = partitions[partition_of(group, len(partitions))]
        now_ms = SystemClock().now_ms()
        records = [
            (
                encode_key(OffsetKey(group_id=group, topic=topic, partition=partition)),
                encode_offset(
                    CommittedOffset(
                        offset=position.offset,
                        metadata=position.metadata,
                        commit_timestamp_ms=now_ms,
                        topic_id=bytes.fromhex(self.state.topics[topic].topic_id),
                    )
                ),
            )
            for (topic, partition), position in sorted(offsets.items(), key=itemgetter(0))
        ]
        self._append(stream, memoryview(encode_batch(records, now_ms)), len(records), now_ms)


def _acl_order(acl: AclBinding) -> tuple[str, ...]:
    return tuple(getattr(acl, name) for name in acl.__struct_fields__)


@asynccontextmanager
async def opened_target(store: ObjectStore, codec: int | None) -> AsyncIterator[TargetStore]:
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
            settings=StorageSettings(upload_size=_UPLOAD_BYTES, cache_size=_CACHE_BYTES),
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
