"""Tables in Spark's catalogs that are topics: `SELECT * FROM lakehead.orders` in any session.

Spark keeps the options of `CREATE TABLE ... USING lakehead OPTIONS (...)`, and hands none of them
to a Python source that reads the table; the columns with their comments are all that it hands over.
So the options of such a table are in the comment of its first column, in the form of a URL's query.
Options of a query (`SELECT * FROM lakehead.orders WITH (endingOffsets = '...')`) take precedence.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_SESSION_CATALOG, _BUILTIN = "spark.sql.catalog.spark_catalog", "builtin"
_MARK = "lakehead source "
_PLAIN = '/:,{}[]"'
"""Characters that stay as they are. No quote and no backslash of SQL's strings does."""


def create_table(spark: "SparkSession", name: str, options: Mapping[str, str]) -> None:
    """Create the table `name` (`database.table`, as SQL has it) in Spark's catalog: topics, or a
    table about the cluster, by options of the source `lakehead`.

    Its columns are those of now; its rows are read at each query. Raises SettingsError for wrong
    options and in a session with another catalog than Spark's (Delta's: there Spark takes such a
    table for one of its older sources), what the columns of decoded values raise, and Spark's error
    for a name that is taken.
    """
    from lakehead.lake.source.data_source import LakeheadDataSource

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
    comment = _MARK + urlencode(options, safe=_PLAIN)
    columns = ", ".join([f"{first} COMMENT '{comment}'", *others])
    spark.sql(f"CREATE TABLE {name} ({columns}) USING lakehead")


def with_table_options(given: Mapping[str, str], schema: "StructType") -> Mapping[str, str]:
    """Return the options of a read, with those of the table that it reads, if it does.

    Raises SettingsError for a comment that was changed.
    """
    comment = (schema.fields[0].metadata or {}).get("comment", "") if schema.fields else ""
    if not comment.startswith(_MARK):
        return given
    try:
        found = dict(parse_qsl(comment.removeprefix(_MARK), strict_parsing=True))
    except ValueError:
        raise SettingsError(
            f"the comment of column {schema.fields[0].name!r} is not what create_table wrote: "
            f"{comment!r}: create the table again"
        ) from None
    names = {name.lower() for name in given}
    return {name: one for name, one in found.items() if name.lower() not in names} | dict(given)
