"""The jobs of the lake that somebody asks for: of one table, as one unit."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from lakehead.connectors.airflow.jobs.table_jobs import changes_told, opened_tables
from lakehead.connectors.airflow.jobs.table_options import (
    BackfillOptions,
    Beginning,
    RebuildTableOptions,
    TableOptions,
)
from lakehead.lake.jobs.backfill import plan_begin
from lakehead.lake.jobs.replay import ReplayResult
from lakehead.lake.jobs.table_due import declared_tables
from lakehead.lake.jobs.table_rebuild import RebuildResult
from lakehead.lake.jobs.table_settings import MaterializeSettings, declared_settings
from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.job import Fields, FieldsResult, Job, JobContext, Planned, Unit

AnyOptions = TableOptions | BackfillOptions | RebuildTableOptions


def _plan(
    tell: Callable[[JobContext, Any, str], Fields], context: JobContext, options: AnyOptions
) -> Planned:
    """One unit; in a dry run with what it would come to."""
    topic = options.topic
    if not topic:
        raise SettingsError("option topic is missing: name the topic whose table it is about")
    figures = tell(context, options, topic) if context.is_dry_run and not context.is_part else {}
    unit = Unit(key=topic, size=figures.get("bytes_to_read", 0), item=topic, words=topic)
    return Planned(units=(unit,), fields=figures)


# ------------------------------------------------------------------------------------------ replay


def _replay(context: JobContext, options: TableOptions, topic: str) -> Fields:
    with opened_tables(context, options.engine, [topic]) as tables:
        result: ReplayResult = tables.replay(topic, dry_run=context.is_dry_run)
    return asdict(result)


def _run_replay(context: JobContext, options: TableOptions, units: Sequence[Unit]) -> FieldsResult:
    topic = units[0].item
    with changes_told(context, [topic]) as written:
        figures = _replay(context, options, topic)
        if figures["replayed"]:
            written[topic] = (1, figures["replayed"], 0)
    return FieldsResult(found=figures)


REPLAY = Job(
    name="replay",
    options=TableOptions,
    plan=partial(_plan, _replay),
    run=_run_replay,
)


# ---------------------------------------------------------------------------------------- backfill


def _at(options: BackfillOptions) -> Beginning:
    if options.begin is None:
        raise SettingsError(
            "option begin is missing: earliest, a time as 2026-01-31T00:00:00Z, or offsets of "
            "partitions as 0:1200,1:3400"
        )
    return options.begin[0]


def _settings(context: JobContext, topic: str) -> MaterializeSettings:
    catalog = store_reader(context.path).open_catalog()
    catalog.topic(topic)
    declared = declared_tables(catalog.state, [topic]).get(topic)
    if isinstance(declared, SettingsError):
        raise declared
    if declared is None:
        raise SettingsError(f"topic {topic} declares no table: set lakehead.table.enable=true")
    return declared_settings(declared, context.path, dry_run=True)


def _tell_backfill(context: JobContext, options: BackfillOptions, topic: str) -> Fields:
    reader = store_reader(context.path)
    plan = plan_begin(_settings(context, topic), reader, reader.open_catalog(), at=_at(options))
    starts = ", ".join(f"{partition}: {start}" for partition, start in sorted(plan.starts.items()))
    return {
        "table_is_new": plan.is_new,
        "offsets_to_add": plan.offsets,
        "bytes_to_read": plan.size_bytes,
        "begins_at": starts[:500],
    }


def _run_backfill(
    context: JobContext, options: BackfillOptions, units: Sequence[Unit]
) -> FieldsResult:
    topic, at = units[0].item, _at(options)
    with (
        changes_told(context, [topic]) as written,
        opened_tables(context, options.engine, [topic]) as tables,
    ):
        result = tables.begin(topic, at=at)
        if result.commits:
            written[topic] = (result.commits, result.records, result.bytes_written)
    counted = (
        *("records", "dead_letters", "dropped", "left_out"),
        *("bytes_read", "bytes_written", "commits"),
    )
    return FieldsResult(found={name: getattr(result, name) for name in counted})


BACKFILL = Job(
    name="backfill",
    options=BackfillOptions,
    plan=partial(_plan, _tell_backfill),
    run=_run_backfill,
)


# ----------------------------------------------------------------------------------- rebuild_table


def _rebuild(context: JobContext, options: RebuildTableOptions, topic: str) -> Fields:
    with opened_tables(context, options.engine, [topic]) as tables:
        result: RebuildResult = tables.rebuild(
            topic,
            without_history=options.without_history,
            dry_run=context.is_dry_run,
            on_progress=context.on_progress,
        )
    if context.is_dry_run:
        return {"bytes_to_read": result.bytes_to_read, "rows_left_out": result.rows_left_out}
    figures = asdict(result)
    del figures["bytes_to_read"]
    return figures


def _run_rebuild(
    context: JobContext, options: RebuildTableOptions, units: Sequence[Unit]
) -> FieldsResult:
    topic = units[0].item
    with changes_told(context, [topic]) as written:
        figures = _rebuild(context, options, topic)
        written[topic] = (1, figures["records"], figures["bytes_written"])
    return FieldsResult(found=figures)


REBUILD_TABLE = Job(
    name="rebuild_table",
    options=RebuildTableOptions,
    plan=partial(_plan, _rebuild),
    run=_run_rebuild,
)
