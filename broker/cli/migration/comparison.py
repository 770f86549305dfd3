"""Comparison of an imported cluster with its source: the records of each partition, offset by
offset, with a digest of each side, and the positions of groups.
"""

import hashlib
import struct
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import NamedTuple

from lakehead.broker.cli.migration.group_positions import (
    BY_NAMES,
    imported_positions,
    stored_positions,
)
from lakehead.broker.cli.migration.imported_batch import record_contents
from lakehead.broker.cli.migration.share_positions import (
    imported_share_positions,
    source_share_positions,
    stored_share_positions,
)
from lakehead.broker.cli.migration.source_batches import (
    Bounds,
    OldFormat,
    SourceBatch,
    fetched_batches,
    partition_bounds,
)
from lakehead.broker.cli.migration.source_brokers import Place, TopicGone
from lakehead.broker.cli.migration.source_cluster import SourceCluster, SourceTopic
from lakehead.storage.backup.stored_batches import stored_batches
from lakehead.storage.format.record_batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    read_header,
)
from lakehead.storage.format.records import (
    KafkaRecord,
    inflate,
    iter_kafka_records,
    iter_record_contents,
)
from lakehead.storage.metadata.state import MetadataImage, StreamState
from lakehead.storage.object_store import ObjectStore
from lakehead.storage.object_store.protocol import Buffer

_KINDS = CODEC_MASK | LOG_APPEND_TIME | DELETE_HORIZON
_KEY_BYTES = 16
_PLACE = struct.Struct(">qq")
"""Offset and timestamp of a record in a digest."""


@dataclass(slots=True)
class Difference:
    """Records of a partition that differ: from which to which offset, and how many are missing
    here, are not at the source, and have another content.
    """

    first: int
    last: int
    missing: int = 0
    added: int = 0
    changed: int = 0

    def __str__(self) -> str:
        found = {
            "missing here": self.missing,
            "not at the source": self.added,
            "with another content": self.changed,
        }
        text = ", ".join(f"{count} {words}" for words, count in found.items() if count)
        return f"offsets {self.first} to {self.last}: {text}"


@dataclass(slots=True, kw_only=True)
class ComparedPartition:
    """The records of a partition on both sides, from the first offset that both have (`start`) to
    the end that it has here (`end`). The digests are SHA-256 of offsets, timestamps (64 bits each),
    keys, values and headers, as a batch has them; batches and their codecs do not count.
    """

    topic: str
    partition: int
    start: int
    end: int
    behind: int
    """Offsets that the source has beyond `end`."""
    is_gone: bool = False
    """It is not at the source any more."""
    records: int = 0
    source_records: int = 0
    digest: str = ""
    source_digest: str = ""
    superseded: int = 0
    """Records here that the source has compacted away since, all with a later one of their key or
    without a value. Neither counts nor digests have them.
    """
    difference: Difference | None = None

    @property
    def is_same(self) -> bool:
        """Return true if both have the same records at the same offsets."""
        return self.difference is None

    def differs(self, offset: int, kind: str) -> None:
        """Add to the difference: `kind` is the name of one of its counts."""
        if self.difference is None:
            self.difference = Difference(offset, offset)
        found = self.difference
        found.first, found.last = min(found.first, offset), max(found.last, offset)
        setattr(found, kind, getattr(found, kind) + 1)


class _Lost(NamedTuple):
    """The source deleted the records below `end` while it was read."""

    end: int


_Item = SourceBatch | list[KafkaRecord] | _Lost


async def compared(
    source: SourceCluster, store: ObjectStore, state: MetadataImage, topics: Sequence[SourceTopic]
) -> AsyncGenerator[ComparedPartition, None]:
    """Yield the comparison of each partition of these topics, all of which are here; of one that
    was added at the source since, all offsets are `behind`. Raises RequestRefused,
    BrokerUnavailable, StorageError.
    """
    places = [(topic, place) for topic in topics for place in topic.places]
    bounds = await partition_bounds(source.brokers, [place for _, place in places])
    for topic, place in places:
        partitions = state.topics[topic.name].partitions
        there = bounds.get(place)
        found = _gone(place)
        if there is not None and place.partition >= len(partitions):
            found = _not_imported(place, there)
        elif there is not None:
            stream = state.stream(partitions[place.partition])
            is_compacted = "compact" in topic.configs.get("cleanup.policy", "")
            with suppress(TopicGone):  # while it was read
                found = await _compared_partition(source, store, stream, place, there, is_compacted)
        yield found


def _gone(place: Place) -> ComparedPartition:
    return ComparedPartition(
        topic=place.topic.name, partition=place.partition, start=0, end=0, behind=0, is_gone=True
    )


def _not_imported(place: Place, bounds: Bounds) -> ComparedPartition:
    return ComparedPartition(
        topic=place.topic.name,
        partition=place.partition,
        start=bounds.low,
        end=bounds.low,
        behind=bounds.high - bounds.low,
    )


