"""Events of assets: their extras, and the commits that a task's events stand for. Pure.

Every commit names in the table's history the task that made it, and every event names the versions
that it stands for. Airflow stores a task's events together with its success, both or neither. So a
task that has ended without an event of a commit leaves it to the task that commits next, and a task
that is still at work, or will be tried again, keeps its own. A task that has succeeded may leave a
commit too: a try that Airflow took for dead, as after the end of its scheduler, may commit when
another try has succeeded. Two tasks of one table therefore never make an event of the same commit,
whichever ends first.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from lakehead.lake.tables.table_history import TableCommit


def growth(
    topic: str, before: Mapping[str, int], after: Sequence[int] | Mapping[str, int]
) -> dict[str, Any]:
    """Return what an event says of a topic, or table, that grew from end offsets to others;
    partitions that did not grow are left out, and a partition that is new began at 0.
    """
    if not isinstance(after, Mapping):
        after = {str(partition): offset for partition, offset in enumerate(after)}
    grown = {
        partition: (before.get(partition, 0), end)
        for partition, end in after.items()
        if end > before.get(partition, 0)
    }
    return events_extra(topic, grown)


def events_extra(topic: str, ranges: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """Return what an event says: ranges of offsets, by partition."""
    return {
        "topic": topic,
        "offsets": {partition: [first, end] for partition, (first, end) in ranges.items()},
        "records": sum(end - first for first, end in ranges.values()),
    }


def flat_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an event says with JSON in place of lists and maps, which Airflow before 3.1.3
    cannot store for an alias (apache/airflow#56882).
    """
    return {
        name: json.dumps(value) if isinstance(value, (dict, list)) else value
        for name, value in extra.items()
    }


