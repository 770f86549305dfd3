"""The jobs of declared tables. A unit is a table, by its topic; replay, backfill and rebuild_table
are requests for one table.

A DAG is parsed with this module: it imports the machinery of the lake inside of functions.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.jobs.job import (
    Fields,
    FieldsResult,
    Job,
    JobContext,
    JobResult,
    Planned,
    Report,
    Table,
    TableChange,
    Unit,
    sum_of_fields,
    text,
    total,
)
from lakehead.storage.jobs.options import option

if TYPE_CHECKING:
    from lakehead.lake.catalog import Catalog
    from lakehead.lake.declaration.table_declaration import TableDeclaration
    from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
    from lakehead.lake.jobs.table_maintenance import MaintenanceResult, TableTarget
    from lakehead.lake.jobs.table_rebuild import RebuildResult
    from lakehead.lake.jobs.table_settings import MaterializeSettings

# ----------------------------------------------------------------------------------------- options

Engine = Literal["delta-rs", "spark"]
Beginning = int | Mapping[int, int] | None
"""The beginning of a table: a time (ms since the epoch), offsets by partition, or the earliest."""

_OFFSETS = re.compile(r"\d+:\d+(,\s*\d+:\d+)*")


def beginning(value: Any) -> Beginning:
    """Return where a table is to begin: `earliest`, a time (ISO 8601), or `0:1200,1:3400`.

    Raises ValueError.
    """
    text = str(value).strip()
    if text == "earliest":
        return None
    if _OFFSETS.fullmatch(text):
        pairs = (one.split(":") for one in text.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}
    at = datetime.fromisoformat(text)
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _begin_option(value: Any) -> tuple[Beginning]:
    """In a tuple, since one beginning is None."""
    return (beginning(value),)


_REQUIRED = {"required": True, "minLength": 1}


_OF_MERGE = (
    "Engine of the MERGE of tables by upsert: delta-rs, without a JVM; or spark, by delta-spark."
)
_OF_FILES = "Engine: delta-rs, without a JVM; or spark, by delta-spark."


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesOptions:
    """The tables of a job: those of these topics, or all; also those that are not due."""

    topics: tuple[str, ...] = option(
        (),
        "The topics, or TOPIC/TABLE for one of several tables of a topic. Without any: every "
        "declared table that is due.",
        title="Topics",
        metavar="[TOPIC]...",
        is_argument=True,
        form={"description": "These alone, one a line. None: all of them."},
    )
    all_of_them: bool | None = option(
        None,
        "Include tables that are not due yet.",
        title="All of them",
        form={"default": False, "type": "boolean"},
    )
    engine: Engine = option("delta-rs", _OF_MERGE, flag="--engine", in_form=False)

    @property
    def takes_every(self) -> bool:
        """Return true if tables that are not due are worked on too."""
        return bool(self.topics) if self.all_of_them is None else self.all_of_them


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeOptions(TablesOptions):
    """The tables of a job whose files are rewritten."""

    engine: Engine = option("delta-rs", _OF_FILES, flag="--engine", in_form=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOptions(OptimizeOptions):
    """The tables of a job, and how many hours of versions stay."""

    retention_hours: int = option(
        168,
        "Hours of versions to keep. At least 168: seven days.",
        title="Hours",
        flag="--retention-hours",
        metavar="HOURS",
        in_form=False,
    )
    every_name: bool = option(
        False,
        "With --dry-run: all names, not the first 20.",
        flag="--every-name",
        in_form=False,
        is_of_command=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """The topic of a table."""

    topic: str = option(
        "",
        "A topic that declares a table, or TOPIC/TABLE for one of several.",
        title="Topic",
        metavar="TOPIC",
        is_argument=True,
        form=_REQUIRED,
    )

    def checked_topic(self) -> str:
        """Return the topic. Raises SettingsError without one."""
        if not self.topic:
            raise SettingsError("option topic is missing: name the topic of the table")
        return self.topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions(TopicOptions):
    """The table of one topic, and the engine of its MERGE."""

    engine: Engine = option("delta-rs", _OF_MERGE, flag="--engine", in_form=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions(TableOptions):
    """The table of one topic, and where it is to begin."""

    begin: tuple[Beginning] | None = option(
        None,
        "earliest, a time, or offsets by partition (0:12,1:3).",
        title="Beginning",
        form={"default": "earliest", "type": "string", "minLength": 1},
        parse=_begin_option,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTableOptions(TableOptions):
    """The table of one topic, and whether rows may be lost."""

    without_history: bool = option(
        False,
        "Rebuild even if rows are lost whose records the topic does not have: removed by "
        "retention, or of an earlier topic of its name.",
        title="Lose history",
        flag="--without-history",
        in_form=False,
    )


# ------------------------------------------------------------------------------------------ shared

_COUNTED = (
    *("records", "dead_letters", "dropped", "left_out", "lost"),
    *("bytes_read", "bytes_written", "commits"),
)
_NAMED_MAX = 3
_MACHINERY = "lakehead.lake.jobs.declared_tables"

Failure = tuple[str, LakeheadError]
"""The topic of a table, and why it could not be worked on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesResult(FieldsResult):
    """The result of a job of many tables: its fields, a row for each table by the key of its unit,
    lines for people below the rows, and the failures that fail the job.
    """

    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    failed: tuple[Failure, ...] = ()

    def plus(self, more: Self) -> Self:
        """Return the results of both: a row of the later one takes the place of an earlier one."""
        return replace(
            self,
            found=sum_of_fields(self.found, more.found),
            rows={**self.rows, **more.rows},
            lines=self.lines + more.lines,
            failed=self.failed + more.failed,
        )

    def check(self) -> None:
        """Raise the first failure, with the words of some more: its class says whether another try
        may help.
        """
        if not self.failed:
            return
        words = [with_topic(topic, error) for topic, error in self.failed]
        more = f" (and {len(words) - _NAMED_MAX} more tables)" if len(words) > _NAMED_MAX else ""
        _, error = self.failed[0]
        error.args = (f"{'; '.join(words[:_NAMED_MAX])}{more}",)
        raise error


