"""`lakehead optimize` and `lakehead vacuum`: care of declared tables."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from lakehead.broker.cli.listing import JsonOption, show_rows
from lakehead.broker.cli.materialize import WaitOption
from lakehead.broker.cli.table_engine import Engine, EngineOption
from lakehead.storage.jobs.job import JobIncomplete

if TYPE_CHECKING:
    from lakehead.lake.jobs.table_maintenance import Hold, MaintenanceResult, TableTarget


class Job(Protocol):
    """OPTIMIZE or VACUUM of one table; as a dry run, what there is to do."""

    def __call__(
        self, target: "TableTarget", hold: "Hold", *, dry_run: bool
    ) -> "MaintenanceResult":
        """Do it. Raises SettingsError; what fails is in the result."""


TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC]...", help="The topics. Without any: every declared table that is due."
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what is due, and do nothing.")]

_NAMES_SHOWN = 20
_COLUMNS = {"topic": "TOPIC", "table": "TABLE", "files": "FILES", "small": "SMALL", "due": "DUE"}


def optimize(
    topics: TopicsArgument = None,
    path: PathOption = DEFAULT_PATH,
    engine: EngineOption = Engine.DELTA_RS,
    wait: WaitOption = 0.0,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Merge small files of tables into large ones, with rows in the order of
    lakehead.table.cluster.by.

    Due is a table with 16 files or more below a quarter of lakehead.table.file.bytes that are half
    of its files (lakehead.table.optimize.small.percent), an hour after the last time
    (lakehead.table.optimize.interval.ms). Safe to kill at any moment. It needs the table's lease:
    where lakehead materialize --follow has it, that does it by itself.
    """
    from lakehead.lake.jobs.table_maintenance import optimize as run_job

    def job(target: "TableTarget", hold: "Hold", *, dry_run: bool) -> "MaintenanceResult":
        return run_job(target, hold, engine=engine.value, dry_run=dry_run)

    results = _run(path, topics or [], job, wait=wait, dry_run=dry_run)
    rows = [_row(one) | {"small": one.small_files, "after": one.files_after} for one in results]
    show_rows(rows, {**_COLUMNS, "after": "AFTER"}, as_json)
    _complain(results)


def vacuum(
    topics: TopicsArgument = None,
    path: PathOption = DEFAULT_PATH,
    retention_hours: Annotated[
        int, typer.Option("--retention-hours", metavar="HOURS", help="At least 168: seven days.")
    ] = 168,
    engine: EngineOption = Engine.DELTA_RS,
    wait: WaitOption = 0.0,
    dry_run: DryRunOption = False,
    every_name: Annotated[
        bool, typer.Option("--every-name", help="With --dry-run: all names, not the first 20.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete files that no version of the last days needs, those of killed runs among them.

    Due is a table that was not vacuumed for a day (lakehead.table.vacuum.interval.ms). It needs the
    table's lease, as optimize does. OTHERS are files below the table's root that are not known to
    be the table's: they stay. With --dry-run the names of both are shown.
    """
    from lakehead.lake.jobs.table_maintenance import vacuum as run_job

    def job(target: "TableTarget", hold: "Hold", *, dry_run: bool) -> "MaintenanceResult":
        return run_job(
            target, hold, retention_hours=retention_hours, engine=engine.value, dry_run=dry_run
        )

    results = _run(path, topics or [], job, wait=wait, dry_run=dry_run)
    rows = [
        _row(one)
        | {"removed": one.removed, "names": one.names, "others": len(one.others)}
        | {"other_names": one.others}
        for one in results
    ]
    columns = {name: title for name, title in _COLUMNS.items() if name != "small"}
    show_rows(rows, {**columns, "removed": "REMOVED", "others": "OTHERS"}, as_json)
    if dry_run and not as_json:
        most = None if every_name else _NAMES_SHOWN
        for one in results:
            _show_names(f"{one.topic}: to be removed from {one.table}", one.names, most)
            _show_names(f"{one.topic}: not the table's, left in {one.table}", one.others, most)
    _complain(results)


def _show_names(title: str, names: "Sequence[str]", most: int | None) -> None:
    """Print file names below a title, `most` of them."""
    if not names:
        return
    typer.echo(f"\n{title}:")
    for name in names[:most]:
        typer.echo(f"  {_printable(name)}")
    if most is not None and len(names) > most:
        typer.echo(f"  and {len(names) - most} more: --every-name shows them all")


def _printable(name: str) -> str:
    """A file's name without what would move a terminal's cursor."""
    return name.encode("unicode_escape").decode() if not name.isprintable() else name


def _run(
    path: str, topics: "Sequence[str]", job: "Job", *, wait: float, dry_run: bool
) -> "list[MaintenanceResult]":
    """Do a job where it is due, or to the tables that are named, due or not."""
    from lakehead.lake.jobs.table_lease import TableLeases
    from lakehead.lake.jobs.table_maintenance import targets

    results = []
    leases = TableLeases.open(store_uri(path))
    try:
        for target in targets(leases.catalog(), topics):
            hold = partial(leases.held, target.topic_id, wait_s=wait)
            result = job(target, hold, dry_run=True)
            if not dry_run and result.error is None and (topics or result.is_due):
                result = replace(job(target, hold, dry_run=False), is_due=result.is_due)
            if result.files or result.error is not None or not target.is_of_letters:
                results.append(result)
    finally:
        leases.close()
    return results


def _row(result: "MaintenanceResult") -> dict[str, object]:
    return {
        "topic": result.topic,
        "table": result.table,
        "files": result.files,
        "due": result.is_due,
    }


def _complain(results: "list[MaintenanceResult]") -> None:
    failed = [f"{one.topic}: {one.error}" for one in results if one.error is not None]
    if failed:
        raise JobIncomplete("; ".join(failed))
