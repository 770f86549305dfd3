"""The partitions that a source reads, as they are now: what its planner looks at."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from lakehead.lake.catalog import Catalog, PartitionLog
from lakehead.lake.committed import committed
from lakehead.lake.positions import TopicPartition
from lakehead.lake.snapshot import Snapshot, Snapshots
from lakehead.lake.source.options import ReadOptions
from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import ObjectNotFound

T = TypeVar("T")

_TRIES = 5

NO_TOPICS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Partitions by name, each up to where the source may read."""

    snapshot: Snapshot
    logs: Mapping[TopicPartition, PartitionLog]

    def topic_ids(self) -> dict[str, str]:
        """Return the ids of the topics."""
        return {id_.topic: log.topic_id for id_, log in self.logs.items()}


class Viewer:
    """Looks at what a source reads, again and again. For one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._subscription = options.subscription
        self._read_committed = options.read_committed
        # Positions by partition name them all: then the plan leaves out those not needed.
        is_by_partition = any(
            isinstance(one, Mapping) for one in (options.bounds.starting, options.bounds.ending)
        )
        self._only = None if is_by_partition else options.needs.partitions
        self._known = NO_TOPICS
        self._snapshots = Snapshots(
            store_reader(options.path), select=self._stream_ids if options.reads_wal else None
        )
        self._newest: tuple[Snapshot, frozenset[str], View] | None = None
        self._decided: dict[TopicPartition, tuple[PartitionLog, PartitionLog]] = {}

    def now(self, known: frozenset[str] = NO_TOPICS) -> View:
        """Return the partitions as they are now. Topics in `known` may have been deleted.

        Raises UnknownTopic, DataLoss (a partition that a topic does not have), SettingsError,
        CorruptObject, UnsupportedFormat, StoreUnavailable.
        """
        self._known = known
        snapshot = self._snapshots.now()
        if self._newest is not None:
            before, for_topics, view = self._newest
            if before is snapshot and for_topics == known:
                return view
        catalog = snapshot.catalog
        ids = self._subscription.partitions(catalog, known=known)
        if self._only is not None:
            ids = [id_ for id_ in ids if id_.partition in self._only]
        logs = [catalog.partition(id_) for id_ in ids]
        if self._read_committed:
            logs = self._committed(snapshot, logs)
        view = View(snapshot=snapshot, logs={log.id: log for log in logs})
        self._newest = (snapshot, known, view)
        return view

    def look(self, work: Callable[[View], T], known: frozenset[str] = NO_TOPICS) -> T:
        """Return `work(view)` of the present view; repeat it if an object of the view was deleted
        during the work.
        """
        for _ in range(_TRIES):
            try:
                return work(self.now(known))
            except ObjectNotFound:
                self._newest = None
        return work(self.now(known))

    def _stream_ids(self, catalog: Catalog) -> Iterable[int]:
        topics = catalog.state.topics
        for id_ in self._subscription.partitions(catalog, known=self._known):
            yield topics[id_.topic].partitions[id_.partition]

    def _committed(self, snapshot: Snapshot, logs: list[PartitionLog]) -> list[PartitionLog]:
        """Return the logs as far as they are decided; looked up where something was added."""
        decided: dict[TopicPartition, tuple[PartitionLog, PartitionLog]] = {}
        for log in logs:
            known = self._decided.get(log.id)
            if known is not None and _is_same(known[0], log):
                after = replace(log, end_offset=known[1].end_offset, aborted=known[1].aborted)
                decided[log.id] = (log, after)
        new = [log for log in logs if log.id not in decided]
        for log, after in zip(new, committed(snapshot, new), strict=True):
            decided[log.id] = (log, after)
        self._decided = decided
        return [decided[log.id][1] for log in logs]


def _is_same(before: PartitionLog, now: PartitionLog) -> bool:
    """Return whether a partition holds the same offsets as before, in whatever objects."""
    return (before.stream_id, before.start_offset, before.end_offset) == (
        now.stream_id,
        now.start_offset,
        now.end_offset,
    )