def with_topic(topic: str, error: LakeheadError) -> str:
    """Return an error of a table in words that name its topic."""
    words = str(error)
    return words if f"topic {topic}" in words else f"topic {topic}: {words}"


def _failing(failed: Sequence[Failure], context: JobContext, count: int) -> tuple[Failure, ...]:
    """Return the failures that fail a job of `count` tables, the gravest first. Tables that others
    write are skipped if the context says so, unless all of them are.
    """
    from lakehead.lake.jobs.table_lease import TableTaken

    if context.if_taken == "retry":
        return tuple(failed)
    grave = [one for one in failed if not isinstance(one[1], TableTaken)]
    taken = [one for one in failed if isinstance(one[1], TableTaken)]
    return (*grave, *taken) if grave or len(taken) == count else ()


@contextmanager
def opened_tables(
    context: JobContext, engine: Engine, topics: Sequence[str]
) -> "Iterator[DeclaredTables]":
    """Yield the tables of these topics; their leases are returned in any case."""
    from lakehead.lake.jobs.declared_tables import DeclaredTables

    tables = DeclaredTables(
        context.path,
        topics=topics,
        workers=context.workers,
        wait_s=context.wait_s,
        on_wait=context.on_wait,
        engine=engine,
        runner=None if context.is_local else context.runner,
        on_progress=context.on_progress,
        written_by=context.written_by,
    )
    with closing(tables):
        yield tables


Written = dict[str, tuple[int, int, int]]
"""Commits that were made, their rows and bytes, by the key of the table."""


@contextmanager
def reported_changes(context: JobContext, topics: Sequence[str]) -> Iterator[Written]:
    """Yield a mapping in which to note the tables that were written; then report these to
    `context.on_change`. A task that is tried again reports all the tables of `topics` (none named:
    all declared ones), since an earlier try may have written them.
    """
    from lakehead.lake.declaration.table_declaration import TableDeclaration
    from lakehead.lake.jobs.table_due import declared_tables
    from lakehead.lake.store_reader import store_reader

    written: Written = {}
    yield written
    if context.on_change is None:
        return
    reports_named = context.reports_all and bool(topics)
    if not written and not context.is_retry and not reports_named:
        return
    state = store_reader(context.path).open_catalog().state
    reported = topics if context.is_retry or reports_named else tuple(written)
    for key, declared in declared_tables(state, reported).items():
        if isinstance(declared, TableDeclaration):
            commits, rows, size = written.get(key, (0, 0, 0))
            change = TableChange(
                topic=declared.topic,
                uri=declared.uri(context.path),
                commits=commits,
                rows=rows,
                bytes_written=size,
            )
            context.on_change(change)


