"""`lakehead materialize`: bring topics' Delta tables up to what lies in the object store."""

from collections import Counter
from contextlib import closing, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.broker.cli.jobs import JobCall, job_command
from lakehead.broker.cli.listing import show_fields
from lakehead.broker.cli.progress import ByteProgress
from lakehead.broker.cli.recorded_run import recorded_run
from lakehead.broker.cli.stop_signals import thread_stopped_by_signal
from lakehead.broker.cli.table_metrics import MetricsOption, check_metrics, shown_metrics
from lakehead.lake.declaration.table_declaration import default_table_uri
from lakehead.lake.jobs.table_jobs import (
    BACKFILL,
    MATERIALIZE,
    TABLE_MAINTENANCE,
    BackfillOptions,
    Engine,
    TablesOptions,
    beginning,
    row_of,
    with_topic,
)
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.job import Progress, to_both
from lakehead.storage.jobs.run_recorder import RunRecorder

if TYPE_CHECKING:
    from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
    from lakehead.lake.jobs.table_maintenance import MaintenanceResult
    from lakehead.storage.jobs.job import Runner


class ValueFormat(StrEnum):
    """The format of values."""

    JSON = "json"
    RAW = "raw"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Tail(StrEnum):
    """Up to where topics are read."""

    OBJECTS = "objects"
    WAL = "wal"


class OnError(StrEnum):
    """The handling of a record that cannot be read."""

    PAUSE = "pause"
    DEAD_LETTER = "dead_letter"
    DROP = "drop"


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
SparkOption = Annotated[
    bool,
    typer.Option(
        "--spark", help="Decode and write as tasks of Spark, instead of threads of this process."
    ),
]


def _materialize(
    call: JobCall,
    table: TableOption = None,
    schema: SchemaOption = None,
    value_format: ValueFormatOption = None,
    on_error: OnErrorOption = None,
    begin: FromOption = None,
    follow: FollowOption = False,
    tail: TailOption = Tail.OBJECTS,
    upkeep: UpkeepOption = True,
    metrics: MetricsOption = None,
    spark: SparkOption = False,
) -> None:
    """Run the job, follow tables, have one begin elsewhere, or write one that is not declared."""
    from lakehead.lake.jobs.declared_tables import DeclaredTables, declares_table

    options: TablesOptions = call.options
    if not follow:
        check_metrics(metrics)
    is_alone = len(options.topics) == 1 and not follow
    has_options = any(one is not None for one in (table, schema, value_format, on_error))
    if is_alone and begin is None and (table or not declares_table(call.store, options.topics[0])):
        _materialize_by_options(call, table, schema, value_format, on_error, _runner(spark))
        return
    if has_options:
        raise SettingsError(_DECLARED)
    if begin is not None and (not is_alone or call.dry_run):
        raise SettingsError("--from is for one topic, once: name it, without --follow or --dry-run")
    runner = _runner(spark, options.engine, call.store)
    if begin is not None:
        _begin(call, begin, runner)
    if not follow:
        call.run(runner)
        return
    with (
        shown_metrics(call.path, metrics),
        closing(
            DeclaredTables(
                call.store,
                topics=options.topics,
                workers=call.workers,
                wait_s=call.wait,
                tail=tail is Tail.WAL,
                engine=options.engine,
                runner=runner,
            )
        ) as tables,
        recorded_run(MATERIALIZE.name, call.store) as recorder,
    ):
        _follow(tables, call.as_json, recorder, with_upkeep=upkeep)


materialize = job_command(MATERIALIZE, extended_by=_materialize)


_DECLARED = (
    "--table, --schema, --value-format and --on-error are for one topic that declares no table: "
    "set the topic's configs (lakehead.table.*) instead"
)


def _begin(call: JobCall, begin: str, runner: "Runner | None") -> None:
    options: TablesOptions = call.options
    try:
        at = beginning(begin)
    except ValueError:
        raise SettingsError(
            f"--from {begin}: give a time as 2026-01-31T00:00:00Z, offsets of partitions as "
            "0:1200,1:3400, or earliest"
        ) from None
    of_table = BackfillOptions(topic=options.topics[0], begin=(at,), engine=options.engine)
    context = call.context(spark=runner)
    BACKFILL.perform(context, of_table, BACKFILL.plan(context, of_table))


def _follow(
    tables: "DeclaredTables", as_json: bool, recorder: RunRecorder, *, with_upkeep: bool
) -> None:
    stopped = thread_stopped_by_signal("ends after the tables that it is at")
    counts = Counter[str]()
    typer.echo(f"lakehead: {_followed(tables)}; Ctrl-C ends it", err=True)

    def report(outcome: "TableOutcome") -> None:
        if outcome.error is not None:
            typer.echo(f"lakehead: {with_topic(outcome.topic, outcome.error)}", err=True)
            recorder.at(f"{outcome.topic}: {outcome.error}")
        if outcome.result.commits:
            show_fields(row_of(outcome), as_json)
            counts.update(commits=outcome.result.commits, records=outcome.result.records)
            recorder.at(f"{outcome.topic}: {outcome.result.records} records more")
            recorder.found(counts)

    def report_files(result: "MaintenanceResult") -> None:
        if result.error is not None:
            typer.echo(f"lakehead: {with_topic(result.topic, result.error)}", err=True)
        else:
            head = {"topic": result.topic, "table": result.table, "job": result.job}
            show_fields(head | TABLE_MAINTENANCE[result.job].figures(result), as_json)

    tables.follow(stopped, report, on_files=report_files if with_upkeep else None)


def _followed(tables: "DeclaredTables") -> str:
    names = tables.names()
    if not names:
        return "no topic declares a table yet; the first that does is kept fresh"
    return f"keeping {len(names)} table{'s' * (len(names) > 1)} fresh: {', '.join(names)}"


def _materialize_by_options(
    call: JobCall,
    table: str | None,
    schema: str | None,
    value_format: ValueFormat | None,
    on_error: OnError | None,
    runner: "Runner | None",
) -> None:
    from lakehead.lake.jobs.materialize import materialize as run_job
    from lakehead.lake.jobs.table_settings import MaterializeSettings

    [topic] = call.options.topics
    settings = MaterializeSettings(
        path=call.store,
        topic=topic,
        table=table or default_table_uri(call.store, topic),
        value_format=(value_format or ValueFormat.JSON).value,
        schema=schema,
        on_error=(on_error or OnError.PAUSE).value,
        workers=call.workers,
        dry_run=call.dry_run,
    )
    with (
        nullcontext() if call.dry_run else recorded_run(MATERIALIZE.name, call.store) as recorder,
        ByteProgress(f"materialize {topic}", shown=not call.as_json) as progress,
    ):
        on_progress: Progress = progress.update
        if recorder is not None:
            on_progress = to_both(on_progress, recorder.progress)
        result = run_job(settings, on_progress=on_progress, runner=runner)
        if recorder is not None:
            recorder.found({"topic": topic, "records": result.records, "commits": result.commits})
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
    if call.dry_run:
        figures = {"table": settings.table, "bytes to read": result.bytes_read}
    show_fields(figures, call.as_json)


def _runner(spark: bool, engine: Engine = "delta-rs", store: str = "") -> "Runner | None":
    """Tasks of Spark, in the session that MERGE is to use as well if that is Spark's."""
    if not spark:
        return None
    from lakehead.lake.jobs.spark_runner import spark_runner
    from lakehead.lake.spark import spark_session

    merges = engine == "spark"
    return spark_runner(spark_session(delta=merges, s3a=merges and store.startswith("s3:")))