async def differing_positions(
    source: SourceCluster, store: ObjectStore, state: MetadataImage, topics: Sequence[SourceTopic]
) -> list[str]:
    """Return in words which positions of groups on these topics differ: committed offsets, and
    those of share groups. Raises as `compared`.
    """
    names = {one.name for one in topics}

    def end_of(number: int) -> int:
        return state.stream(number).end_offset

    there = imported_positions(await source.positions(names), state, end_of)
    here = await stored_positions(store, state)
    found = []
    for key in sorted({*here, *there}, key=BY_NAMES):
        ours, theirs = here.get(key), there.get(key)
        if ours != theirs and key.topic in names:
            place = f"group {key.group_id} at {key.topic}-{key.partition}"
            ends = (None if one is None else one.offset for one in (ours, theirs))
            found.append(_differing(place, *ends))
    shares = await source_share_positions(source.brokers, names)
    begun_there = imported_share_positions(shares.groups, state, end_of)
    begun_here = await stored_share_positions(store, state)
    by_id = {bytes.fromhex(state.topics[name].topic_id): name for name in names}
    for share in sorted({*begun_here, *begun_there}):
        name = by_id.get(share.topic_id)
        begun = begun_here.get(share), begun_there.get(share)
        if begun[0] != begun[1] and name is not None and not shares.not_served:
            found.append(
                _differing(f"share group {share.group_id} at {name}-{share.partition}", *begun)
            )
    return found


def _differing(place: str, here: int | None, there: int | None) -> str:
    at_here, at_source = ("none" if one is None else f"{one}" for one in (here, there))
    return f"{place}: {at_here} here, and {at_source} at the source"


async def _compared_partition(
    source: SourceCluster,
    store: ObjectStore,
    stream: StreamState,
    place: Place,
    bounds: Bounds,
    is_compacted: bool,
) -> ComparedPartition:
    end = stream.end_offset
    start = min(max(bounds.low, stream.start_offset), end)
    result = ComparedPartition(
        topic=place.topic.name,
        partition=place.partition,
        start=start,
        end=end,
        behind=max(bounds.high - end, 0),
    )
    comparison = Comparison(result, is_compacted)
    async with (
        aclosing(_stored(store, stream)) as stored,
        aclosing(_of_source(source, place, start, min(end, bounds.high))) as fetched,
    ):
        await comparison.run(Side(stored, start, end), Side(fetched, start, end))
    if comparison.pending and bounds.high > end:
        # A record beyond the end may have superseded one that is here.
        async with aclosing(_of_source(source, place, end, bounds.high)) as fetched:
            beyond = Side(fetched, end, bounds.high)
            while comparison.pending and await beyond.decoded():
                comparison.supersede(beyond.records)
                beyond.records.clear()
    comparison.finish()
    return result


async def _stored(store: ObjectStore, stream: StreamState) -> AsyncGenerator[_Item, None]:
    async for batch in stored_batches(store, stream):
        yield SourceBatch(read_header(batch), batch)


async def _of_source(
    source: SourceCluster, place: Place, start: int, end: int
) -> AsyncGenerator[_Item, None]:
    position = start
    try:
        async with aclosing(fetched_batches(source.brokers, place, start, end)) as responses:
            async for one in responses:
                if one.lost_before is not None:
                    yield _Lost(one.lost_before)
                for batch in one.batches:
                    yield batch
                position = one.end
    except OldFormat:
        with source.partition(place) as reader:
            async for some in reader.records(position, end):
                yield some


class Side:
    """The batches of one side from `start` to `end`, and the records of those that were decoded."""

    def __init__(self, items: AsyncGenerator[_Item, None], start: int, end: int) -> None:
        self._items = items
        self.start = start
        self.end = end
        self.batch: SourceBatch | None = None
        self.lost: int | None = None
        self.records = deque[KafkaRecord]()

    async def has_more(self) -> bool:
        """Read on if there is neither a batch nor a record; return false at the end."""
        while self.batch is None and not self.records and self.lost is None:
            item = await anext(self._items, None)
            if item is None:
                return False
            if isinstance(item, _Lost):
                self.lost = item.end
            elif isinstance(item, SourceBatch):
                header = item.header
                is_within = header.base_offset < self.end and header.end_offset > self.start
                if header.record_count and is_within:
                    self.batch = item
            else:
                self._take(item)
        return True

    async def decoded(self) -> bool:
        """Have records; return false at the end."""
        while await self.has_more():
            self.decode()
            if self.records:
                return True
        return False

    def decode(self) -> None:
        """Take the batch apart."""
        if self.batch is not None:
            self._take(iter_kafka_records(self.batch.data))
            self.batch = None

    def within(self, records: Iterable[KafkaRecord]) -> list[KafkaRecord]:
        """Return those from `start` to `end`."""
        return [one for one in records if self.start <= one.offset < self.end]

    def _take(self, records: Iterable[KafkaRecord]) -> None:
        self.records.extend(self.within(records))


