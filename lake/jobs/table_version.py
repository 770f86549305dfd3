"""The version of a table as of a position in its topic: a time, offsets or a group's commits.

Each commit of a table has the first and the last offset of each partition that the version holds.
The first ones only fall (a backfill adds older records) and the last ones only grow, so the first
version that holds all records below a position is found by halves: all that the newest version
holds of them, since a table may begin later than its topic.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.committed import committed_now
from lakehead.lake.group_offsets import without_groups
from lakehead.lake.jobs.table_due import one_table, topic_of
from lakehead.lake.offsets import offset_for_timestamp
from lakehead.lake.positions import Bounds, GroupPosition, Position, TopicPartition
from lakehead.lake.snapshot import Snapshots
from lakehead.lake.store_reader import StoreReader, store_reader
from lakehead.lake.tables.delta_table import Table, TableUnavailable, first_id, open_table
from lakehead.storage.errors import SettingsError

AsOfPosition = int | GroupPosition | Mapping[int, int]
"""A time in milliseconds (records of that time included), the commits of a group, or the offset of
each partition up to which records count, exclusive; a partition that is not named: none of its.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """The first version of a `table` that holds all records below the `requested` offsets of each
    partition. It holds those below `offsets`.
    """

    topic: str
    table: str
    version: int
    requested: Mapping[int, int]
    offsets: Mapping[int, int]
    mode: str

    @property
    def is_exact(self) -> bool:
        """True if the version holds no record beyond the requested offsets."""
        return self.offsets == self.requested

    @property
    def condition(self) -> str | None:
        """A condition in SQL that leaves out the rows of records beyond the requested offsets; None
        where none is needed, and for a table by upsert, whose rows of before are gone.
        """
        if self.is_exact or self.mode != "append":
            return None
        return " OR ".join(
            f"_partition = {partition} AND _offset < {end}"
            for partition, end in sorted(self.requested.items())
        )


def table_version(path: str, table: str, position: AsOfPosition) -> TableVersion:
    """Return the version of a table, by its key or its topic, as of a position in the topic.

    Raises UnknownTopic, SettingsError for a topic without a table, a position of other partitions
    and one that the newest version does not cover, TableUnavailable, and what reading objects
    raises.
    """
    snapshot = Snapshots(store_reader(path)).now()
    state = snapshot.catalog.state
    topic = topic_of(table)
    topic_id = snapshot.catalog.topic(topic).topic_id
    declared = one_table(state, table)
    if declared is None:
        raise SettingsError(f"topic {topic} declares no table (lakehead.table.enable)")
    uri = declared.uri(snapshot.catalog.uri)
    newest = open_table(uri)
    if newest is None:
        raise SettingsError(f"there is no table {table} at {uri} yet")
    logs = committed_now(snapshot.reader, snapshot.catalog, topic)
    if isinstance(position, GroupPosition):
        bounds = without_groups(snapshot, logs, Bounds(ending=position))
        assert isinstance(bounds.ending, Mapping), "one for each partition"
        requested = {log.id.partition: _offset(bounds.ending, log) for log in logs}
    elif isinstance(position, int):
        requested = {log.id.partition: _end_at(snapshot.reader, log, position) for log in logs}
    else:
        requested = {log.id.partition: position.get(log.id.partition, 0) for log in logs}
        if unknown := sorted(position.keys() - requested.keys()):
            raise SettingsError(f"topic {topic} has {len(logs)} partitions: none is {unknown[0]}")

    def ends(version: Table) -> dict[int, int]:
        return {one: version.last_offset(topic_id, one) + 1 for one in requested}

    def firsts(version: Table) -> dict[int, int]:
        return {one: max(version.txn_version(first_id(topic_id, one)), 0) for one in requested}

    found = _first(newest, requested, ends, firsts)
    return TableVersion(
        topic=topic,
        table=uri,
        version=found.version,
        requested=requested,
        offsets=ends(found),
        mode=declared.mode,
    )


def _offset(positions: Mapping[TopicPartition, Position], log: PartitionLog) -> int:
    position = positions[log.id]
    return position.value if position.kind == "offset" else 0


def _end_at(reader: StoreReader, log: PartitionLog, at_ms: int) -> int:
    """Return the offset of the first record after a time, or the end."""
    found = offset_for_timestamp(reader, log, at_ms + 1)
    return log.end_offset if found is None else min(found, log.end_offset)


_Offsets = Callable[[Table], Mapping[int, int]]


def _first(newest: Table, requested: Mapping[int, int], ends: _Offsets, firsts: _Offsets) -> Table:
    """Return the oldest version there is that covers the requested offsets."""
    begins = firsts(newest)

    def is_covering(table: Table) -> bool:
        held, begun = ends(table), firsts(table)
        return all(
            held[one] >= end and (begun[one] <= begins[one] or end <= begins[one])
            for one, end in requested.items()
        )

    if not is_covering(newest):
        held = ends(newest)
        partition, end = next((p, e) for p, e in sorted(requested.items()) if held[p] < e)
        raise SettingsError(
            f"the table holds partition {partition} up to offset {held[partition]}, not yet up to "
            f"{end}: bring it up by lakehead materialize"
        )
    low, found = -1, newest
    while found.version - low > 1:
        middle = (low + found.version) // 2
        table = _version(newest.uri, middle)
        if table is not None and is_covering(table):
            found = table
        else:
            low = middle
    return found


def _version(uri: str, version: int) -> Table | None:
    """Return a version of a table; None for one that its log has lost."""
    try:
        return open_table(uri, version)
    except TableUnavailable:
        return None
