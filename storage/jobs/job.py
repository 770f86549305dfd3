"""A job as data: a name, options, a plan, a run and a result, declared in a module of its own.

A plan names units of work; a run does some of them and adds up a result. Units have keys that stay
the same from plan to plan, so a task of Airflow gets a range of keys and plans for itself: XCom
stays small whatever the work is, and another try does what is left. The command line, the Airflow
provider and the docs derive what they show from `Job`; none of them knows a job by name.

A runner maps a function over work items, in any order: in this process (`run_inline`), in a pool of
processes of this machine, or as tasks of Spark (both in `lakehead.lake.jobs`). Function, items and
results must be picklable. An item's work is durable by itself, and a runner may run it again.

Modules of jobs are imported when a DAG is parsed: they import machinery inside of functions.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar

from lakehead.storage.errors import LakeheadError

if TYPE_CHECKING:  # a DAG is parsed without them
    import random

    from lakehead.storage.clock import Clock
    from lakehead.storage.maintenance.configs import MaintenanceDefaults
    from lakehead.storage.maintenance.rules import DueWork
    from lakehead.storage.metadata.log import MetadataLog
    from lakehead.storage.object_store import ObjectStore

_log = logging.getLogger(__name__)
_SILENT = logging.getLogger(f"{__name__}.silent")
_SILENT.disabled = True

Item = TypeVar("Item")
Result = TypeVar("Result")
Options = TypeVar("Options")
Done = TypeVar("Done", bound="JobResult")

LINES_MAX = 20
"""Lines of a field that is a list; the field `<name>_count` says how many there were."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

Fields = dict[str, Any]
"""A result as XCom has it: numbers by name, the first few lines for people, texts."""

IfTaken = Literal["skip", "retry"]
"""The outcome of a task whose table another process writes."""

Progress = Callable[[int, int], None]
"""Called with (bytes that are done, bytes of all work items)."""


class JobIncomplete(LakeheadError):
    """Some items failed; all others are done. The message has the first reason. Exit status 1."""


class DamageFound(LakeheadError):
    """The job did all its work, and has found damage. The message names the first place. Exit
    status 1.
    """


# ------------------------------------------------------------------------------------------ results


def sum_of(held: Any, more: Any) -> Any:
    """Return two values of a result added up: numbers are added, lists joined, and of texts and
    truth values the first counts that is not empty.
    """
    if held is None or held == "":
        return more
    if isinstance(more, list | tuple):
        return [*held, *more] if isinstance(more, list) else (*held, *more)
    if isinstance(more, int | float) and not isinstance(more, bool):
        return held + more
    return held


