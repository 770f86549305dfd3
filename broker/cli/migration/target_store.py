"""The store that topics are imported into, written to by an engine of its own.

Nodes of the cluster do not run meanwhile: the import registers as a node, and is retired at its
end. Its write-ahead log is in memory, so what counts is what is committed in the metadata; the end
of each partition there is where the next run goes on.
"""

import hashlib
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from lakehead.broker.cli.migration.group_positions import (
    BY_NAMES,
    imported_positions,
    stored_positions,
)
from lakehead.broker.cli.migration.imported_batch import as_stored, encode_imported
from lakehead.broker.cli.migration.share_positions import (
    ShareOffsets,
    group_records,
    imported_share_positions,
    state_record,
    stored_share_positions,
)
from lakehead.broker.cli.migration.source_batches import SourceBatch
from lakehead.broker.cli.migration.source_brokers import Incarnation
from lakehead.broker.cli.migration.source_cluster import SourcePosition, SourceTopic
from lakehead.broker.cluster.replication_control import OFFSETS_CONFIGS, SHARE_STATES_CONFIGS
from lakehead.broker.coordinator.group.record_formats import (
    CommittedOffset,
    OffsetKey,
    encode_key,
    encode_offset,
)
from lakehead.broker.coordinator.group.share.share_record_formats import KnownPartitions
from lakehead.broker.coordinator.shards import partition_of
from lakehead.broker.partition.partition import OFFSETS_TOPIC, SHARE_STATES_TOPIC
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.clock import SystemClock
from lakehead.storage.compaction.batches import GAP_MAX, filler
from lakehead.storage.errors import RequestRefused
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.batch_writer import KeyValue, encode_batch
from lakehead.storage.format.record_batch import CODECS, NO_TIMESTAMP, patch
from lakehead.storage.format.records import KafkaRecord, iter_kafka_records
from lakehead.storage.metadata.records import (
    AclBinding,
    AclCreate,
    AclDelete,
    ClientQuota,
    CreateStream,
    CreateTopic,
    DeleteTopic,
    FenceNode,
    Record,
    RetireNode,
    TopicConfig,
    TrimStream,
)
from lakehead.storage.metadata.state import MetadataImage, QuotaEntity, TopicState
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
_STREAMS_AT_ONCE = 1000
_UPLOAD_AGE_S = 300.0
"""The log is in memory, and what a kill loses of it is fetched again: fewer and larger objects are
better than early ones.
"""
_SHARE_STATE_PARTITIONS = 50
"""Kafka's default of share.coordinator.state.topic.num.partitions."""
_ENCODED = CODECS.index("zstd")
"""The codec of batches that are built again, where others are left as they are."""


