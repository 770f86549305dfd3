"""`lakehead maintain`: compaction and retention, as topics' configs ask for them.

`lakehead start` does the same when something is due, unless it is told not to.
"""

import os
import random
from typing import Annotated

import typer

from broker.cli.cluster import DEFAULT_PATH, PathOption, open_cluster, open_log, run
from broker.cli.listing import JsonOption, show_fields, show_rows
from broker.maintenance.maintainer import Maintainer, MaintenanceFigures
from broker.maintenance.rules import DueWork
from broker.observability.event_log import configure_logs
from broker.setting_sources import load
from broker.settings import Settings
from broker.supervisor.lifeline import is_supervised, stop_with_supervisor
from storage.clock import SystemClock
from storage.errors import SettingsError
from storage.object_store import ObjectStore

_NICENESS = 5
"""Of maintenance beside nodes: they go first."""


def maintain(
    path: PathOption = DEFAULT_PATH,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            envvar="LAKEHEAD_CONFIG",
            help="Settings of the nodes as TOML: the defaults of topics' configs.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C or SIGTERM.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is due, and do nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No figures at the end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compact topics by keys, and remove what retention is over for.

    What is due by cleanup.policy, retention.ms, min.cleanable.dirty.ratio and the like. Safe to run
    beside a live cluster, to kill at any moment, and to run twice at once.
    """
    if is_supervised(os.environ):
        stop_with_supervisor(os.environ)
        os.nice(_NICENESS)
    settings = load({}, os.environ, config)
    configure_logs(settings.log_level)
    if dry_run:
        rows = [
            {"topic": one.topic, "partition": one.partition, "due": one.words}
            for one in run(_due(path, settings))
        ]
        show_rows(rows, {"topic": "TOPIC", "partition": "PARTITION", "due": "DUE"}, as_json)
        return
    figures = run(_maintain(path, settings, follow=follow))
    if not quiet:
        show_fields(
            {
                "compacted partitions": figures.compacted,
                "bytes before": figures.bytes_before,
                "bytes after": figures.bytes_after,
                "trimmed partitions": figures.trimmed,
            },
            as_json,
        )
    if figures.failures:
        raise SettingsError(f"{figures.failures} partitions were not maintained; see above")


async def _maintain(path: str, settings: Settings, *, follow: bool) -> MaintenanceFigures:
    store = open_cluster(path)
    try:
        maintainer = await _maintainer(store, settings)
        if follow:
            await maintainer.run()
        else:
            await maintainer.turn()
        return maintainer.figures
    finally:
        await store.close()


async def _due(path: str, settings: Settings) -> list[DueWork]:
    store = open_cluster(path)
    try:
        maintainer = await _maintainer(store, settings)
        return list(maintainer.due())
    finally:
        await store.close()


async def _maintainer(store: ObjectStore, settings: Settings) -> Maintainer:
    metadata = await open_log(store, writer="maintenance")
    return Maintainer(store, metadata, SystemClock(), random.SystemRandom(), settings)