def sum_of_fields(one: Fields, more: Fields) -> Fields:
    """Return the fields of two parts added up; of lines the first are kept."""
    both = dict(one)
    for name, value in more.items():
        added = sum_of(both.get(name), value)
        both[name] = added[:LINES_MAX] if name in one and isinstance(added, list) else added
    return both


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Fields that add up."""

    def plus(self, more: Self) -> Self:
        """Return the totals of both."""
        names = [one.name for one in fields(self)]
        return type(self)(**{one: sum_of(getattr(self, one), getattr(more, one)) for one in names})


def text(label: str = "") -> str:
    """Return the field of a text in a result, as `total` for a number."""
    words: str = field(default="", metadata={"label": label})
    return words


def total(label: str = "") -> int:
    """Return the field of a number in a result; people see it by its label, if it has one."""
    number: int = field(default=0, metadata={"label": label})
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(Totals):
    """The result of a run. `failures` names each item that failed, with the reason."""

    failures: tuple[str, ...] = ()

    def as_fields(self) -> Fields:
        """Return the result as XCom has it."""
        found = asdict(self)
        del found["failures"]
        return found

    def labelled(self) -> dict[str, Any]:
        """Return what people see, by label; None for an empty text."""
        shown = {one.metadata.get("label"): getattr(self, one.name) for one in fields(self)}
        return {label: None if value == "" else value for label, value in shown.items() if label}

    def check(self) -> None:
        """Raise JobIncomplete if items failed."""
        if self.failures:
            more = f"; and {len(self.failures) - 1} more" if len(self.failures) > 1 else ""
            raise JobIncomplete(f"left as it is: {self.failures[0]}{more}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldsResult(JobResult):
    """A result that is known by its fields alone."""

    found: Fields = field(default_factory=dict)

    def as_fields(self) -> Fields:
        """Return the result as XCom has it."""
        return self.found


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows for people, by fields; `columns` gives the heading of each. With a `name` they are in
    JSON by that name. `lines` come below.
    """

    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]
    name: str = ""
    lines: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The output of a command: tables, then fields, then a note for people. Without `fields`, JSON
    has a line for each row of the table.
    """

    fields: Mapping[str, Any] | None = None
    tables: Sequence[Table] = ()
    note: str = ""


# ------------------------------------------------------------------------------------ units of work


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A part of a job that is done or not done: `item` is the job's own, `size` in bytes (0 where
    it is not known), `words` describe it to people. `row` is its row in a dry run of the command.
    """

    key: str
    size: int
    item: Any = None
    words: str = ""
    row: Mapping[str, Any] | None = None

    @property
    def line(self) -> str:
        """The unit in a line for people, with its size."""
        words = self.words or self.key
        return f"{words}: {in_bytes(self.size)}" if self.size else words


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The work, and what is known without doing it: `fields` for XCom, `found` as a part of the
    result.
    """

    units: tuple[Unit, ...]
    fields: Fields = field(default_factory=dict)
    found: Any = None

    @property
    def size(self) -> int:
        """Bytes of all units."""
        return sum(unit.size for unit in self.units)

    def as_fields(self, *, is_dry_run: bool) -> Fields:
        """Return what is known, and in a dry run the first of what would be done."""
        found = self.fields | {"planned": len(self.units)}
        if self.size:
            found["planned_bytes"] = self.size
        if is_dry_run:
            found["would_do"] = list(islice((unit.line for unit in self.units), LINES_MAX))
        return found


def in_bytes(count: int) -> str:
    """Return a number of bytes for people."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


