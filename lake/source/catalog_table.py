"""Tables in Spark's catalogs that are topics: `SELECT * FROM lakehead.orders` in any session.

Spark keeps the options of `CREATE TABLE ... USING lakehead OPTIONS (...)`, and hands none of them
to a Python source that reads the table; the columns with their comments are all that it hands over.
So the options of such a table are in the comment of its first column (`table_comment`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakehead.lake.source.data_source import LakeheadDataSource
from lakehead.lake.source.table_comment import comment_of
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSION_CATALOG, _BUILTIN = "spark.sql.catalog.spark_catalog", "builtin"


def create_table(spark: "SparkSession", name: str, options: Mapping[str, str]) -> None:
    """Create the table `name` (`database.table`, as SQL has it) in Spark's catalog: topics, or a
    table about the cluster, by options of the source `lakehead`.

    Its columns are those of now; its rows are read at each query. Raises SettingsError for wrong
    options and in a session with another catalog than Spark's (Delta's: there Spark takes such a
    table for one of its older sources), what the columns of decoded values raise, and Spark's error
    for a name that is taken.
    """
    catalog = spark.conf.get(_SESSION_CATALOG, _BUILTIN)
    if catalog != _BUILTIN:
        raise SettingsError(
            f"{_SESSION_CATALOG} is {catalog}: beside it Spark reads no table of a Python source. "
            "Use a session without it, or CREATE TEMPORARY VIEW ... USING lakehead OPTIONS (...)"
        )
    schema = LakeheadDataSource(dict(options)).schema()
    first, *others = (
        f"`{field.name.replace('`', '``')}` {field.dataType.simpleString()}" for field in schema
    )
    columns = ", ".join([f"{first} COMMENT '{comment_of(options)}'", *others])
    spark.sql(f"CREATE TABLE {name} ({columns}) USING lakehead")
