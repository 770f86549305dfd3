"""A split in the form that Spark's Python data sources hand to a task, from Spark 4.0 on."""

from collections.abc import Iterable, Sequence

from pyspark.sql.datasource import InputPartition

from lakehead.lake.planner import Split
from lakehead.lake.row_counts import RowCount


class SplitPartition(InputPartition):
    """A split, as Spark hands it to a task."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


class CountedPartition(InputPartition):
    """Rows that the indexes of objects have counted, as Spark hands them to a task."""

    def __init__(self, counts: Sequence[RowCount]) -> None:
        super().__init__(counts)
        self.counts = counts


def partitions_of(splits: Iterable[Split]) -> list[InputPartition]:
    """Return them in Spark's form."""
    return [SplitPartition(split) for split in splits]


def split_of(partition: InputPartition) -> Split:
    """Return the split of a partition that `partitions_of` made."""
    assert isinstance(partition, SplitPartition)
    return partition.split
