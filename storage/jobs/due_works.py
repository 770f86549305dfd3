"""What is due in the partitions of a cluster: the plan of `compact-topic` and of `retain`."""

from collections.abc import Set

from storage.clock import SystemClock
from storage.jobs.cluster import in_cluster
from storage.metadata.log import MetadataLog
from storage.object_store import ObjectStore
from storage.upkeep.configs import UpkeepDefaults
from storage.upkeep.rules import DueWork, due_in


def due_works(path: str, writer: str, topics: Set[str], defaults: UpkeepDefaults) -> list[DueWork]:
    """Return what is due of these `topics`, or of all, by configs and metadata alone. Raises
    SettingsError, UnknownTopic, StoreUnavailable.
    """
    defaults.check()

    async def plan(_: ObjectStore, log: MetadataLog) -> list[DueWork]:
        values = defaults.values(log.state)
        return list(due_in(log.state, values, SystemClock().now_ms(), topics))

    return in_cluster(path, writer, plan)
