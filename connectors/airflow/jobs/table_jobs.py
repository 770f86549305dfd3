"""The jobs of the lake over declared tables. A unit is a table, by its topic."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from connectors.airflow.jobs.frame import (
    Figures,
    Job,
    Options,
    Place,
    Planned,
    TableChange,
    Unit,
    figures_of_both,
    names,
    truth,
)
from lake.catalog import Catalog
from lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lake.jobs.table_due import declared_tables, is_due, lag_of
from lake.jobs.table_lease import TableLeases, TableTaken
from lake.jobs.table_upkeep import (
    RETENTION_HOURS,
    TableTarget,
    UpkeepResult,
    optimize,
    targets,
    vacuum,
)
from lake.store_reader import store_reader
from lake.tables.merge_engine import MergeEngineName
from storage.clock import SystemClock
from storage.errors import LakeheadError, SettingsError
from storage.metadata.state import TableState
from storage.metadata.table_declaration import TableDeclaration

_COUNTED = (
    *("records", "dead_letters", "dropped", "left_out", "lost"),
    *("bytes_read", "bytes_written", "commits"),
)


def engine(value: Any) -> MergeEngineName:
    """Return it if it is one. Raises ValueError."""
    if value == "delta-rs":
        return "delta-rs"
    if value == "spark":
        return "spark"
    raise ValueError(value)


@contextmanager
def opened_tables(
    place: Place, options: Options, topics: Sequence[str]
) -> Iterator[DeclaredTables]:
    """Yield the tables of these topics; their leases are given back whatever happens."""
    tables = DeclaredTables(
        place.path,
        topics=topics,
        workers=place.workers,
        wait_s=place.wait_s,
        engine=options.get("engine", "delta-rs"),
        runner=None if place.is_local else place.runner,
        on_progress=place.on_progress,
        written_by=place.written_by,
    )
    with closing(tables):
        yield tables


Written = dict[str, tuple[int, int, int]]
"""Commits that were made, their rows and bytes, by topic."""


@contextmanager
def changes_told(place: Place, topics: Sequence[str]) -> Iterator[Written]:
    """Yield a mapping in which to note the tables that were written; then report these to
    `place.on_change`. A task that is tried again reports all the tables of `topics` (none named:
    all declared ones), since an earlier try may have written them.
    """
    written: Written = {}
    yield written
    reports_named = place.reports_all and bool(topics)
    if not written and not place.is_retry and not reports_named:
        return
    state = store_reader(place.path).open_catalog().state
    reported = topics if place.is_retry or reports_named else tuple(written)
    for topic, declared in declared_tables(state, reported).items():
        if isinstance(declared, TableDeclaration):
            commits, rows, size = written.get(topic, (0, 0, 0))
            change = TableChange(
                topic=topic,
                uri=declared.uri(place.path),
                commits=commits,
                rows=rows,
                bytes_written=size,
            )
            place.on_change(change)


# ------------------------------------------------------------------------------------- materialize


def _plan_materialize(place: Place, options: Options, *, again: bool) -> Planned:
    catalog = store_reader(place.path).open_catalog()
    every = again or bool(options.get("all_of_them", options.get("topics")))
    units, now_ms = [], SystemClock().now_ms()
    for topic, declared in _declared(catalog, options.get("topics", ()), place).items():
        known = catalog.state.tables.get(declared.topic_id, TableState())
        lag = lag_of(catalog.state, catalog.topic(topic), known.offsets)
        if every or is_due(declared, lag, now_ms):
            words = f"{topic}: {lag.records} records behind"
            units.append(Unit(key=topic, size=lag.size_bytes, item=topic, words=words))
    return Planned(units=tuple(units))


def _declared(catalog: Catalog, topics: Sequence[str], place: Place) -> dict[str, TableDeclaration]:
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
            place.log.warning("%s", one)
    return found


def _work_materialize(place: Place, options: Options, units: Sequence[Unit]) -> Figures:
    topics = [unit.item for unit in units]
    of_task = topics if place.is_part else options.get("topics", ())
    if not topics:
        with changes_told(place, of_task):
            return {}
    figures: Figures = {"tables": 0}
    failed: list[TableOutcome] = []

    def tell(outcome: TableOutcome) -> None:
        nonlocal figures
        if outcome.result.commits:
            done = outcome.result
            written[outcome.topic] = (done.commits, done.records, done.bytes_written)
        if outcome.error is not None:
            failed.append(outcome)
            place.log.warning("topic %s: %s", outcome.topic, outcome.error)
        counted = {name: getattr(outcome.result, name) for name in _COUNTED}
        counted["records_behind"] = outcome.lag.records
        counted["tables"] = int(outcome.error is None)
        place.log.info("topic %s to %s: %s", outcome.topic, outcome.table, counted)
        figures = figures_of_both(figures, counted)

    with changes_told(place, of_task) as written, opened_tables(place, options, topics) as tables:
        tables.bring_up(all_of_them=True, tell=tell)
    _raise_first([(one.topic, one.error) for one in failed if one.error], place, len(topics))
    return figures | {"tables_taken": len(failed)}


def _raise_first(failed: Sequence[tuple[str, LakeheadError]], place: Place, count: int) -> None:
    """Raise the first error that is not another's table, or that all tables are others'."""
    for topic, error in failed:
        if not isinstance(error, TableTaken) or place.if_taken == "retry":
            more = f" (and {len(failed) - 1} more tables, see the log)" if len(failed) > 1 else ""
            text = str(error) if f"topic {topic}" in str(error) else f"topic {topic}: {error}"
            error.args = (f"{text}{more}",)  # its class says what a task does about it
            raise error
    if failed and len(failed) == count:
        raise failed[0][1]


MATERIALIZE = Job(
    name="materialize",
    options={"topics": names, "all_of_them": truth, "engine": engine},
    plan=_plan_materialize,
    work=_work_materialize,
    task_bytes=0,
)


# ------------------------------------------------------------------------------ optimize and vacuum


def _key(target: TableTarget) -> str:
    return f"{target.topic}__dlq" if target.is_of_letters else target.topic


def _one(job: str, target: TableTarget, options: Options, hold: Any, **asked: bool) -> UpkeepResult:
    by: MergeEngineName = options.get("engine", "delta-rs")
    if job == "optimize":
        return optimize(target, hold, engine=by, **asked)
    hours = options.get("retention_hours", RETENTION_HOURS)
    return vacuum(target, hold, engine=by, retention_hours=hours, **asked)


def _plan_upkeep(job: str, place: Place, options: Options, *, again: bool) -> Planned:
    catalog = store_reader(place.path).open_catalog()
    units = []
    for target in targets(catalog, options.get("topics", ())):
        words = _key(target)
        if not again:
            found = _one(job, target, options, None, dry_run=True)
            if found.error is not None:  # its own work fails with it; others are not kept from it
                place.log.warning("%s of %s: %s", job, words, found.error)
                units.append(Unit(key=words, size=0, item=target, words=f"{words}: {found.error}"))
                continue
            if not (_every(options) or found.is_due) or not found.files:
                continue
            what = (
                f"{found.small_files} small files of {found.files}"
                if job == "optimize"
                else f"{found.removed} files to delete"
            )
            words = f"{_key(target)}: {what}"
        units.append(Unit(key=_key(target), size=0, item=target, words=words))
    return Planned(units=tuple(units))


def _every(options: Options) -> bool:
    """Return true if tables that are not due are worked on too."""
    return bool(options.get("all_of_them", options.get("topics")))


def _work_upkeep(job: str, place: Place, options: Options, units: Sequence[Unit]) -> Figures:
    if not units:
        return {}
    figures: Figures = {"tables": 0}
    failed: list[tuple[str, LakeheadError]] = []
    with closing(TableLeases.open(place.path)) as leases:
        for unit in units:
            target: TableTarget = unit.item
            hold = partial(leases.held, target.topic_id, wait_s=place.wait_s)
            found = _one(job, target, options, hold, only_if_due=not _every(options))
            if found.error is not None:
                failed.append((target.topic, found.error))
                place.log.warning("%s of %s: %s", job, unit.key, found.error)
                continue
            counted = {"tables": 1, "files_before": found.files, "files_after": found.files_after}
            if job == "vacuum":
                counted = {"tables": 1, "removed_files": max(found.removed, 0)}
            place.log.info("%s of %s: %s", job, unit.key, counted)
            figures = figures_of_both(figures, counted)
    _raise_first(failed, place, len(units))
    return figures | {"tables_taken": len(failed)}


OPTIMIZE = Job(
    name="optimize",
    options={"topics": names, "all_of_them": truth, "engine": engine},
    plan=partial(_plan_upkeep, "optimize"),
    work=partial(_work_upkeep, "optimize"),
    task_bytes=0,
)
VACUUM = Job(
    name="vacuum",
    options={"topics": names, "all_of_them": truth, "engine": engine, "retention_hours": int},
    plan=partial(_plan_upkeep, "vacuum"),
    work=partial(_work_upkeep, "vacuum"),
    task_bytes=0,
)