def nested_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `flat_extra` was made from, and another extra as it is. Raises ValueError."""
    texts = {name: extra[name] for name in _NESTED if isinstance(extra.get(name), str)}
    return {**extra, **{name: json.loads(text) for name, text in texts.items()}}


_NESTED = ("offsets", "versions")

Maker = Literal["own", "at_work", "succeeded", "ended", "unknown"]
"""The run that made a commit, to the task that looks: itself (any try of it), a task that may still
make the event, one that has succeeded or ended otherwise, or a run that this Airflow does not know.
"""


class TaskKey(NamedTuple):
    """A task instance, whatever the try."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    def text(self) -> str:
        """Return it as commits name it."""
        return f"airflow {json.dumps(list(self))}"

    @classmethod
    def of_text(cls, text: str) -> "TaskKey | None":
        """Return the task that a commit names; None if it names none."""
        kind, _, rest = text.partition(" ")
        if kind != "airflow":
            return None
        try:
            dag_id, run_id, task_id, map_index = json.loads(rest)
        except ValueError:
            return None
        return cls(dag_id, run_id, task_id, map_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventVersions:
    """The versions [first, end) that an event stands for, and the time of the last one's commit,
    milliseconds: a table that was made again has other commits under these numbers. All versions
    below `told_below` are in events, or were before the first.
    """

    ranges: tuple[tuple[int, int], ...]
    at_ms: int
    told_below: int

    @property
    def last(self) -> int:
        """The newest version."""
        return max(end for _, end in self.ranges) - 1

    @classmethod
    def of_extra(cls, extra: Mapping[str, Any]) -> "EventVersions | None":
        """Return what an event's extra says; None for an event of another program."""
        try:
            extra = nested_extra(extra)
            return cls(
                ranges=tuple((int(first), int(end)) for first, end in extra["versions"]),
                at_ms=int(extra["at_ms"]),
                told_below=int(extra["told_below"]),
            )
        except (KeyError, TypeError, ValueError):
            return None


class StoredEvents:
    """The newest events of a table's asset, as far as they are of this table: `at_ms` is when the
    versions of its history were committed.
    """

    def __init__(self, events: Iterable[EventVersions], at_ms: Mapping[int, int]) -> None:
        valid = [one for one in events if _is_of(one, at_ms)]
        ranges = (range_ for one in valid for range_ in one.ranges)
        self._versions = {version for first, end in ranges for version in range(first, end)}
        self.has_begun = bool(valid)
        self.below = max((one.told_below for one in valid), default=0)

    def has(self, version: int) -> bool:
        """Return whether a version is in an event, or was before the first."""
        return version < self.below or version in self._versions


def first_version(events: Iterable[EventVersions], newest: int) -> int:
    """Return the version from which the history of a table at version `newest` is to be read."""
    below = max(((one.told_below, one.last) for one in events if one.last <= newest), default=(0,))
    return min(below)


def _is_of(event: EventVersions, at_ms: Mapping[int, int]) -> bool:
    """Return whether an event is of the table that has these commits, not of one that it took the
    place of. Commits that the log does not have any more do not matter.
    """
    if event.last in at_ms:
        return at_ms[event.last] == event.at_ms
    return bool(at_ms) and event.last < min(at_ms)


class Share(NamedTuple):
    """The commits that a task's events are to stand for, the oldest first, and the version below
    which all are in events once these are stored.
    """

    commits: "list[TableCommit]"
    told_below: int


def share_of(
    commits: Sequence["TableCommit"], stored: StoredEvents, maker_of: Callable[[str], Maker]
) -> Share:
    """Return the share of the task that is `own` to `maker_of`: its own commits, and those before
    them that no other task makes an event of. Without an event to go on from, they begin with the
    first commit of a task that has not succeeded. `commits` are the oldest first, up to the newest;
    `stored` has the events that were stored by the time that `maker_of` knows of.
    """
    has_begun = stored.has_begun
    found: list[TableCommit] = []
    left: list[TableCommit] = []  # without an event yet
    open_: list[int] = []
    for commit in commits:
        if stored.has(commit.version):
            continue
        maker = maker_of(commit.change.written_by)
        has_begun = has_begun or maker not in {"succeeded", "unknown"}
        if not has_begun:
            continue
        left.append(commit)
        if maker == "at_work":
            open_ += [one.version for one in left]  # it takes them with its own
            left = []
        elif maker == "own":
            found += left
            left = []
    end = commits[-1].version + 1 if commits else 0
    return Share(found, min([*open_, *(one.version for one in left), end]))


def event_extras(
    topic: str, commits: Sequence["TableCommit"], *, told_below: int
) -> list[dict[str, Any]]:
    """Return the extra of each event that stands for these commits, the oldest first: one for as
    many of the same job as have one range of offsets in each partition. A rebuild has its own.
    """
    groups: list[list[TableCommit]] = []
    offsets: dict[int, tuple[int, int]] = {}
    for commit in commits:
        joined = _joined(offsets, commit.change.offsets)
        kind = commit.change.kind
        if groups and joined is not None and kind == groups[-1][-1].change.kind != "rebuild_table":
            groups[-1].append(commit)
            offsets = joined
        else:
            groups.append([commit])
            offsets = dict(commit.change.offsets)
    return [_extra(topic, group) | {"told_below": told_below} for group in groups]


def _joined(
    held: Mapping[int, tuple[int, int]], more: Mapping[int, tuple[int, int]]
) -> dict[int, tuple[int, int]] | None:
    """Both ranges of each partition as one; None where they do not meet."""
    joined = dict(held)
    for partition, (first, end) in more.items():
        if partition not in held:
            joined[partition] = (first, end)
        elif held[partition][1] == first:
            joined[partition] = (held[partition][0], end)
        elif end == held[partition][0]:
            joined[partition] = (first, held[partition][1])
        else:
            return None
    return joined


def _extra(topic: str, group: Sequence["TableCommit"]) -> dict[str, Any]:

    offsets: dict[int, tuple[int, int]] = {}
    versions: list[list[int]] = []
    for commit in group:
        offsets = _joined(offsets, commit.change.offsets) or offsets
        if versions and versions[-1][1] == commit.version:
            versions[-1][1] += 1
        else:
            versions.append([commit.version, commit.version + 1])
    extra = events_extra(topic, {str(partition): offsets[partition] for partition in offsets})
    return extra | {
        "kind": group[0].change.kind,
        "rows": sum(commit.change.rows for commit in group),
        "versions": versions,
        "at_ms": group[-1].at_ms,
    }
