"""A Spark SQL shell in which every topic is a view, and the cluster itself a few more.

See `lakehead.lake.sql_views` for the views. Queries read the objects in place; each statement sees
what lies in objects when it begins.
"""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TextIO

from lakehead.lake.decode.invalid import Mode
from lakehead.lake.source.options import Undecodable
from lakehead.lake.spark import cache_folder, spark_session
from lakehead.lake.sql_direct import Rows, run_direct
from lakehead.lake.sql_output import OutputFormat, write_rows
from lakehead.lake.sql_places import may_name_delta, wants_s3, with_places
from lakehead.lake.sql_statements import split_statements
from lakehead.lake.sql_timing import StatementTiming
from lakehead.lake.sql_views import LocalRows, TopicViews, ViewSource, read_small
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import LakeheadError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLOCK = SystemClock()
_PROMPT = "lakehead> "
_CONTINUED = "       -> "
_ENDING = {"exit", "quit", "\\q"}


def run_sql(
    path: str,
    *,
    execute: str | None = None,
    json_topics: Sequence[str] = (),
    undecodable: Undecodable = "fail",
    mode: Mode = "FAILFAST",
    output: OutputFormat = "table",
    delta: bool = True,
    s3: bool | None = None,
    timing: bool = False,
    source: TextIO | None = None,
    out: TextIO | None = None,
) -> int:
    """Run SQL over the topics of the cluster at `path` and return the exit status.

    `execute` are the statements to run (separated by semicolons); without it statements are read
    from `source` (stdin), interactively if that is a terminal: until a semicolon, `exit` ends.
    Values are decoded as their topics declare; `json_topics` says so of topics that do not:
    `topic` (schema inferred from a sample) or `topic=DDL` (`orders=id BIGINT, name STRING`). A
    value that cannot be decoded ends its statement, or with `undecodable` = `null` is a row of
    NULLs whose `_error` says why. So does a batch that no reader can read, and a record whose time
    no column holds; both are left out or NULL with another `mode` (see `lakehead.scan`). `output`
    is `table`, `csv` or `json` (one object a line), to `out` (stdout). `delta` makes Delta tables
    readable too: ``SELECT * FROM delta.`/path` ``, and `s3` those in S3 (None: where `execute`
    names one, or a topic has one and Spark's jars for it have been fetched). `timing` writes to
    stderr where the time of each statement went, and of Spark's stop, which is waited for then.

    A statement that fails is one line on stderr; with `execute` or a pipe, it ends the run with
    status 1. Raises SettingsError and UnknownTopic for what cannot work at all.
    """
    source, out = source or sys.stdin, out or sys.stdout
    views = TopicViews(path, json_topics, undecodable, mode)
    delta = delta and (execute is None or may_name_delta(split_statements(execute + "\n;")[0]))
    s3a = delta and (wants_s3(path, execute or "") if s3 is None else s3)
    start = partial(spark_session, app_name="lakehead sql", delta=delta, s3a=s3a, make_archive=True)
    session = _LazySession(start)
    shell = _Shell(session, views, output, out, timing=timing)
    try:
        return _run(shell, execute, source)
    finally:
        if timing:
            session.stop()


def _run(shell: "_Shell", execute: str | None, source: TextIO) -> int:
    """Run the statements there are, and return the exit status."""
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


class _LazySession:
    """The Spark session, which starts when a statement first needs it, and says so to a terminal:
    that takes seconds.
    """

    def __init__(self, start: Callable[[], "SparkSession"]) -> None:
        self._start = start
        self._session: SparkSession | None = None
        self._is_ours = False

    def get(self, timing: StatementTiming) -> "SparkSession":
        """Return the session. Raises SettingsError when Spark cannot be started."""
        if self._session is None:
            if sys.stderr.isatty():
                sys.stderr.write("Starting Spark ...\n")
            from pyspark.sql import SparkSession

            self._is_ours = SparkSession.getActiveSession() is None
            if self._is_ours:
                with timing.start() as started:
                    started.append(self._start())
                self._session = started[0]
            else:
                self._session = self._start()
        return self._session

    def stop(self) -> None:
        """Stop the session, if it was started here, and write how long that took. Without this the
        JVM stops after this process.
        """
        if self._session is not None and self._is_ours:
            begin = _CLOCK.monotonic()
            self._session.stop()
            sys.stderr.write(f"Spark stopped in {_CLOCK.monotonic() - begin:.2f} seconds\n")


class _Shell:
    """Runs statements and writes their rows, or one line for what went wrong."""

    def __init__(
        self,
        session: _LazySession,
        views: TopicViews,
        output: OutputFormat,
        out: TextIO,
        *,
        timing: bool,
    ) -> None:
        self._session = session
        self._views = views
        self._output = output
        self._out = out
        self._timing = timing

    def greet(self) -> None:
        topics = [topic for topic in self._views.topics() if not topic.startswith("__")]
        listed = ", ".join(topics[:20]) + (", ..." if len(topics) > 20 else "")
        self._out.write(f"Topics: {listed or 'none yet'}\n")
        self._out.write("Statements end with a semicolon; exit; leaves.\n")

    def execute(self, statement: str) -> bool:
        """Run one statement; False if it failed."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        timing = StatementTiming(_CLOCK, enabled=self._timing)
        try:
            found = run_direct(self._views, statement) or self._run_in_spark(statement, timing)
            columns, rows = found
            if columns:
                write_rows(columns, timing.counted(rows), self._output, self._out)
            timing.write(sys.stderr)
        except (PySparkException, Py4JError, LakeheadError) as error:
            sys.stderr.write(f"error: {one_line(error)}\n")
            return False
        except KeyboardInterrupt:
            sys.stderr.write("stopped\n")
            return False
        return True

    def _run_in_spark(self, statement: str, timing: StatementTiming) -> Rows:
        with timing.phase("catalog"):
            named = self._views.named(statement)
        with ThreadPoolExecutor(1, "views") as reading:
            read = reading.submit(_read, named, timing)
            session = self._session.get(timing)
            with timing.phase("waiting for views"):
                rows = read.result()
        with timing.phase("views handed to Spark"):
            prepared = self._views.prepare(session, statement, named, rows)
        frame = session.sql(with_places(session, prepared))
        timing.executing(frame)
        if not frame.columns:
            return (), iter(())
        return frame.columns, frame.toLocalIterator(prefetchPartitions=True)


def _read(named: Mapping[str, ViewSource], timing: StatementTiming) -> dict[str, LocalRows]:
    with timing.phase("views read and decoded", is_beside=True):
        return read_small(named)


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
