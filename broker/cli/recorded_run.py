"""A run of this process, with records of its progress in the store of the cluster."""

import random
from contextlib import AbstractContextManager
from functools import partial

from lakehead.broker.cli.cluster import open_at
from lakehead.storage.clock import SystemClock
from lakehead.storage.jobs.run_recorder import RunRecorder, recorded


def recorded_run(
    job: str, store: str, *, first_s: float = 0.0
) -> AbstractContextManager[RunRecorder]:
    """Record a run of this process in the store of a cluster, a URI
    (`lakehead.storage.jobs.run_recorder.recorded`).
    """
    rng = random.SystemRandom()
    return recorded(partial(open_at, store), job, clock=SystemClock(), rng=rng, first_s=first_s)
