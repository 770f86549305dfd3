"""The first values of a topic, to guess what the rest looks like."""

from collections.abc import Sequence

from lake.catalog import PartitionLog
from lake.decode.decoder import RecordDecoder
from lake.planner import OffsetRange, needed_objects, plan_splits
from lake.record_reader import read_records
from lake.store_reader import StoreReader


def sample_values(
    reader: StoreReader, logs: Sequence[PartitionLog], count: int
) -> list[bytes | None]:
    """Return about `count` values: the first ones of each partition, as many of each.

    Raises what reading objects raises.
    """
    each = -(-count // max(len(logs), 1))
    values: list[bytes | None] = []
    for log in logs:
        end = min(log.end_offset, log.start_offset + each)
        asked = [OffsetRange(log=log, start=log.start_offset, end=end)]
        for split in plan_splits(asked, reader.read_indexes(needed_objects(asked))):
            for batch in read_records(reader, split.ranges, RecordDecoder(["value"])):
                values += batch.column("value").to_pylist()
    return values
