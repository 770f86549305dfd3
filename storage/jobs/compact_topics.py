"""Log compaction, the job `compact_topics`: the newest record of each key stays, in topics with
cleanup.policy=compact.

Plan: the partitions that are dirty enough, or have waited long enough, by configs and metadata
alone. Run: each item compacts one of them, if that is due still
(`lakehead.storage.compaction.log_compaction`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehead.storage.jobs.due_works import (
    DUE_COLUMNS,
    PARTITION_FAILED,
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
    from lakehead.storage.compaction.log_compaction import LogCompactionResult, Superseded
    from lakehead.storage.maintenance.rules import DueWork
    from lakehead.storage.metadata.log import MetadataLog
    from lakehead.storage.object_store import ObjectStore

_WRITER = "compact-topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactTopicsOptions:
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
        BrokerDefaults(),
        "The brokers' log compaction, for topics without their own.",
        in_form=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactTopicsResult(JobResult):
    """Bytes are of batches. `superseded` partitions were compacted, trimmed or deleted by others
    meanwhile; `waiting` ones have an open transaction, or more keys in one batch than
    log.cleaner.dedupe.buffer.size has room for. `unreadable` batches stay as they are.
    """

    partitions: int = total("compacted partitions")
    bytes_before: int = total("bytes before")
    bytes_after: int = total("bytes after")
    superseded: int = total("left to others")
    waiting: int = total("waiting for transactions")
    objects_after: int = total()
    unreadable: int = total()

    @classmethod
    def of(cls, done: "LogCompactionResult | Superseded") -> "CompactTopicsResult":
        """Return the result of one partition."""
        if isinstance(done, Exception):
            return cls(superseded=1)
        return cls(
            partitions=int(done.passes > 0),
            waiting=int(done.passes == 0),
            objects_after=done.objects,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
            unreadable=done.unreadable,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactTopicsItem:
    """One partition, for any process."""

    path: str
    work: "DueWork"
    defaults: BrokerDefaults

    @property
    def size(self) -> int:
        """Bytes of batches in the partition."""
        return self.work.size

    def words(self) -> str:
        """Return the partition's name, for people."""
        return f"{self.work.topic}-{self.work.partition}"


def _plan(context: JobContext, options: CompactTopicsOptions) -> Planned:
    """Raises SettingsError, UnknownTopic, StoreUnavailable."""
    works = due_works(context.path, _WRITER, options.topics, options.defaults)
    return Planned(units=tuple(due_unit(work, "") for work in works if work.is_compaction))


def compact_topics_item(item: CompactTopicsItem) -> CompactTopicsResult:
    """Compact one partition, if that is due still.

    Raises StoreUnavailable, CorruptObject, UnsupportedFormat, OutcomeUnknown; ObjectNotFound when
    data is lost.
    """
    import random

    from lakehead.storage.clock import SystemClock
    from lakehead.storage.jobs.cluster import in_cluster
    from lakehead.storage.maintenance.configs import MaintenanceDefaults

    async def work(store: "ObjectStore", log: "MetadataLog") -> CompactTopicsResult:
        cluster = OpenCluster(
            store=store,
            metadata=log,
            clock=SystemClock(),
            rng=random.SystemRandom(),
            defaults=MaintenanceDefaults(given=item.defaults.given),
        )
        return CompactTopicsResult.of(await _compact(cluster, item.work))

    return in_cluster(item.path, _WRITER, work)


async def _compact(cluster: OpenCluster, work: "DueWork") -> "LogCompactionResult | Superseded":
    """Compact a partition; return Superseded where another process was quicker, or where the topic
    is not to be compacted any more: the work may have been planned hours ago.
    """
    from lakehead.storage.compaction.log_compaction import Superseded
    from lakehead.storage.maintenance.partition_compaction import compact_partition
    from lakehead.storage.maintenance.rules import due_of_stream, topic_rules

    state = await cluster.metadata.refresh()
    values, topic = cluster.defaults.values(state), state.topics.get(work.topic)
    due = None
    if topic is not None:
        rules, now_ms = topic_rules(topic.configs, values), cluster.clock.now_ms()
        due = due_of_stream(state, topic, work.stream_id, rules, now_ms)
    if due is None or not due.is_compaction:
        return Superseded(f"partition {work.partition} of topic {work.topic} is not due any more")
    try:
        return await compact_partition(
            cluster.store, cluster.metadata, cluster.clock, cluster.rng, due, values
        )
    except Superseded as error:
        return error


def _due(_cluster: OpenCluster, works: "Sequence[DueWork]") -> "list[DueItem[DueWork]]":
    return [due_item(work, [work]) for work in works if work.is_compaction]


def _events(
    work: "DueWork", done: "LogCompactionResult | Superseded", seconds: float
) -> list[Event]:
    place = {"topic": work.topic, "partition": work.partition}
    if isinstance(done, Exception):
        return [("partition_left", {**place, "reason": str(done)})]
    if not done.passes:
        reason = "a transaction is open, or log.cleaner.dedupe.buffer.size is too small"
        return [("partition_not_compacted", {**place, "reason": reason})]
    figures = {
        "passes": done.passes,
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "unreadable": done.unreadable,
        "seconds": round(seconds, 3),
    }
    return [("partition_compacted", place | figures)]


def items_of(
    path: str, options: CompactTopicsOptions, units: Sequence[Unit]
) -> tuple[CompactTopicsItem, ...]:
    """Return the items of some units."""
    return tuple(
        CompactTopicsItem(path=path, work=unit.item, defaults=options.defaults) for unit in units
    )


def _run(
    context: JobContext, options: CompactTopicsOptions, units: Sequence[Unit]
) -> CompactTopicsResult:
    return sum_results(
        context,
        compact_topics_item,
        items_of(context.path, options, units),
        empty=CompactTopicsResult(),
        size=lambda item: item.size,
        words=CompactTopicsItem.words,
    )


JOB = Job(
    name="compact_topics",
    help="""Run log compaction where it is due.

    The newest record of each key stays in topics with cleanup.policy=compact.

    Safe to run beside a live cluster, to kill at any moment, and to run twice at once.
    """,
    options=CompactTopicsOptions,
    plan=_plan,
    run=_run,
    columns=DUE_COLUMNS,
    takes_processes=True,
    maintenance=Maintenance(
        needs_kernels=True,
        due=_due,
        run=_compact,
        result=CompactTopicsResult.of,
        rows=lambda works: [due_row(work) for work in works],
        empty=CompactTopicsResult(),
        figures={
            "compacted partitions": "partitions",
            "bytes before": "bytes_before",
            "bytes after": "bytes_after",
        },
        events=_events,
        failed_event=PARTITION_FAILED,
        is_waiting=lambda done: done.waiting > 0,
    ),
)
