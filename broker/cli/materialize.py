"""`lakehead materialize`: bring topics' Delta tables up to what lies in the object store."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from lakehead.broker.cli.listing import JsonOption, show_fields, show_rows
from lakehead.broker.cli.progress import ByteProgress
from lakehead.broker.cli.table_engine import Engine, MergeEngineOption
from lakehead.broker.cli.table_metrics import MetricsOption, check_metrics, shown_metrics
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.tables.declaration import default_table_uri

if TYPE_CHECKING:
    from lakehead.lake.jobs.backfill import Beginning
    from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
    from lakehead.lake.jobs.table_maintenance import MaintenanceResult
    from lakehead.storage.jobs.job import Runner


class ValueFormat(StrEnum):
    """What values are."""

    JSON = "json"
    RAW = "raw"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Tail(StrEnum):
    """Up to where topics are read."""

    OBJECTS = "objects"
    WAL = "wal"


class OnError(StrEnum):
    """What happens to a record that cannot be read."""

    PAUSE = "pause"
    DEAD_LETTER = "dead_letter"
    DROP = "drop"


TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC]...", help="The topics. Without any: every declared table that is due."
    ),
]
TableOption = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="URI",
        help="The Delta table of a topic that declares none, made if it is not there. [default: "
        "tables/TOPIC in the cluster's folder]",
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
    ValueFormat | None,
    typer.Option(
        "--value-format",
        metavar="json|raw|avro|protobuf",
        help="Format of values; raw: bytes as they are. [default: json]",
        show_default=False,
    ),
]
OnErrorOption = Annotated[
    OnError | None,
    typer.Option(
        "--on-error",
        metavar="pause|dead_letter|drop",
        help="A record that cannot be read: stop before it, keep it in TABLE__dlq, or leave it "
        "out. [default: pause]",
        show_default=False,
    ),
]


FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="earliest|TIME|PARTITION:OFFSET,...",
        help="Have the table begin at the first record from this time on (2026-01-31T00:00:00Z), "
        "or at these offsets; also if it has newer ones already, unless it is kept by upsert.",
    ),
]
FollowOption = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Keep the declared tables fresh until stopped (Ctrl-C)."),
]
UpkeepOption = Annotated[
    bool,
    typer.Option(
        "--upkeep/--no-upkeep",
        help="With --follow, OPTIMIZE and VACUUM of the tables too, when they are due.",
    ),
]
TailOption = Annotated[
    Tail,
    typer.Option(
        "--tail",
        metavar="objects|wal",
        help="With --follow, up to where: what is uploaded, or also what is acknowledged in object "
        "WALs.",
    ),
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait", min=0, metavar="SECONDS", help="Seconds to wait for another writer's table lease."
    ),
]
WorkersOption = Annotated[
    int, typer.Option("--workers", min=1, metavar="N", help="Number of processes.")
]
SparkOption = Annotated[
    bool,
    typer.Option(
        "--spark", help="Decode and write as tasks of Spark, instead of threads of this process."
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what there is to do, and do nothing.")
]


def materialize(
    topics: TopicsArgument = None,
    path: PathOption = DEFAULT_PATH,
    table: TableOption = None,
    schema: SchemaOption = None,
    value_format: ValueFormatOption = None,
    on_error: OnErrorOption = None,
    begin: FromOption = None,
    follow: FollowOption = False,
    tail: TailOption = Tail.OBJECTS,
    upkeep: UpkeepOption = True,
    metrics: MetricsOption = None,
    wait: WaitOption = 0.0,
    workers: WorkersOption = 2,
    spark: SparkOption = False,
    engine: MergeEngineOption = Engine.DELTA_RS,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Turn topics into Delta tables that hold each record once.

    A topic declares its table by its configs (lakehead.table.*). Options describe the table of a
    topic that declares none.

    Safe to run again at any moment, to kill, and to run twice at once: the table itself records how
    far it got. What a broker has not uploaded yet comes with the next run.
    """
    from lakehead.lake.jobs.declared_tables import DeclaredTables, declares_table

    store, names = store_uri(path), topics or []
    if not follow:
        check_metrics(metrics)
    is_alone = len(names) == 1 and not follow
    is_told = any(one is not None for one in (table, schema, value_format, on_error))
    if is_alone and begin is None and (table or not declares_table(store, names[0])):
        told = (table, schema, value_format, on_error)
        _materialize_as_told(store, names[0], *told, workers, _runner(spark), dry_run, as_json)
        return
    if is_told:
        raise SettingsError(_DECLARED)
    if begin is not None and (not is_alone or dry_run):
        raise SettingsError("--from is for one topic, once: name it, without --follow or --dry-run")
    with (
        shown_metrics(path, metrics),
        _closing(
            DeclaredTables(
                store,
                topics=names,
                workers=workers,
                wait_s=wait,
                tail=tail is Tail.WAL,
                engine=engine.value,
                runner=_runner(spark, engine, store),
            )
        ) as tables,
    ):
        if follow:
            _follow(tables, as_json, with_upkeep=upkeep)
            return
        if begin is not None:
            tables.begin(names[0], at=_beginning(begin))
        _once(tables, all_of_them=bool(names), dry_run=dry_run, as_json=as_json)


