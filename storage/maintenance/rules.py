"""Decide the maintenance that is due in a partition, by its topic's configs and the metadata alone.
Pure.

Compaction is due when the dirty share of a partition's bytes is above min.cleanable.dirty.ratio, or
its oldest dirty object is older than max.compaction.lag.ms. Retention takes whole objects, as Kafka
takes whole segments: those of which every record is older than retention.ms, and the oldest ones
without which a partition still has retention.bytes. Of a topic that declares a table it takes
nothing that the table does not hold yet, unless that has waited for longer than
lakehead.table.retention.wait.ms.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from lakehead.storage.compaction.dirtiness import Dirtiness, dirtiness
from lakehead.storage.compaction.object_compaction_plan import MergeItem, MergeRules, plan_merges
from lakehead.storage.errors import UnknownTopic
from lakehead.storage.maintenance.configs import MaintenanceValues
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.state import INTERNAL_TOPICS, MetadataImage, StreamState, TopicState


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """A topic's configs for old records. Times in milliseconds, -1: no limit."""

    is_compacted: bool
    is_deleted: bool
    dirty_ratio_min: float
    compaction_lag_min_ms: int
    compaction_lag_max_ms: int
    delete_retention_ms: int
    retention_ms: int
    retention_bytes: int


def topic_rules(configs: Mapping[str, str], values: MaintenanceValues) -> TopicRules:
    """Return what is in force for a topic that sets `configs`."""

    def number(name: str) -> int:
        return int(values.of_topic(name, configs))

    policies = {one.strip() for one in values.of_topic("cleanup.policy", configs).split(",")}
    return TopicRules(
        is_compacted="compact" in policies,
        is_deleted="delete" in policies,
        dirty_ratio_min=float(values.of_topic("min.cleanable.dirty.ratio", configs)),
        compaction_lag_min_ms=number("min.compaction.lag.ms"),
        compaction_lag_max_ms=number("max.compaction.lag.ms"),
        delete_retention_ms=number("delete.retention.ms"),
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWork:
    """Something that is due of a partition: compaction from its first dirty offset on, or
    retention's new start offset. `size` in bytes: of its batches that this is about.
    """

    topic: str
    partition: int
    stream_id: int
    offset: int
    is_compaction: bool
    rules: TopicRules
    size: int

    @property
    def words(self) -> str:
        """A description of the work for people."""
        return f"compact from {self.offset}" if self.is_compaction else f"trim to {self.offset}"


def is_compacted(topic: TopicState, values: MaintenanceValues) -> bool:
    """Return true if a topic is compacted. The cheapest check of all."""
    return "compact" in values.of_topic("cleanup.policy", topic.configs)


def due_in(
    state: MetadataImage, values: MaintenanceValues, now_ms: int, topics: Collection[str] = ()
) -> Iterator[DueWork]:
    """Yield what is due of a cluster, or of some of its `topics`, in the order of their names.

    Internal topics are left to their coordinators. Raises UnknownTopic.
    """
    for name in topics:
        if name not in state.topics:
            raise UnknownTopic(f"topic {name!r} does not exist")
    for name, topic in sorted(state.topics.items()):
        if name not in INTERNAL_TOPICS and (not topics or name in topics):
            yield from due_of(state, topic, values, now_ms)


def due_of(
    state: MetadataImage, topic: TopicState, values: MaintenanceValues, now_ms: int
) -> Iterator[DueWork]:
    """Yield what is due of a topic's partitions."""
    rules = topic_rules(topic.configs, values)
    for stream_id in topic.partitions:
        work = due_of_stream(state, topic, stream_id, rules, now_ms)
        if work is not None:
            yield work


def due_of_stream(
    state: MetadataImage, topic: TopicState, stream_id: int, rules: TopicRules, now_ms: int
) -> DueWork | None:
    """Return what is due of a topic's partition, which may be gone."""
    stream = state.streams.get(stream_id)
    if stream is None:
        return None
    offset, is_compaction = retention_offset(state, topic, stream, rules, now_ms), False
    if offset is None and rules.is_compacted:
        found = dirtiness(state, stream, until_ms=youngest_ms(rules, now_ms))
        if is_compaction_due(found, rules, now_ms):
            offset, is_compaction = found.first_dirty, True
    if offset is None:
        return None
    return DueWork(
        topic=topic.name,
        partition=stream.partition,
        stream_id=stream_id,
        offset=offset,
        is_compaction=is_compaction,
        rules=rules,
        size=sum(one.size for one in stream.extents if is_compaction or one.end_offset <= offset),
    )


def retention_offset(
    state: MetadataImage, topic: TopicState, stream: StreamState, rules: TopicRules, now_ms: int
) -> int | None:
    """Return the log start offset that retention requires, None: the present one. Records that a
    declared table does not hold yet stay, until they have waited for it too long.
    """
    offset = retained_from(state, stream, rules, now_ms)
    if offset is None or not topic.declares_table:
        return offset
    held = held_by_table(state, topic, stream.partition)
    if offset > held:
        offset = min(offset, max(held, _waited_until(state, topic, stream, rules, now_ms)))
    return offset if offset > stream.start_offset else None


def _waited_until(
    state: MetadataImage, topic: TopicState, stream: StreamState, rules: TopicRules, now_ms: int
) -> int:
    """Return the end of the first objects that have waited too long for a table: from the upload
    on, or from the time of their newest record if that is later, so that old records which are
    produced today have their time too.
    """
    wait_ms = max(rules.retention_ms, 0) + topic.table_retention_wait_ms
    end = stream.start_offset
    for extent in stream.extents:
        since = max(extent.max_timestamp, state.objects[extent.object_key].created_ms)
        if now_ms - since <= wait_ms:
            break
        end = extent.end_offset
    return end


def held_by_table(state: MetadataImage, topic: TopicState, partition: int) -> int:
    """Return up to which offset a declared table surely holds a partition."""
    table = state.tables.get(topic.topic_id)
    return 0 if table is None else table.end_offset(partition)


def youngest_ms(rules: TopicRules, now_ms: int) -> int:
    """Return up to which timestamp records may be compacted: without a lag, whatever it is."""
    lag_ms = rules.compaction_lag_min_ms
    return now_ms - lag_ms if lag_ms > 0 else 2**63 - 1


def is_compaction_due(found: Dirtiness, rules: TopicRules, now_ms: int) -> bool:
    """Return true if a partition is to be compacted."""
    if not rules.is_compacted or not found.dirty:
        return False
    if found.ratio > rules.dirty_ratio_min:
        return True
    return now_ms - found.oldest_ms > rules.compaction_lag_max_ms


def retained_from(
    state: MetadataImage, stream: StreamState, rules: TopicRules, now_ms: int
) -> int | None:
    """Return where a partition is to start by retention alone, None: where it does."""
    if not rules.is_deleted or not stream.extents:
        return None
    size = sum(extent.size for extent in stream.extents) if rules.retention_bytes >= 0 else 0
    start: int | None = None
    for extent in stream.extents:
        size -= extent.size
        is_old = 0 <= rules.retention_ms < now_ms - _newest_ms(state, extent)
        is_too_much = 0 <= rules.retention_bytes <= size
        if not (is_old or is_too_much):
            break
        start = extent.end_offset
    return start


def _newest_ms(state: MetadataImage, extent: Extent) -> int:
    """Return how new an object's newest record is: where none says it, the object."""
    if extent.max_timestamp >= 0:
        return extent.max_timestamp
    return state.objects[extent.object_key].created_ms


def compacted_streams(state: MetadataImage, values: MaintenanceValues) -> frozenset[int]:
    """Return the streams of topics that are compacted by keys: they are left to that, which makes
    large objects of them anyway.
    """
    return frozenset(
        stream_id
        for topic in state.topics.values()
        if is_compacted(topic, values)
        for stream_id in topic.partitions
    )


def due_merges(
    state: MetadataImage, values: MaintenanceValues, rules: MergeRules
) -> tuple[MergeItem, ...]:
    """Return which small objects are to be merged. All streams are looked at: for a thread of its
    own in a busy process.
    """
    return plan_merges(state, rules, excluded=compacted_streams(state, values))
