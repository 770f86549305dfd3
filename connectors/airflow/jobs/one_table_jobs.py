"""The jobs of the lake that somebody asks for: of one table, as one unit."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

from connectors.airflow.jobs.frame import Figures, Job, Options, Place, Planned, Unit, truth
from connectors.airflow.jobs.table_jobs import changes_told, engine, opened_tables
from lake.jobs.backfill import Beginning, plan_begin
from lake.jobs.replay import ReplayResult
from lake.jobs.table_due import declared_tables
from lake.jobs.table_rebuild import RebuildResult
from lake.jobs.table_settings import MaterializeSettings, declared_settings
from lake.store_reader import store_reader
from storage.errors import SettingsError

_OFFSETS = re.compile(r"\d+:\d+(,\s*\d+:\d+)*")


def _topic(options: Options) -> str:
    topic: str = options.get("topic", "")
    if not topic:
        raise SettingsError("option topic is missing: name the topic whose table it is about")
    return topic


def _plan(
    tell: Callable[[Place, Options, str], Figures], place: Place, options: Options, *, again: bool
) -> Planned:
    """One unit; in a dry run with what it would come to."""
    topic = _topic(options)
    figures = tell(place, options, topic) if place.is_dry_run and not again else {}
    unit = Unit(key=topic, size=figures.get("bytes_to_read", 0), item=topic, words=topic)
    return Planned(units=(unit,), figures=figures)


# ------------------------------------------------------------------------------------------ replay


def _replay(place: Place, options: Options, topic: str) -> Figures:
    with opened_tables(place, options, [topic]) as tables:
        result: ReplayResult = tables.replay(topic, dry_run=place.is_dry_run)
    return asdict(result)


def _work_replay(place: Place, options: Options, units: Sequence[Unit]) -> Figures:
    topic = units[0].item
    with changes_told(place, [topic]) as written:
        figures = _replay(place, options, topic)
        if figures["replayed"]:
            written[topic] = (1, figures["replayed"], 0)
    return figures


REPLAY = Job(
    name="replay",
    options={"topic": str, "engine": engine},
    plan=partial(_plan, _replay),
    work=_work_replay,
)


# ---------------------------------------------------------------------------------------- backfill


def beginning(value: Any) -> Beginning:
    """Return where a table is to begin: `earliest`, a time (ISO 8601), or `0:1200,1:3400`.

    Raises ValueError.
    """
    text = str(value).strip()
    if text == "earliest":
        return None
    if _OFFSETS.fullmatch(text):
        pairs = (one.split(":") for one in text.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}
    at = datetime.fromisoformat(text)
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _begin_option(value: Any) -> tuple[Beginning]:
    """In a tuple, since one beginning is None."""
    return (beginning(value),)


def _at(options: Options) -> Beginning:
    if "begin" not in options:
        raise SettingsError(
            "option begin is missing: earliest, a time as 2026-01-31T00:00:00Z, or offsets of "
            "partitions as 0:1200,1:3400"
        )
    at: Beginning = options["begin"][0]
    return at


def _settings(place: Place, topic: str) -> MaterializeSettings:
    catalog = store_reader(place.path).open_catalog()
    catalog.topic(topic)
    declared = declared_tables(catalog.state, [topic]).get(topic)
    if isinstance(declared, SettingsError):
        raise declared
    if declared is None:
        raise SettingsError(f"topic {topic} declares no table: set lakehead.table.enable=true")
    return declared_settings(declared, place.path, dry_run=True)


def _tell_backfill(place: Place, options: Options, topic: str) -> Figures:
    reader = store_reader(place.path)
    plan = plan_begin(_settings(place, topic), reader, reader.open_catalog(), at=_at(options))
    starts = ", ".join(f"{partition}: {start}" for partition, start in sorted(plan.starts.items()))
    return {
        "table_is_new": plan.is_new,
        "offsets_to_add": plan.offsets,
        "bytes_to_read": plan.size_bytes,
        "begins_at": starts[:500],
    }


def _work_backfill(place: Place, options: Options, units: Sequence[Unit]) -> Figures:
    topic, at = units[0].item, _at(options)
    with (
        changes_told(place, [topic]) as written,
        opened_tables(place, options, [topic]) as tables,
    ):
        result = tables.begin(topic, at=at)
        if result.commits:
            written[topic] = (result.commits, result.records, result.bytes_written)
    counted = (
        *("records", "dead_letters", "dropped", "left_out"),
        *("bytes_read", "bytes_written", "commits"),
    )
    return {name: getattr(result, name) for name in counted}


BACKFILL = Job(
    name="backfill",
    options={"topic": str, "begin": _begin_option, "engine": engine},
    plan=partial(_plan, _tell_backfill),
    work=_work_backfill,
)


# ----------------------------------------------------------------------------------- rebuild_table


def _rebuild(place: Place, options: Options, topic: str) -> Figures:
    with opened_tables(place, options, [topic]) as tables:
        result: RebuildResult = tables.rebuild(
            topic,
            without_history=options.get("without_history", False),
            dry_run=place.is_dry_run,
            on_progress=place.on_progress,
        )
    if place.is_dry_run:
        return {"bytes_to_read": result.bytes_to_read, "rows_left_out": result.rows_left_out}
    figures = asdict(result)
    del figures["bytes_to_read"]
    return figures


def _work_rebuild(place: Place, options: Options, units: Sequence[Unit]) -> Figures:
    topic = units[0].item
    with changes_told(place, [topic]) as written:
        figures = _rebuild(place, options, topic)
        written[topic] = (1, figures["records"], figures["bytes_written"])
    return figures


REBUILD_TABLE = Job(
    name="rebuild_table",
    options={"topic": str, "without_history": truth, "engine": engine},
    plan=partial(_plan, _rebuild),
    work=_work_rebuild,
)
