"""The jobs that keep a bucket in shape: compact, compact_topics, retain, sweep."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from connectors.airflow.jobs.frame import (
    Figures,
    Job,
    Options,
    Place,
    Planned,
    Unit,
    figures_of_both,
    mapping,
    names,
)
from storage.compaction.merge_plan import MergeRules, RebatchSettings
from storage.errors import LakeheadError
from storage.garbage.sweep import DELETED_AT_ONCE, SweepTimes
from storage.jobs.compact import (
    CompactFigures,
    CompactItem,
    CompactSettings,
    compact_item,
    plan_compact,
)
from storage.jobs.compact_topics import (
    CompactTopicsFigures,
    CompactTopicsItem,
    CompactTopicsSettings,
    compact_topics_item,
    plan_compact_topics,
)
from storage.jobs.frame import Attempt, Failed, tallied, worked_through
from storage.jobs.retain import (
    RetainFigures,
    RetainItem,
    RetainSettings,
    plan_retain,
    retain_item,
)
from storage.jobs.sweep import SweepFigures, SweepItem, SweepSettings, plan_sweep, sweep_item
from storage.upkeep.configs import UpkeepDefaults
from storage.upkeep.retention import trim_groups

_MIB = 1024 * 1024


def _defaults(options: Options) -> UpkeepDefaults:
    """What the brokers' settings say that the metadata do not have."""
    return UpkeepDefaults(given=options.get("defaults", {}))


# ----------------------------------------------------------------------------------------- compact