_DECLARED = (
    "--table, --schema, --value-format and --on-error are for one topic that declares no table: "
    "set the topic's configs (lakehead.table.*) instead"
)


def _once(tables: "DeclaredTables", *, all_of_them: bool, dry_run: bool, as_json: bool) -> None:
    outcomes: list[TableOutcome] = []
    tables.catch_up(all_of_them=all_of_them, on_table=outcomes.append, dry_run=dry_run)
    rows = [_figures(outcome, dry_run=dry_run) for outcome in outcomes]
    if rows or not as_json:
        show_rows(rows, {name: name for name in rows[0]} if rows else _NOTHING_DUE, as_json)
    _complain(outcomes)


@contextmanager
def _closing(tables: "DeclaredTables") -> Iterator["DeclaredTables"]:
    try:
        yield tables
    finally:
        tables.close()


def _follow(tables: "DeclaredTables", as_json: bool, *, with_upkeep: bool) -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())

    def tell(outcome: "TableOutcome") -> None:
        if outcome.error is not None:
            typer.echo(f"lakehead: {_with_topic(outcome.topic, outcome.error)}", err=True)
        if outcome.result.commits:
            show_fields(_figures(outcome), as_json)

    def tell_files(result: "MaintenanceResult") -> None:
        if result.error is not None:
            typer.echo(f"lakehead: {_with_topic(result.topic, result.error)}", err=True)
        else:
            show_fields(upkeep_figures(result), as_json)

    tables.follow(stopped, tell, on_files=tell_files if with_upkeep else None)


def upkeep_figures(result: "MaintenanceResult") -> dict[str, object]:
    """Return what OPTIMIZE or VACUUM did to a table."""
    head: dict[str, object] = {"topic": result.topic, "table": result.table, "job": result.job}
    if result.job == "optimize":
        return head | {"files": result.files, "files after": result.files_after}
    return head | {"removed files": result.removed}


def _figures(outcome: "TableOutcome", *, dry_run: bool = False) -> dict[str, object]:
    result, lag = outcome.result, outcome.lag
    if dry_run:
        return {"topic": outcome.topic, "table": outcome.table, "bytes to read": result.bytes_read}
    return {
        "topic": outcome.topic,
        "table": outcome.table,
        "records": result.records,
        "bytes read": result.bytes_read,
        "commits": result.commits,
        "dead letters": result.dead_letters,
        "dropped": result.dropped,
        "fields left out": result.left_out,
        "lost to retention": result.lost,
        "records behind": lag.records,
    }


def _complain(outcomes: "list[TableOutcome]") -> None:
    errors = [_with_topic(one.topic, one.error) for one in outcomes if one.error is not None]
    if errors:
        more = f" (and {len(errors) - 1} more tables)" if len(errors) > 1 else ""
        raise LakeheadError(f"{errors[0]}{more}")


def _with_topic(topic: str, error: LakeheadError) -> str:
    text = str(error)
    return text if f"topic {topic}" in text else f"topic {topic}: {text}"


def _materialize_as_told(
    store: str,
    topic: str,
    table: str | None,
    schema: str | None,
    value_format: ValueFormat | None,
    on_error: OnError | None,
    workers: int,
    runner: "Runner | None",
    dry_run: bool,
    as_json: bool,
) -> None:
    from lakehead.lake.jobs.materialize import materialize as run_job
    from lakehead.lake.jobs.table_settings import MaterializeSettings

    settings = MaterializeSettings(
        path=store,
        topic=topic,
        table=table or default_table_uri(store, topic),
        value_format=(value_format or ValueFormat.JSON).value,
        schema=schema,
        on_error=(on_error or OnError.PAUSE).value,
        workers=workers,
        dry_run=dry_run,
    )
    with ByteProgress(f"materialize {topic}", shown=not as_json) as progress:
        result = run_job(settings, on_progress=progress.update, runner=runner)
    figures = {
        "table": settings.table,
        "records": result.records,
        "bytes read": result.bytes_read,
        "bytes written": result.bytes_written,
        "files": result.files,
        "commits": result.commits,
        "dead letters": result.dead_letters,
        "dropped": result.dropped,
        "fields left out": result.left_out,
        "lost to retention": result.lost,
    }
    if dry_run:
        figures = {"table": settings.table, "bytes to read": result.bytes_read}
    show_fields(figures, as_json)


def _runner(spark: bool, engine: Engine = Engine.DELTA_RS, store: str = "") -> "Runner | None":
    """Tasks of Spark, in the session that MERGE is to use as well if that is Spark's."""
    if not spark:
        return None
    from lakehead.lake.jobs.spark_runner import spark_runner
    from lakehead.lake.spark import spark_session

    merges = engine is Engine.SPARK
    return spark_runner(spark_session(delta=merges, s3a=merges and store.startswith("s3:")))


def _beginning(text: str) -> "Beginning":
    from lakehead.lake.jobs.table_jobs import beginning

    try:
        return beginning(text)
    except ValueError:
        raise SettingsError(
            f"--from {text}: give a time as 2026-01-31T00:00:00Z, offsets of partitions as "
            "0:1200,1:3400, or earliest"
        ) from None


_NOTHING_DUE = {"": "no table is due"}
