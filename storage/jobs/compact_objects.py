"""Object compaction, the job `compact_objects`: small objects become large ones, so that a
reader makes few requests.

Plan: which objects are small, by the metadata alone (`merge_plan`), without topics that are
compacted by keys. Run: each item reads them and replaces them by one entry of the metadata log
(`merge`). An item whose sources have changed meanwhile leaves them as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakehead.storage.jobs.due_works import RETENTION_INTERVAL
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
    from lakehead.storage.compaction.object_compaction import MergeResult
    from lakehead.storage.compaction.object_compaction_plan import (
        MergeItem,
        MergeRules,
        RebatchSettings,
    )
    from lakehead.storage.maintenance.configs import MaintenanceDefaults
    from lakehead.storage.metadata.log import MetadataLog
    from lakehead.storage.metadata.state import MetadataImage
    from lakehead.storage.object_store import ObjectStore

_MIB = 1024 * 1024
_WRITER = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactObjectsOptions:
    """When objects are small, and which of their batches are merged."""

    target_mib: int = option(
        128,
        "Target size of merged objects; also the approximate memory of a process.",
        title="Target, MiB",
        flag="--target",
        metavar="MIB",
        least=1,
        form={"maximum": 1024, "description": "Size that objects are to have."},
    )
    count_min: int = option(
        32,
        "Merge when at least this many small objects are adjacent.",
        title="Small objects",
        flag="--count",
        metavar="N",
        least=2,
        form={"description": "Merge when at least this many are adjacent."},
    )
    small_batch_bytes: int = option(
        4096,
        "Merge record batches smaller than this where clients see no difference. 0: none.",
        flag="--small-batch",
        metavar="BYTES",
        least=0,
        in_form=False,
    )
    small_compressed_batch_bytes: int = option(
        0,
        "Merge compressed batches smaller than this too. Compressing them again takes ten times "
        "as long. 0: none.",
        flag="--small-compressed-batch",
        metavar="BYTES",
        least=0,
        in_form=False,
    )
    reencrypt: bool = option(
        False,
        "Rewrite each object whose wrapping key is not the present one, or that is plain, instead: "
        "after a rotation, or after encryption was turned on or off. Objects that log compaction "
        "has written are left to it.",
        title="Encrypt again",
        flag="--reencrypt",
        in_form=False,
    )
    defaults: BrokerDefaults = option(
        BrokerDefaults(),
        "The brokers' cleanup.policy, for topics without one of their own.",
        in_form=False,
    )

    def rules(self) -> "MergeRules":
        """Return when objects are merged."""
        from lakehead.storage.compaction.object_compaction_plan import MergeRules

        return MergeRules(target_bytes=self.target_mib * _MIB, count_min=self.count_min)

    @staticmethod
    def kept_batches() -> "RebatchSettings":
        """Return that no batches are merged."""
        from lakehead.storage.compaction.object_compaction_plan import RebatchSettings

        return RebatchSettings(small_bytes=0, small_compressed_bytes=0)

    def rebatch(self) -> "RebatchSettings":
        """Return which batches are merged."""
        from lakehead.storage.compaction.object_compaction_plan import RebatchSettings

        return RebatchSettings(
            small_bytes=self.small_batch_bytes,
            small_compressed_bytes=self.small_compressed_batch_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactObjectsResult(JobResult):
    """Bytes are of batches. `superseded` items came too late: another run, a trim or a deletion was
    quicker.
    """

    items: int = total("items")
    superseded: int = total("superseded")
    objects_before: int = total("objects before")
    objects_after: int = total("objects after")
    bytes_before: int = total("bytes before")
    bytes_after: int = total("bytes after")
    batches_before: int = total("batches before")
    batches_after: int = total("batches after")

    @classmethod
    def of(cls, result: "MergeResult") -> "CompactObjectsResult":
        """Return the result of one item."""
        if not result.is_done:
            return cls(superseded=1)
        return cls(
            items=1,
            objects_before=result.objects_before,
            objects_after=result.objects_after,
            bytes_before=result.bytes_before,
            bytes_after=result.bytes_after,
            batches_before=result.batches_before,
            batches_after=result.batches_after,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactObjectsItem:
    """One merge, for any process."""

    path: str
    merge: "MergeItem"
    rebatch: "RebatchSettings"

    @property
    def size(self) -> int:
        """Bytes to read."""
        return self.merge.size

    def words(self) -> str:
        """Return its objects, for people."""
        first, others = self.merge.sources[0], len(self.merge.sources) - 1
        return first + (f" and {others} others" if others else "")


def _plan(context: JobContext, options: CompactObjectsOptions) -> Planned:
    """Raises SettingsError, StoreUnavailable."""
    from lakehead.storage.jobs.cluster import in_cluster
    from lakehead.storage.maintenance.configs import MaintenanceDefaults

    defaults = MaintenanceDefaults(given=options.defaults.given)
    defaults.check()
    rebatch = options.rebatch()

    async def plan(_: "ObjectStore", log: "MetadataLog") -> tuple[Unit, ...]:
        state = log.state
        if options.reencrypt:
            merges, how = await _rewrites(context.path, state), options.kept_batches()
        else:
            merges, how = _merges(state, defaults, options), rebatch
        return tuple(
            _unit(state, CompactObjectsItem(path=context.path, merge=merge, rebatch=how))
            for merge in merges
        )

    units = in_cluster(context.path, _WRITER, plan)
    objects = sum(len(unit.item.merge.sources) for unit in units)
    return Planned(units=units, fields={} if context.is_part else {"planned_objects": objects})


async def _rewrites(path: str, state: "MetadataImage") -> "tuple[MergeItem, ...]":
    """Return the objects that are not encrypted as new ones would be, each for itself."""
    import random

    from lakehead.storage.compaction.object_compaction_plan import MergeItem
    from lakehead.storage.encryption.settings import of_environment, split_address
    from lakehead.storage.metadata.records import COMPACTED
    from lakehead.storage.object_store import open_store
    from lakehead.storage.object_store.encrypted import place_of
    from lakehead.storage.object_store.retrying import RetryingStore
    from lakehead.storage.object_store.wrapping_keys import newest_key, stored_keys

    address, settings = split_address(path)
    stored = open_store(address)
    try:
        newest = await newest_key(settings or of_environment(), place_of(stored))
        wanted = {
            key: known
            for key, known in state.objects.items()
            if known.kind != COMPACTED and known.stream_ids
        }
        found = await stored_keys(RetryingStore(stored, rng=random.SystemRandom()), list(wanted))
    finally:
        await stored.close()
    return tuple(
        MergeItem(
            sources=(key,),
            streams=tuple(sorted(wanted[key].stream_ids)),
            size=wanted[key].size,
        )
        for key in sorted(found)
        if found[key] != newest
    )


def _merges(
    state: "MetadataImage", defaults: "MaintenanceDefaults", options: CompactObjectsOptions
) -> "tuple[MergeItem, ...]":
    from lakehead.storage.maintenance.rules import due_merges

    return due_merges(state, defaults.values(state), options.rules())


def _unit(state: "MetadataImage", item: CompactObjectsItem) -> Unit:
    merge = item.merge
    stream = state.streams.get(merge.streams[0]) if len(merge.streams) == 1 else None
    row: dict[str, Any] = {
        "topic": None if stream is None else state.topic_names.get(stream.topic_id),
        "partition": None if stream is None else stream.partition,
        "streams": len(merge.streams),
        "objects": len(merge.sources),
        "bytes": merge.size,
    }
    return Unit(
        key=f"{merge.streams[0]}/{merge.sources[0]}",  # no object is in two items of a stream
        size=merge.size,
        item=item,
        words=f"{len(merge.sources)} objects of {len(merge.streams)} partitions "
        f"(stream {merge.streams[0]})",
        row=row,
    )


def compact_objects_item(item: CompactObjectsItem) -> CompactObjectsResult:
    """Do one item. Raises what `ObjectCompaction.run` raises."""
    import random

    from lakehead.storage.clock import SystemClock
    from lakehead.storage.compaction.object_compaction import ObjectCompaction
    from lakehead.storage.jobs.cluster import in_cluster

    async def work(store: "ObjectStore", log: "MetadataLog") -> CompactObjectsResult:
        rng = random.SystemRandom()
        merge = ObjectCompaction(store, log, SystemClock(), rng, item.merge, item.rebatch)
        return CompactObjectsResult.of(await merge.run())

    return in_cluster(item.path, _WRITER, work)


def _due(cluster: OpenCluster, _works: object) -> "list[DueItem[MergeItem]]":
    merges = _merges(cluster.metadata.state, cluster.defaults, CompactObjectsOptions())
    return [
        DueItem(
            item=one,
            fields={"streams": one.streams[:5], "first": one.sources[0]},
        )
        for one in merges
    ]


def _rows(merges: "Sequence[MergeItem]") -> list[dict[str, Any]]:
    count = sum(len(one.sources) for one in merges)
    due = f"merge {count} objects"
    return [{"topic": None, "partition": None, "due": due}] if merges else []


async def _merge(cluster: OpenCluster, item: "MergeItem") -> "MergeResult":
    from lakehead.storage.compaction.object_compaction import ObjectCompaction

    rebatch = CompactObjectsOptions().rebatch()
    merge = ObjectCompaction(
        cluster.store, cluster.metadata, cluster.clock, cluster.rng, item, rebatch
    )
    return await merge.run()


def _sum_events(done: CompactObjectsResult) -> list[Event]:
    if not done.items:
        return []
    figures = {
        "before": done.objects_before,
        "after": done.objects_after,
        "bytes": done.bytes_before,
    }
    return [("objects_merged", figures)]


def _run(
    context: JobContext, _options: CompactObjectsOptions, units: Sequence[Unit]
) -> CompactObjectsResult:
    items: list[CompactObjectsItem] = [unit.item for unit in units]
    return sum_results(
        context,
        compact_objects_item,
        items,
        empty=CompactObjectsResult(),
        size=lambda item: item.size,
        words=CompactObjectsItem.words,
    )


JOB = Job(
    name="compact_objects",
    help="""Merge small objects into large ones.

    Every record keeps its offset, timestamp and producer. Topics that are compacted by keys are
    left to compact-topics. Safe to run beside a live cluster, to kill, and to run twice at once.
    """,
    options=CompactObjectsOptions,
    plan=_plan,
    run=_run,
    columns={
        "topic": "TOPIC",
        "partition": "PARTITION",
        "streams": "STREAMS",
        "objects": "OBJECTS",
        "bytes": "BYTES",
    },
    takes_processes=True,
    maintenance=Maintenance(
        needs_kernels=True,
        due=_due,
        run=_merge,
        result=CompactObjectsResult.of,
        rows=_rows,
        empty=CompactObjectsResult(),
        figures={"merged objects": "objects_before", "into objects": "objects_after"},
        sum_events=_sum_events,
        failed_event="objects_not_merged",
        interval=RETENTION_INTERVAL,
    ),
)
