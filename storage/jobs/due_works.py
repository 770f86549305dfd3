"""The work that is due in partitions, for the jobs `compact_topics` and `apply_retention`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lakehead.storage.jobs.job import DueItem, Unit
from lakehead.storage.jobs.options import BrokerDefaults

if TYPE_CHECKING:  # a DAG is parsed without them
    from lakehead.storage.maintenance.rules import DueWork
    from lakehead.storage.metadata.log import MetadataLog
    from lakehead.storage.object_store import ObjectStore

Item = TypeVar("Item")

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
    return Unit(key=key, size=work.size, item=work, words=words or key, row=due_row(work))


def due_row(work: "DueWork") -> dict[str, Any]:
    """Return a partition's work as a row of DUE_COLUMNS."""
    return {"topic": work.topic, "partition": work.partition, "due": work.words}


def due_item(item: "Item", works: "Sequence[DueWork]") -> "DueItem[Item]":
    """Return an item of the maintenance loop that does these works."""
    first = works[0]
    return DueItem(
        item=item,
        streams=tuple(work.stream_id for work in works),
        fields={
            "topic": first.topic,
            "partition": first.partition,
            "partitions": len(works),
            "work": first.words,
        },
    )


RETENTION_INTERVAL = "log.retention.check.interval.ms"
"""The setting of brokers that says how often what is not urgent is looked for."""
PARTITION_FAILED = "partition_not_maintained"
"""The event of a partition whose maintenance failed."""
