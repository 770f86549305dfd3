"""The place where Spark finds the data source `lakehead`: for any Python source it
looks for `DefaultSource` in every module named `pyspark_*`, so this one imports next to nothing.
"""

from lakehead.lake.source.data_source import LakeheadDataSource as DefaultSource

__all__ = ["DefaultSource"]
