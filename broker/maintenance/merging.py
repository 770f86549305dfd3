"""Merging small objects as part of maintenance: which streams it leaves alone, and one turn of it.

Topics that are compacted by keys are left to that: it makes large objects of them anyway.
"""

import random

import structlog

from broker.configs.entries import BrokerValues
from broker.maintenance.rules import is_compacted
from storage.clock import Clock
from storage.compaction.merge import Merge
from storage.compaction.merge_plan import MergeItem, MergeRules, plan_merges
from storage.errors import LakeheadError
from storage.jobs.compact import CompactFigures
from storage.metadata.log import MetadataLog
from storage.metadata.state import ClusterState
from storage.object_store.protocol import ObjectStore

_log = structlog.get_logger("broker.maintenance")


def compacted_streams(state: ClusterState, values: BrokerValues) -> frozenset[int]:
    """Return the streams of topics that are compacted by keys."""
    return frozenset(
        stream_id
        for topic in state.topics.values()
        if is_compacted(topic, values)
        for stream_id in topic.partitions
    )


def due_merges(state: ClusterState, values: BrokerValues) -> tuple[MergeItem, ...]:
    """Return what is due. Pure, and of all there is: for a thread of its own in a busy process."""
    return plan_merges(state, MergeRules(), excluded=compacted_streams(state, values))


async def merge_all(
    items: tuple[MergeItem, ...],
    store: ObjectStore,
    metadata: MetadataLog,
    clock: Clock,
    rng: random.Random,
) -> tuple[CompactFigures, int]:
    """Do what is due, and return figures and how many items failed: they are logged."""
    figures, failures = CompactFigures(), 0
    for item in items:
        try:
            result = await Merge(store, metadata, clock, rng, item).run()
            figures = figures.plus(CompactFigures.of(result))
        except LakeheadError as error:
            failures += 1
            _log.warning(
                "objects_not_merged",
                streams=item.streams[:5],
                first=item.sources[0],
                error=str(error),
            )
    if figures.items:
        _log.info(
            "objects_merged",
            before=figures.objects_before,
            after=figures.objects_after,
            bytes=figures.bytes_before,
        )
    return figures, failures
