"""Retention, the job `apply_retention`: records that retention.ms and retention.bytes do
not keep are removed.

Plan: what is due, by configs and metadata alone. Run: each item removes it from some partitions, by
one entry of the metadata log, as far as it is due still. Records that the table of a topic does not
hold yet stay for a while. Objects are deleted by `sweep`, or by a running node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehead.storage.jobs.due_works import (
    DUE_COLUMNS,
    PARTITION_FAILED,
    RETENTION_INTERVAL,
    due_item,
    due_row,
    due_unit,
    due_works,
)
from lakehead.storage.jobs.job import (
    DueItem,
    Event,
    Job,
    JobContext,
    JobResult,
    Maintenance,
    OpenCluster,
    Planned,
    Unit,
    sum_results,
    total,
)
from lakehead.storage.jobs.options import BrokerDefaults, option

if TYPE_CHECKING:  # a DAG is parsed without them
    from lakehead.storage.maintenance.retention import Trimmed
    from lakehead.storage.maintenance.rules import DueWork
    from lakehead.storage.metadata.log import MetadataLog
    from lakehead.storage.object_store import ObjectStore

_WRITER = "retain"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionOptions:
    """Options of the job: the topics to examine."""

    topics: tuple[str, ...] = option(
        (),
        "These topics only.",
        title="Topics",
        metavar="[TOPIC]...",
        is_argument=True,
        form={"description": "These alone, one a line. None: all of them."},
    )
    defaults: BrokerDefaults = option(
        BrokerDefaults(), "The brokers' retention, for topics without their own.", in_form=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionResult(JobResult):
    """`records` counts offsets, `objects` those that a partition refers to no more, `bytes` those
    of batches. `missed` records waited too long for the topic's table, which lacks them.
    """

    partitions: int = total("trimmed partitions")
    records: int = total("records")
    objects: int = total()
    bytes: int = total("bytes")
    missed: int = total("records that a table lacks")

    @classmethod
    def of(cls, trimmed: "Sequence[Trimmed]") -> "RetentionResult":
        """Return the result of one item."""
        return cls(
            partitions=len(trimmed),
            records=sum(one.records for one in trimmed),
            objects=sum(one.objects for one in trimmed),
            bytes=sum(one.size for one in trimmed),
            missed=sum(one.missed for one in trimmed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionItem:
    """Partitions from which one entry removes something, for any process."""

    path: str
    works: "tuple[DueWork, ...]"
    defaults: BrokerDefaults

    @property
    def size(self) -> int:
        """Bytes of batches to remove."""
        return sum(work.size for work in self.works)

    def words(self) -> str:
        """Return the names of the partitions, for people."""
        first, others = self.works[0], len(self.works) - 1
        return f"{first.topic}-{first.partition}" + (f" and {others} others" if others else "")


def _plan(context: JobContext, options: RetentionOptions) -> Planned:
    """Raises SettingsError, UnknownTopic, StoreUnavailable."""
    from lakehead.storage.maintenance.retention import trim_groups

    works = due_works(context.path, _WRITER, options.topics, options.defaults)
    return Planned(
        units=tuple(
            due_unit(work, f"{work.topic}-{work.partition}: {work.words}")
            for group in trim_groups(works)
            for work in group
        )
    )


def items_of(
    path: str, options: RetentionOptions, units: Sequence[Unit]
) -> tuple[RetentionItem, ...]:
    """Return the items of some units."""
    from lakehead.storage.maintenance.retention import trim_groups

    works = [unit.item for unit in units]
    return tuple(
        RetentionItem(path=path, works=group, defaults=options.defaults)
        for group in trim_groups(works)
    )


def retention_item(item: RetentionItem) -> "tuple[Trimmed, ...]":
    """Do one item; what is not due any more is left. Raises StoreUnavailable, OutcomeUnknown."""
    from lakehead.storage.clock import SystemClock
    from lakehead.storage.jobs.cluster import in_cluster
    from lakehead.storage.maintenance.configs import MaintenanceDefaults
    from lakehead.storage.maintenance.retention import trim

    async def work(_: "ObjectStore", log: "MetadataLog") -> "tuple[Trimmed, ...]":
        defaults = MaintenanceDefaults(given=item.defaults.given)
        return await trim(log, item.works, defaults, SystemClock().now_ms())

    return in_cluster(item.path, _WRITER, work)


def _due(_cluster: OpenCluster, works: "Sequence[DueWork]") -> "list[DueItem[tuple[DueWork, ...]]]":
    from lakehead.storage.maintenance.retention import trim_groups

    return [due_item(group, group) for group in trim_groups(works)]


async def _trim(cluster: OpenCluster, works: "Sequence[DueWork]") -> "tuple[Trimmed, ...]":
    from lakehead.storage.maintenance.retention import trim

    return await trim(cluster.metadata, works, cluster.defaults, cluster.clock.now_ms())


def _events(_works: object, trimmed: "Sequence[Trimmed]", _seconds: float) -> list[Event]:
    return [
        (
            "retention_applied",
            {
                "topic": one.topic,
                "partition": one.partition,
                "start": one.start_offset,
                "bytes": one.size,
            },
        )
        for one in trimmed
    ]


def _result_of_item(item: RetentionItem) -> RetentionResult:
    return RetentionResult.of(retention_item(item))


def _run(context: JobContext, options: RetentionOptions, units: Sequence[Unit]) -> RetentionResult:
    return sum_results(
        context,
        _result_of_item,
        items_of(context.path, options, units),
        empty=RetentionResult(),
        size=lambda item: item.size,
        words=RetentionItem.words,
    )


JOB = Job(
    name="apply_retention",
    help="""Delete records past retention.ms or retention.bytes.

    What the table of a topic that declares one does not hold yet stays for
    lakehead.table.retention.wait.ms longer.
    """,
    options=RetentionOptions,
    plan=_plan,
    run=_run,
    columns=DUE_COLUMNS,
    maintenance=Maintenance(
        due=_due,
        run=_trim,
        result=RetentionResult.of,
        rows=lambda groups: [due_row(work) for works in groups for work in works],
        empty=RetentionResult(),
        figures={"trimmed partitions": "partitions", "records that a table lacks": "missed"},
        events=_events,
        failed_event=PARTITION_FAILED,
        interval=RETENTION_INTERVAL,
    ),
)
