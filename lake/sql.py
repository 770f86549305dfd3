"""A Spark SQL shell in which every topic is a view.

A topic's view has the columns of the data source `lakehead`. A topic whose values are declared to
be JSON has their fields as columns instead, with `_topic`, `_partition`, `_offset`, `_timestamp`
and `_key` beside them, and its bytes under `<topic>__raw`. Queries read the objects in place; each
statement sees what lies in objects when it begins.
"""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from lake.spark import cache_folder, spark_session
from lake.sql_output import OutputFormat, write_rows
from lake.sql_statements import split_statements
from storage.errors import LakeheadError, SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake.catalog import Catalog
    from lake.store_reader import StoreReader

RAW_SUFFIX = "__raw"

_PROMPT = "lakehead> "
_CONTINUED = "       -> "
_METADATA = ("topic", "partition", "offset", "timestamp", "key")
_SAMPLE_RECORDS = 10_000
_ENDING = {"exit", "quit", "\\q"}


def run_sql(
    path: str,
    *,
    execute: str | None = None,
    json_topics: Sequence[str] = (),
    output: OutputFormat = "table",
    delta: bool = True,
    source: TextIO | None = None,
    out: TextIO | None = None,
) -> int:
    """Run SQL over the topics of the cluster at `path` and return the exit status.

    `execute` are the statements to run (separated by semicolons); without it statements are read
    from `source` (stdin), interactively if that is a terminal: until a semicolon, `exit` ends.
    `json_topics` declares JSON values: `topic` (schema inferred from a sample) or `topic=DDL`
    (`orders=id BIGINT, name STRING`). `output` is `table`, `csv` or `json` (one object a line), to
    `out` (stdout). `delta` makes Delta tables readable too: ``SELECT * FROM delta.`/path` ``.

    A statement that fails is one line on stderr; with `execute` or a pipe, it ends the run with
    status 1. Raises SettingsError and UnknownTopic for what cannot work at all.
    """
    source, out = source or sys.stdin, out or sys.stdout
    views = TopicViews(path, json_topics)
    session = spark_session(app_name="lakehead sql", delta=delta)
    shell = _Shell(session, views, output, out)
    if execute is not None:
        statements, rest = split_statements(execute + "\n;")
        assert not rest, "a statement ends with the semicolon that was added"
        return 0 if all(shell.execute(statement) for statement in statements) else 1
    if source.isatty():
        shell.greet()
        for statement in _typed_statements():
            shell.execute(statement)
        return 0
    return 0 if all(shell.execute(statement) for statement in _piped(source)) else 1


class TopicViews:
    """Temporary views over a cluster's topics, made when a statement may need them.

    Making a view asks Spark's Python worker for a schema, so only the topics that a statement's
    text names get one, unless the statement lists views (then all but Kafka's own, `__...`).
    """

    def __init__(self, path: str, json_topics: Sequence[str] = ()) -> None:
        from lake.store_reader import store_reader

        self._path = path
        self._reader: StoreReader = store_reader(path)
        self._made: set[str] = set()
        catalog = self._reader.open_catalog()
        self._schemas = {
            topic: ddl or self._infer(catalog, topic)
            for topic, ddl in map(_json_option, json_topics)
        }
        for topic in self._schemas:
            catalog.topic(topic)

    def topics(self) -> tuple[str, ...]:
        """Names of the topics there are now."""
        return self._reader.open_catalog().topics()

    def prepare(self, session: "SparkSession", statement: str) -> None:
        """Make the views that a statement may name."""
        text = statement.lower()
        everything = re.match(r"\s*(show|use|describe|desc)\b", text) is not None
        for topic in self.topics():
            # Made again for each statement: a view keeps the offsets of its first use.
            listed = everything and topic not in self._made and not topic.startswith("__")
            if listed or topic.lower() in text:
                self._make(session, topic)
                self._made.add(topic)

    def _make(self, session: "SparkSession", topic: str) -> None:
        from pyspark.sql import functions

        ddl = self._schemas.get(topic)
        source = {"path": self._path, "subscribe": topic}
        read = session.read.format("lakehead").options(**source)
        records = read.options(includeHeaders="true").load()
        records.createOrReplaceTempView(_quoted(topic + RAW_SUFFIX if ddl else topic))
        if ddl is None:
            return
        columns = ",".join((*_METADATA, "value"))
        narrow = session.read.format("lakehead").options(**source, columns=columns).load()
        parsed = functions.from_json(functions.col("value").cast("string"), ddl)
        metadata = [functions.col(name).alias(f"_{name}") for name in _METADATA]
        view = narrow.select(parsed.alias("value"), *metadata).select(
            "value.*", *(f"_{name}" for name in _METADATA)
        )
        view.createOrReplaceTempView(_quoted(topic))

    def _infer(self, catalog: "Catalog", topic: str) -> str:
        from lake.tables.ddl import to_ddl
        from lake.tables.json_inference import infer_schema
        from lake.tables.value_sample import sample_values

        sample = sample_values(self._reader, catalog.partitions(topic), _SAMPLE_RECORDS)
        try:
            return to_ddl(infer_schema(sample))
        except SettingsError as error:
            reason = str(error).replace("--schema", f"--json '{topic}=...'")
            raise SettingsError(f"topic {topic}: {reason}") from None


