"""Compaction by keys of one partition, as its topic's configs say."""

import random

from lakehead.storage.clock import Clock
from lakehead.storage.compaction.job import Compaction, CompactionResult, CompactionSettings
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.upkeep.configs import CLEANER_MEMORY, UpkeepValues
from lakehead.storage.upkeep.rules import DueWork, youngest_ms


async def compact_partition(
    store: ObjectStore,
    metadata: MetadataLog,
    clock: Clock,
    rng: random.Random,
    work: DueWork,
    values: UpkeepValues,
) -> CompactionResult:
    """Compact what can be. Raises what `Compaction.run` raises."""
    compaction = Compaction(
        store,
        metadata,
        clock,
        rng,
        stream_id=work.stream_id,
        settings=CompactionSettings(
            until_ms=youngest_ms(work.rules, clock.now_ms()),
            delete_retention_ms=work.rules.delete_retention_ms,
            map_memory=int(values.of_broker(CLEANER_MEMORY)),
        ),
    )
    return await compaction.run()
