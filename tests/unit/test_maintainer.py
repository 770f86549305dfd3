"""The maintenance loop over jobs: its order, their intervals, and items that fail or wait."""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from lakehead.broker.maintenance import maintainer
from lakehead.broker.maintenance.maintainer import Maintainer
from lakehead.broker.settings import Settings
from lakehead.storage.errors import StoreUnavailable
from lakehead.storage.jobs import MAINTENANCE_JOBS
from lakehead.storage.jobs.job import DueItem, JobResult, Maintenance, OpenCluster, total
from lakehead.storage.maintenance.rules import DueWork
from lakehead.storage.object_store import MemoryStore
from tests.unit.test_garbage import SteppedClock, open_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(JobResult):
    """Items done, and those that wait."""

    items: int = total()
    waiting: int = total()


@dataclass(slots=True)
class Work:
    """An item for each due partition; the results that are not a plain one are in `outcomes`."""

    name: str
    done: list[str]
    outcomes: dict[str, Any] = field(default_factory=dict)

    async def run(self, _cluster: OpenCluster, item: str) -> Counted:
        self.done.append(f"{self.name} {item}")
        found: Any = self.outcomes.get(item, Counted(items=1))
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    def due(self, _cluster: OpenCluster, works: Sequence[DueWork]) -> Sequence[DueItem[str]]:
        return [
            DueItem(item="abc"[one.stream_id], fields={}, streams=(one.stream_id,)) for one in works
        ]

    def part(self, interval: str = "") -> Maintenance[str, Counted, Counted]:
        return Maintenance(
            due=self.due,
            run=self.run,
            result=lambda found: found,
            rows=lambda _items: [],
            empty=Counted(),
            figures={f"{self.name} items": "items"},
            failed_event="failed",
            is_waiting=lambda found: found.waiting > 0,
            interval=interval,
        )


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


Opened = Callable[[Mapping[str, Any]], Awaitable[Maintainer]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, clock: SteppedClock) -> Opened:
    """A maintainer of these parts, in a cluster in which three partitions are due."""
    works = [SimpleNamespace(stream_id=number) for number in range(3)]
    monkeypatch.setattr(maintainer, "due_in", lambda *_: works)

    async def made(parts: Mapping[str, Any]) -> Maintainer:
        monkeypatch.setattr(maintainer, "_parts", lambda: parts)
        store, settings = MemoryStore(), Settings(log_retention_check_interval_ms=5000)
        return Maintainer(store, await open_log(store), clock, random.Random(1), settings)

    return made


async def test_jobs_have_their_turns_in_order_at_their_intervals(
    opened: Opened, clock: SteppedClock
) -> None:
    done: list[str] = []
    rare, often = Work("rare", done), Work("often", done)
    interval = "log.retention.check.interval.ms"
    loop = await opened({"rare": rare.part(interval), "often": often.part()})
    await loop.turn()
    in_order = ["rare a", "rare b", "rare c", "often a", "often b", "often c"]
    assert done == in_order
    assert loop.figures.labelled() == {"rare items": 3, "often items": 3}
    clock.seconds += 4
    await loop.turn()
    assert done == [*in_order, *in_order[3:]]
    clock.seconds += 1
    await loop.turn()
    assert done == [*in_order, *in_order[3:], *in_order]
    assert loop.figures.labelled() == {"rare items": 6, "often items": 9}


async def test_what_fails_or_waits_is_left_alone_for_a_while_and_stops_no_others(
    opened: Opened, clock: SteppedClock
) -> None:
    done: list[str] = []
    outcomes = {"a": StoreUnavailable("gone"), "b": Counted(waiting=1)}
    loop = await opened({"one": Work("one", done, outcomes).part()})
    await loop.turn()
    assert done == ["one a", "one b", "one c"]
    assert (loop.figures.failures, loop.figures.labelled()) == (1, {"one items": 1})
    clock.seconds += 29
    await loop.turn()
    assert done[3:] == ["one c"]
    clock.seconds += 1
    await loop.turn()
    assert done[4:] == ["one a", "one b", "one c"]
    assert loop.figures.failures == 2


def test_every_job_of_maintenance_declares_a_part() -> None:
    assert tuple(maintainer._parts()) == MAINTENANCE_JOBS
    assert all(isinstance(one, Maintenance) for one in maintainer._parts().values())
