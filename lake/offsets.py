"""The start and the end of a read: from options to offsets, with the rules of Spark's
Kafka source.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.errors import DataLoss
from lakehead.lake.moved_ranges import find_indexes
from lakehead.lake.planner import OffsetRange, plan_splits
from lakehead.lake.positions import Bounds, GroupPosition, Position, Positions, TopicPartition
from lakehead.lake.store_reader import ObjectReader
from lakehead.storage.errors import SettingsError

_SEARCHES_AT_ONCE = 16


def resolve(
    reader: ObjectReader, logs: Sequence[PartitionLog], bounds: Bounds
) -> tuple[OffsetRange, ...]:
    """Return the offsets to read of each partition in `logs`; empty ranges are left out.

    Raises DataLoss for offsets that are not (or no longer) there, unless `fail_on_data_loss` is
    false: then existing ones are read. Raises SettingsError for positions that name other
    partitions.
    """
    starts = start_offsets(reader, logs, bounds)
    positions = _per_partition("ending", bounds.ending, logs)
    ends = _side_by_side(lambda log: _end(reader, log, positions[log.id], bounds), logs)
    return tuple(
        OffsetRange(log=log, start=starts[log.id], end=end)
        for log, end in zip(logs, ends, strict=True)
        if starts[log.id] < end
    )


def start_offsets(
    reader: ObjectReader, logs: Sequence[PartitionLog], bounds: Bounds
) -> dict[TopicPartition, int]:
    """Return the offset to start from of each partition in `logs`. Raises as `resolve`."""
    positions = _per_partition("starting", bounds.starting, logs)
    starts = _side_by_side(lambda log: _start(reader, log, positions[log.id], bounds), logs)
    return {log.id: start for log, start in zip(logs, starts, strict=True)}


def offset_for_timestamp(reader: ObjectReader, log: PartitionLog, timestamp: int) -> int | None:
    """Return the offset of the first record whose timestamp is >= `timestamp` (milliseconds), below
    the log's end. Markers and records of aborted transactions count, as they do for Kafka's
    ListOffsets, so that a time is the same offset for every reader. A batch that cannot be read
    counts as one record, as it does there.

    Index items that hold only older records are not fetched.
    """
    # The kernels take a moment to load, and most plans have no use for them.
    from lakehead.lake.decode.decoder import RecordDecoder
    from lakehead.lake.decode.invalid import PassedOver
    from lakehead.lake.record_reader import read_records

    log = replace(log, aborted=())
    for extent in log.extents:
        start = max(extent.start_offset, log.start_offset)
        end = min(extent.end_offset, log.end_offset)
        if extent.max_timestamp < timestamp or start >= end:
            continue
        whole = OffsetRange(log=log, start=start, end=end)
        requested, indexes = find_indexes(reader, [whole])
        newest = {
            (key, item.position): item.max_timestamp
            for key, index in indexes.items()
            for item in index.items_of(log.stream_id)
        }
        for split in plan_splits(requested, indexes, split_bytes=1):
            if all(newest[range_.key, range_.position] < timestamp for range_ in split.ranges):
                continue
            passed = PassedOver(timestamp)
            decoder = RecordDecoder(("offset", "timestamp"), markers=True, invalid=passed)
            for batch in read_records(reader, split.ranges, decoder):
                offsets, stamps = batch.column(0), batch.column(1).cast("int64")
                for offset, stamp in zip(offsets.to_pylist(), stamps.to_pylist(), strict=True):
                    if stamp >= timestamp * 1000:
                        known = passed.first_offset
                        return int(offset if known is None else min(offset, known))
            if passed.first_offset is not None:
                return passed.first_offset
    return None


def _side_by_side(work: Callable[[PartitionLog], int], logs: Sequence[PartitionLog]) -> list[int]:
    """Return `work(log)` of each: a timestamp takes a few requests, and there are many partitions.
    The number of workers bounds the memory of decoding the few blocks.
    """
    if len(logs) < 2:
        return [work(log) for log in logs]
    with ThreadPoolExecutor(min(len(logs), _SEARCHES_AT_ONCE)) as pool:
        return list(pool.map(work, logs))


def _per_partition(
    which: str,
    positions: Positions,
    logs: Sequence[PartitionLog],
) -> Mapping[TopicPartition, Position]:
    assert not isinstance(positions, GroupPosition), "its commits are read before (without_groups)"
    if isinstance(positions, Position):
        return {log.id: positions for log in logs}
    assigned = {log.id for log in logs}
    if assigned != set(positions):
        if any(position.kind == "timestamp" for position in positions.values()):
            option, what = f"{which}OffsetsByTimestamp", "timestamps"
            hint = f"Use {which}Timestamp for one time of all partitions. "
        else:
            option, what = f"{which}Offsets", "offsets"
            hint = "Use -1 for latest, -2 for earliest. "
        raise SettingsError(
            f"If {option} contains specific {what}, you must specify all TopicPartitions. {hint}"
            f"Specified: {_listed(set(positions))} Assigned: {_listed(assigned)}"
        )
    return positions


def _start(reader: ObjectReader, log: PartitionLog, position: Position, bounds: Bounds) -> int:
    match position.kind:
        case "earliest":
            return log.start_offset
        case "latest":
            return log.end_offset
        case "offset":
            return _clamped("start", log, position.value, bounds)
    found = offset_for_timestamp(reader, log, position.value)
    if found is None and not bounds.latest_without_match:
        raise SettingsError(
            f"No offset matched from request of topic-partition {log.id} and timestamp "
            f"{position.value}."
        )
    return log.end_offset if found is None else found


def _end(reader: ObjectReader, log: PartitionLog, position: Position, bounds: Bounds) -> int:
    match position.kind:
        case "earliest":
            return log.start_offset
        case "latest":
            return log.end_offset
        case "offset":
            return _clamped("end", log, position.value, bounds)
    found = offset_for_timestamp(reader, log, position.value)
    return log.end_offset if found is None else found


def _clamped(which: str, log: PartitionLog, offset: int, bounds: Bounds) -> int:
    """A requested offset, if it is there."""
    within = min(max(offset, log.start_offset), log.end_offset)
    if within != offset and bounds.fail_on_data_loss:
        raise DataLoss(
            f"Cannot {which} at offset {offset} of {log.id}: it holds offsets {log.start_offset} "
            f"to {log.end_offset}. Some data may have been lost, or is not in the object store "
            "yet; set failOnDataLoss to false to read what is there"
        )
    return within


def _listed(partitions: set[TopicPartition]) -> str:
    return ", ".join(str(id_) for id_ in sorted(partitions)) or "none"
