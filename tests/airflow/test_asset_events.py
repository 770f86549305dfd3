"""Events of a table's asset against the table's history: each commit is in one event, whatever
tasks, tries, failures, watchers and runs outside of Airflow come in between.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest
from immutables import Map

from lakehead.connectors.airflow.asset_events import (
    EventVersions,
    TaskKey,
    event_extras,
    flat_extra,
    nested_extra,
)
from lakehead.connectors.airflow.triggers import ClusterLook
from lakehead.lake.tables.table_history import Change, TableCommit, commits_since
from lakehead.storage.jobs.job import TableChange
from lakehead.storage.metadata.state import MetadataImage, StreamState, TableState, TopicState
from lakehead.storage.metadata.table import Table
from tests.support.airflow_model import AirflowModel, Task

pytestmark = [
    pytest.mark.xdist_group("airflow"),
    pytest.mark.filterwarnings("ignore:Using `httpx` with"),  # of a library of Airflow's
]

ASSET = "lakehead://lakehead_default/tables/orders"
_KINDS = ("materialize", "materialize", "backfill", "replay", "rebuild_table", "")


class History:
    """A table of which only the history is there; the handle is delta-rs's to those who read it."""

    def __init__(self) -> None:
        self.count = 0
        self.entries: list[dict[str, Any]] = []
        self.uri = "memory"
        self.first, self.end = 1000, 1000
        self._append({})

    @property
    def handle(self) -> "History":
        return self

    @property
    def version(self) -> int:
        return len(self.entries) - 1

    def history(self, limit: int) -> list[dict[str, Any]]:
        return self.entries[::-1][:limit]

    def commit(self, kind: str, written_by: str) -> None:
        """Commit three rows; without a kind, what brings none, such as OPTIMIZE."""
        offsets: dict[int, tuple[int, int]] = {}
        if kind == "materialize":
            offsets = {0: (self.end, self.end + 3)}
            self.end += 3
        elif kind == "backfill":
            offsets = {0: (self.first - 3, self.first)}
            self.first -= 3
        elif kind == "rebuild_table":
            offsets = {0: (self.first, self.end)}
        commit_info: dict[str, str] = {}
        if kind:
            change: Any = Change(kind=kind, offsets=offsets, rows=3, written_by=written_by)  # type: ignore[arg-type]
            commit_info = change.commit_info()
        self._append(commit_info)

    def make_again(self) -> None:
        """Have another table in its place, of no versions but the first."""
        self.entries = []
        self.first, self.end = 1000, 1000
        self._append({})

    def _append(self, commit_info: dict[str, str]) -> None:
        self.count += 1
        number = len(self.entries)
        self.entries.append({"version": number, "timestamp": 7000 + self.count, **commit_info})

    def commits(self) -> list[TableCommit]:
        return commits_since(self, -1)  # type: ignore[arg-type]


def check_extra(extra: dict[str, Any], commits: dict[int, TableCommit]) -> list[int]:
    """Check that an event names what its versions brought, and return these."""
    versions = [v for first, end in extra["versions"] for v in range(first, end)]
    brought = [commits[version].change for version in versions]
    assert {change.kind for change in brought} == {extra["kind"]}
    assert extra["rows"] == sum(change.rows for change in brought)
    wanted = Counter(
        o for change in brought for range_ in change.offsets.values() for o in range(*range_)
    )
    named = [o for first, end in extra["offsets"].values() for o in range(first, end)]
    assert Counter(named) == wanted
    assert extra["records"] == len(named)
    return versions


def key_of(context: dict[str, Any]) -> str:
    """The name of a task, as its commits have it."""
    ti = context["ti"]
    return TaskKey(ti.dag_id, ti.run_id, ti.task_id, ti.map_index).text()


