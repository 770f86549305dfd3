"""A Spark SQL shell in which every topic is a view, and the cluster itself a few more.

Queries read the objects in place; each statement sees the records that lie in objects when it
begins. Rows are printed as a table, CSV or JSON lines.

`--timing` reports the phases of a statement in Spark's own terms: those of Spark's
`QueryPlanningTracker` (parsing, analysis, optimization, planning), then its execution, with the
part of it that was compilation of generated code. Before them are the phases of Spark's start, if
the statement started it, and of its views.
"""

import contextlib
import csv
import datetime as dt
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lakehead.lake.decode.modes import Mode
from lakehead.lake.needs import ALL
from lakehead.lake.source.options import Undecodable
from lakehead.lake.spark import cache_folder, spark_session
from lakehead.lake.sql.delta_tables import may_name_delta, wants_s3, with_places
from lakehead.lake.sql.direct import Rows, run_direct
from lakehead.lake.sql.query_needs import is_query, query_needs
from lakehead.lake.sql.statements import split_statements
from lakehead.lake.sql.views import LocalRows, TopicViews, ViewSource, read_small
from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.errors import LakeheadError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


OutputFormat = Literal["table", "csv", "json"]

_WIDTH_MAX = 100_000
_GAP = 3  # between two columns
TABLE_ROWS_MAX = 1000
"""A table is laid out in memory; csv and json have every row."""


def write_rows(
    names: Sequence[str], rows: Iterable[Sequence[Any]], output: OutputFormat, out: TextIO
) -> None:
    """Write rows to `out`. Bytes are shown as text where they are UTF-8, else as hex digits."""
    if output == "table":
        _write_table(names, iter(rows), out)
    elif output == "csv":
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_text(value, null="") for value in row] for row in rows)
    else:
        for row in rows:
            fields = {name: _plain(value) for name, value in zip(names, row, strict=True)}
            out.write(json.dumps(fields, ensure_ascii=False) + "\n")
    out.flush()


def _write_table(names: Sequence[str], rows: Iterator[Sequence[Any]], out: TextIO) -> None:
    shown = list(islice(rows, TABLE_ROWS_MAX))
    # Output to a file or pipe need not fit a screen; without this Rich takes 80 columns.
    width = None if out.isatty() else _WIDTH_MAX
    console = Console(file=out, highlight=False, soft_wrap=not out.isatty(), width=width)
    if sum(len(name) + _GAP for name in names) - _GAP <= console.width:
        console.print(_table(names, shown))
    else:
        for number, row in enumerate(shown, start=1):
            console.print(Text(f"row {number}", style="bold"))
            console.print(_fields(names, row))
    more = next(rows, None) is not None
    count = f"first {len(shown)} rows" if more else f"{len(shown)} row{'s' * (len(shown) != 1)}"
    hint = " (--format csv or json has them all)" if more else ""
    console.print(Text(f"{count}{hint}", style="dim"))


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, name in enumerate(names):
        numeric = any(_is_number(row[number]) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_text(value, null="NULL")) for value in row))
    return table


def _fields(names: Sequence[str], row: Sequence[Any]) -> Table:
    """A row of more columns than a terminal has room for: a line for each."""
    fields = Table(box=None, show_header=False, pad_edge=False)
    fields.add_column(no_wrap=True)
    fields.add_column(overflow="fold")
    for name, value in zip(names, row, strict=True):
        fields.add_row(Text(name), Text(_text(value, null="NULL")))
    return fields


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any, *, null: str) -> str:
    if value is None:
        return null
    plain = _plain(value)
    if isinstance(plain, str):
        return plain
    return json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # JSON has no name for these.
        return value if value - value == 0 else str(value)
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value).hex()
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if hasattr(value, "asDict"):
        return {name: _plain(inner) for name, inner in value.asDict().items()}
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value)


