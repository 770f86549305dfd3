"""A cluster in a notebook: its topics and tables at a glance, and SQL over them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lakehead.lake.cluster_tables import CatalogTables, catalog_tables
from lakehead.lake.notebook.topic import Topic, card
from lakehead.lake.spark import spark_session
from lakehead.lake.sql.delta_tables import wants_s3, with_places
from lakehead.lake.sql.shell import one_line
from lakehead.lake.sql.statements import split_statements
from lakehead.lake.sql.views import TopicViews, read_small
from lakehead.lake.store_reader import store_reader
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


DEFAULT_PATH = "./lakehead-data"
_TOPIC_COLUMNS = ("topic", "partitions", "offsets", "bytes", "value_format", "has_table")


class Cluster:
    """The cluster at `path`: a broker's data folder, its store's folder or its store's URI; without
    one at LAKEHEAD_PATH, else in `./lakehead-data`. It needs no broker.

    `cluster["orders"]` is a topic. Everything is as of the objects at the time of the call.
    Raises SettingsError where there is no cluster, StoreUnavailable.
    """

    def __init__(self, path: str = "") -> None:
        self.path = _store(path or os.environ.get("LAKEHEAD_PATH", DEFAULT_PATH))
        store_reader(self.path).open_catalog()

    def __getitem__(self, topic: str) -> Topic:
        """Return a topic. Raises UnknownTopic."""
        return Topic(self.path, topic)

    def __iter__(self) -> Iterator[str]:
        """The names of the topics that are not Kafka's own."""
        topics = store_reader(self.path).open_catalog().topics()
        return (name for name in topics if not name.startswith("__"))

    def __contains__(self, topic: object) -> bool:
        return topic in store_reader(self.path).open_catalog().topics()

    @property
    def catalog(self) -> CatalogTables:
        """Tables about the cluster as Arrow (`lakehead.catalog_tables`)."""
        return catalog_tables(self.path)

    @property
    def topics(self) -> Any:
        """The topics, as a pandas DataFrame."""
        frame = self.catalog.topics.select(_TOPIC_COLUMNS).to_pandas()
        return frame[~frame["topic"].str.startswith("__")].reset_index(drop=True)

    @property
    def tables(self) -> Any:
        """The status of the declared tables, as a pandas DataFrame (the columns of
        `lakehead.tables`).
        """
        return self.catalog.tables.to_pandas()

    def sql(self, statements: str, *, rows: int | None = None) -> Any:
        """Run Spark SQL as `lakehead sql` does, and return the rows of the last statement, `rows`
        at most, as a pandas DataFrame (None: it has none). The first call starts Spark.

        Raises LakeheadError with one line on what is wrong.
        """
        return run(self.path, statements, rows)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        return f"Cluster({self.path!r}): topics {', '.join(self) or 'none yet'}"

    def _repr_html_(self) -> str:
        return card(f"Cluster {self.path}", {}, self.topics)


def _store(path: str) -> str:
    """The URI of the store at a path, or in a data folder."""
    scheme, colon, rest = path.partition(":")
    if colon and scheme != "file":
        return path
    folder = Path(rest if colon else path).expanduser().absolute()
    is_data = (folder / "store" / "meta").is_dir()
    return f"file:{folder / 'store' if is_data else folder}"
