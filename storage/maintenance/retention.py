"""Retention: delete records past the retention limits of their topics, of many partitions in one
entry of the metadata log.

The limits are evaluated again when the entry is made. So nothing is deleted that another run has
deleted already, that a changed config keeps, or that a table declared meanwhile does not hold yet.
Records that waited too long for their table are deleted without it, and the log says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lakehead.storage.event_logger import event_logger
from lakehead.storage.maintenance.configs import MaintenanceDefaults
from lakehead.storage.maintenance.rules import (
    DueWork,
    held_by_table,
    retention_offset,
    topic_rules,
)
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import Record, TrimStream
from lakehead.storage.metadata.state import MetadataImage

_log = event_logger("storage.maintenance")

TRIMS_AT_ONCE = 500
"""Partitions of which one entry removes something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """The records removed from a partition. `records` counts offsets, `objects` those that the
    partition refers to no longer: a shared one stays for its other streams. `size` in bytes of
    batches. `missed` records (offsets) of these are not in the topic's table.
    """

    topic: str
    partition: int
    stream_id: int
    start_offset: int
    records: int
    objects: int
    size: int
    missed: int = 0


def trim_groups(works: Sequence[DueWork]) -> Iterator[tuple[DueWork, ...]]:
    """Cut the retention among `works` into what one entry does."""
    trims = [work for work in works if not work.is_compaction]
    for first in range(0, len(trims), TRIMS_AT_ONCE):
        yield tuple(trims[first : first + TRIMS_AT_ONCE])


async def trim(
    metadata: MetadataLog, works: Sequence[DueWork], defaults: MaintenanceDefaults, now_ms: int
) -> tuple[Trimmed, ...]:
    """Remove what is due still of these works, at most as far as they say.

    Raises StoreUnavailable, OutcomeUnknown.
    """
    trimmed: tuple[Trimmed, ...] = ()

    def plan(state: MetadataImage) -> list[Record]:
        nonlocal trimmed
        trimmed = tuple(_due_still(state, works, defaults, now_ms))
        return [
            TrimStream(stream_id=one.stream_id, start_offset=one.start_offset) for one in trimmed
        ]

    await metadata.commit_with(plan)
    for one in trimmed:
        if one.missed:
            _log.warning(
                "retention_overtook_table",
                topic=one.topic,
                partition=one.partition,
                start=one.start_offset,
                records=one.missed,
                run="lakehead tables",
            )
    return trimmed


def _due_still(
    state: MetadataImage, works: Sequence[DueWork], defaults: MaintenanceDefaults, now_ms: int
) -> Iterator[Trimmed]:
    values = defaults.values(state)
    for work in works:
        topic, stream = state.topics.get(work.topic), state.streams.get(work.stream_id)
        if topic is None or stream is None:
            continue
        rules = topic_rules(topic.configs, values)
        offset = retention_offset(state, topic, stream, rules, now_ms)
        offset = None if offset is None else min(offset, work.offset)
        if offset is None or offset <= stream.start_offset:
            continue
        held = held_by_table(state, topic, work.partition) if topic.declares_table else offset
        gone = [extent for extent in stream.extents if extent.end_offset <= offset]
        yield Trimmed(
            topic=work.topic,
            partition=work.partition,
            stream_id=work.stream_id,
            start_offset=offset,
            records=offset - stream.start_offset,
            objects=len(gone),
            size=sum(extent.size for extent in gone),
            missed=max(offset - max(held, stream.start_offset), 0),
        )