class TargetStore:
    """Topics and partitions in the store, while it is open (`opened_target`)."""

    def __init__(self, engine: StreamEngine, store: ObjectStore, codec: int | None) -> None:
        self._engine = engine
        self._store = store
        self._codec = codec
        self._positions: dict[OffsetKey, CommittedOffset] | None = None
        """The committed offsets of groups here, without their times; None: not read yet."""
        self._share_positions: dict[SharePartitionKey, int] | None = None
        """The positions of share groups here; None: not read yet."""
        self.made_again: set[str] = set()
        """Topics that were here, and were deleted and made again by this run."""
        self._begun_again: set[str] = set()
        """Topics that this run imports from their start by request: a later round goes on."""

    @property
    def state(self) -> MetadataImage:
        """The metadata."""
        return self._engine.metadata.state

    async def topics(
        self, wanted: Sequence[SourceTopic], *, from_start: bool = False
    ) -> dict[str, list[Stream]]:
        """Return the streams of topics, with their configs: a topic is made if it is not there, and
        gets partitions that were added at the source. One that was created again at the source,
        and each of them when this run first gets it with `from_start`, is deleted here and made
        again; see `made_again`.
        """
        for some in _pieces(wanted, lambda one: one.partitions):
            again = {one.name for one in some if from_start} - self._begun_again
            await self._engine.metadata.commit_with(partial(self._planned, some, again))
            self._begun_again |= again
        state = self.state
        for stream in list(self._engine.streams.values()):
            if stream.stream_id not in state.streams:
                self._engine.close_deleted(stream)
        found = {one.name: list(state.topics[one.name].partitions) for one in wanted}
        closed = [
            number
            for numbers in found.values()
            for number in numbers
            if number not in self._engine.streams
        ]
        for first in range(0, len(closed), _STREAMS_AT_ONCE):
            await self._engine.open_streams(closed[first : first + _STREAMS_AT_ONCE])
        return {
            name: [self._engine.streams[number] for number in numbers]
            for name, numbers in found.items()
        }

    def lacking_partitions(self, topic: SourceTopic) -> str:
        """Return, in words, that a topic of the source has fewer partitions than here, as one that
        was created again may; empty if it has not, or is known to be another one by its id.
        """
        known = self.state.topics.get(topic.name)
        if known is None or len(known.partitions) <= topic.partitions:
            return ""
        if _is_other(known, _topic_id(self.state.cluster_id, topic.topic)):
            return ""
        return (
            f"topic {topic.name} has {len(known.partitions)} partitions in {self._store.uri}, and "
            f"{topic.partitions} at the source, which has another topic of this name: import it "
            f"from its start by --topic {topic.name} --from-start"
        )

    def _planned(
        self, wanted: Sequence[SourceTopic], again: Collection[str], state: MetadataImage
    ) -> list[Record]:
        """Return the records that make these topics as they are at the source, those of `again`
        from their start.
        """
        records: list[Record] = []
        next_stream = state.next_stream_id
        for one in wanted:
            topic_id = _topic_id(state.cluster_id, one.topic)
            known = state.topics.get(one.name)
            if known is not None and (_is_other(known, topic_id) or one.name in again):
                records.append(DeleteTopic(topic_id=known.topic_id))
                self.made_again.add(one.name)
                known = None
            if known is None:
                topic_id = topic_id or f"{random.SystemRandom().getrandbits(128) | 1:032x}"
                records.append(
                    CreateTopic(name=one.name, topic_id=topic_id, configs=dict(one.configs))
                )
                present = 0
            else:
                topic_id, present = known.topic_id, len(known.partitions)
                if changed := _changes(known.configs, one.configs):
                    records.append(TopicConfig(topic_id=topic_id, configs=changed))
            for partition in range(present, one.partitions):
                records.append(
                    CreateStream(stream_id=next_stream, topic_id=topic_id, partition=partition)
                )
                next_stream += 1
        return records

    async def begin(self, starts: Sequence[tuple[Stream, int]]) -> None:
        """Have empty partitions begin at these offsets."""
        later = [(stream, low) for stream, low in starts if stream.next_offset == 0 < low]
        if not later:
            return
        for stream, low in later:
            self._fill(stream, low)
        await self.upload()
        failpoint("import_begun")
        await self.trim(later)

    async def trim(self, starts: Sequence[tuple[Stream, int]]) -> None:
        """Make these offsets, to which the partitions reach, the first ones."""
        due = {one.stream_id: low for one, low in starts if low > one.start_offset}
        if any(low > one.committed_offset for one, low in starts):
            await self.upload()
        for some in _pieces(list(due), lambda _: 1):
            await self._engine.metadata.commit_with(
                partial(_trims, {one: due[one] for one in some})
            )

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
        await self._engine.wait_durable()
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
                changed = _changes(state.quotas.get(entity, {}), quotas.get(entity, {}))
                if changed:
                    found.append(ClientQuota(entity=dict(entity), values=changed))
            return found

        await self._engine.metadata.commit_with(plan)

    async def set_positions(
        self,
        groups: Mapping[str, Mapping[tuple[str, int], SourcePosition]],
        topics: Collection[str],
        partitions: int,
    ) -> None:
        """Have these committed offsets of groups, and no others of these topics; one beyond the end
        that a partition has here becomes that end. `partitions` is the number of
        `__consumer_offsets` if it has to be made.
        """
        if self._positions is None:
            self._positions = await stored_positions(self._store, self.state)
        if OFFSETS_TOPIC not in self.state.topics and not groups:
            return
        logs = await self._internal_topic(OFFSETS_TOPIC, partitions, OFFSETS_CONFIGS)
        now_ms = SystemClock().now_ms()
        wanted = imported_positions(groups, self.state, self._end_of)
        wanted = {k: to for k, to in self._positions.items() if k.topic not in topics} | wanted
        changed: dict[str, list[KeyValue]] = {}
        for key in sorted({*wanted, *self._positions}, key=BY_NAMES):
            to = wanted.get(key)
            if to != self._positions.get(key):
                value = (
                    None if to is None else encode_offset(replace(to, commit_timestamp_ms=now_ms))
                )
                changed.setdefault(key.group_id, []).append((encode_key(key), value))
        for group, records in changed.items():
            self._append_keyed(logs[partition_of(group, len(logs))], records, now_ms)
        await self._settle()
        self._positions = wanted

    async def set_share_positions(
        self, groups: ShareOffsets, topics: Collection[str], partitions: int
    ) -> None:
        """Have share groups begin at these offsets, and no others of these topics; as
        `set_positions`.
        """
        if self._share_positions is None:
            self._share_positions = await stored_share_positions(self._store, self.state)
        stored = self._share_positions
        if not stored and not groups:
            return
        states = await self._internal_topic(
            SHARE_STATES_TOPIC, _SHARE_STATE_PARTITIONS, SHARE_STATES_CONFIGS
        )
        logs = await self._internal_topic(OFFSETS_TOPIC, partitions, OFFSETS_CONFIGS)
        now_ms = SystemClock().now_ms()
        names = {bytes.fromhex(one.topic_id): name for name, one in self.state.topics.items()}
        wanted = {
            key: to
            for key, to in stored.items()
            if key.topic_id in names and names[key.topic_id] not in topics
        }
        wanted |= imported_share_positions(groups, self.state, self._end_of)
        changed = [key for key in {*wanted, *stored} if wanted.get(key) != stored.get(key)]
        for key in sorted(changed):
            record = state_record(key, wanted.get(key), now_ms)
            self._append_keyed(states[partition_of(key.text, len(states))], [record], now_ms)
        begun: dict[str, dict[bytes, set[int]]] = {key.group_id: {} for key in changed}
        for key in wanted:
            if key.group_id in begun:
                begun[key.group_id].setdefault(key.topic_id, set()).add(key.partition)
        for group, topics_begun in sorted(begun.items()):
            known = {
                topic_id: KnownPartitions(names[topic_id], frozenset(indexes))
                for topic_id, indexes in topics_begun.items()
            }
            stream = logs[partition_of(group, len(logs))]
            self._append_keyed(stream, group_records(group, known), now_ms)
        await self._settle()
        self._share_positions = wanted

    async def _internal_topic(
        self, name: str, partitions: int, configs: Mapping[str, str]
    ) -> list[Stream]:
        """Return the streams of a topic of the cluster itself, which may have to be made."""
        known = self.state.topics.get(name)
        topic = SourceTopic(
            topic=Incarnation(name, ""),
            partitions=partitions if known is None else len(known.partitions),
            configs=configs,
        )
        return (await self.topics([topic]))[name]

    def _append_keyed(self, stream: Stream, records: Sequence[KeyValue], now_ms: int) -> None:
        for first in range(0, len(records), _BATCH_RECORDS):
            some = records[first : first + _BATCH_RECORDS]
            self._append(stream, memoryview(encode_batch(some, now_ms)), len(some), now_ms)

    def _end_of(self, number: int) -> int:
        stream = self._engine.streams.get(number)
        return self.state.stream(number).end_offset if stream is None else stream.next_offset


