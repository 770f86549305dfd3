"""What the next commit of a table is to hold: from what the table has to what objects have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.moved_ranges import plan_moved
from lakehead.lake.planner import OffsetRange, Split
from lakehead.lake.store_reader import ObjectReader
from lakehead.lake.tables.delta_table import NOTHING, Table, app_id, first_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRound:
    """Work for one commit, and the last offset of each partition, by topic id, after it.

    `remaining_bytes` are those of this round and the ones after it. `lost` offsets were removed by
    retention before they reached the table.
    """

    splits: tuple[Split, ...]
    progress: Mapping[tuple[str, int], int]
    remaining_bytes: int
    lost: int


def plan_round(
    reader: ObjectReader,
    logs: Sequence[PartitionLog],
    table: Table | None,
    ends: Mapping[int, int],
    *,
    split_bytes: int,
    commit_bytes: int,
) -> TableRound:
    """Plan from the table's progress (none without a table) to `ends`, offsets by partition.

    Raises what reading indexes raises, and DataLoss for an object that is gone.
    """
    asked = []
    lost = 0
    for log in logs:
        last = -1 if table is None else table.last_offset(log.topic_id, log.id.partition)
        start = max(last + 1, log.start_offset)
        if start < ends[log.id.partition]:
            # A table begins where the topic begins; later, a gap is a loss.
            lost += start - (last + 1) if _has_begun(table, log) else 0
            asked.append(OffsetRange(log=log, start=start, end=ends[log.id.partition]))
    splits = plan_moved(reader, asked, split_bytes=split_bytes)
    chosen = _first_bytes(splits, commit_bytes)
    return TableRound(
        splits=chosen,
        progress=_progress(chosen),
        remaining_bytes=sum(split.length for split in splits),
        lost=lost,
    )


def _has_begun(table: Table | None, log: PartitionLog) -> bool:
    apps = (app_id(log.topic_id, log.id.partition), first_id(log.topic_id, log.id.partition))
    return table is not None and any(table.marked(app) != NOTHING for app in apps)


def _first_bytes(splits: Sequence[Split], limit: int) -> tuple[Split, ...]:
    """The first splits that make up about `limit` bytes, at least one."""
    chosen: list[Split] = []
    taken = 0
    for split in splits:
        if chosen and taken + split.length > limit:
            break
        chosen.append(split)
        taken += split.length
    return tuple(chosen)


def _progress(splits: Sequence[Split]) -> dict[tuple[str, int], int]:
    """The last offset of each partition that these splits bring into the table.

    Splits are in the order of their plan, so what they hold of a partition has no holes.
    """
    return {
        (range_.topic_id, range_.partition): range_.end_offset - 1
        for split in splits
        for range_ in split.ranges
    }
