"""The work that is due in the partitions of a cluster, for `compact_topics` and `retain`."""

from typing import TYPE_CHECKING

from lakehead.storage.jobs.job import Unit
from lakehead.storage.jobs.options import BrokerDefaults

if TYPE_CHECKING:  # a DAG is parsed without them
    from lakehead.storage.maintenance.rules import DueWork
    from lakehead.storage.metadata.log import MetadataLog
    from lakehead.storage.object_store import ObjectStore

DUE_COLUMNS = {"topic": "TOPIC", "partition": "PARTITION", "due": "DUE"}


def due_works(
    path: str, writer: str, topics: tuple[str, ...], defaults: BrokerDefaults
) -> "list[DueWork]":
    """Return what is due of these `topics`, or of all, by configs and metadata alone. Raises
    SettingsError, UnknownTopic, StoreUnavailable.
    """
    from lakehead.storage.clock import SystemClock
    from lakehead.storage.jobs.cluster import in_cluster
    from lakehead.storage.maintenance.configs import MaintenanceDefaults
    from lakehead.storage.maintenance.rules import due_in

    maintenance = MaintenanceDefaults(given=defaults.given)
    maintenance.check()

    async def plan(_: "ObjectStore", log: "MetadataLog") -> "list[DueWork]":
        values = maintenance.values(log.state)
        return list(due_in(log.state, values, SystemClock().now_ms(), frozenset(topics)))

    return in_cluster(path, writer, plan)


def due_unit(work: "DueWork", words: str) -> Unit:
    """Return a partition's work as a unit."""
    key = f"{work.topic}-{work.partition}"
    row = {"topic": work.topic, "partition": work.partition, "due": work.words}
    return Unit(key=key, size=work.size, item=work, words=words or key, row=row)