class Runner(Protocol):
    """Runs a function over work items."""

    def __call__(
        self, work: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Yield (item, work(item)) as they are done. Raises the first error of an item."""


def run_inline(
    work: Callable[[Item], Result], items: Sequence[Item]
) -> Iterator[tuple[Item, Result]]:
    """Work in this process, one item after the other."""
    for item in items:
        yield item, work(item)


def no_progress(_done: int, _total: int) -> None:
    """Report no progress."""


def no_wait(_reason: str) -> None:
    """Report nothing of a wait."""


def to_both(one: Progress, other: Progress) -> Progress:
    """Return what reports progress to both."""

    def report(done: int, total: int) -> None:
        one(done, total)
        other(done, total)

    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """A table that a task was at, and what it committed: nothing, where there was nothing new, or
    where a try before it did. The offsets that came are in the table's own history
    (`lakehead.lake.tables.table_history`).
    """

    topic: str
    uri: str
    commits: int = 0
    rows: int = 0
    bytes_written: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """The environment of a run: the cluster at `path`, a store's URI; `wait_s` seconds are waited
    for a table that another process writes (`on_wait` gets the reason), and `if_taken` decides what
    happens if that process keeps it. `workers` threads make a table's files. `log` gets failures of
    items. `written_by` names the task in the history of tables. With `is_retry` an earlier try may
    have made commits that are in no event; with `is_part` the job does some units of a plan that
    was made before, and its own plan needs no fields. `on_change` gets the tables that were
    written; with `reports_all` those of all topics that the task names: lineage has these too.
    """

    path: str
    runner: Runner = run_inline
    on_progress: Progress = no_progress
    log: Any = _SILENT
    wait_s: float = 0.0
    on_wait: Callable[[str], None] = no_wait
    if_taken: IfTaken = "skip"
    workers: int = 2
    is_local: bool = True
    is_dry_run: bool = False
    written_by: str = ""
    is_retry: bool = False
    is_part: bool = False
    reports_all: bool = False
    on_change: Callable[[TableChange], None] | None = None


# ------------------------------------------------------------------------------------- maintenance


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCluster:
    """A cluster that a process holds open: its store and its metadata log, read to the end.
    `defaults` are the configs of brokers that are not in the metadata.
    """

    store: "ObjectStore"
    metadata: "MetadataLog"
    clock: "Clock"
    rng: "random.Random"
    defaults: "MaintenanceDefaults"


@dataclass(frozen=True, slots=True, kw_only=True)
class DueItem(Generic[Item]):
    """An item that is due. `fields` are in the event of its failure. After one its `streams`, if it
    names any, are left alone for a while.
    """

    item: Item
    fields: Mapping[str, Any]
    streams: tuple[int, ...] = ()


Event = tuple[str, Mapping[str, Any]]
"""An event of the log, with its fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance(Generic[Item, Result, Done]):
    """The part that a job has in the maintenance loop, which holds the cluster open.

    `due` returns what is due, from the metadata and from the works that are due in partitions, and
    `run` does an item of it; `result` is that as a part of the job's. `rows` show people what is
    due: topic, partition and work. `events` are logged of an
    item that took some seconds, `sum_events` of all items of a turn. An item for which `is_waiting`
    is true has to wait for others. `figures` are the fields of the result that the loop reports, by
    label. With an `interval`, a setting of brokers in ms, it is done that often; else in each turn.
    With `needs_kernels` it is left out where the packages of the extra `compaction` are not
    installed.
    """

    due: Callable[[OpenCluster, "Sequence[DueWork]"], Sequence[DueItem[Item]]]
    run: Callable[[OpenCluster, Item], Awaitable[Result]]
    result: Callable[[Result], Done]
    rows: Callable[[Sequence[Item]], Sequence[Mapping[str, Any]]]
    empty: Done
    figures: Mapping[str, str]
    failed_event: str
    events: Callable[[Item, Result, float], Sequence[Event]] = lambda _item, _result, _seconds: ()
    sum_events: Callable[[Done], Sequence[Event]] = lambda _done: ()
    is_waiting: Callable[[Done], bool] = lambda _done: False
    interval: str = ""
    needs_kernels: bool = False


# --------------------------------------------------------------------------------- the declaration


def never_confirmed(_options: Any) -> str:
    """Return that a job deletes nothing that cannot be had again."""
    return ""


def _no_finding(_fields: Fields) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[Options, Done]):
    """A job.

    `help` is the text of its command; without one it has none. `options` is a dataclass of
    `lakehead.storage.jobs.options.option` fields. `plan` returns what is to be done, `run` does
    units of it. `finish` looks at the fields of all parts, and raises what the job is to fail with.

    The command shows what `show` returns of a result. A dry run of it shows `columns` of the units'
    rows, or what `show_plan` returns, or else the result that the plan has found, or that `preview`
    looks for. `confirmation` is the question before a command of these options deletes what cannot
    be had again; empty if it does not. With `takes_processes` items may run in processes of their
    own, with `takes_workers` threads make a table's files, and with `takes_lease` the job may wait
    for another writer's lease. `is_for_broken_clusters`: there may be no metadata to find the
    cluster by. A job with `writes_tables` adds rows to tables, and its tasks have their events.
    `maintenance` is its part in the maintenance loop. A command imports the module `machinery`
    first, so that a package that is not installed is reported before all else.

    A task takes seconds to start, so one is worth while for `task_bytes`, or for `task_units`; with
    0 bytes for each unit.
    """

    name: str
    options: type[Options]
    plan: Callable[[JobContext, Options], Planned]
    run: Callable[[JobContext, Options, Sequence[Unit]], Done]
    finish: Callable[[Fields], None] = _no_finding
    help: str = ""
    dry_run_help: str = "Show what is due, and do nothing."
    columns: Mapping[str, str] = field(default_factory=dict)
    show_plan: Callable[[Planned], Report] | None = None
    preview: Callable[[JobContext, Options, Planned], Done] | None = None
    show: Callable[[Done], Report] = lambda result: Report(fields=result.labelled())
    confirmation: Callable[[Options], str] = never_confirmed
    takes_processes: bool = False
    takes_workers: bool = False
    takes_lease: bool = False
    is_for_broken_clusters: bool = False
    maintenance: Maintenance[Any, Any, Done] | None = None
    machinery: str = ""
    writes_tables: bool = False
    task_bytes: int = 128 * 1024 * 1024
    task_units: int = 1000

    def tasks_worth(self, planned: Planned) -> int:
        """Return how many tasks the work is worth, at least one."""
        if not self.task_bytes:
            return max(len(planned.units), 1)
        by_bytes = -(-planned.size // self.task_bytes)
        return max(by_bytes, -(-len(planned.units) // self.task_units), 1)

    def report_of_plan(self, planned: Planned) -> Report:
        """Return what a dry run of the command shows."""
        if self.show_plan is not None:
            return self.show_plan(planned)
        if planned.found is not None:
            return self.show(planned.found)
        rows = [unit.row for unit in planned.units if unit.row is not None]
        return Report(tables=[Table(columns=self.columns, rows=rows)])

    def perform(self, context: JobContext, options: Options, planned: Planned) -> Done:
        """Run all that was planned, and return the result with what the plan has found."""
        result = self.run(context, options, planned.units)
        return result if planned.found is None else planned.found.plus(result)


def plan_job(job: Job[Options, Done], path: str, options: Options | None = None) -> Planned:
    """Return the plan of a dry run on the cluster at `path`, a store's URI."""
    return job.plan(JobContext(path=path, is_dry_run=True), options or job.options())


def run_job(
    job: Job[Options, Done],
    path: str,
    options: Options | None = None,
    *,
    runner: Runner = run_inline,
    on_progress: Progress = no_progress,
) -> Done:
    """Plan a job on the cluster at `path`, a store's URI, run it, and return the result. After an
    error, run it again: what was done stays done.
    """
    context = JobContext(path=path, runner=runner, on_progress=on_progress)
    chosen = options or job.options()
    return job.perform(context, chosen, job.plan(context, chosen))


# ------------------------------------------------------------------------------------ running items


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An item that could not be done, in words for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Attempt(Generic[Item, Result]):
    """`work` as a runner gets it where the failure of one item does not stop the others. `words`
    describes an item.
    """

    work: Callable[[Item], Result]
    words: Callable[[Item], str]

    def __call__(self, item: Item) -> Result | Failed:
        """Return what `work` does, or why it failed. An error that is a defect is logged with its
        traceback, and stops no other item either.
        """
        try:
            return self.work(item)
        except LakeheadError as error:
            return Failed(reason=f"{self.words(item)}: {error}")
        except Exception as error:  # noqa: BLE001 - one item never stops the others
            _log.exception("%s: unexpected %s", self.words(item), type(error).__name__)
            return Failed(
                reason=f"{self.words(item)}: unexpected {type(error).__name__}: {error} (the log "
                "of the job has the traceback; please report it)"
            )


def results_of(
    context: JobContext,
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    size: Callable[[Item], int],
) -> Iterator[Result]:
    """Yield the results of all items as they are done, and report progress by their sizes in bytes.

    Raises the first error of an item: what was done by then stays done.
    """
    all_bytes, done = sum(map(size, items)), 0
    context.on_progress(0, all_bytes)
    for item, result in context.runner(work, items):
        done += size(item)
        context.on_progress(done, all_bytes)
        yield result


def sum_results(
    context: JobContext,
    work: Callable[[Item], Done],
    items: Sequence[Item],
    *,
    empty: Done,
    size: Callable[[Item], int],
    words: Callable[[Item], str] | None = None,
) -> Done:
    """Do all items, and return the sum of their results. With `words` for an item, one that fails
    is logged and counted in `failures`, and the others go on; else the first error is raised.
    """
    result = empty
    attempt: Callable[[Item], Done | Failed] = work if words is None else Attempt(work, words)
    for one in results_of(context, attempt, items, size=size):
        if isinstance(one, Failed):
            context.log.warning("%s", one.reason)
            result = result.plus(replace(empty, failures=(one.reason,)))
        else:
            result = result.plus(one)
    return result
