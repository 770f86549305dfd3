"""The job `verify`: every checksum and every continuity of offsets, from the metadata log to the
records of batches.

Plan: the objects that streams refer to by the metadata, and what a listing shows. Run: each item
reads some objects, all of them or a sample. Result: damages, each with topic, partition, offsets,
object and what to do. Nothing is written. A cluster may go on meanwhile: an object that was
replaced or deleted while the job ran is not a damage.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from lakehead.storage.errors import UnknownTopic
from lakehead.storage.jobs.job import (
    LINES_MAX,
    DamageFound,
    Fields,
    Job,
    JobContext,
    JobResult,
    Planned,
    Report,
    Table,
    Unit,
    sum_results,
    total,
)
from lakehead.storage.jobs.options import option

if TYPE_CHECKING:  # a DAG is parsed without them
    from lakehead.storage.metadata.log import MetadataLog
    from lakehead.storage.metadata.state import MetadataImage
    from lakehead.storage.object_store import ObjectStore
    from lakehead.storage.verification import (
        Damage,
        ExpectedObject,
        InvalidBatch,
        ObjectReport,
        Place,
    )

_WRITER = "verify"
_ITEM_BYTES = 128 * 1024 * 1024
_ITEM_OBJECTS = 1000
_PLACE = {"topic": "TOPIC", "partition": "PARTITION", "offsets": "OFFSETS", "object": "OBJECT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """One topic or all; of the objects a share, another one for another `seed`."""

    topic: str | None = option(
        None,
        "This topic only.",
        title="Topic",
        flag="--topic",
        short_flag="-t",
        metavar="TOPIC",
        form={
            "default": "",
            "type": "string",
            "description": "This topic alone. None: all of them.",
        },
    )
    sample_percent: int = option(
        100,
        "Read this share of the objects.",
        title="Sample, %",
        flag="--sample",
        metavar="PERCENT",
        least=1,
        most=100,
        form={"description": "The percentage of objects to read."},
    )
    seed: int = option(
        0,
        "Random seed of the sample.",
        title="Seed",
        flag="--seed",
        metavar="N",
        form={"description": "Another one chooses other objects."},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult(JobResult):
    """The findings; numbers as in `ObjectReport`. `leaked_objects` are unneeded and harmless;
    `strange_names` are not names that Lakehead gives. `invalid` batches are stored as they were
    produced, and cannot be read: they are not damage, and there may be more of them.
    """

    objects: int = total("objects")
    bytes: int = total("bytes")
    batches: int = total("batches")
    records: int = total("records")
    sequence_gaps: int = total("gaps in producers' sequences")
    leaked_objects: int = total("leaked objects")
    strange_names: int = total("strange names")
    invalid_batches: int = total("batches that cannot be read")
    invalid_times: int = total("batches with times out of range")
    damages: "tuple[Damage, ...]" = ()
    invalid: "tuple[InvalidBatch, ...]" = ()

    @classmethod
    def of(cls, report: "ObjectReport") -> "VerifyResult":
        """Return the result of one item."""
        found: dict[str, Any] = {one.name: getattr(report, one.name) for one in fields(report)}
        found |= {name: tuple(found[name]) for name in ("damages", "invalid")}
        return cls(**found)

    def plus(self, more: "VerifyResult") -> "VerifyResult":
        """Return the results of both, with damages and batches in the order of their places."""
        both = JobResult.plus(self, more)
        return replace(
            both,
            damages=tuple(sorted(both.damages, key=_order)),
            invalid=tuple(sorted(both.invalid, key=_order)),
        )

    def as_fields(self) -> Fields:
        """Return the result as XCom has it, with the first damages in words."""
        numbers = {one.name for one in fields(self)} - {"failures", "damages", "invalid"}
        found: Fields = {name: getattr(self, name) for name in numbers}
        damages = [
            f"{_place_words(one.place)}, object {one.object_key}: {one.what}; {one.to_do}"
            for one in self.damages[:LINES_MAX]
        ]
        invalid = [f"{_place_words(one.place)}: {one.reason}" for one in self.invalid[:LINES_MAX]]
        return found | {
            "damages": damages,
            "damages_count": len(self.damages),
            "invalid": invalid,
        }


def _place_words(place: "Place") -> str:
    return (
        f"topic {place.topic or '(none)'}, partition {place.partition}, offsets "
        f"{place.start_offset} to {place.end_offset - 1}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyItem:
    """Objects that one process reads, one after the other."""

    path: str
    objects: "tuple[ExpectedObject, ...]"

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(one.size for one in self.objects)


def _plan(context: JobContext, options: VerifyOptions) -> Planned:
    """Look at metadata and bucket; for a part of an earlier plan, at the metadata alone.

    Raises SettingsError, UnknownTopic, StoreUnavailable.
    """
    from lakehead.storage.garbage import check_leaks
    from lakehead.storage.jobs.cluster import in_cluster
    from lakehead.storage.verification import (
        SAMPLE_ALL,
        catalog_damages,
        expected_objects,
        missing_objects,
    )

    async def plan(store: "ObjectStore", log: "MetadataLog") -> Planned:
        if options.topic is not None and options.topic not in log.state.topics:
            raise UnknownTopic(f"topic {options.topic!r} does not exist in {store.uri}")
        leaks = None if context.is_part else await check_leaks(store, log)
        state = log.state
        wanted = expected_objects(
            state, topic=options.topic, sample_percent=options.sample_percent, seed=options.seed
        )
        if leaks is None:
            return Planned(units=_units(wanted))
        every = expected_objects(state, topic=options.topic, sample_percent=SAMPLE_ALL, seed=0)
        missing = frozenset(leaks.missing)
        found = VerifyResult(
            leaked_objects=len(leaks.leaked),
            strange_names=len(leaks.strange),
            damages=(*catalog_damages(state, options.topic), *missing_objects(every, missing)),
        )
        known = {"leaked_objects", "strange_names", "damages", "damages_count"}
        return Planned(
            units=_units([one for one in wanted if one.key not in missing]),
            fields={name: value for name, value in found.as_fields().items() if name in known},
            found=found,
        )

    return in_cluster(context.path, _WRITER, plan)


def _units(objects: "Sequence[ExpectedObject]") -> tuple[Unit, ...]:
    return tuple(Unit(key=one.key, size=one.size, item=one) for one in objects)


def items_of(path: str, units: Sequence[Unit]) -> tuple[VerifyItem, ...]:
    """Return the items of some units: many objects each."""
    held: dict[int, list[ExpectedObject]] = defaultdict(list)
    number = size = 0
    for unit in units:
        if held[number] and (size + unit.size > _ITEM_BYTES or len(held[number]) >= _ITEM_OBJECTS):
            number, size = number + 1, 0
        held[number].append(unit.item)
        size += unit.size
    return tuple(VerifyItem(path=path, objects=tuple(some)) for some in held.values() if some)


def verify_item(item: VerifyItem) -> VerifyResult:
    """Read the objects of an item. Raises StoreUnavailable."""
    # It takes seconds to load, which planning should not.
    from lakehead.storage.format.record_check import RecordChecker
    from lakehead.storage.jobs.cluster import in_cluster
    from lakehead.storage.verification import ObjectReport, verify_object

    async def work(store: "ObjectStore", log: "MetadataLog") -> VerifyResult:
        report, checker = ObjectReport(), RecordChecker()
        for one in item.objects:
            report.add(await verify_object(store, one, checker))
        if report.damages:
            state = await log.refresh(surely=True)
            report.damages = [one for one in report.damages if _is_referred_to(state, one)]
        return VerifyResult.of(report)

    return in_cluster(item.path, _WRITER, work)


def _is_referred_to(state: "MetadataImage", damage: "Damage") -> bool:
    """Return true if a stream refers to the object still: one that was replaced is not a damage."""
    stream = state.streams.get(damage.place.stream_id)
    return stream is not None and any(
        extent.object_key == damage.object_key for extent in stream.state_sources
    )


def _run(context: JobContext, _options: VerifyOptions, units: Sequence[Unit]) -> VerifyResult:
    return sum_results(
        context,
        verify_item,
        items_of(context.path, units),
        empty=VerifyResult(),
        size=lambda item: item.size,
    )


def _finish(found: Fields) -> None:
    if not (count := found.get("damages_count", 0)):
        return
    lines = found["damages"]
    more = f" (and {count - 1} more, see the log)" if count > 1 else ""
    raise DamageFound(f"damage was found: {lines[0]}{more}")


def _show_plan(planned: Planned) -> Report:
    return Report(
        fields={
            "objects to read": len(planned.units),
            "bytes to read": planned.size,
            "damages": len(planned.found.damages),
        }
    )


def _show(result: VerifyResult) -> Report:
    return Report(
        fields=result.labelled() | {"damages": len(result.damages)},
        tables=(
            Table(
                name="invalid batches",
                columns={**_PLACE, "reason": "CANNOT BE READ"},
                rows=[_where(one) | {"reason": one.reason} for one in result.invalid],
            ),
            Table(
                name="damages",
                columns={**_PLACE, "what": "WHAT", "to do": "TO DO"},
                rows=[
                    _where(one) | {"what": one.what, "to do": one.to_do} for one in result.damages
                ],
            ),
        ),
    )


def _order(found: "Damage | InvalidBatch") -> tuple[str, int, int]:
    place = found.place
    return place.topic, place.partition, place.start_offset


def _where(found: "Damage | InvalidBatch") -> dict[str, Any]:
    place = found.place
    return {
        "topic": place.topic or f"(stream {place.stream_id})",
        "partition": place.partition,
        "offsets": f"{place.start_offset} to {place.end_offset - 1}",
        "object": found.object_key,
    }


JOB = Job(
    name="verify",
    help="""Check all data and metadata. Status 1 on damage.

    Everything is read, and compared with its checksums and with the metadata.

    From the metadata log to each record batch: checksums, offsets without a gap, indexes, the
    states of partitions, objects that are missing. Writes nothing; the cluster may go on meanwhile.
    Batches that no reader can read as they were produced are listed apart; they are not damage.
    """,
    dry_run_help="Show how much there is to read, and read none of it.",
    options=VerifyOptions,
    plan=_plan,
    run=_run,
    finish=_finish,
    show_plan=_show_plan,
    show=_show,
    takes_processes=True,
)
