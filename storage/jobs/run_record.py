"""Records of runs: the work of a job, its place, its progress and its end, for other processes.

Objects below `runs/`, JSON, each written once::

    runs/<13 digits>-<16 hex>/<6 digits>.json

The first number is the time at which the run began, in milliseconds since the epoch; the second is
random; the last numbers the records of the run, of which the last one counts. A run leaves a record
at once, then every `INTERVAL_S`, and one at its end, and deletes those before. So a run has one or
two objects. The `RUNS_MAX` runs are kept whose last records are the newest.

The records are for people. No work rests on them: a run goes on if they cannot be written.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from lakehead.storage.errors import CorruptObject, ObjectNotFound
from lakehead.storage.object_store.protocol import ObjectMeta, ObjectStore
from lakehead.storage.tasks import for_each

PREFIX = "runs/"
INTERVAL_S = 10.0
"""Seconds between two records of a run."""
ABANDONED_MS = 60_000
"""A run whose last record is older has ended without one: its process was killed."""
RUNS_MAX = 200
TEXT_MAX = 400
RESULTS_MAX = 24
_READS_AT_ONCE = 16
_KEY = re.compile(rf"{PREFIX}(\d{{13}}-[0-9a-f]{{16}})/(\d{{6}})\.json")


class RunState(StrEnum):
    """The state of a run. Records have all but the last one, which their age makes."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"


class RunKey(NamedTuple):
    """The name of a record: its run, and its number among the records of that."""

    run: str
    number: int

    @property
    def key(self) -> str:
        """The key of its object."""
        return f"{PREFIX}{self.run}/{self.number:06d}.json"

    @classmethod
    def parse(cls, key: str) -> "RunKey | None":
        """Return the name that a key is, None for a key of another kind."""
        match = _KEY.fullmatch(key)
        return None if match is None else cls(match[1], int(match[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as of its last record. `holder` names the process or the task of Airflow that does the
    job, `doing` is the part that it is at. Totals are 0 while they are not known. `reason` is why a
    run failed, in a line; `result` has the figures of one that succeeded. Times are milliseconds
    since the epoch.
    """

    job: str
    holder: str
    started_ms: int
    updated_ms: int
    state: RunState = RunState.RUNNING
    doing: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    done_units: int = 0
    total_units: int = 0
    reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds from the beginning to the last record."""
        return max(self.updated_ms - self.started_ms, 0) / 1000

    @property
    def share(self) -> float | None:
        """The part that is done, from 0 to 1, by bytes if these are known, else by units; None
        while no total is known.
        """
        for done, total in (
            (self.done_bytes, self.total_bytes),
            (self.done_units, self.total_units),
        ):
            if total:
                return min(done / total, 1.0)
        return None

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes a second since the beginning; None where bytes are not known."""
        return self.done_bytes / self.seconds if self.done_bytes and self.seconds else None

    def at(self, now_ms: int) -> "Run":
        """Return the run as it is known at a time: abandoned, if records should have come."""
        is_late = now_ms - self.updated_ms > ABANDONED_MS
        if self.state is RunState.RUNNING and is_late:
            return replace(self, state=RunState.ABANDONED)
        return self

    def body(self) -> bytes:
        """Return the JSON of a record. A name that is not UTF-8 has question marks."""
        return json.dumps(asdict(self), ensure_ascii=False).encode(errors="replace")

    @classmethod
    def of(cls, key: str, body: bytes) -> "Run":
        """Return the run of a record. Fields that this release does not know are left out. Raises
        CorruptObject.
        """
        try:
            return msgspec.convert({"state": ""} | json.loads(body), cls)
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptObject(key, 0, str(error)) from None


def one_line(text: str, most: int = TEXT_MAX) -> str:
    """Return a text in one line of a bounded length."""
    words = " ".join(text.split())
    return words if len(words) <= most else f"{words[: most - 2]} …"


def plain_result(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures and short texts of a result."""
    plain = {
        name: one_line(value) if isinstance(value, str) else value
        for name, value in found.items()
        if isinstance(value, int | float | str) and value not in {"", None}
    }
    return dict(list(plain.items())[:RESULTS_MAX])


def newest_of(objects: Iterable[ObjectMeta]) -> dict[str, RunKey]:
    """Return the last record of each run, the run whose last record is the newest first: one that
    began long ago and still goes on is among the first.
    """
    newest: dict[str, tuple[int, RunKey]] = {}
    for one in objects:
        name = RunKey.parse(one.key)
        if name is not None and (name.run not in newest or name > newest[name.run][1]):
            newest[name.run] = one.modified_ms, name
    in_order = sorted(newest.values(), reverse=True)
    return {name.run: name for _, name in in_order}


def outdated(objects: Sequence[ObjectMeta]) -> list[str]:
    """Return the keys of the records that are to be deleted: those of runs beyond the newest
    `RUNS_MAX`, and of the others those before the last one.
    """
    kept = {one.key for one in list(newest_of(objects).values())[:RUNS_MAX]}
    keys = [one.key for one in objects]
    return [key for key in keys if RunKey.parse(key) is not None and key not in kept]


class RunRecords:
    """Reads the runs of a cluster. A record never changes, so each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: OrderedDict[str, Run | None] = OrderedDict()

    async def newest(self, count: int, now_ms: int) -> list[Run]:
        """Return the runs whose last records are the newest, in that order. Raises
        StoreUnavailable.
        """
        listed = await self._store.list(PREFIX)
        wanted = [one.key for one in list(newest_of(listed).values())[:count]]
        unknown = [key for key in wanted if key not in self._known]
        await for_each(unknown, self._read, at_once=_READS_AT_ONCE)
        found = [run for key in wanted if (run := self._known.get(key)) is not None]
        while len(self._known) > 2 * RUNS_MAX:
            self._known.popitem(last=False)
        return [run.at(now_ms) for run in found]

    async def _read(self, key: str) -> None:
        try:
            self._known[key] = Run.of(key, await self._store.get(key))
        except ObjectNotFound:
            pass  # a later one has taken its place, and the next look finds it
        except CorruptObject:
            self._known[key] = None
