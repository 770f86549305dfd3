"""`lakehead materialize`: bring a topic's Delta table up to what lies in the object store."""

from enum import StrEnum
from typing import Annotated

import typer

from broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from broker.cli.listing import JsonOption, show_fields
from broker.cli.progress import ByteProgress
from storage.errors import SettingsError


class ValueFormat(StrEnum):
    """What values are."""

    JSON = "json"
    RAW = "raw"


class OnError(StrEnum):
    """What happens to a record that cannot be read."""

    PAUSE = "pause"
    DEAD_LETTER = "dead_letter"
    DROP = "drop"


def table_uri(store: str, topic: str) -> str:
    """Return where a topic's table lies when nothing else is said: `tables/` beside the store."""
    scheme, _, folder = store.partition(":")
    if scheme == "file":
        return f"{folder.rstrip('/').removesuffix('/store')}/tables/{topic}"
    place, question, options = store.partition("?")
    return f"{place.rstrip('/')}/tables/{topic}{question}{options}"


TableOption = Annotated[
    str | None,
    typer.Option(
        "--table",
        "-t",
        metavar="URI",
        help="The Delta table, made if it is not there. [default: tables/TOPIC in the cluster's "
        "folder]",
        show_default=False,
    ),
]
SchemaOption = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="DDL",
        help="Columns of the JSON values: 'id bigint, at timestamp', or @FILE. Left out: the "
        "table's, or inferred from the first records.",
    ),
]
ValueFormatOption = Annotated[
    ValueFormat,
    typer.Option("--value-format", metavar="json|raw", help="JSON to columns, or bytes as is."),
]
OnErrorOption = Annotated[
    OnError,
    typer.Option(
        "--on-error",
        metavar="pause|dead_letter|drop",
        help="A record that cannot be read: stop before it, keep it in TABLE__dlq, or "
        "leave it out.",
    ),
]


def materialize(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    path: PathOption = DEFAULT_PATH,
    table: TableOption = None,
    schema: SchemaOption = None,
    value_format: ValueFormatOption = ValueFormat.JSON,
    on_error: OnErrorOption = OnError.PAUSE,
    workers: Annotated[
        int, typer.Option("--workers", min=1, metavar="N", help="How many work at once.")
    ] = 2,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what there is to do, and do nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Turn a topic into a Delta table that holds each record once.

    Safe to run again at any moment, to kill, and to run twice at once: the table itself records how
    far it got. What a broker has not uploaded yet comes with the next run.
    """
    try:
        from lake.jobs.materialize import materialize as run_job
        from lake.jobs.table_settings import MaterializeSettings
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    store = store_uri(path)
    settings = MaterializeSettings(
        path=store,
        topic=topic,
        table=table or table_uri(store, topic),
        value_format=value_format.value,
        schema=schema,
        on_error=on_error.value,
        workers=workers,
        dry_run=dry_run,
    )
    with ByteProgress(f"materialize {topic}", shown=not as_json) as progress:
        result = run_job(settings, on_progress=progress.update)
    figures = {
        "table": settings.table,
        "records": result.records,
        "bytes read": result.bytes_read,
        "bytes written": result.bytes_written,
        "files": result.files,
        "commits": result.commits,
        "dead letters": result.dead_letters,
        "dropped": result.dropped,
        "lost to retention": result.lost,
    }
    if dry_run:
        figures = {"table": settings.table, "bytes to read": result.bytes_read}
    show_fields(figures, as_json)


def missing_extra(error: ModuleNotFoundError) -> SettingsError:
    """Return what to tell a user whose environment lacks the packages of the lake."""
    return SettingsError(
        f"{error.name} is not installed; get it with: pip install 'lakehead[lake]'"
    )
