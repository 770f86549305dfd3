"""SQL for notebooks: the views of `lakehead sql`, rows as a DataFrame."""

from typing import Any

from lakehead.lake.spark import spark_session
from lakehead.lake.sql import one_line
from lakehead.lake.sql_views import read_small
from lakehead.lake.sql_places import wants_s3, with_places
from lakehead.lake.sql_statements import split_statements
from lakehead.lake.sql_views import TopicViews
from lakehead.storage.errors import LakeheadError, SettingsError


class SqlFailed(LakeheadError):
    """A statement failed; the message is Spark's, in one line."""


def run(path: str, statements: str, rows: int | None) -> Any:
    """Run statements and return up to `rows` rows of the last one as a pandas DataFrame, None if it
    has none. Raises SqlFailed, SettingsError, UnknownTopic.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    found, rest = split_statements(f"{statements}\n;")
    assert not rest, "a statement ends with the semicolon that was added"
    if not found:
        raise SettingsError("there is no statement to run")
    session = spark_session(app_name="lakehead notebook", s3a=wants_s3(path, statements))
    views = TopicViews(path)
    frame: Any = None
    try:
        for statement in found:
            named = views.named(statement)
            prepared = views.prepare(session, statement, named, read_small(named))
            frame = session.sql(with_places(session, prepared))
        if not frame.columns:
            return None
        return (frame if rows is None else frame.limit(rows)).toPandas()
    except (PySparkException, Py4JError) as error:
        raise SqlFailed(one_line(error)) from None