# ------------------------------------------------------------------------------------- materialize


def _plan_materialize(context: JobContext, options: TablesOptions) -> Planned:
    from lakehead.lake.jobs.table_due import is_due, lag_of, topic_of
    from lakehead.lake.store_reader import store_reader
    from lakehead.storage.clock import SystemClock
    from lakehead.storage.metadata.state import TableState

    catalog = store_reader(context.path).open_catalog()
    every = context.is_part or options.takes_every
    units, now_ms = [], SystemClock().now_ms()
    for topic, tables in _declared(catalog, options.topics, context).items():
        chosen = [one for one in options.topics if topic_of(one) == topic] or [topic]
        item = tuple(chosen)
        if isinstance(tables, SettingsError):  # its own work fails with it, and no other
            units.append(Unit(key=topic, size=0, item=item, words=str(tables)))
            continue
        known = catalog.state.tables.get(tables[0].topic_id, TableState())
        lag = lag_of(catalog.state, catalog.topic(topic), known.offsets)
        if every or any(is_due(one, lag, now_ms) for one in tables):
            words = f"{topic}: {lag.records} records behind"
            units.append(Unit(key=topic, size=lag.size_bytes, item=item, words=words))
    return Planned(units=tuple(units), found=TablesResult())


def _declared(
    catalog: "Catalog", topics: Sequence[str], context: JobContext
) -> "dict[str, list[TableDeclaration] | SettingsError]":
    """The declared tables, by topic, and the declarations that cannot be, which are logged. Raises
    UnknownTopic, and SettingsError for a topic that declares no table.
    """
    from lakehead.lake.jobs.table_due import chosen_tables, topic_of

    found: dict[str, list[TableDeclaration] | SettingsError] = {}
    for key, one in chosen_tables(catalog, topics).items():
        if isinstance(one, SettingsError):
            context.log.warning("%s", one)
            found[key] = one
            continue
        tables = found.setdefault(topic_of(key), [])
        assert isinstance(tables, list), "an error stands for all tables of a topic"
        tables.append(one)
    return found


def row_of(outcome: "TableOutcome", *, is_plan: bool = False) -> dict[str, Any]:
    """Return a turn at a table as a row for people."""
    result, head = outcome.result, {"topic": outcome.topic, "table": outcome.table}
    if is_plan:
        return {**head, "bytes to read": result.bytes_read}
    return {
        **head,
        "records": result.records,
        "bytes read": result.bytes_read,
        "commits": result.commits,
        "dead letters": result.dead_letters,
        "dropped": result.dropped,
        "fields left out": result.left_out,
        "lost to retention": result.lost,
        "records behind": outcome.lag.records,
    }


def _run_materialize(
    context: JobContext, options: TablesOptions, units: Sequence[Unit]
) -> TablesResult:
    topics = [table for unit in units for table in unit.item]
    of_task = topics if context.is_part else options.topics
    if not topics:
        with reported_changes(context, of_task):
            return TablesResult()
    outcomes: list[TableOutcome] = []
    with (
        reported_changes(context, of_task) as written,
        opened_tables(context, options.engine, topics) as tables,
    ):

        def note(outcome: "TableOutcome") -> None:
            outcomes.append(outcome)
            if outcome.result.commits:
                done = outcome.result
                written[outcome.key] = (done.commits, done.records, done.bytes_written)

        tables.catch_up(all_of_them=True, on_table=note, dry_run=context.is_dry_run)
    fields: Fields = {"tables": 0}
    for one in outcomes:
        if one.error is not None:
            context.log.warning("topic %s: %s", one.key, one.error)
        counted = {name: getattr(one.result, name) for name in _COUNTED}
        counted["records_behind"] = one.lag.records
        counted["tables"] = int(one.error is None)
        context.log.info("topic %s to %s: %s", one.topic, one.table, counted)
        fields = sum_of_fields(fields, counted)
    failed = [(one.topic, one.error) for one in outcomes if one.error is not None]
    return TablesResult(
        found=fields | {"tables_taken": len(failed)},
        rows={one.key: row_of(one, is_plan=context.is_dry_run) for one in outcomes},
        failed=_failing(failed, context, len(outcomes)),
    )


def _preview_materialize(
    context: JobContext, options: TablesOptions, planned: Planned
) -> TablesResult:
    """Look at the tables themselves, and at the bytes that they have to read."""
    found: TablesResult = planned.found
    return found.plus(_run_materialize(context, options, planned.units))


