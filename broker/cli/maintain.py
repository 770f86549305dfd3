"""`lakehead maintain`: log compaction, retention and object compaction, as far as they are due.

`lakehead start` does the same in a process of its own, unless `maintain` is false.
"""

import os
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Annotated

import typer

from lakehead.broker.cli.cluster import (
    DEFAULT_PATH,
    ConfigOption,
    PathOption,
    open_cluster,
    open_log,
    run,
    store_uri,
)
from lakehead.broker.cli.lake_upkeep import TableTurn, keep_tables, kept_tables
from lakehead.broker.cli.listing import JsonOption, show_fields, show_rows
from lakehead.broker.cli.recorded_run import recorded_run
from lakehead.broker.cli.stop_signals import stopped_by_signal
from lakehead.broker.cli.table_metrics import MetricsOption, check_metrics, shown_metrics
from lakehead.broker.maintenance.maintainer import Maintainer, MaintenanceStatistics
from lakehead.broker.maintenance.tables_beside import is_lake_installed
from lakehead.broker.observability.event_log import configure_logs
from lakehead.broker.setting_sources import load
from lakehead.broker.settings import Settings
from lakehead.broker.supervisor.lifeline import is_supervised, stop_with_supervisor
from lakehead.lake.jobs.table_jobs import TABLE_MAINTENANCE
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.job import JobIncomplete
from lakehead.storage.jobs.run_recorder import RunRecorder
from lakehead.storage.tasks import task_group

_NICENESS = 5
"""Of maintenance beside nodes: they go first."""
_RECORDED_FROM_S = 2.0
"""Work that is done sooner leaves no record of a run, unless it fails: there is much of it."""


DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what is due, and do nothing.")]


def settings_of(config: str | None) -> Settings:
    """Return the nodes' settings, as maintenance goes by them, and log as they say."""
    settings = load({}, os.environ, config)
    configure_logs(settings.log_level, log_format=settings.log_format)
    return settings


def maintain(
    path: PathOption = DEFAULT_PATH,
    config: ConfigOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C or SIGTERM.")
    ] = False,
    lake: Annotated[
        bool | None,
        typer.Option(
            "--lake/--no-lake",
            help="Declared tables too. [default: where the packages of the lake are installed]",
            show_default=False,
        ),
    ] = None,
    tables_only: Annotated[
        bool,
        typer.Option(
            "--tables-only",
            help="With --follow, declared tables alone: no compaction, retention or merging.",
        ),
    ] = False,
    metrics: MetricsOption = None,
    dry_run: DryRunOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No figures at the end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Do all maintenance that is due.

    Of declared tables: their rows, OPTIMIZE and VACUUM. Of topics: log compaction, retention,
    object compaction.

    Due is work by lakehead.table.freshness.ms, .optimize.* and .vacuum.*, by cleanup.policy,
    retention.ms and the like, and by the number and size of small objects. Safe to run beside a
    live cluster, to kill at any moment, and to run twice at once: tables that another process
    writes are left to it.
    """
    if is_supervised(os.environ):
        stop_with_supervisor(os.environ)
        os.nice(_NICENESS)
    settings = settings_of(config)
    with_lake = is_lake_installed() if lake is None else lake
    if not follow:
        check_metrics(metrics)
    if dry_run:
        rows = [*(_tables_due(path) if with_lake else []), *run(_due(path, settings))]
        show_rows(rows, {"topic": "TOPIC", "partition": "PARTITION", "due": "DUE"}, as_json)
        return
    turn = TableTurn()
    if tables_only and not (follow and with_lake):
        raise SettingsError("--tables-only goes with --follow, and needs the packages of the lake")
    if tables_only:
        with shown_metrics(path, metrics), kept_tables(path):
            run(_until_stopped())
        return
    if follow:
        with (
            shown_metrics(path, metrics),
            kept_tables(path) if with_lake else nullcontext(),
        ):
            figures = run(_maintain(path, settings, follow=True))
    else:
        # Tables first: retention waits for them.
        turn = keep_tables(path, dry_run=False) if with_lake else turn
        figures = run(_maintain(path, settings, follow=False))
    if not quiet:
        show_fields({**figures.labelled(), **_table_figures(turn)}, as_json)
    failed = turn.errors() if with_lake else []
    if figures.failures:
        failed.append(f"{figures.failures} partitions were not maintained; see above")
    if failed:
        raise JobIncomplete("; ".join(failed))


async def _until_stopped() -> None:
    words = "" if is_supervised(os.environ) else "ends after the table that it is at"
    await stopped_by_signal(words).wait()


def _table_figures(turn: TableTurn) -> dict[str, int]:
    done = [one for one in turn.files if one.error is None]
    return {
        "tables": len(turn.tables),
        "records in tables": sum(one.result.records for one in turn.tables),
        **{
            care.done: sum(one.job == name for one in done)
            for name, care in TABLE_MAINTENANCE.items()
        },
    }


def _tables_due(path: str) -> list[dict[str, object]]:
    turn = keep_tables(path, dry_run=True)
    due = [(one.topic, f"materialize {one.result.bytes_read} bytes") for one in turn.tables]
    for one in turn.files:
        if one.error is not None:
            due.append((one.topic, f"{one.job} cannot: {one.error}"))
        else:
            due.append((one.topic, f"{one.job} {TABLE_MAINTENANCE[one.job].words(one)}"))
    return [{"topic": topic, "partition": None, "due": words} for topic, words in due]


async def _maintain(path: str, settings: Settings, *, follow: bool) -> MaintenanceStatistics:
    async with opened_maintainer(path, settings) as maintainer:
        if follow:
            stopped = stopped_by_signal("ends: the next run goes on with what it is at")
            async with task_group() as group:
                running = group.create_task(maintainer.run())
                await stopped.wait()
                running.cancel()
        else:
            await maintainer.turn()
        return maintainer.figures


async def _due(path: str, settings: Settings) -> list[Mapping[str, object]]:
    async with opened_maintainer(path, settings) as maintainer:
        return maintainer.due_rows()


def _recorded(store: str, job: str) -> AbstractContextManager[RunRecorder]:
    return recorded_run(job.replace("_", "-"), store, first_s=_RECORDED_FROM_S)


@asynccontextmanager
async def opened_maintainer(path: str, settings: Settings) -> AsyncIterator[Maintainer]:
    """Open the maintenance of the cluster at `path`. Raises SettingsError without one."""
    store = open_cluster(path)
    try:
        metadata = await open_log(store, writer="maintenance")
        yield Maintainer(
            store,
            metadata,
            SystemClock(),
            random.SystemRandom(),
            settings,
            record=partial(_recorded, store_uri(path)),
        )
    finally:
        await store.close()
