"""The jobs of the lake over declared tables. A unit is a table, by its topic."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from lakehead.connectors.airflow.jobs.table_options import TablesOptions, VacuumOptions
from lakehead.lake.catalog import Catalog
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.table_due import declared_tables, is_due, lag_of
from lakehead.lake.jobs.table_lease import TableLeases, TableTaken
from lakehead.lake.jobs.table_upkeep import (
    RETENTION_HOURS,
    TableTarget,
    UpkeepResult,
    optimize,
    targets,
    vacuum,
)
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.merge_engine import MergeEngineName
from lakehead.storage.clock import SystemClock
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
from lakehead.storage.metadata.state import TableState
from lakehead.storage.metadata.table_declaration import TableDeclaration

_COUNTED = (
    *("records", "dead_letters", "dropped", "left_out", "lost"),
    *("bytes_read", "bytes_written", "commits"),
)


@contextmanager
def opened_tables(
    context: JobContext, engine: MergeEngineName, topics: Sequence[str]
) -> Iterator[DeclaredTables]:
    """Yield the tables of these topics; their leases are given back whatever happens."""
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
def changes_told(context: JobContext, topics: Sequence[str]) -> Iterator[Written]:
    """Yield a mapping in which to note the tables that were written; then report these to
    `context.on_change`. A task that is tried again reports all the tables of `topics` (none named:
    all declared ones), since an earlier try may have written them.
    """
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
    catalog: Catalog, topics: Sequence[str], context: JobContext
) -> dict[str, TableDeclaration]:
    """The declared tables. One whose declaration makes no sense is logged, or fails if named."""
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
        with changes_told(context, of_task):
            return FieldsResult()
    figures: Fields = {"tables": 0}
    failed: list[TableOutcome] = []

    def tell(outcome: TableOutcome) -> None:
        nonlocal figures
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
        figures = sum_of_fields(figures, counted)

    with (
        changes_told(context, of_task) as written,
        opened_tables(context, options.engine, topics) as tables,
    ):
        tables.bring_up(all_of_them=True, tell=tell)
    _raise_first([(one.topic, one.error) for one in failed if one.error], context, len(topics))
    return FieldsResult(found=figures | {"tables_taken": len(failed)})


def _raise_first(
    failed: Sequence[tuple[str, LakeheadError]], context: JobContext, count: int
) -> None:
    """Raise the first error that is not another's table, or that all tables are others'."""
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
    task_bytes=0,
)


# ------------------------------------------------------------------------------ optimize and vacuum


def _key(target: TableTarget) -> str:
    return f"{target.topic}__dlq" if target.is_of_letters else target.topic


def _one(
    job: str, target: TableTarget, options: TablesOptions, hold: Any, **asked: bool
) -> UpkeepResult:
    by: MergeEngineName = options.engine
    if job == "optimize":
        return optimize(target, hold, engine=by, **asked)
    hours = getattr(options, "retention_hours", None) or RETENTION_HOURS
    return vacuum(target, hold, engine=by, retention_hours=hours, **asked)


def _plan_upkeep(job: str, context: JobContext, options: TablesOptions) -> Planned:
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
    if not units:
        return FieldsResult()
    figures: Fields = {"tables": 0}
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
            figures = sum_of_fields(figures, counted)
    _raise_first(failed, context, len(units))
    return FieldsResult(found=figures | {"tables_taken": len(failed)})


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