def _show_materialized(result: TablesResult) -> Report:
    rows = list(result.rows.values())
    columns = {name: name for name in rows[0]} if rows else {"": "no table is due"}
    return Report(tables=[Table(columns=columns, rows=rows)])


MATERIALIZE = Job(
    name="materialize",
    help="""Turn topics into Delta tables, each record once.

    A topic declares its table by its configs (lakehead.table.*). Options describe the table of a
    topic that declares none.

    Safe to run again at any moment, to kill, and to run twice at once: the table itself records how
    far it got. What a broker has not uploaded yet comes with the next run.
    """,
    dry_run_help="Show what there is to do, and do nothing.",
    options=TablesOptions,
    plan=_plan_materialize,
    run=_run_materialize,
    preview=_preview_materialize,
    show=_show_materialized,
    takes_workers=True,
    takes_lease=True,
    machinery=_MACHINERY,
    writes_tables=True,
    task_bytes=0,
)


# ------------------------------------------------------------------------------ optimize and vacuum


_COLUMNS = {"topic": "TOPIC", "table": "TABLE", "files": "FILES", "small": "SMALL", "due": "DUE"}
_NAMES_SHOWN = 20


def _key(target: "TableTarget") -> str:
    return f"{target.key}__dlq" if target.is_of_letters else target.key


def _optimized(
    target: "TableTarget", options: OptimizeOptions, hold: Any, **chosen: bool
) -> "MaintenanceResult":
    from lakehead.lake.jobs.table_maintenance import optimize

    return optimize(target, hold, engine=options.engine, **chosen)


