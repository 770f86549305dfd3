"""Which faults happen when: drawn from a seed alone, so that a run can be had again.

Time is cut into windows. A quarter of them is quiet; in the others one or more targets (a node, the
store) each have one fault, which ends with its window at the latest.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

QUIET = 0.25
WINDOW_S = (4.0, 11.0)
SHORTEST_S = 0.5
WHOLE = 0.5
"""The share of faults that last to the end of their window: longer than a session, mostly."""
HOW_MANY = (60, 30, 8, 2)
"""Weights of one, two, three, four targets at once."""

PROCESS = ("killed", "paused", "stopped")
NETWORK = ("isolated", "no peers", "deaf to peers", "no clients", "lossy")
NO_STORE = ("no store",)
CLOCK = ("clock ahead", "clock behind")
STORE = ("slow", "throttled", "failing", "answers lost", "gone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. Times are seconds since the run began; `node` is -1 for the store."""

    kind: str
    node: int
    begins: float
    ends: float

    @property
    def target(self) -> str:
        """Whom it hits, for people."""
        return "store" if self.node < 0 else f"node {self.node}"


def plan(seed: int, seconds: float, kinds: Mapping[int, Sequence[str]]) -> tuple[Fault, ...]:
    """Faults in the order of their beginnings; `kinds` has those of each node, -1 is the store."""
    rng = random.Random(seed)
    targets = [target for target in kinds if kinds[target]]
    faults: list[Fault] = []
    start = 0.0
    while start < seconds:
        end = start + rng.uniform(*WINDOW_S)
        if rng.random() >= QUIET:
            [count] = rng.choices(range(1, len(HOW_MANY) + 1), HOW_MANY)
            for target in rng.sample(targets, min(count, len(targets))):
                begins = rng.uniform(start, (3 * start + end) / 4)
                ends = end if rng.random() < WHOLE else rng.uniform(begins + SHORTEST_S, end)
                kind = rng.choice(kinds[target])
                faults.append(Fault(kind=kind, node=target, begins=begins, ends=ends))
        start = end
    return tuple(sorted((f for f in faults if f.ends < seconds), key=lambda f: f.begins))
