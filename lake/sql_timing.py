"""Timing of a statement, for `lakehead sql --timing`, in Spark's own terms.

A statement's phases are those of Spark's `QueryPlanningTracker` (parsing, analysis, optimization,
planning), then its execution, with the part of it that was compilation of generated code. Before
them are the phases of Spark's start, if the statement started it, and of its views.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from lakehead.storage.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