class Comparison:
    """The comparison of one partition, whose outcome is in `result`."""

    def __init__(self, result: ComparedPartition, is_compacted: bool) -> None:
        self._result = result
        self._is_compacted = is_compacted
        self._here, self._there = hashlib.sha256(), hashlib.sha256()
        self.pending: dict[bytes, list[int]] = {}
        """Offsets of records that are here only, by the digests of their keys: a later record of
        the same key has to follow.
        """

    async def run(self, here: Side, there: Side) -> None:
        """Compare all that both have."""
        while True:
            has_here, has_there = await here.has_more(), await there.has_more()
            if there.lost is not None:
                self._skip(here, there, there.lost)
                there.lost = None
                continue
            if not has_here and not has_there:
                return
            if _are_same(here, there):
                assert here.batch is not None
                if self.pending:
                    self.supersede(here.within(iter_kafka_records(here.batch.data)))
                self._add(here.batch, here.start, here.end)
                here.batch = there.batch = None
                continue
            here.decode()
            there.decode()
            self._merge(here.records, there.records, has_here, has_there)

    def finish(self) -> None:
        """Count what no later record has superseded, and have the digests."""
        for offsets in self.pending.values():
            for offset in offsets:
                self._result.records += 1
                self._result.differs(offset, "added")
        self._result.digest = self._here.hexdigest()
        self._result.source_digest = self._there.hexdigest()

    def supersede(self, records: Iterable[KafkaRecord]) -> None:
        """Have later records of their keys supersede those that are here only."""
        if self.pending:
            for record in records:
                offsets = self.pending.pop(_digest_of(record.key), ())
                self._result.superseded += len(offsets)

    def _skip(self, here: Side, there: Side, end: int) -> None:
        """Leave out what the source deleted meanwhile, of which a batch may have the rest."""
        here.start = there.start = self._result.start = end
        kept = here.within(here.records)
        here.records.clear()
        here.records.extend(kept)

    def _merge(
        self,
        here: deque[KafkaRecord],
        there: deque[KafkaRecord],
        has_here: bool,
        has_there: bool,
    ) -> None:
        """Compare records up to the end of one side's; all, if the other one has ended."""
        while here or there:
            if here and there and here[0].offset == there[0].offset:
                ours, theirs = here.popleft(), there.popleft()
                if ours != theirs:
                    self._result.differs(ours.offset, "changed")
                self._add_apart([ours], [theirs])
            elif here and ((there and here[0].offset < there[0].offset) or not has_there):
                self._add_here(here.popleft())
            elif there and ((here and there[0].offset < here[0].offset) or not has_here):
                self._result.differs(there[0].offset, "missing")
                self._add_apart([], [there.popleft()])
            else:
                return

    def _add_here(self, record: KafkaRecord) -> None:
        """Add a record that is here only."""
        self.supersede([record])
        if self._is_compacted and record.key is not None:
            if record.value is None:
                self._result.superseded += 1
            else:
                self.pending.setdefault(_digest_of(record.key), []).append(record.offset)
            return
        self._result.differs(record.offset, "added")
        self._add_apart([record], [])

    def _add(self, batch: SourceBatch, start: int, end: int) -> None:
        """Add a batch that both sides have."""
        header, data = batch
        parts = list[Buffer]()
        for (offset, timestamp), contents in iter_record_contents(
            header, inflate(header, data[HEADER_SIZE:])
        ):
            if start <= offset < end:
                parts.append(_PLACE.pack(offset, timestamp))
                parts.append(contents)
        joined = b"".join(parts)
        self._here.update(joined)
        self._there.update(joined)
        self._result.records += len(parts) // 2
        self._result.source_records += len(parts) // 2

    def _add_apart(self, ours: Sequence[KafkaRecord], theirs: Sequence[KafkaRecord]) -> None:
        self.supersede(theirs)
        self._here.update(b"".join(map(_digested, ours)))
        self._there.update(b"".join(map(_digested, theirs)))
        self._result.records += len(ours)
        self._result.source_records += len(theirs)


def _digested(record: KafkaRecord) -> bytes:
    return _PLACE.pack(record.offset, record.timestamp) + record_contents(record)


def _are_same(here: Side, there: Side) -> bool:
    """Return true if the next on both sides are batches with the same bytes, for which one look
    inside is enough.
    """
    if here.batch is None or there.batch is None or here.records or there.records:
        return False
    ours, theirs = here.batch.header, there.batch.header
    return (
        ours.base_offset == theirs.base_offset
        and ours.last_offset_delta == theirs.last_offset_delta
        and ours.record_count == theirs.record_count
        and ours.base_timestamp == theirs.base_timestamp
        and ours.max_timestamp == theirs.max_timestamp
        and ours.attributes & _KINDS == theirs.attributes & _KINDS
        and here.batch.data[HEADER_SIZE:] == there.batch.data[HEADER_SIZE:]
    )


def _digest_of(key: bytes | None) -> bytes:
    return hashlib.blake2b(key or b"", digest_size=_KEY_BYTES).digest()
