"""Merging small objects as part of maintenance: one turn of it."""

import random

import structlog

from lakehead.storage.clock import Clock
from lakehead.storage.compaction.object_compaction_plan import MergeItem
from lakehead.storage.errors import LakeheadError
from lakehead.storage.jobs.compact_objects import CompactObjectsResult
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store.protocol import ObjectStore

_log = structlog.get_logger("broker.maintenance")


async def merge_all(
    items: tuple[MergeItem, ...],
    store: ObjectStore,
    metadata: MetadataLog,
    clock: Clock,
    rng: random.Random,
) -> tuple[CompactObjectsResult, int]:
    """Do what is due, and return figures and how many items failed: they are logged."""
    from lakehead.storage.compaction.object_compaction import (
        ObjectCompaction,  # its kernels are for those alone who merge
    )

    figures, failures = CompactObjectsResult(), 0
    for item in items:
        try:
            result = await ObjectCompaction(store, metadata, clock, rng, item).run()
            figures = figures.plus(CompactObjectsResult.of(result))
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