_PLANNING = ("parsing", "analysis", "optimization", "planning")
_START = ("Spark's launcher", "JVM", "SparkContext and SparkSession")
_WIDTH = 44


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase of a statement; `is_beside` if it passed within other phases or beside them."""

    name: str
    seconds: float
    is_beside: bool = False


class StatementTiming:
    """Measures the phases of one statement, and writes them below its rows if it is enabled."""

    def __init__(self, clock: Clock, *, enabled: bool) -> None:
        self._clock = clock
        self._enabled = enabled
        self._begin = clock.monotonic()
        self._phases: list[Phase] = []
        self._frame: DataFrame | None = None
        self._compiled = 0.0
        self._executed_from = self._begin
        self._rows = 0

    @contextlib.contextmanager
    def phase(self, name: str, *, is_beside: bool = False) -> Iterator[None]:
        """Add a phase that takes as long as the block."""
        begin = self._clock.monotonic()
        try:
            yield
        finally:
            seconds = self._clock.monotonic() - begin
            self._phases.append(Phase(name=name, seconds=seconds, is_beside=is_beside))

    @contextlib.contextmanager
    def start(self) -> "Iterator[list[SparkSession]]":
        """Add the phases of a start of Spark: the block, which appends the session to the list.

        They are separated by the start times of the JVM and of the SparkContext.
        """
        begin_ms = self._clock.now_ms()
        started: list[SparkSession] = []
        yield started
        if not self._enabled:
            return
        (session,) = started
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - PySpark has no other way to the JVM
        jvm_ms = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getStartTime()
        ends = (jvm_ms, session.sparkContext.startTime, self._clock.now_ms())
        for name, begin, end in zip(_START, (begin_ms, *ends[:-1]), ends, strict=True):
            self._phases.append(Phase(name=name, seconds=max(0, end - begin) / 1000))
        with self.phase("session state (catalog, extensions)"):
            session._jsparkSession.sessionState()  # noqa: SLF001

    def executing(self, frame: "DataFrame") -> None:
        """Note that a statement has been analyzed; what follows is its execution."""
        if self._enabled:
            self._frame = frame
            self._compiled = _compile_seconds(frame.sparkSession)
            self._executed_from = self._clock.monotonic()

    def counted(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Give rows on, and count them."""
        for row in rows:
            self._rows += 1
            yield row

    def write(self, out: TextIO) -> None:
        """Write what was measured, if it is enabled."""
        if not self._enabled:
            return
        taken = self._clock.monotonic() - self._begin
        without = "" if self._phases else ", without Spark"
        out.write(f"Time taken: {taken:.2f} seconds, fetched {self._rows} row(s){without}\n")
        phases = [*self._phases, *self._spark_phases()]
        rest = taken - sum(one.seconds for one in phases if not one.is_beside)
        for one in phases and [*phases, Phase(name="rest", seconds=max(0.0, rest))]:
            indent = "    " if one.is_beside else "  "
            out.write(f"{indent + one.name:{_WIDTH}}{one.seconds:8.2f}\n")
        out.flush()

    def _spark_phases(self) -> list[Phase]:
        if self._frame is None:
            return []
        executed = self._clock.monotonic() - self._executed_from
        found: Any = self._frame._jdf.queryExecution().tracker().phases()  # noqa: SLF001
        taken = {
            name: found.get(name).get().durationMs() / 1000
            for name in _PLANNING
            if found.get(name).isDefined()
        }
        # Spark optimizes and plans when the first row is fetched.
        executed -= taken.get("optimization", 0.0) + taken.get("planning", 0.0)
        compiled = _compile_seconds(self._frame.sparkSession) - self._compiled
        return [
            *(Phase(name=name, seconds=seconds) for name, seconds in taken.items()),
            Phase(name="execution", seconds=max(0.0, executed)),
            Phase(name="compiling generated code", seconds=compiled, is_beside=True),
        ]


def _compile_seconds(session: "SparkSession") -> float:
    """Return how long the JVM has compiled code that Spark generated, since it began."""
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - as above
    codegen = jvm.org.apache.spark.sql.catalyst.expressions.codegen
    return float(codegen.CodeGenerator.compileTime()) / 1e9


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
        self._is_at_terminal = False

    def greet(self) -> None:
        """Greet a user at a terminal, where Ctrl-C ends a statement and not the shell."""
        self._is_at_terminal = True
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
            if not self._is_at_terminal:
                raise
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
        placed = with_places(session, prepared)
        frame = session.sql(placed)
        if is_query(placed) and self._views.are_read_by_spark:
            with timing.phase("needed part of views"):
                frame = self._narrowed(session, placed, frame)
        timing.executing(frame)
        if not frame.columns:
            return (), iter(())
        return frame.columns, frame.toLocalIterator(prefetchPartitions=True)

    def _narrowed(self, session: "SparkSession", statement: str, frame: "DataFrame") -> "DataFrame":
        """Return the rows of a query, whose views have no more than it needs of them."""
        needs = query_needs(frame)
        if all(one == ALL for one in needs.values()):
            return frame
        with self._views.narrowed(session, needs):
            narrowed = session.sql(statement)
        # Bounds may depend on the time of the analysis (`now()`), which has passed on.
        after = query_needs(narrowed)
        is_covered = all(key in needs and needs[key].covers(one) for key, one in after.items())
        return narrowed if is_covered else frame


def _read(named: Mapping[str, ViewSource], timing: StatementTiming) -> dict[str, LocalRows]:
    with timing.phase("views read and decoded", is_beside=True):
        return read_small(named)


def one_line(error: BaseException) -> str:
    """Return what is wrong in one line, without tracebacks, query plans and SQLSTATE."""
    text = str(error)
    # The line that counts is the error of our own code in one of Spark's Python workers.
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