def _trims(starts: Mapping[int, int], state: MetadataImage) -> list[Record]:
    return [
        TrimStream(stream_id=number, start_offset=max(low, state.stream(number).start_offset))
        for number, low in starts.items()
    ]


def _topic_id(cluster_id: str, topic: Incarnation) -> str:
    """Return the id that a topic of the source has here, by which later runs know the incarnation
    that was imported. Empty where the source has no ids.
    """
    if not topic.topic_id:
        return ""
    return hashlib.sha256(f"{cluster_id} {topic.topic_id}".encode()).hexdigest()[:32]


def _is_other(known: TopicState, topic_id: str) -> bool:
    """Return true if a topic here is another one than that of the source with this id here."""
    return bool(topic_id) and known.topic_id != topic_id


_Item = TypeVar("_Item")


def _changes(present: Mapping[str, _Item], wanted: Mapping[str, _Item]) -> dict[str, _Item | None]:
    """Return what makes the present values the wanted ones; None: without a value."""
    changed: dict[str, _Item | None] = dict.fromkeys(set(present) - set(wanted))
    return changed | {key: to for key, to in wanted.items() if present.get(key) != to}


def _pieces(items: Sequence[_Item], streams: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Yield items by as many as one metadata entry may well have streams."""
    some: list[_Item] = []
    count = 0
    for one in items:
        some.append(one)
        count += streams(one)
        if count >= _STREAMS_AT_ONCE:
            yield some
            some, count = [], 0
    if some:
        yield some


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
            settings=StorageSettings(
                upload_size=_UPLOAD_BYTES, cache_size=_CACHE_BYTES, upload_age_s=_UPLOAD_AGE_S
            ),
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
