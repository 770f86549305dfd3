"""The place where Spark finds the data source `lakehead`: it looks for `DefaultSource` in every
module named `pyspark_*` when any Python source is asked for, so this one imports next to nothing.
"""

from lakehead.lake.source.data_source import LakeheadDataSource as DefaultSource

__all__ = ["DefaultSource"]