class Tasks:
    """Tasks of one table that begin, commit, fail, are tried again and end, in any order; and while
    one of them reads from Airflow which events it has, others go on. The table has a watcher, too,
    whose triggerers die.
    """

    def __init__(self, patch: pytest.MonkeyPatch, seed: int) -> None:
        self.rng = random.Random(seed)
        self.table = History()
        self.airflow = AirflowModel().answers(patch)
        self.running: list[dict[str, Any]] = []
        self.waiting: list[Task] = []
        self.late: list[str] = []
        self.count = 0
        self.depth = 0
        self.watcher = WatchingTable(patch, self.rng, self.table)
        self.watcher.between = self._others
        self.airflow.between = self._others
        # Of a table with many events, a look at the newest does not reach back to each commit.
        read_at_once = self.rng.choice([2, 200])
        patch.setattr("lakehead.connectors.airflow.table_changes._EVENTS_MAX", read_at_once)

    def _others(self) -> None:
        """What other processes do while one waits for Airflow's response."""
        if self.depth < 2 and self.rng.random() < 0.7:
            self.depth += 1
            self.rng.choice(
                [
                    *(self.commit, self.fail, self.succeed, self.retry),
                    *(self.commit_outside, self.commit_late, self.watch),
                ]
            )()
            self.depth -= 1

    def _taken(self) -> dict[str, Any] | None:
        return self.running.pop(self.rng.randrange(len(self.running))) if self.running else None

    def begin(self) -> None:
        self.count += 1
        task = Task(dag_id="d", run_id=f"r{self.count}", task_id="work", map_index=self.count % 2)
        self.running.append(self.airflow.begin(task))

    def commit(self) -> None:
        if self.running:
            self.table.commit(self.rng.choice(_KINDS), key_of(self.rng.choice(self.running)))

    def commit_outside(self) -> None:
        self.table.commit(self.rng.choice(_KINDS), "")

    def commit_late(self) -> None:
        """Commit by a process whose try Airflow took for dead, when the task's last try is over."""
        if self.late and self.airflow.extras(ASSET):
            self.table.commit(self.rng.choice(_KINDS), self.rng.choice(self.late))

    def watch(self) -> None:
        """Have the watcher look, or its triggerer die; not while it looks."""
        if not self.watcher.is_looking:
            self.watcher.step()

    def fail(self) -> None:
        if (context := self._taken()) is not None:
            state = self.rng.choice(["failed", "skipped", "up_for_retry"])
            if self.rng.random() < 0.3:
                self._add_events(context)  # Airflow drops them
            self.airflow.end(context, state)
            if state == "up_for_retry":
                self.waiting.append(context["ti"])

    def retry(self) -> None:
        if self.waiting:
            task = self.waiting.pop(self.rng.randrange(len(self.waiting)))
            self.running.append(self.airflow.begin(task))

    def succeed(self) -> None:
        if (context := self._taken()) is not None:
            self._add_events(context)
            self._others()
            self.airflow.end(context)
            self._check()
            self.late.append(key_of(context))

    def _add_events(self, context: dict[str, Any]) -> None:
        from lakehead.connectors.airflow.table_changes import add_events

        add_events(context, "lakehead_default", TableChange(topic="orders", uri="memory"))

    def _check(self) -> list[int]:
        commits = {one.version: one for one in self.table.commits()}
        told = [v for extra in self.airflow.extras(ASSET) for v in check_extra(extra, commits)]
        assert len(set(told)) == len(told), f"told twice: {told}"
        return told

    def walk(self, steps: int) -> None:
        """Do so many steps; then have all come to an end, and one more commit: nothing is left."""
        ways = [self.begin, self.commit, self.commit, self.commit_outside, self.commit_late]
        ways += [self.fail, self.retry, self.succeed, self.watch]
        for _ in range(steps):
            self.rng.choice(ways)()
        self.depth = 2
        for _ in range(len(self.waiting)):
            self.retry()
        while self.running:
            self.succeed()
        self.begin()
        self.table.commit("materialize", key_of(self.running[0]))
        self.succeed()
        told = self._check()
        commits = self.table.commits()
        of_tasks = [one.version for one in commits if one.change.written_by]
        # Before the first commit of a task the asset had no events to go on from.
        assert set(told) == {one.version for one in commits if one.version >= of_tasks[0]}
        self.watcher.finish()


class Turn(Awaitable[None]):
    """Gives the turn back to the one that drives a coroutine."""

    def __await__(self) -> Generator[None]:
        yield


class Looks:
    """The looks of a triggerer, one after the other."""

    def __init__(self) -> None:
        self.seen: deque[ClusterLook] = deque()

    def __aiter__(self) -> "Looks":
        return self

    async def __anext__(self) -> ClusterLook:
        while not self.seen:
            await Turn()
        return self.seen.popleft()