def _json_option(option: str) -> tuple[str, str | None]:
    """Take `topic` or `topic=DDL` apart; the DDL is checked."""
    from lake.tables.ddl import parse_schema, to_ddl

    topic, equals, ddl = option.partition("=")
    if not topic.strip():
        raise SettingsError(f"--json wants TOPIC or TOPIC=SCHEMA, not {option!r}")
    return topic.strip(), to_ddl(parse_schema(ddl)) if equals else None


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class _Shell:
    """Runs statements and writes their rows, or one line for what went wrong."""

    def __init__(
        self, session: "SparkSession", views: TopicViews, output: OutputFormat, out: TextIO
    ) -> None:
        self._session = session
        self._views = views
        self._output = output
        self._out = out

    def greet(self) -> None:
        topics = [topic for topic in self._views.topics() if not topic.startswith("__")]
        listed = ", ".join(topics[:20]) + (", ..." if len(topics) > 20 else "")
        self._out.write(f"Topics: {listed or 'none yet'}\n")
        self._out.write("Statements end with a semicolon; exit; leaves.\n")

    def execute(self, statement: str) -> bool:
        """Run one statement; False if it failed."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            self._views.prepare(self._session, statement)
            frame = self._session.sql(statement)
            if frame.columns:
                rows: Iterator[Any] = frame.toLocalIterator(prefetchPartitions=True)
                write_rows(frame.columns, rows, self._output, self._out)
        except (PySparkException, Py4JError, LakeheadError) as error:
            sys.stderr.write(f"error: {one_line(error)}\n")
            return False
        except KeyboardInterrupt:
            sys.stderr.write("stopped\n")
            return False
        return True


def one_line(error: BaseException) -> str:
    """Return what is wrong in one line, without tracebacks, query plans and SQLSTATE."""
    text = str(error)
    # What our own code raised in one of Spark's Python workers is the line that counts.
    ours = re.findall(r"^(?:storage|lake)[\w.]*\.\w+: (.+)$", text, re.MULTILINE)
    if ours:
        return str(ours[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        lines = lines[1:]
    if 'No FileSystem for scheme "s3' in lines[0]:
        return "Spark has no S3 here: read a Delta table in S3 with deltalake.DeltaTable"
    first = re.split(r";? ?SQLSTATE: ", lines[0])[0]
    return first.removeprefix(": ").strip()


def _typed_statements() -> Iterator[str]:
    """Statements typed at a terminal, with history; Ctrl-C drops what was typed, Ctrl-D ends."""
    with _history():
        text = ""
        while True:
            try:
                text += input(_CONTINUED if text.strip() else _PROMPT) + "\n"
            except EOFError:
                sys.stdout.write("\n")
                return
            except KeyboardInterrupt:
                sys.stdout.write("\n")
                text = ""
                continue
            if text.strip().rstrip(";").lower() in _ENDING:
                return
            statements, text = split_statements(text)
            for statement in statements:
                if statement.lower() in _ENDING:
                    return
                yield statement


def _piped(source: TextIO) -> Iterator[str]:
    text = ""
    for line in source:
        statements, text = split_statements(text + line)
        yield from statements
    yield from split_statements(text + "\n;")[0]


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Line editing, with a history that is kept between runs."""
    try:
        import readline
    except ImportError:  # a Python without it still reads lines
        yield
        return
    file = cache_folder() / "sql_history"
    keep: Callable[[str], None] = readline.write_history_file
    with contextlib.suppress(OSError):
        readline.read_history_file(str(file))
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            keep(str(file))
