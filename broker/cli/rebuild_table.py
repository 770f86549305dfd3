"""`lakehead rebuild-table`: a declared table made anew beside the old one, and put in its place."""

from typing import Annotated

import typer

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from lakehead.broker.cli.listing import JsonOption, show_fields
from lakehead.broker.cli.materialize import DryRunOption, WaitOption, WorkersOption
from lakehead.broker.cli.progress import ByteProgress
from lakehead.broker.cli.table_engine import Engine, MergeEngineOption


def rebuild_table(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic that declares a table.")],
    path: PathOption = DEFAULT_PATH,
    without_history: Annotated[
        bool,
        typer.Option(
            "--without-history",
            help="Even if rows are lost whose records the topic does not have: removed by "
            "retention, or of an earlier topic of its name.",
        ),
    ] = False,
    wait: WaitOption = 0.0,
    workers: WorkersOption = 2,
    engine: MergeEngineOption = Engine.DELTA_RS,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Rebuild a topic's table from its records, as it is declared now.

    Readers have the old table until the new one takes its place in one commit. Safe to run again at
    any moment, and to kill: what is made already is used.
    """
    from lakehead.lake.jobs.declared_tables import DeclaredTables

    tables = DeclaredTables(
        store_uri(path), topics=[topic], workers=workers, wait_s=wait, engine=engine.value
    )
    try:
        with ByteProgress(f"rebuild {topic}", shown=not as_json) as progress:
            result = tables.rebuild(
                topic,
                without_history=without_history,
                dry_run=dry_run,
                on_progress=progress.update,
            )
    finally:
        tables.close()
    figures = {
        "records": result.records,
        "files": result.files,
        "bytes written": result.bytes_written,
        "rows without records": result.rows_left_out,
    }
    if dry_run:
        figures = {
            "bytes to read": result.bytes_to_read,
            "rows without records": result.rows_left_out,
        }
    show_fields(figures, as_json)
