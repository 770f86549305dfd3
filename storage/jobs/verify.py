"""The job `verify`: every checksum and every continuity of offsets, from the metadata log to the
records of batches.

Plan: what streams refer to, by the metadata, and what a listing shows. Work: each item reads some
objects, all of them or a sample. Result: damages, each with topic, partition, offsets, object and
what to do. Nothing is written. A cluster may go on meanwhile: what was replaced or deleted while
the job ran is no damage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from storage.errors import UnknownTopic
from storage.garbage.leak_check import LeakReport, check_leaks
from storage.jobs.cluster import in_cluster
from storage.jobs.frame import Progress, Runner, here, untold, worked_through
from storage.metadata.log import MetadataLog
from storage.metadata.state import ClusterState
from storage.object_store import ObjectStore
from storage.verification.catalog import (
    SAMPLE_ALL,
    ExpectedObject,
    catalog_damages,
    expected_objects,
    missing_objects,
)
from storage.verification.damage import Damage, InvalidBatch, Place
from storage.verification.objects import ObjectReport, verify_object

_WRITER = "verify"
_ITEM_BYTES = 128 * 1024 * 1024
_ITEM_OBJECTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """What to verify of the cluster at `path`, a store's URI: one topic or all; of the objects
    `sample_percent`, another share for another `seed`.
    """

    path: str
    topic: str | None = None
    sample_percent: int = SAMPLE_ALL
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyItem:
    """Objects that one process reads, one after the other."""

    path: str
    objects: tuple[ExpectedObject, ...]

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(one.size for one in self.objects)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """What is to be read, and what is known without."""

    items: tuple[VerifyItem, ...]
    damages: tuple[Damage, ...]
    leaks: LeakReport


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was found. `leaked` objects are of no use and harm nobody; `strange` ones are named as
    Lakehead names none. `invalid` batches are as they were produced, and cannot be read: they are
    no damages, and there may be more than those (see `ObjectReport`).
    """

    figures: ObjectReport
    leaked: int
    strange: int
    damages: tuple[Damage, ...] = field(default=())
    invalid: tuple[InvalidBatch, ...] = field(default=())


def plan_verify(settings: VerifySettings) -> VerifyPlan:
    """Look at metadata and bucket. Raises SettingsError, UnknownTopic, StoreUnavailable."""

    async def plan(store: ObjectStore, log: MetadataLog) -> VerifyPlan:
        if settings.topic is not None and settings.topic not in log.state.topics:
            raise UnknownTopic(f"topic {settings.topic!r} does not exist in {store.uri}")
        leaks = await check_leaks(store, log)
        state = log.state
        wanted = expected_objects(
            state,
            topic=settings.topic,
            sample_percent=settings.sample_percent,
            seed=settings.seed,
        )
        every = expected_objects(state, topic=settings.topic, sample_percent=SAMPLE_ALL, seed=0)
        missing = frozenset(leaks.missing)
        return VerifyPlan(
            items=tuple(_items(settings.path, [one for one in wanted if one.key not in missing])),
            damages=(*catalog_damages(state, settings.topic), *missing_objects(every, missing)),
            leaks=leaks,
        )

    return in_cluster(settings.path, _WRITER, plan)


def _items(path: str, objects: Sequence[ExpectedObject]) -> Iterator[VerifyItem]:
    held: list[ExpectedObject] = []
    size = 0
    for one in objects:
        if held and (size + one.size > _ITEM_BYTES or len(held) >= _ITEM_OBJECTS):
            yield VerifyItem(path=path, objects=tuple(held))
            held, size = [], 0
        held.append(one)
        size += one.size
    if held:
        yield VerifyItem(path=path, objects=tuple(held))


def verify_item(item: VerifyItem) -> ObjectReport:
    """Read the objects of an item. Raises StoreUnavailable."""
    # It takes seconds to load, which planning should not.
    from storage.format.record_check import RecordChecker

    async def work(store: ObjectStore, log: MetadataLog) -> ObjectReport:
        report, checker = ObjectReport(), RecordChecker()
        for one in item.objects:
            report.add(await verify_object(store, one, checker))
        if report.damages:
            state = await log.refresh(surely=True)
            report.damages = [one for one in report.damages if _is_referred_to(state, one)]
        return report

    return in_cluster(item.path, _WRITER, work)


def _is_referred_to(state: ClusterState, damage: Damage) -> bool:
    """Whether a stream refers to the object still: what was replaced meanwhile is no damage."""
    stream = state.streams.get(damage.place.stream_id)
    return stream is not None and any(
        extent.object_key == damage.object_key for extent in stream.state_sources
    )


def verify(
    settings: VerifySettings, *, runner: Runner = here, on_progress: Progress = untold
) -> VerifyReport:
    """Verify, and return what was found. Raises SettingsError, UnknownTopic, StoreUnavailable."""
    plan, figures = plan_verify(settings), ObjectReport()
    for result in worked_through(
        verify_item,
        plan.items,
        size=lambda item: item.size,
        runner=runner,
        on_progress=on_progress,
    ):
        figures.add(result)
    damages = sorted((*plan.damages, *figures.damages), key=lambda one: _order(one.place))
    return VerifyReport(
        figures=figures,
        leaked=len(plan.leaks.leaked),
        strange=len(plan.leaks.strange),
        damages=tuple(damages),
        invalid=tuple(sorted(figures.invalid, key=lambda one: _order(one.place))),
    )


def _order(place: Place) -> tuple[str, int, int]:
    return place.topic, place.partition, place.start_offset