def _compact_settings(path: str, options: Options) -> CompactSettings:
    rules, rebatch = MergeRules(), RebatchSettings()
    return CompactSettings(
        path=path,
        rules=MergeRules(
            target_bytes=options.get("target_mib", rules.target_bytes // _MIB) * _MIB,
            count_min=options.get("count_min", rules.count_min),
        ),
        rebatch=RebatchSettings(
            small_bytes=options.get("small_batch_bytes", rebatch.small_bytes),
            small_compressed_bytes=options.get(
                "small_compressed_batch_bytes", rebatch.small_compressed_bytes
            ),
        ),
        defaults=_defaults(options),
    )


def _plan_compact(place: Place, options: Options, *, again: bool) -> Planned:
    items = plan_compact(_compact_settings(place.path, options))
    figures = {} if again else {"planned_objects": sum(len(one.merge.sources) for one in items)}
    # No object is in two items of a stream.
    units = (
        Unit(
            key=f"{item.merge.streams[0]}/{item.merge.sources[0]}",
            size=item.merge.size,
            item=item,
            words=f"{len(item.merge.sources)} objects of {len(item.merge.streams)} partitions "
            f"(stream {item.merge.streams[0]})",
        )
        for item in items
    )
    return Planned(units=tuple(units), figures=figures)


def _work_compact(place: Place, _options: Options, units: Sequence[Unit]) -> Figures:
    items: list[CompactItem] = [unit.item for unit in units]
    results = worked_through(
        compact_item,
        items,
        size=lambda item: item.merge.size,
        runner=place.runner,
        on_progress=place.on_progress,
    )
    return asdict(tallied(CompactFigures(), map(CompactFigures.of, results)))


COMPACT = Job(
    name="compact",
    options={
        "target_mib": int,
        "count_min": int,
        "small_batch_bytes": int,
        "small_compressed_batch_bytes": int,
        "defaults": mapping,
    },
    plan=_plan_compact,
    work=_work_compact,
)


# ------------------------------------------------------------------------ compact_topics and retain


def _tried(
    place: Place,
    work: Callable[[Any], Any],
    items: Sequence[Any],
    figures_of: Callable[[Any], Figures],
) -> Figures:
    """Do all items, and raise afterwards what failed: other partitions do not wait for it."""
    figures: Figures = {}
    failures: list[str] = []
    for result in worked_through(
        Attempt(work, type(items[0]).words),
        items,
        size=lambda item: item.size,
        runner=place.runner,
        on_progress=place.on_progress,
    ):
        if isinstance(result, Failed):
            failures.append(result.reason)
            place.log.warning("%s", result.reason)
        else:
            figures = figures_of_both(figures, figures_of(result))
    if failures:
        more = f" (and {len(failures) - 1} more, see the log)" if len(failures) > 1 else ""
        raise LakeheadError(f"{failures[0]}{more}")
    return figures


def _plan_compact_topics(place: Place, options: Options, *, again: bool) -> Planned:  # noqa: ARG001
    topics = frozenset(options.get("topics", ()))
    settings = CompactTopicsSettings(path=place.path, topics=topics, defaults=_defaults(options))
    return Planned(
        units=tuple(
            Unit(key=item.words(), size=item.size, item=item, words=item.words())
            for item in plan_compact_topics(settings)
        )
    )


def _work_compact_topics(place: Place, _options: Options, units: Sequence[Unit]) -> Figures:
    def figures_of(result: Any) -> Figures:
        figures = asdict(CompactTopicsFigures.of(result))
        del figures["failures"]
        return figures

    items: list[CompactTopicsItem] = [unit.item for unit in units]
    return _tried(place, compact_topics_item, items, figures_of) if items else {}


COMPACT_TOPICS = Job(
    name="compact_topics",
    options={"topics": names, "defaults": mapping},
    plan=_plan_compact_topics,
    work=_work_compact_topics,
)


def _plan_retain(place: Place, options: Options, *, again: bool) -> Planned:  # noqa: ARG001
    topics = frozenset(options.get("topics", ()))
    settings = RetainSettings(path=place.path, topics=topics, defaults=_defaults(options))
    works = (work for item in plan_retain(settings) for work in item.works)
    return Planned(
        units=tuple(
            Unit(
                key=f"{work.topic}-{work.partition}",
                size=work.size,
                item=work,
                words=f"{work.topic}-{work.partition}: {work.words}",
            )
            for work in works
        )
    )


def _work_retain(place: Place, options: Options, units: Sequence[Unit]) -> Figures:
    def figures_of(result: Any) -> Figures:
        figures = asdict(RetainFigures.of(result))
        del figures["failures"]
        return figures

    items = [
        RetainItem(path=place.path, works=works, defaults=_defaults(options))
        for works in trim_groups([unit.item for unit in units])
    ]
    return _tried(place, retain_item, items, figures_of) if items else {}


RETAIN = Job(
    name="retain",
    options={"topics": names, "defaults": mapping},
    plan=_plan_retain,
    work=_work_retain,
)


# ------------------------------------------------------------------------------------------- sweep


def _plan_sweep(place: Place, options: Options, *, again: bool) -> Planned:  # noqa: ARG001
    times = SweepTimes()
    settings = SweepSettings(
        path=place.path,
        times=SweepTimes(
            grace_ms=options.get("grace_s", times.grace_ms // 1000) * 1000,
            margin_ms=options.get("margin_s", times.margin_ms // 1000) * 1000,
        ),
    )
    units = []
    for item in plan_sweep(settings):
        if item.uploads_before_ms:
            units.append(Unit(key="", size=0, item=item.uploads_before_ms, words="old uploads"))
        units += [
            Unit(key=one.key, size=one.size, item=one, words=f"{one.key} ({one.verdict.value})")
            for one in item.doomed
        ]
    return Planned(units=tuple(units))


def _work_sweep(place: Place, _options: Options, units: Sequence[Unit]) -> Figures:
    doomed = [unit.item for unit in units if unit.key]
    uploads_before_ms = next((unit.item for unit in units if not unit.key), 0)
    items = [
        SweepItem(
            path=place.path,
            doomed=tuple(doomed[first : first + DELETED_AT_ONCE]),
            uploads_before_ms=0 if first else uploads_before_ms,
        )
        for first in range(0, max(1, len(doomed)), DELETED_AT_ONCE)
    ]
    results = worked_through(
        sweep_item,
        items,
        size=lambda item: item.size,
        runner=place.runner,
        on_progress=place.on_progress,
    )
    return asdict(tallied(SweepFigures(), map(SweepFigures.of, results)))


SWEEP = Job(
    name="sweep",
    options={"grace_s": int, "margin_s": int},
    plan=_plan_sweep,
    work=_work_sweep,
    # Deletions are counted by objects, and each task lists the bucket.
    task_bytes=1 << 62,
    task_units=20_000,
)
