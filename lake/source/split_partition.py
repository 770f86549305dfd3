"""A split in the form that Spark's Python data sources hand to a task, from Spark 4.0 on."""

from collections.abc import Iterable

from pyspark.sql.datasource import InputPartition

from lakehead.lake.planner import Split


class SplitPartition(InputPartition):
    """A split, as Spark hands it to a task."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


def partitions_of(splits: Iterable[Split]) -> list[InputPartition]:
    """Return them in Spark's form."""
    return [SplitPartition(split) for split in splits]


def split_of(partition: InputPartition) -> Split:
    """Return the split of a partition that `partitions_of` made."""
    assert isinstance(partition, SplitPartition)
    return partition.split
