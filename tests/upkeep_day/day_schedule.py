"""A day of schedules: each DAG of dags/ that has one is run at its times, in compressed time, as
Airflow's scheduler does: one run at a time, none made up for, tasks tried again after a pause.

Tasks are processes of a fork server; some are killed.
"""

import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lakehead.storage.failpoints import KILLED
from tests.kills.kill_campaign import places
from tests.upkeep_day.dag_tasks import (
    AGAIN,
    BROKEN,
    DONE,
    FINAL,
    SKIPPED,
    TaskOrder,
    dags,
    run_task,
)

KILLED_AFTER_S = 5.0
"""Airflow kills a task by signal 9 so long after it has asked it to end."""
TOGETHER = 3
"""Tasks at once: Airflow's pool."""
KILLED_SHARES = {"plan": 0.15, "work": 0.5, "summary": 0.15}
"""So many of all tries are given a moment or a place to die at; but no last one, so that each run
ends as Airflow's retries have it. Work is hit most: most of it is over before its moment comes.
"""
_STATUSES = {AGAIN: "failed", FINAL: "failed for good", SKIPPED: "skipped"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DayClock:
    """The day's time: `scale` seconds of it in one of ours. `begun`: monotonic, at midnight."""

    scale: float
    hours: float
    begun: float

    def now_s(self) -> float:
        """Seconds since midnight."""
        return (time.monotonic() - self.begun) * self.scale


@dataclass(slots=True)
class DayTally:
    """What was run, by DAG and by task; for several threads, under `lock`."""

    ticks: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    failed_runs: Counter[str] = field(default_factory=Counter)
    tries: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


def times_of(cron: str) -> Iterator[float]:
    """Yield the times of a schedule, in seconds since midnight of a Monday."""
    from airflow.sdk.timezone import coerce_datetime
    from airflow.timetables.trigger import CronTriggerTimetable

    timetable = CronTriggerTimetable(cron, timezone="UTC")
    midnight = last = coerce_datetime(datetime(2026, 1, 5, tzinfo=UTC))
    while True:
        last = timetable._get_next(last)
        yield (last - midnight).total_seconds()


class DaySchedule:
    """Runs the DAGs until the day is over. `folder` gets the tasks' log."""

    def __init__(
        self, folder: Path, seed: int, *, scale: float, hours: float, lease_s: float
    ) -> None:
        self.tally = DayTally()
        self.clock = DayClock(scale=scale, hours=hours, begun=0.0)
        self._log = str(folder / "tasks.log")
        self._seed = seed
        self._lease_s = lease_s
        self._slots = threading.Semaphore(TOGETHER)
        self._places = places()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.upkeep_day.day_imports"])
        self._failure: BaseException | None = None

    def begin(self) -> None:
        """Have the tasks' imports done, and begin the day."""
        self.finish("lakehead_apply_retention")
        self.tally = DayTally()
        self.clock = replace(self.clock, begun=time.monotonic())

    def run(self) -> None:
        """Run the day. Raises what a DAG's thread died of."""
        scheduled = [dag for dag in dags().values() if isinstance(dag.schedule, str)]
        threads = [threading.Thread(target=self._look_after, args=(dag,)) for dag in scheduled]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def finish(self, dag_id: str) -> None:
        """Run a DAG once more, in peace."""
        assert self._run_dag(dags()[dag_id], None), f"{dag_id}: {self.tally.said}"

    def _look_after(self, dag: Any) -> None:
        rng = random.Random(f"{self._seed}/{dag.dag_id}")
        times = times_of(dag.schedule)
        try:
            while True:
                due_s = next(times)
                if due_s >= self.clock.hours * 3600:
                    return
                self.tally.ticks[dag.dag_id] += 1
                if due_s < self.clock.now_s() - 60:
                    continue  # a run took longer than the time between two: there is none for it
                time.sleep(max(0.0, due_s - self.clock.now_s()) / self.clock.scale)
                self.tally.runs[dag.dag_id] += 1
                if not self._run_dag(dag, rng):
                    self.tally.failed_runs[dag.dag_id] += 1
        except BaseException as error:  # raised by `run`
            self._failure = error

    def _run_dag(self, dag: Any, rng: random.Random | None) -> bool:
        """Plan, then work on what was planned; whether no task failed for good. Summaries touch no
        cluster and are left out.
        """
        groups = sorted(task_id[:-5] for task_id in dag.task_ids if task_id.endswith(".plan"))
        done = [self._run_group(dag, group, rng) for group in groups]
        return all(done)

    def _run_group(self, dag: Any, group: str, rng: random.Random | None) -> bool:
        is_done, items = self._run_task(dag, group, "plan", None, rng)
        if not is_done:
            return False
        with ThreadPoolExecutor(TOGETHER) as pool:
            seeds = [None if rng is None else random.Random(rng.random()) for _ in items]
            done = pool.map(
                lambda item, own: self._run_task(dag, group, "work", item, own)[0], items, seeds
            )
            return all(list(done))

    def _run_task(
        self, dag: Any, group: str, part: str, item: Any, rng: random.Random | None
    ) -> tuple[bool, Sequence[Any]]:
        """Try a task until it is done, or as often as the DAG says. What a plan returned."""
        task_id = f"{group}.{part}"
        task = dag.get_task(task_id)
        for number in range(task.retries + 1):
            if number:
                time.sleep(task.retry_delay.total_seconds() * 2 ** (number - 1) / self.clock.scale)
            fate = rng if number < task.retries else None
            name = f"{dag.dag_id} {task_id}"
            order = TaskOrder(
                dag.dag_id,
                task_id,
                item,
                self._failpoint(group, part, fate),
                self._lease_s,
                self._log,
            )
            with self._slots:
                status, said = self._try(order, fate)
            with self.tally.lock:
                self.tally.tries[name] += 1
                self._note(name, status, said)
            if status in {DONE, SKIPPED}:
                return True, said if part == "plan" else ()
            if status == FINAL:
                break
        return False, ()

    def _failpoint(self, group: str, part: str, rng: random.Random | None) -> str:
        if rng is None or part == "plan" or rng.random() >= KILLED_SHARES[part] / 2:
            return ""
        names = self._places.get(group.replace("_", "-"), ["metadata_entry_put"])
        return f"{rng.choice(names)}:{rng.choice([1, 1, 2, 3])}"

    def _try(self, order: TaskOrder, rng: random.Random | None) -> tuple[int, Any]:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=run_task, args=(order, theirs), daemon=True)
        process.start()
        theirs.close()
        share = KILLED_SHARES[order.task_id.rpartition(".")[2]]
        is_killed = rng is not None and rng.random() < share / 2
        if rng is not None and is_killed:
            process.join(rng.uniform(0.02, 0.6))
            if rng.random() < 0.5:
                process.terminate()
                process.join(KILLED_AFTER_S)
            process.kill()
        try:
            status, said = ours.recv()
        except EOFError:
            status = KILLED if is_killed or order.failpoint else BROKEN
            said = "it ended and said nothing"
        process.join()
        ours.close()
        return status, said

    def _note(self, name: str, status: int, said: Any) -> None:
        if status == KILLED:
            self.tally.kills[name] += 1
        elif status == BROKEN:
            self.tally.broken[f"{name}: {said}"[-3000:]] += 1
        elif status != DONE:
            self.tally.said[f"{name} {_STATUSES[status]}: {said}"[:300]] += 1