class AssetState:
    """What Airflow keeps of an asset for its watcher."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    async def aget(self, key: str) -> Any:
        return self.values.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = value


class Watching(ABC):
    """A watcher, by triggerers of which one after the other dies. Airflow stores each event as soon
    as it is fired.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.records = rng.choice([1, 1, 7])
        self.kept = AssetState()
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.deaths, self.may_die, self.is_looking = 0, True, False
        self.between: Callable[[], None] = lambda: None
        self.start()
        self.look()  # from here on it is watched
        self.look()  # and this is kept

    @abstractmethod
    def trigger(self) -> Any:
        """The trigger, as a triggerer gets it."""

    @abstractmethod
    def seen(self) -> Any:
        """The metadata that a look sees."""

    @abstractmethod
    def grow(self) -> None:
        """Add records."""

    @abstractmethod
    def make_again(self) -> None:
        """Put another one in the place of what is watched."""

    @abstractmethod
    def check(self) -> None:
        """Hold the events against what came."""

    def start(self) -> None:
        """Begin as another triggerer, with what Airflow has kept."""
        trigger = self.trigger()
        trigger.asset_state_store = self.kept
        self.looks = Looks()
        self.fired = trigger.filter_shared_stream(self.looks)
        self.next = self.fired.__anext__()

    def die(self) -> None:
        """End the triggerer, at whatever point it is."""
        self.deaths += 1
        self.start()

    def step(self) -> None:
        """Have the triggerer look once, or die."""
        self.rng.choice([self.look, self.look, self.look, self.die])()

    def look(self) -> None:
        """Have the triggerer look once; it may die after any event that it fires."""
        self.is_looking = True
        try:
            self._look()
        finally:
            self.is_looking = False

    def _look(self) -> None:
        self.looks.seen.append(ClusterLook(self.seen(), 0))
        while True:
            try:
                self.next.send(None)
            except StopIteration as fired:
                self.events.append((self.deaths, fired.value.payload))
                if self.may_die and self.rng.random() < 0.1:
                    self.die()
                    return
                self.next = self.fired.__anext__()
            else:
                return

    def walk(self, steps: int) -> None:
        """Take steps in any order; then look until there is no more to fire."""
        for _ in range(steps):
            if self.rng.random() < 0.5:
                self.grow()
            elif self.rng.random() < 0.05:
                self.make_again()
            else:
                self.step()
        self.finish()

    def finish(self) -> None:
        """Look until there is no more to fire, and check the events."""
        self.between, self.may_die = (lambda: None), False
        self.look()
        self.check()


def topic(topic_id: str) -> TopicState:
    table = Map({"lakehead.table.enable": "true"})
    return TopicState(name="orders", topic_id=topic_id, partitions=(0, 1), configs=table)


class WatchingTable(Watching):
    """A watcher of a table. What others do while it reads the table, `between` does."""

    def __init__(
        self, patch: pytest.MonkeyPatch, rng: random.Random, table: History | None = None
    ) -> None:
        async def work_done(_conn_id: str, work: Callable[[str], Any]) -> Any:
            self.between()
            done = work("/store")
            self.between()
            return done

        self.table = History() if table is None else table
        patch.setattr("lakehead.connectors.airflow.triggers.in_environment", work_done)
        patch.setattr("lakehead.lake.tables.delta_table.open_table", lambda _uri: self.table)
        super().__init__(rng)
        self.begun_at = self.table.version

    def trigger(self) -> Any:
        from lakehead.connectors.airflow.triggers import TableGrowthTrigger

        return TableGrowthTrigger("lakehead_default", "orders", self.records)

    def seen(self) -> Any:
        # The lease is taken and given back around each commit.
        known = TableState(term=self.table.count, until_ms=self.rng.choice([0, 5]))
        return SimpleNamespace(topics={"orders": topic("t")}, tables={"t": known})

    def grow(self) -> None:
        self.table.commit(self.rng.choice(_KINDS), "")

    def make_again(self) -> None:
        """It has about as many versions at the next look."""
        versions = self.table.version
        self.table.make_again()
        for _ in range(versions + self.rng.randrange(-1, 3)):
            self.grow()
        self.begun_at = 0

    def check(self) -> None:
        """Each commit since the watch began is in an event, but for a rest that is too small; of
        one triggerer's events in one alone.
        """
        commits = {one.version: one for one in self.table.commits()}
        current = {one["timestamp"] for one in self.table.entries}
        of_table = [(life, one) for life, one in self.events if one["at_ms"] in current]
        found = Counter((life, v) for life, one in of_table for v in check_extra(one, commits))
        assert set(found.values()) <= {1}
        versions = {version for _, version in found}
        left = [one for one in commits.values() if one.version > self.begun_at]
        left = [one for one in left if one.version not in versions]
        size = sum(max(one.change.rows, *_sizes(one)) for one in left)
        assert size < self.records, f"in no event: {left}"


