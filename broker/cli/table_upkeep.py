"""`lakehead optimize` and `lakehead vacuum`: care of declared tables."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from broker.cli.listing import JsonOption, show_rows
from broker.cli.materialize import WaitOption
from broker.cli.table_engine import Engine, EngineOption
from storage.errors import SettingsError

if TYPE_CHECKING:
    from lake.jobs.table_upkeep import Hold, TableTarget, UpkeepResult


class Job(Protocol):
    """OPTIMIZE or VACUUM of one table; as a dry run, what there is to do."""

    def __call__(self, target: "TableTarget", hold: "Hold", *, dry_run: bool) -> "UpkeepResult":
        """Do it. Raises SettingsError; what fails is in the result."""


TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC]...", help="The topics. Without any: every declared table that is due."
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what is due, and do nothing.")]

_COLUMNS = {"topic": "TOPIC", "table": "TABLE", "files": "FILES", "small": "SMALL", "due": "DUE"}


def optimize(
    topics: TopicsArgument = None,
    path: PathOption = DEFAULT_PATH,
    engine: EngineOption = Engine.DELTA_RS,
    wait: WaitOption = 0.0,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make big files of tables' small ones; rows are put in order of lakehead.table.cluster.by.

    Due is a table with 16 files or more below a quarter of lakehead.table.file.bytes that are half
    of its files (lakehead.table.optimize.small.percent), an hour after the last time
    (lakehead.table.optimize.interval.ms). Safe to kill at any moment. It needs the table's lease:
    where lakehead materialize --follow has it, that does it by itself.
    """
    from lake.jobs.table_upkeep import optimize as run_job

    def job(target: "TableTarget", hold: "Hold", *, dry_run: bool) -> "UpkeepResult":
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
    as_json: JsonOption = False,
) -> None:
    """Delete files that no version of the last days needs, those of killed runs among them.

    Due is a table that was not vacuumed for a day (lakehead.table.vacuum.interval.ms). It needs the
    table's lease, as optimize does.
    """
    from lake.jobs.table_upkeep import vacuum as run_job

    def job(target: "TableTarget", hold: "Hold", *, dry_run: bool) -> "UpkeepResult":
        return run_job(
            target, hold, retention_hours=retention_hours, engine=engine.value, dry_run=dry_run
        )

    results = _run(path, topics or [], job, wait=wait, dry_run=dry_run)
    rows = [_row(one) | {"removed": one.removed} for one in results]
    columns = {name: title for name, title in _COLUMNS.items() if name != "small"}
    show_rows(rows, {**columns, "removed": "REMOVED"}, as_json)
    _complain(results)


def _run(
    path: str, topics: "Sequence[str]", job: "Job", *, wait: float, dry_run: bool
) -> "list[UpkeepResult]":
    """Do a job where it is due, or to the tables that are named, due or not."""
    from lake.jobs.table_lease import TableLeases
    from lake.jobs.table_upkeep import targets

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


def _row(result: "UpkeepResult") -> dict[str, object]:
    return {
        "topic": result.topic,
        "table": result.table,
        "files": result.files,
        "due": result.is_due,
    }


def _complain(results: "list[UpkeepResult]") -> None:
    failed = [f"{one.topic}: {one.error}" for one in results if one.error is not None]
    if failed:
        raise SettingsError("; ".join(failed))
