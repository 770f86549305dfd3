"""The jobs that look after a whole cluster: verify, and rebuild_catalog."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields

from connectors.airflow.jobs.frame import (
    LINES_MAX,
    Figures,
    Job,
    Options,
    Place,
    Planned,
    Unit,
    names,
    truth,
)
from storage.errors import LakeheadError, UnknownTopic
from storage.jobs.cluster import in_cluster
from storage.jobs.frame import worked_through
from storage.jobs.rebuild_catalog import RebuildSettings, rebuild_catalog
from storage.jobs.verify import VerifyItem, VerifySettings, plan_verify, verify_item
from storage.metadata.log import MetadataLog
from storage.metadata.state import ClusterState
from storage.object_store import ObjectStore
from storage.verification.catalog import ExpectedObject, expected_objects
from storage.verification.damage import Damage, InvalidBatch
from storage.verification.objects import ObjectReport

_ITEM_BYTES = 128 * 1024 * 1024
_ITEM_OBJECTS = 1000


class DamageFound(LakeheadError):
    """A verification has found damage. The message names the first place."""


def state_of(path: str) -> ClusterState:
    """Return the metadata of a cluster as they are now."""

    async def look(_: ObjectStore, log: MetadataLog) -> ClusterState:
        return log.state

    return in_cluster(path, "airflow", look)


# ------------------------------------------------------------------------------------------ verify


def _plan_verify(place: Place, options: Options, *, again: bool) -> Planned:
    settings = VerifySettings(path=place.path, **options)
    if again:  # what lists the bucket is done once
        return Planned(units=_objects(_expected(settings)))
    plan = plan_verify(settings)
    figures: Figures = {
        "leaked_objects": len(plan.leaks.leaked),
        "strange_names": len(plan.leaks.strange),
        **_damages(plan.damages),
    }
    return Planned(
        units=_objects([one for item in plan.items for one in item.objects]), figures=figures
    )


def _expected(settings: VerifySettings) -> Sequence[ExpectedObject]:
    state = state_of(settings.path)
    if settings.topic is not None and settings.topic not in state.topics:
        raise UnknownTopic(f"topic {settings.topic!r} does not exist in {settings.path}")
    return expected_objects(
        state, topic=settings.topic, sample_percent=settings.sample_percent, seed=settings.seed
    )


def _objects(objects: Sequence[ExpectedObject]) -> tuple[Unit, ...]:
    return tuple(Unit(key=one.key, size=one.size, item=one) for one in objects)


def _damages(damages: Sequence[Damage]) -> Figures:
    lines = [
        f"topic {one.place.topic or '(none)'}, partition {one.place.partition}, offsets "
        f"{one.place.start_offset} to {one.place.end_offset - 1}, object {one.object_key}: "
        f"{one.what}; {one.to_do}"
        for one in damages[:LINES_MAX]
    ]
    return {"damages": lines, "damages_count": len(damages)}


def _work_verify(place: Place, _options: Options, units: Sequence[Unit]) -> Figures:
    report = ObjectReport()
    for result in worked_through(
        verify_item,
        _verify_items(place.path, units),
        size=lambda item: item.size,
        runner=place.runner,
        on_progress=place.on_progress,
    ):
        report.add(result)
    lists = {"damages", "invalid"}
    figures: Figures = {
        one.name: getattr(report, one.name) for one in fields(report) if one.name not in lists
    }
    return figures | _damages(report.damages) | {"invalid": _invalid(report.invalid)}


def _invalid(batches: Sequence[InvalidBatch]) -> list[str]:
    return [
        f"topic {one.place.topic or '(none)'}, partition {one.place.partition}, offsets "
        f"{one.place.start_offset} to {one.place.end_offset - 1}: {one.reason}"
        for one in batches[:LINES_MAX]
    ]


def _verify_items(path: str, units: Sequence[Unit]) -> list[VerifyItem]:
    held: dict[int, list[ExpectedObject]] = defaultdict(list)
    number = size = 0
    for unit in units:
        if held[number] and (size + unit.size > _ITEM_BYTES or len(held[number]) >= _ITEM_OBJECTS):
            number, size = number + 1, 0
        held[number].append(unit.item)
        size += unit.size
    return [VerifyItem(path=path, objects=tuple(some)) for some in held.values() if some]


def _fail_for_damages(figures: Figures) -> None:
    if not (count := figures.get("damages_count", 0)):
        return
    lines = figures["damages"]
    more = f" (and {count - 1} more, see the log)" if count > 1 else ""
    raise DamageFound(f"damage was found: {lines[0]}{more}")


VERIFY = Job(
    name="verify",
    options={"topic": str, "sample_percent": int, "seed": int},
    plan=_plan_verify,
    work=_work_verify,
    finish=_fail_for_damages,
)


# --------------------------------------------------------------------------------- rebuild_catalog


def _rebuild(place: Place, options: Options) -> Figures:
    settings = RebuildSettings(
        path=place.path,
        without=frozenset(options.get("without", ())),
        replace=options.get("replace", False),
    )
    result = rebuild_catalog(
        settings, dry_run=place.is_dry_run, runner=place.runner, on_progress=place.on_progress
    )
    rebuilt, state = result.rebuilt, result.rebuilt.state
    lost = [
        f"topic {one.topic}, partition {one.partition}, offsets {one.start_offset} to "
        f"{one.end_offset - 1}"
        for one in rebuilt.lost[:LINES_MAX]
    ]
    return {
        "topics": len(state.topics),
        "partitions": len(state.streams),
        "objects": result.objects,
        "unused_objects": rebuilt.unused,
        "lost": lost,
        "lost_count": len(rebuilt.lost),
        "unreadable": [f"{key}: {reason}" for key, reason in result.unreadable[:LINES_MAX]],
        "unreadable_count": len(result.unreadable),
        "set_aside_count": len(rebuilt.set_aside),
        "old_metadata": result.kept,
    }


def _plan_rebuild(place: Place, options: Options, *, again: bool) -> Planned:
    figures = _rebuild(place, options) if place.is_dry_run and not again else {}
    return Planned(units=(Unit(key="catalog", size=0),), figures=figures)


def _work_rebuild(place: Place, options: Options, _units: Sequence[Unit]) -> Figures:
    return _rebuild(place, options)


REBUILD_CATALOG = Job(
    name="rebuild_catalog",
    options={"without": names, "replace": truth},
    plan=_plan_rebuild,
    work=_work_rebuild,
)
