"""Jobs of storage and lake by name, imported when they run, and chunks of a job's plan for XCom.

The driver of a Spark application imports this module, and may not have Airflow: nothing here needs
it. A chunk is a range of digests of keys, bounded in number and size of its units. The task that
gets a chunk plans again, and takes the units whose keys are in it: a unit that is done by then is
not planned any more, and most new units are left to the next run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakehead.lake.jobs import LAKE_JOBS
from lakehead.storage.jobs import FORMER_JOBS, STORAGE_JOBS
from lakehead.storage.jobs.job import Unit, in_bytes

if TYPE_CHECKING:
    from lakehead.storage.jobs.job import Job


MAX_TASKS = 64
_LABEL_MAX = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The units with digests from `first` to `last`, as many and as large as they were planned."""

    first: str
    last: str
    units: int
    size: int
    label: str

    def to_json(self) -> dict[str, Any]:
        """Return what goes through XCom: some hundred bytes."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "Chunk":
        """Return what `to_json` gave. Raises SettingsError for anything else."""
        from lakehead.storage.errors import SettingsError

        try:
            return cls(**{name: value[name] for name in cls.__slots__})
        except (KeyError, TypeError):
            raise SettingsError(
                "item is not from a LakeheadPlanOperator: use expand(item=plan.output)"
            ) from None

    def has(self, key: str) -> bool:
        """Return true if a unit with this key is in it."""
        return self.first <= digest(key) <= self.last


def digest(key: str) -> str:
    """Return the digest of a key; all have one length, so they are in order as texts."""
    return blake2b(key.encode(), digest_size=8).hexdigest()


def cut(units: Sequence[Unit], count_max: int = MAX_TASKS) -> tuple[Chunk, ...]:
    """Return at most `count_max` chunks, each unit in one of them: one each where there are no
    more, or else of about the same size in bytes. In the order of their labels.
    """
    in_order = sorted(((digest(unit.key), unit) for unit in units), key=lambda pair: pair[0])
    if len({place for place, _ in in_order}) <= count_max:
        least = 0
    else:
        least = -(-sum(_weight(unit) for unit in units) // count_max)
    groups = list(_grouped(in_order, least))
    chunks = [_chunk(group, f"{n} of {len(groups)}") for n, group in enumerate(groups, 1)]
    return tuple(sorted(chunks, key=lambda one: one.label))


def _weight(unit: Unit) -> int:
    return max(unit.size, 1)


def _grouped(
    in_order: Sequence[tuple[str, Unit]], least: int
) -> Iterator[Sequence[tuple[str, Unit]]]:
    """Yield runs of units, each of `least` bytes but the last; the same digest is never in two."""
    held: list[tuple[str, Unit]] = []
    size = 0
    for place, unit in in_order:
        if held and size >= least and held[-1][0] != place:
            yield held
            held, size = [], 0
        held.append((place, unit))
        size += _weight(unit)
    if held:
        yield held


def _chunk(group: Sequence[tuple[str, Unit]], place: str) -> Chunk:
    units = [unit for _, unit in group]
    size = sum(unit.size for unit in units)
    label = units[0].words or units[0].key
    if len(units) > 1:
        label = f"part {place}: {len(units)} units, {in_bytes(size)}"
    return Chunk(
        first=group[0][0], last=group[-1][0], units=len(units), size=size, label=label[:_LABEL_MAX]
    )


_PLACES = {
    **{name: f"lakehead.storage.jobs.{name}:JOB" for name in STORAGE_JOBS},
    **LAKE_JOBS,
}

JOB_NAMES = tuple(sorted(_PLACES))
"""Values of an operator's `job`."""


def checked_job(name: str) -> str:
    """Return the name of a job, given by that of today or of the release before. Raises ValueError,
    which Airflow shows as an import error.
    """
    name = FORMER_JOBS.get(name, name)
    if name not in _PLACES:
        raise ValueError(f"job is {name!r}: use one of {', '.join(JOB_NAMES)}")
    return name


def job_named(name: str) -> "Job[Any, Any]":
    """Import a job."""
    module, _, attribute = _PLACES[name].partition(":")
    found: Job[Any, Any] = getattr(import_module(module), attribute)
    return found
