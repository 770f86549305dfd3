"""Records of the runs that tasks do, in the cluster's store: consoles of nodes show them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from lakehead.storage.clock import SystemClock
from lakehead.storage.jobs.run_recorder import RunRecorder, recorded
from lakehead.storage.object_store import open_retrying_store

_RECORDED_FROM_S = 1.0
"""A task that is done sooner leaves no record, unless it fails."""


@contextmanager
def recorded_task(what: str, store: str, task: str, *, is_dry_run: bool) -> Iterator[RunRecorder]:
    """Record what a task does to the cluster in a store, while the block runs; a dry run leaves no
    record.
    """
    clock, rng = SystemClock(), random.SystemRandom()
    if is_dry_run:
        yield RunRecorder(what, task, clock, rng)
        return
    with recorded(
        partial(open_retrying_store, store, rng=rng),
        what.replace("_", "-"),
        clock=clock,
        rng=rng,
        holder=f"Airflow, {task}",
        first_s=_RECORDED_FROM_S,
    ) as recorder:
        yield recorder