class WatchingTopic(Watching):
    """A watcher of a topic."""

    def __init__(self, rng: random.Random) -> None:
        self.ends, self.topics = [5, 0], 1
        super().__init__(rng)
        self.begun_at = list(self.ends)

    def trigger(self) -> Any:
        from lakehead.connectors.airflow.triggers import GrowthTrigger

        return GrowthTrigger("lakehead_default", "orders", self.records)

    def seen(self) -> Any:
        watched = topic(f"t{self.topics}")
        streams = (
            StreamState(
                stream_id=number, topic_id=watched.topic_id, partition=number, end_offset=end
            )
            for number, end in enumerate(self.ends)
        )
        known: Table[int, StreamState] = Table()
        return MetadataImage(
            topics=Map({"orders": watched}),
            streams=known.update((stream.stream_id, stream) for stream in streams),
        )

    def grow(self) -> None:
        self.ends[self.rng.randrange(2)] += self.rng.randrange(1, 4)

    def make_again(self) -> None:
        """It has about as many records at the next look, and each topic's are watched or none."""
        self.topics += 1
        self.ends = [max(0, end + self.rng.randrange(-1, 3)) for end in self.ends]
        self.events, self.begun_at = [], [0, 0]

    def check(self) -> None:
        """Each record since the watch began is in an event, but for a rest that is too small; of
        one triggerer's events in one alone.
        """
        found = Counter(
            (life, int(partition), offset)
            for life, one in self.events
            for partition, (first, end) in one["offsets"].items()
            for offset in range(first, end)
        )
        assert set(found.values()) <= {1}
        offsets = {(partition, offset) for _, partition, offset in found}
        came = {
            (partition, offset)
            for partition in range(2)
            for offset in range(self.begun_at[partition], self.ends[partition])
        }
        assert offsets <= came
        assert len(came - offsets) < self.records, f"in no event: {came - offsets}"


def _sizes(commit: TableCommit) -> tuple[int, int]:
    return 0, sum(end - first for first, end in commit.change.offsets.values())


def test_a_watcher_fires_for_each_commit_whatever_triggerer_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(60):
        try:
            WatchingTable(monkeypatch, random.Random(seed)).walk(40)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_a_watcher_fires_for_each_record_whatever_triggerer_dies() -> None:
    for seed in range(200):
        try:
            WatchingTopic(random.Random(seed)).walk(40)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_each_commit_is_in_one_event_of_the_tables_asset(monkeypatch: pytest.MonkeyPatch) -> None:
    walk_all(monkeypatch, range(250))


@pytest.mark.slow
def test_each_commit_is_in_one_event_in_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    walk_all(monkeypatch, range(1000, 6000))


def walk_all(patch: pytest.MonkeyPatch, seeds: range) -> None:
    for seed in seeds:
        try:
            Tasks(patch, seed).walk(40)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_an_event_without_lists_and_maps_says_the_same() -> None:
    """Airflow before 3.1.3 hashes the values of an event that an alias brings."""
    change = Change(kind="materialize", offsets={0: (5, 9), 1: (0, 2)}, rows=6)
    commits = [TableCommit(version=version, at_ms=7, change=change) for version in (3, 5)]
    (extra, _) = event_extras("orders", commits, told_below=2)
    flat = flat_extra(extra)
    assert frozenset(flat.items())
    assert nested_extra(flat) == nested_extra(extra) == extra
    assert EventVersions.of_extra(flat) == EventVersions.of_extra(extra)
    assert EventVersions.of_extra(flat) is not None
    assert EventVersions.of_extra(flat | {"versions": "[["}) is None
    assert nested_extra({"offsets": [1]}) == {"offsets": [1]}
