"""The jobs of declared tables. A unit is a table, by its topic; replay, backfill and rebuild_table
are requests for one table.

A DAG is parsed with this module: it imports the machinery of the lake inside of functions.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.jobs.job import (
    Fields,
    FieldsResult,
    Job,
    JobContext,
    Planned,
    TableChange,
    Unit,
    sum_of_fields,
)
from lakehead.storage.jobs.options import option

if TYPE_CHECKING:
    from lakehead.lake.catalog import Catalog
    from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
    from lakehead.lake.jobs.replay import ReplayResult
    from lakehead.lake.jobs.table_maintenance import MaintenanceResult, TableTarget
    from lakehead.lake.jobs.table_rebuild import RebuildResult
    from lakehead.lake.jobs.table_settings import MaterializeSettings
    from lakehead.storage.tables.declaration import TableDeclaration

# ----------------------------------------------------------------------------------------- options

Engine = Literal["delta-rs", "spark"]
Beginning = int | Mapping[int, int] | None
"""The beginning of a table: a time (ms since the epoch), offsets by partition, or the earliest."""

_OFFSETS = re.compile(r"\d+:\d+(,\s*\d+:\d+)*")


def engine(value: Any) -> Engine:
    """Return it if it is one. Raises ValueError."""
    if value == "delta-rs":
        return "delta-rs"
    if value == "spark":
        return "spark"
    raise ValueError(value)


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


_TOPIC = "The topic, by its name."
_REQUIRED = {"required": True, "minLength": 1}
_ENGINE = "The engine of a MERGE: delta-rs, or spark with delta-spark."


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesOptions:
    """The tables of a job: those of these topics, or all; also those that are not due."""

    topics: tuple[str, ...] = option(
        (),
        "The topics of these tables. None: all declared ones.",
        title="Topics",
        form={"description": "These alone, one a line. None: all of them."},
    )
    all_of_them: bool | None = option(
        None,
        "Include tables that are not due yet.",
        title="All of them",
        form={"default": False, "type": "boolean"},
    )
    engine: Engine = option("delta-rs", _ENGINE, parse=engine, in_form=False)

    @property
    def takes_every(self) -> bool:
        """Return true if tables that are not due are worked on too."""
        return bool(self.topics) if self.all_of_them is None else self.all_of_them


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOptions(TablesOptions):
    """The tables of a job, and how many hours of versions stay; None: the least, 168."""

    retention_hours: int | None = option(
        None, "Hours of versions to keep, 168 at least.", title="Hours", in_form=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The table of one topic."""

    topic: str = option("", _TOPIC, title="Topic", form=_REQUIRED)
    engine: Engine = option("delta-rs", _ENGINE, parse=engine, in_form=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """The table of one topic, and where it is to begin."""

    topic: str = option("", _TOPIC, title="Topic", form=_REQUIRED)
    begin: tuple[Beginning] | None = option(
        None,
        "earliest, a time, or offsets by partition (0:12,1:3).",
        title="Beginning",
        form={"default": "earliest", "type": "string", "minLength": 1},
        parse=_begin_option,
    )
    engine: Engine = option("delta-rs", _ENGINE, parse=engine, in_form=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTableOptions:
    """The table of one topic, and whether rows may be lost."""

    topic: str = option("", _TOPIC, title="Topic", form=_REQUIRED)
    without_history: bool = option(
        False,
        "Rebuild even if rows whose records have expired are lost.",
        title="Lose history",
        in_form=False,
    )
    engine: Engine = option("delta-rs", _ENGINE, parse=engine, in_form=False)


AnyOptions = TableOptions | BackfillOptions | RebuildTableOptions

# ------------------------------------------------------------------------------------------ shared

_COUNTED = (
    *("records", "dead_letters", "dropped", "left_out", "lost"),
    *("bytes_read", "bytes_written", "commits"),
)


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
        engine=engine,
        runner=None if context.is_local else context.runner,
        on_progress=context.on_progress,
        written_by=context.written_by,
    )
    with closing(tables):
        yield tables


Written = dict[str, tuple[int, int, int]]
"""Commits that were made, their rows and bytes, by topic."""


@contextmanager
def reported_changes(context: JobContext, topics: Sequence[str]) -> Iterator[Written]:
    """Yield a mapping in which to note the tables that were written; then report these to
    `context.on_change`. A task that is tried again reports all the tables of `topics` (none named:
    all declared ones), since an earlier try may have written them.
    """
    from lakehead.lake.jobs.table_due import declared_tables
    from lakehead.lake.store_reader import store_reader
    from lakehead.storage.tables.declaration import TableDeclaration

    written: Written = {}
    yield written
    reports_named = context.reports_all and bool(topics)
    if not written and not context.is_retry and not reports_named:
        return
    state = store_reader(context.path).open_catalog().state
    reported = topics if context.is_retry or reports_named else tuple(written)
    for topic, declared in declared_tables(state, reported).items():
        if isinstance(declared, TableDeclaration):
            commits, rows, size = written.get(topic, (0, 0, 0))
            change = TableChange(
                topic=topic,
                uri=declared.uri(context.path),
                commits=commits,
                rows=rows,
                bytes_written=size,
            )
            context.on_change(change)


# ------------------------------------------------------------------------------------- materialize


def _plan_materialize(context: JobContext, options: TablesOptions) -> Planned:
    from lakehead.lake.jobs.table_due import is_due, lag_of
    from lakehead.lake.store_reader import store_reader
    from lakehead.storage.clock import SystemClock
    from lakehead.storage.metadata.state import TableState

    catalog = store_reader(context.path).open_catalog()
    every = context.is_part or options.takes_every
    units, now_ms = [], SystemClock().now_ms()
    for topic, declared in _declared(catalog, options.topics, context).items():
        known = catalog.state.tables.get(declared.topic_id, TableState())
        lag = lag_of(catalog.state, catalog.topic(topic), known.offsets)
        if every or is_due(declared, lag, now_ms):
            words = f"{topic}: {lag.records} records behind"
            units.append(Unit(key=topic, size=lag.size_bytes, item=topic, words=words))
    return Planned(units=tuple(units))


def _declared(
    catalog: "Catalog", topics: Sequence[str], context: JobContext
) -> "dict[str, TableDeclaration]":
    """The declared tables. One whose declaration makes no sense is logged, or fails if named."""
    from lakehead.lake.jobs.table_due import declared_tables
    from lakehead.storage.tables.declaration import TableDeclaration

    found = {}
    declared = declared_tables(catalog.state, topics)
    for topic in topics:
        catalog.topic(topic)
        if topic not in declared:
            raise SettingsError(f"topic {topic} declares no table: set lakehead.table.enable=true")
    for topic, one in declared.items():
        if isinstance(one, TableDeclaration):
            found[topic] = one
        elif topics:
            raise one
        else:
            context.log.warning("%s", one)
    return found


def _run_materialize(
    context: JobContext, options: TablesOptions, units: Sequence[Unit]
) -> FieldsResult:
    topics = [unit.item for unit in units]
    of_task = topics if context.is_part else options.topics
    if not topics:
        with reported_changes(context, of_task):
            return FieldsResult()
    fields: Fields = {"tables": 0}
    failed: list[TableOutcome] = []

    def tell(outcome: "TableOutcome") -> None:
        nonlocal fields
        if outcome.result.commits:
            done = outcome.result
            written[outcome.topic] = (done.commits, done.records, done.bytes_written)
        if outcome.error is not None:
            failed.append(outcome)
            context.log.warning("topic %s: %s", outcome.topic, outcome.error)
        counted = {name: getattr(outcome.result, name) for name in _COUNTED}
        counted["records_behind"] = outcome.lag.records
        counted["tables"] = int(outcome.error is None)
        context.log.info("topic %s to %s: %s", outcome.topic, outcome.table, counted)
        fields = sum_of_fields(fields, counted)

    with (
        reported_changes(context, of_task) as written,
        opened_tables(context, options.engine, topics) as tables,
    ):
        tables.catch_up(all_of_them=True, on_table=tell)
    _raise_first([(one.topic, one.error) for one in failed if one.error], context, len(topics))
    return FieldsResult(found=fields | {"tables_taken": len(failed)})


def _raise_first(
    failed: Sequence[tuple[str, LakeheadError]], context: JobContext, count: int
) -> None:
    """Raise the first error that is not another's table, or that all tables are others'."""
    from lakehead.lake.jobs.table_lease import TableTaken

    for topic, error in failed:
        if not isinstance(error, TableTaken) or context.if_taken == "retry":
            more = f" (and {len(failed) - 1} more tables, see the log)" if len(failed) > 1 else ""
            text = str(error) if f"topic {topic}" in str(error) else f"topic {topic}: {error}"
            error.args = (f"{text}{more}",)  # its class says what a task does about it
            raise error
    if failed and len(failed) == count:
        raise failed[0][1]


MATERIALIZE = Job(
    name="materialize",
    options=TablesOptions,
    plan=_plan_materialize,
    run=_run_materialize,
    writes_tables=True,
    task_bytes=0,
)


# ------------------------------------------------------------------------------ optimize and vacuum


def _key(target: "TableTarget") -> str:
    return f"{target.topic}__dlq" if target.is_of_letters else target.topic


def _one(
    job: str, target: "TableTarget", options: TablesOptions, hold: Any, **asked: bool
) -> "MaintenanceResult":
    from lakehead.lake.jobs.table_maintenance import RETENTION_HOURS, optimize, vacuum

    by = options.engine
    if job == "optimize":
        return optimize(target, hold, engine=by, **asked)
    hours = getattr(options, "retention_hours", None) or RETENTION_HOURS
    return vacuum(target, hold, engine=by, retention_hours=hours, **asked)


def _plan_upkeep(job: str, context: JobContext, options: TablesOptions) -> Planned:
    from lakehead.lake.jobs.table_maintenance import targets
    from lakehead.lake.store_reader import store_reader

    catalog = store_reader(context.path).open_catalog()
    units = []
    for target in targets(catalog, options.topics):
        words = _key(target)
        if not context.is_part:
            found = _one(job, target, options, None, dry_run=True)
            if found.error is not None:  # its own work fails with it; others are not kept from it
                context.log.warning("%s of %s: %s", job, words, found.error)
                units.append(Unit(key=words, size=0, item=target, words=f"{words}: {found.error}"))
                continue
            if not (options.takes_every or found.is_due) or not found.files:
                continue
            what = (
                f"{found.small_files} small files of {found.files}"
                if job == "optimize"
                else f"{found.removed} files to delete"
            )
            words = f"{_key(target)}: {what}"
        units.append(Unit(key=_key(target), size=0, item=target, words=words))
    return Planned(units=tuple(units))


def _run_upkeep(
    job: str, context: JobContext, options: TablesOptions, units: Sequence[Unit]
) -> FieldsResult:
    from lakehead.lake.jobs.table_lease import TableLeases

    if not units:
        return FieldsResult()
    fields: Fields = {"tables": 0}
    failed: list[tuple[str, LakeheadError]] = []
    with closing(TableLeases.open(context.path)) as leases:
        for unit in units:
            target: TableTarget = unit.item
            hold = partial(leases.held, target.topic_id, wait_s=context.wait_s)
            found = _one(job, target, options, hold, only_if_due=not options.takes_every)
            if found.error is not None:
                failed.append((target.topic, found.error))
                context.log.warning("%s of %s: %s", job, unit.key, found.error)
                continue
            counted = {"tables": 1, "files_before": found.files, "files_after": found.files_after}
            if job == "vacuum":
                counted = {"tables": 1, "removed_files": max(found.removed, 0)}
            context.log.info("%s of %s: %s", job, unit.key, counted)
            fields = sum_of_fields(fields, counted)
    _raise_first(failed, context, len(units))
    return FieldsResult(found=fields | {"tables_taken": len(failed)})


OPTIMIZE = Job(
    name="optimize",
    options=TablesOptions,
    plan=partial(_plan_upkeep, "optimize"),
    run=partial(_run_upkeep, "optimize"),
    task_bytes=0,
)
VACUUM = Job(
    name="vacuum",
    options=VacuumOptions,
    plan=partial(_plan_upkeep, "vacuum"),
    run=partial(_run_upkeep, "vacuum"),
    task_bytes=0,
)


# ---------------------------------------------------------------------------- jobs of one table


def _plan(
    preview: Callable[[JobContext, Any, str], Fields], context: JobContext, options: AnyOptions
) -> Planned:
    """One unit; in a dry run with what it would come to."""
    topic = options.topic
    if not topic:
        raise SettingsError("option topic is missing: name the topic of the table")
    fields = preview(context, options, topic) if context.is_dry_run and not context.is_part else {}
    unit = Unit(key=topic, size=fields.get("bytes_to_read", 0), item=topic, words=topic)
    return Planned(units=(unit,), fields=fields)


# ------------------------------------------------------------------------------------------ replay


def _replay(context: JobContext, options: TableOptions, topic: str) -> Fields:
    with opened_tables(context, options.engine, [topic]) as tables:
        result: ReplayResult = tables.replay(topic, dry_run=context.is_dry_run)
    return asdict(result)


def _run_replay(context: JobContext, options: TableOptions, units: Sequence[Unit]) -> FieldsResult:
    topic = units[0].item
    with reported_changes(context, [topic]) as written:
        fields = _replay(context, options, topic)
        if fields["replayed"]:
            written[topic] = (1, fields["replayed"], 0)
    return FieldsResult(found=fields)


REPLAY = Job(
    name="replay",
    options=TableOptions,
    plan=partial(_plan, _replay),
    run=_run_replay,
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


def _settings(context: JobContext, topic: str) -> "MaterializeSettings":
    from lakehead.lake.jobs.table_due import declared_tables
    from lakehead.lake.jobs.table_settings import declared_settings
    from lakehead.lake.store_reader import store_reader

    catalog = store_reader(context.path).open_catalog()
    catalog.topic(topic)
    declared = declared_tables(catalog.state, [topic]).get(topic)
    if isinstance(declared, SettingsError):
        raise declared
    if declared is None:
        raise SettingsError(f"topic {topic} declares no table: set lakehead.table.enable=true")
    return declared_settings(declared, context.path, dry_run=True)


def _preview_backfill(context: JobContext, options: BackfillOptions, topic: str) -> Fields:
    from lakehead.lake.jobs.backfill import plan_begin
    from lakehead.lake.store_reader import store_reader

    reader = store_reader(context.path)
    plan = plan_begin(_settings(context, topic), reader, reader.open_catalog(), at=_at(options))
    starts = ", ".join(f"{partition}: {start}" for partition, start in sorted(plan.starts.items()))
    return {
        "table_is_new": plan.is_new,
        "offsets_to_add": plan.offsets,
        "bytes_to_read": plan.size_bytes,
        "begins_at": starts[:500],
    }


def _run_backfill(
    context: JobContext, options: BackfillOptions, units: Sequence[Unit]
) -> FieldsResult:
    topic, at = units[0].item, _at(options)
    with (
        reported_changes(context, [topic]) as written,
        opened_tables(context, options.engine, [topic]) as tables,
    ):
        result = tables.begin(topic, at=at)
        if result.commits:
            written[topic] = (result.commits, result.records, result.bytes_written)
    counted = (
        *("records", "dead_letters", "dropped", "left_out"),
        *("bytes_read", "bytes_written", "commits"),
    )
    return FieldsResult(found={name: getattr(result, name) for name in counted})


BACKFILL = Job(
    name="backfill",
    options=BackfillOptions,
    plan=partial(_plan, _preview_backfill),
    run=_run_backfill,
    writes_tables=True,
)


# ----------------------------------------------------------------------------------- rebuild_table


def _rebuild(context: JobContext, options: RebuildTableOptions, topic: str) -> Fields:
    with opened_tables(context, options.engine, [topic]) as tables:
        result: RebuildResult = tables.rebuild(
            topic,
            without_history=options.without_history,
            dry_run=context.is_dry_run,
            on_progress=context.on_progress,
        )
    if context.is_dry_run:
        return {"bytes_to_read": result.bytes_to_read, "rows_left_out": result.rows_left_out}
    fields = asdict(result)
    del fields["bytes_to_read"]
    return fields


def _run_rebuild(
    context: JobContext, options: RebuildTableOptions, units: Sequence[Unit]
) -> FieldsResult:
    topic = units[0].item
    with reported_changes(context, [topic]) as written:
        fields = _rebuild(context, options, topic)
        written[topic] = (1, fields["records"], fields["bytes_written"])
    return FieldsResult(found=fields)


REBUILD_TABLE = Job(
    name="rebuild_table",
    options=RebuildTableOptions,
    plan=partial(_plan, _rebuild),
    run=_run_rebuild,
    writes_tables=True,
)