def _vacuumed(
    target: "TableTarget", options: VacuumOptions, hold: Any, **chosen: bool
) -> "MaintenanceResult":
    from lakehead.lake.jobs.table_maintenance import vacuum

    hours = options.retention_hours
    return vacuum(target, hold, engine=options.engine, retention_hours=hours, **chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintenance:
    """Care of tables' files: `work` does it for a table, or looks what is due there. `words` say
    what that is, `fields` count what was done, and `row` and `lines` are shown of it; `figures` are
    shown of a table that is followed, and `done` is the label of how many tables it was done to.
    """

    name: str
    done: str
    work: Callable[..., "MaintenanceResult"]
    words: Callable[["MaintenanceResult"], str]
    fields: Callable[["MaintenanceResult"], Fields]
    row: Callable[["MaintenanceResult"], dict[str, Any]]
    figures: Callable[["MaintenanceResult"], dict[str, Any]]
    lines: Callable[["MaintenanceResult", Any], list[str]] = lambda _result, _options: []

    def plan(self, context: JobContext, options: OptimizeOptions) -> Planned:
        from lakehead.lake.jobs.table_maintenance import targets
        from lakehead.lake.store_reader import store_reader

        every = targets(store_reader(context.path).open_catalog(), options.topics)
        if context.is_part:
            return Planned(units=tuple(self._unit(target, _key(target)) for target in every))
        units, looked = [], []
        for target in every:
            key = _key(target)
            found = self.work(target, options, None, dry_run=True)
            if found.files or found.error is not None or not target.is_of_letters:
                looked.append((key, found))
            if found.error is not None:  # its own work fails with it; others are not kept from it
                context.log.warning("%s of %s: %s", self.name, key, found.error)
                units.append(self._unit(target, f"{key}: {found.error}"))
            elif found.files and (options.takes_every or found.is_due):
                units.append(self._unit(target, f"{key}: {self.words(found)}"))
        result = TablesResult(rows={key: self._row(one) for key, one in looked})
        if context.is_dry_run:
            failed = [(one.topic, one.error) for _, one in looked if one.error is not None]
            lines = [line for _, one in looked for line in self.lines(one, options)]
            result = replace(result, lines=tuple(lines), failed=tuple(failed))
        return Planned(units=tuple(units), found=result)

    def run(
        self, context: JobContext, options: OptimizeOptions, units: Sequence[Unit]
    ) -> TablesResult:
        from lakehead.lake.jobs.table_lease import TableLeases

        if not units:
            return TablesResult()
        fields: Fields = {"tables": 0}
        rows: dict[str, dict[str, Any]] = {}
        failed: list[Failure] = []
        with closing(TableLeases.open(context.path, on_wait=context.on_wait)) as leases:
            for unit in units:
                target: TableTarget = unit.item
                hold = partial(leases.held, target.topic_id, wait_s=context.wait_s)
                found = self.work(target, options, hold, only_if_due=not options.takes_every)
                rows[unit.key] = self._row(found)
                if found.error is not None:
                    failed.append((target.topic, found.error))
                    context.log.warning("%s of %s: %s", self.name, unit.key, found.error)
                    continue
                counted = {"tables": 1, **self.fields(found)}
                context.log.info("%s of %s: %s", self.name, unit.key, counted)
                fields = sum_of_fields(fields, counted)
        return TablesResult(
            found=fields | {"tables_taken": len(failed)},
            rows=rows,
            failed=_failing(failed, context, len(units)),
        )

    @staticmethod
    def _unit(target: "TableTarget", words: str) -> Unit:
        return Unit(key=_key(target), size=0, item=target, words=words)

    def _row(self, found: "MaintenanceResult") -> dict[str, Any]:
        head = {"topic": found.topic, "table": found.table, "files": found.files}
        return {**head, "due": found.is_due, **self.row(found)}


def _shown(columns: Mapping[str, str], result: TablesResult) -> Report:
    rows = list(result.rows.values())
    return Report(tables=[Table(columns=columns, rows=rows, lines=result.lines)])


def _optimize_words(found: "MaintenanceResult") -> str:
    if found.new_files:
        return f"{found.new_files} files to cluster of {found.files}"
    return f"{found.small_files} small files of {found.files}"


_OPTIMIZE = TableMaintenance(
    name="optimize",
    done="optimized tables",
    work=_optimized,
    words=_optimize_words,
    fields=lambda found: {"files_before": found.files, "files_after": found.files_after},
    row=lambda found: {
        "small": found.small_files,
        "new": found.new_files,
        "after": found.files_after,
    },
    figures=lambda found: {"files": found.files, "files after": found.files_after},
)
OPTIMIZE = Job(
    name="optimize",
    help="""Merge small files of tables, or cluster their rows.

    Rows are put in the order of lakehead.table.cluster.by, where a table has that.

    Due is a table with 16 files or more below a quarter of lakehead.table.file.bytes that are half
    of its files (lakehead.table.optimize.small.percent), or with lakehead.table.cluster.by 16 files
    or more that are not clustered yet, or with a tenth of its rows deleted by
    deletion vectors (lakehead.table.optimize.deleted.percent), an hour after the last time
    (lakehead.table.optimize.interval.ms). Safe to kill at any moment. It needs the table's lease:
    where lakehead materialize --follow has it, that does it by itself.
    """,
    options=OptimizeOptions,
    plan=_OPTIMIZE.plan,
    run=_OPTIMIZE.run,
    show=partial(_shown, {**_COLUMNS, "new": "NEW", "after": "AFTER"}),
    takes_lease=True,
    machinery=_MACHINERY,
    task_bytes=0,
)


def _names(found: "MaintenanceResult", options: VacuumOptions) -> list[str]:
    """Return lines with the names of files that go, and of those that stay."""
    most = None if options.every_name else _NAMES_SHOWN
    lines = []
    for title, names in (
        (f"{found.topic}: to be removed from {found.table}", found.names),
        (f"{found.topic}: not the table's, left in {found.table}", found.others),
    ):
        if names:
            lines += ["", f"{title}:", *(f"  {_printable(name)}" for name in names[:most])]
            if most is not None and len(names) > most:
                lines.append(f"  and {len(names) - most} more: --every-name shows them all")
    return lines


def _printable(name: str) -> str:
    """A file's name without what would move a terminal's cursor."""
    return name.encode("unicode_escape").decode() if not name.isprintable() else name


_VACUUM = TableMaintenance(
    name="vacuum",
    done="vacuumed tables",
    work=_vacuumed,
    words=lambda found: f"{found.removed} files to delete",
    fields=lambda found: {"removed_files": max(found.removed, 0)},
    row=lambda found: {
        "removed": found.removed,
        "names": found.names,
        "others": len(found.others),
        "other_names": found.others,
    },
    figures=lambda found: {"removed files": found.removed},
    lines=_names,
)
VACUUM = Job(
    name="vacuum",
    help="""Delete files that no retained version of a table needs.

    Those of killed runs are among them.

    Due is a table that was not vacuumed for a day (lakehead.table.vacuum.interval.ms). It needs the
    table's lease, as optimize does. OTHERS are files below the table's root that are not known to
    be the table's: they stay. With --dry-run the names of both are shown.
    """,
    options=VacuumOptions,
    plan=_VACUUM.plan,
    run=_VACUUM.run,
    show=partial(
        _shown,
        {name: title for name, title in _COLUMNS.items() if name != "small"}
        | {"removed": "REMOVED", "others": "OTHERS"},
    ),
    takes_lease=True,
    machinery=_MACHINERY,
    task_bytes=0,
)


TABLE_MAINTENANCE: Mapping[str, TableMaintenance] = {one.name: one for one in (_OPTIMIZE, _VACUUM)}
"""Care of tables' files by the name of its job, in the order in which it is done."""


# ---------------------------------------------------------------------------- jobs of one table


def table_keys(context: JobContext, table: str) -> list[str]:
    """Return the keys of the tables that a topic or a key names. Raises UnknownTopic, SettingsError
    for a declaration that cannot be, or that declares none.
    """
    from lakehead.lake.jobs.table_due import chosen_tables
    from lakehead.lake.store_reader import store_reader

    found = chosen_tables(store_reader(context.path).open_catalog(), [table])
    for one in found.values():
        if isinstance(one, SettingsError):
            raise one
    return list(found)


def _plan(
    preview: Callable[[JobContext, Any, str], JobResult], context: JobContext, options: TableOptions
) -> Planned:
    """One unit; in a dry run with what it would come to."""
    topic = options.checked_topic()
    if not context.is_dry_run or context.is_part:
        return Planned(units=(Unit(key=topic, size=0, item=topic, words=topic),))
    found = preview(context, options, topic)
    fields = found.as_fields()
    unit = Unit(key=topic, size=fields.get("bytes_to_read", 0), item=topic, words=topic)
    return Planned(units=(unit,), fields=fields, found=found)


# ------------------------------------------------------------------------------------------ replay


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedDeadLetters(JobResult):
    """Dead letters that were read again, by what became of them (`lakehead.lake.jobs.replay`)."""

    letters: int = total("letters")
    replayed: int = total("replayed")
    already_rows: int = total("rows already, or overtaken")
    left: int = total("left")
    first_left: str = text("first that is left")


def _replay(
    context: JobContext, options: TableOptions, topic: str, written: Written | None = None
) -> ReplayedDeadLetters:
    found = ReplayedDeadLetters()
    with opened_tables(context, options.engine, [topic]) as tables:
        for key in table_keys(context, topic):
            result = tables.replay(key, dry_run=context.is_dry_run)
            if written is not None and result.replayed:
                written[key] = (1, result.replayed, 0)
            found = found.plus(ReplayedDeadLetters(**asdict(result)))
    return found


def _run_replay(
    context: JobContext, options: TableOptions, units: Sequence[Unit]
) -> ReplayedDeadLetters:
    topic = units[0].item
    with reported_changes(context, [topic]) as written:
        return _replay(context, options, topic, written)


REPLAY = Job(
    name="replay",
    help="""Read a table's dead letters again.

    They are read as the table is declared now.

    Those that can be rows go into the table and leave TABLE__dlq; the others stay there. Safe to
    run again at any moment, and to kill.
    """,
    dry_run_help="Show what would become rows, and change nothing.",
    options=TableOptions,
    plan=partial(_plan, _replay),
    run=_run_replay,
    takes_lease=True,
    machinery=_MACHINERY,
    writes_tables=True,
)


# ---------------------------------------------------------------------------------------- backfill


def _at(options: BackfillOptions) -> Beginning:
    if options.begin is None:
        raise SettingsError(
            "option begin is missing: earliest, a time as 2026-01-31T00:00:00Z, or offsets of "
            "partitions as 0:1200,1:3400"
        )
    return options.begin[0]


def settings_of(context: JobContext, table: str) -> "MaterializeSettings":
    """Return the settings of a declared table, by its key. Raises SettingsError, UnknownTopic."""
    from lakehead.lake.jobs.table_due import chosen_tables
    from lakehead.lake.jobs.table_settings import declared_settings
    from lakehead.lake.store_reader import store_reader

    found = chosen_tables(store_reader(context.path).open_catalog(), [table])
    declared = found[table]
    if isinstance(declared, SettingsError):
        raise declared
    return declared_settings(declared, context.path, dry_run=True)


def _preview_backfill(context: JobContext, options: BackfillOptions, topic: str) -> FieldsResult:
    from lakehead.lake.jobs.backfill import plan_begin
    from lakehead.lake.store_reader import store_reader

    reader = store_reader(context.path)
    fields: Fields = {}
    for key in table_keys(context, topic):
        settings = settings_of(context, key)
        plan = plan_begin(settings, reader, reader.open_catalog(), at=_at(options))
        starts = ", ".join(
            f"{partition}: {start}" for partition, start in sorted(plan.starts.items())
        )
        found = {
            "table_is_new": plan.is_new,
            "offsets_to_add": plan.offsets,
            "bytes_to_read": plan.size_bytes,
            "begins_at": starts[:500],
        }
        fields = sum_of_fields(fields, found)
    return FieldsResult(found=fields)


def _run_backfill(
    context: JobContext, options: BackfillOptions, units: Sequence[Unit]
) -> FieldsResult:
    topic, at = units[0].item, _at(options)
    with (
        reported_changes(context, [topic]) as written,
        opened_tables(context, options.engine, [topic]) as tables,
    ):
        counted = (
            *("records", "dead_letters", "dropped", "left_out"),
            *("bytes_read", "bytes_written", "commits"),
        )
        fields: Fields = {}
        for key in table_keys(context, topic):
            result = tables.begin(key, at=at)
            if result.commits:
                written[key] = (result.commits, result.records, result.bytes_written)
            fields = sum_of_fields(fields, {name: getattr(result, name) for name in counted})
    return FieldsResult(found=fields)


BACKFILL = Job(
    name="backfill",
    options=BackfillOptions,
    plan=partial(_plan, _preview_backfill),
    run=_run_backfill,
    writes_tables=True,
)


# ----------------------------------------------------------------------------------- rebuild_table


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildToDo(JobResult):
    """A rebuild before it is done."""

    bytes_to_read: int = total("bytes to read")
    rows_left_out: int = total("rows without records")


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltTable(JobResult):
    """A rebuild that is done: the new table, and rows that only the old one had."""

    records: int = total("records")
    files: int = total("files")
    bytes_written: int = total("bytes written")
    rows_left_out: int = total("rows without records")


def _rebuilt(
    context: JobContext, options: RebuildTableOptions, topic: str
) -> "Iterator[tuple[str, RebuildResult]]":
    """Rebuild each table of a topic, or look at what there is to do; yield it with its key."""
    with opened_tables(context, options.engine, [topic]) as tables:
        for key in table_keys(context, topic):
            yield (
                key,
                tables.rebuild(
                    key,
                    without_history=options.without_history,
                    dry_run=context.is_dry_run,
                    on_progress=context.on_progress,
                ),
            )


def _preview_rebuild(context: JobContext, options: RebuildTableOptions, topic: str) -> RebuildToDo:
    found = RebuildToDo()
    for _, one in _rebuilt(context, options, topic):
        found = found.plus(
            RebuildToDo(bytes_to_read=one.bytes_to_read, rows_left_out=one.rows_left_out)
        )
    return found


def _run_rebuild(
    context: JobContext, options: RebuildTableOptions, units: Sequence[Unit]
) -> RebuiltTable:
    topic, found = units[0].item, RebuiltTable()
    with reported_changes(context, [topic]) as written:
        for key, done in _rebuilt(context, options, topic):
            written[key] = (1, done.records, done.bytes_written)
            found = found.plus(
                RebuiltTable(
                    records=done.records,
                    files=done.files,
                    bytes_written=done.bytes_written,
                    rows_left_out=done.rows_left_out,
                )
            )
    return found


def _rebuild_confirmation(options: RebuildTableOptions) -> str:
    if not options.without_history:
        return ""
    return f"Lose the rows of table {options.topic} whose records the topic does not have any more?"


REBUILD_TABLE = Job(
    name="rebuild_table",
    help="""Rebuild a topic's table from its records.

    It is made as it is declared now.

    Readers have the old table until the new one takes its place in one commit. Safe to run again at
    any moment, and to kill: what is made already is used.
    """,
    dry_run_help="Show what there is to do, and do nothing.",
    options=RebuildTableOptions,
    plan=partial(_plan, _preview_rebuild),
    run=_run_rebuild,
    confirmation=_rebuild_confirmation,
    takes_workers=True,
    takes_lease=True,
    machinery=_MACHINERY,
    writes_tables=True,
)
