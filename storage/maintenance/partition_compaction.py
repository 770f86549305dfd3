"""Log compaction of one partition by its topic's configs."""

import random

from lakehead.storage.clock import Clock
from lakehead.storage.compaction.log_compaction import (
    LogCompaction,
    LogCompactionResult,
    LogCompactionSettings,
)
from lakehead.storage.maintenance.configs import CLEANER_MEMORY, MaintenanceValues
from lakehead.storage.maintenance.rules import DueWork, youngest_ms
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store.protocol import ObjectStore


async def compact_partition(
    store: ObjectStore,
    metadata: MetadataLog,
    clock: Clock,
    rng: random.Random,
    work: DueWork,
    values: MaintenanceValues,
) -> LogCompactionResult:
    """Compact what can be. Raises what `LogCompaction.run` raises."""
    compaction = LogCompaction(
        store,
        metadata,
        clock,
        rng,
        stream_id=work.stream_id,
        settings=LogCompactionSettings(
            until_ms=youngest_ms(work.rules, clock.now_ms()),
            delete_retention_ms=work.rules.delete_retention_ms,
            map_memory=int(values.of_broker(CLEANER_MEMORY)),
        ),
    )
    return await compaction.run()
