"""Events of a table's asset against the table's history: each commit is in one event, whatever
tasks, tries, failures, watchers and runs outside of Airflow come in between.
"""

import random
from collections import Counter
from typing import Any

import pytest

from connectors.airflow.jobs.frame import TableChange
from connectors.airflow.untold_commits import TaskKey
from lake.tables.table_history import Change, TableCommit, commits_since
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
        self.entries: list[dict[str, Any]] = [{"version": 0, "timestamp": 0}]
        self.uri = "memory"
        self.first, self.end = 1000, 1000

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
        notes: dict[str, str] = {}
        if kind:
            change: Any = Change(kind=kind, offsets=offsets, rows=3, written_by=written_by)  # type: ignore[arg-type]
            notes = change.notes()
        number = len(self.entries)
        self.entries.append({"version": number, "timestamp": 7000 + number, **notes})

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


class Tasks:
    """Tasks of one table that begin, commit, fail, are tried again and end, in any order; and while
    one of them asks Airflow what was told, others go on.
    """

    def __init__(self, patch: pytest.MonkeyPatch, seed: int) -> None:
        self.rng = random.Random(seed)
        self.table = History()
        self.airflow = AirflowModel().answers(patch)
        self.running: list[dict[str, Any]] = []
        self.waiting: list[Task] = []
        self.count = 0
        self.depth = 0
        self.airflow.between = self._others
        patch.setattr("lake.tables.delta_table.open_table", lambda _uri: self.table)

    def _others(self) -> None:
        """What other processes do while one waits for Airflow's response."""
        if self.depth < 2 and self.rng.random() < 0.7:
            self.depth += 1
            self.rng.choice(
                [self.commit, self.fail, self.succeed, self.commit_outside, self.retry]
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
            ti = self.rng.choice(self.running)["ti"]
            key = TaskKey(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
            self.table.commit(self.rng.choice(_KINDS), key.text())

    def commit_outside(self) -> None:
        self.table.commit(self.rng.choice(_KINDS), "")

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

    def _add_events(self, context: dict[str, Any]) -> None:
        from connectors.airflow.table_changes import add_events

        add_events(context, "lakehead_default", TableChange(topic="orders", uri="memory"))

    def _check(self) -> list[int]:
        commits = {one.version: one for one in self.table.commits()}
        told = [v for extra in self.airflow.extras(ASSET) for v in check_extra(extra, commits)]
        assert len(set(told)) == len(told), f"told twice: {told}"
        return told

    def walk(self, steps: int) -> None:
        """Do so many steps; then have all come to an end, and one more commit: nothing is left."""
        ways = [self.begin, self.commit, self.commit, self.commit_outside]
        ways += [self.fail, self.retry, self.succeed]
        for _ in range(steps):
            self.rng.choice(ways)()
        self.depth = 2
        for _ in range(len(self.waiting)):
            self.retry()
        while self.running:
            self.succeed()
        self.begin()
        key = self.running[0]["ti"]
        text = TaskKey(key.dag_id, key.run_id, key.task_id, key.map_index).text()
        self.table.commit("materialize", text)
        self.succeed()
        told = self._check()
        commits = self.table.commits()
        of_tasks = [one.version for one in commits if one.change.written_by]
        # Before the first commit of a task the asset had no events to go on from.
        assert set(told) == {one.version for one in commits if one.version >= of_tasks[0]}


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
