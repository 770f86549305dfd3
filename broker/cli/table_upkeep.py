"""`lakehead optimize` and `lakehead vacuum`: care of declared tables."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from broker.cli.listing import JsonOption, show_rows
from storage.errors import SettingsError

if TYPE_CHECKING:
    from lake.jobs.table_upkeep import UpkeepResult


class Engine(StrEnum):
    """Who does it."""

    DELTA_RS = "delta-rs"
    SPARK = "spark"


TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC]...", help="The topics. Without any: every declared table that is due."
    ),
]
EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine", metavar="delta-rs|spark", help="delta-rs, without a JVM; or delta-spark."
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what is due, and do nothing.")]

_TABLE = {"topic": "TOPIC", "files": "FILES", "small": "SMALL", "due": "DUE"}


def optimize(
    topics: TopicsArgument = None,
    path: PathOption = DEFAULT_PATH,
    engine: EngineOption = Engine.DELTA_RS,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make big files of tables' small ones; rows are put in order of lakehead.table.cluster.by.

    Due is a table with 16 files or more below a quarter of lakehead.table.file.bytes that are half
    of its files. Safe to kill at any moment, and beside materialize.
    """
    from lake.jobs import table_upkeep

    where = store_uri(path)
    results = []
    for target in table_upkeep.targets(where, topics or ()):
        result = table_upkeep.optimize(where, target, engine=engine.value, dry_run=True)
        if not dry_run and result.error is None and (topics or result.is_due):
            result = table_upkeep.optimize(where, target, engine=engine.value)
        results.append(result)
    rows = [_row(result) | {"after": result.files_after} for result in results]
    show_rows(rows, {**_TABLE, "after": "AFTER"}, as_json)
    _complain(results)


def vacuum(
    topics: TopicsArgument = None,
    path: PathOption = DEFAULT_PATH,
    retention_hours: Annotated[
        int, typer.Option("--retention-hours", metavar="HOURS", help="At least 168: seven days.")
    ] = 168,
    engine: EngineOption = Engine.DELTA_RS,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete files that no version of the last days needs, those of killed runs among them.

    Due is a table that was not vacuumed for a day.
    """
    from lake.jobs import table_upkeep

    where = store_uri(path)
    results = []
    for target in table_upkeep.targets(where, topics or ()):
        result = table_upkeep.vacuum(
            where, target, retention_hours=retention_hours, engine=engine.value, dry_run=True
        )
        if not dry_run and result.error is None and (topics or result.is_due):
            result = table_upkeep.vacuum(
                where, target, retention_hours=retention_hours, engine=engine.value
            )
        results.append(result)
    rows = [_row(result) | {"removed": result.removed} for result in results]
    show_rows(rows, {**_TABLE, "removed": "REMOVED"}, as_json)
    _complain(results)


def _row(result: "UpkeepResult") -> dict[str, object]:
    return {
        "topic": result.topic,
        "files": result.files,
        "small": result.small_files,
        "due": result.is_due,
    }


def _complain(results: "list[UpkeepResult]") -> None:
    failed = [f"{one.topic}: {one.error}" for one in results if one.error is not None]
    if failed:
        raise SettingsError("; ".join(failed))
