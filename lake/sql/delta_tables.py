"""Delta tables in statements: their jars, and their places in S3 by Spark's names."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakehead.lake.declaration.table_declaration import TableDeclaration
from lakehead.lake.jobs.table_due import declared_tables
from lakehead.lake.spark import cache_folder, has_s3a, s3a_settings, spark_place
from lakehead.lake.spark_jars import are_s3a_jars_here
from lakehead.lake.sql.statements import backquoted
from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_SCHEMES = ("s3://", "s3a://")
_HADOOP = "spark.hadoop."


def may_name_delta(statements: Sequence[str]) -> bool:
    """Return whether statements may need Delta Lake, whose jars a session is slower to start with:
    all but queries that do not mention it. Some other statements do not mention it either
    (`OPTIMIZE '/path'`).
    """
    return any(
        re.match(r"(select|with|values)\b", one, re.IGNORECASE) is None
        or re.search(r"delta|table_changes", one, re.IGNORECASE)
        for one in statements
    )


def wants_s3(path: str, statements: str) -> bool:
    """Return whether a session for these statements is to have s3a: they name a place in S3; or a
    topic of the cluster at `path` has its table there, and the jars (690 MB) are here already.
    """
    if any(name.name.startswith(_SCHEMES) for name in backquoted(statements)):
        return True
    if not are_s3a_jars_here(cache_folder()):
        return False
    catalog = store_reader(path).open_catalog()
    return any(
        isinstance(one, TableDeclaration) and one.uri(catalog.uri).startswith(_SCHEMES)
        for one in declared_tables(catalog.state).values()
    )


def with_places(session: "SparkSession", statement: str) -> str:
    """Return the statement with Spark's names of the places in S3 that are in backquotes, as in
    ``delta.`s3://bucket/table?region=x` ``; the session is set up for their buckets.

    Raises SettingsError for a URI that names no place, and in a session without s3a.
    """
    for name in reversed(backquoted(statement)):
        if not name.name.startswith(_SCHEMES):
            continue
        if not has_s3a(session):
            raise SettingsError(
                "Spark was started without S3: leave, and start it with lakehead sql --s3"
            )
        uri = name.name.replace("s3a:", "s3:", 1)
        for option, value in s3a_settings(uri).items():
            session.conf.set(option.removeprefix(_HADOOP), value)
        place = spark_place(uri).replace("`", "``")
        statement = f"{statement[: name.start]}`{place}`{statement[name.end :]}"
    return statement
