"""`lakehead replay-dead-letters`: records that were kept aside become rows after all."""

from typing import Annotated

import typer

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from lakehead.broker.cli.listing import JsonOption, show_fields
from lakehead.broker.cli.materialize import WaitOption
from lakehead.broker.cli.table_engine import Engine, MergeEngineOption


def replay(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic that declares a table.")],
    path: PathOption = DEFAULT_PATH,
    wait: WaitOption = 0.0,
    engine: MergeEngineOption = Engine.DELTA_RS,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would become rows, and change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read a table's dead letters again, as the table is declared now.

    Those that can be rows go into the table and leave TABLE__dlq; the others stay there. Safe to
    run again at any moment, and to kill.
    """
    from lakehead.lake.jobs.declared_tables import DeclaredTables

    tables = DeclaredTables(store_uri(path), topics=[topic], wait_s=wait, engine=engine.value)
    try:
        result = tables.replay(topic, dry_run=dry_run)
    finally:
        tables.close()
    show_fields(
        {
            "letters": result.letters,
            "replayed": result.replayed,
            "rows already, or overtaken": result.already_rows,
            "left": result.left,
            "first that is left": result.first_left or None,
        },
        as_json,
    )
