"""Promise: the protocols of takeover and of the metadata log's boundary are safe, and no rule of
theirs is for show.

Every state that a small cluster can reach is visited. Then each rule is taken away in turn, and the
checker must find the shortest way to break a promise without it.
"""

import random

import pytest

from tests.model import boundary, takeover
from tests.model.boundary import Boundary
from tests.model.checker import Exploration, Model, TooManyStates, explore, walk
from tests.model.takeover import Takeover

STATES_MAX = 200_000
CLUSTERS = [(2, 2), (1, 1, 0)]
"""Records that each incarnation of the node writes: two that write; one, its heir and its heir."""


@pytest.mark.parametrize("records", CLUSTERS)
def test_takeover_keeps_its_promises_in_every_state(records: tuple[int, ...]) -> None:
    found = explore(Takeover(records=records), states_max=STATES_MAX)
    assert found.violation is None, str(found.violation)
    assert found.states > 20_000
    assert found.depth > 35


def test_the_boundary_keeps_its_promises_in_every_state() -> None:
    found = explore(Boundary(), states_max=STATES_MAX)
    assert found.violation is None, str(found.violation)
    assert found.states > 5_000


BROKEN = {
    "ack_only_what_exists": "acknowledged is recovered",
    "ack_in_sequence": "acknowledged is recovered",
    "read_back": "acknowledged is recovered",
    "seal": "acknowledged is recovered",
    "include_what_won": "acknowledged is recovered",
    "tombstones_stay": "acknowledged is recovered",
    "walk_from_floor": "acknowledged is recovered",
    "register_first": "acknowledged is recovered",
    "put_if_absent": "one entry per number",
    "entry_read_back": "acknowledged is recovered",
    "epoch_check": "what is committed exists",
    "continuity_check": "one value per offset",
    "object_first": "what is committed exists",
    "trim_after_commit": "acknowledged is recovered",
    "sweep_below_floor": "what is committed exists",
    "sweep_unreferenced": "what is committed exists",
    "sweep_superseded": "what is committed exists",
}


@pytest.mark.parametrize("guard", takeover.Guards._fields)
def test_takeover_breaks_without(guard: str) -> None:
    guards = takeover.Guards()._replace(**{guard: False})
    found = explore(Takeover(guards), states_max=STATES_MAX)
    assert found.violation is not None, f"{guard} is for show"
    assert found.violation.invariant == BROKEN[guard], str(found.violation)
    print(found.violation)


@pytest.mark.parametrize("guard", boundary.Guards._fields)
def test_the_boundary_breaks_without(guard: str) -> None:
    guards = boundary.Guards()._replace(**{guard: False})
    found = explore(Boundary(guards), states_max=STATES_MAX)
    assert found.violation is not None, f"{guard} is for show"
    print(found.violation)


def test_a_counterexample_is_a_shortest_way_and_can_be_read() -> None:
    guards = takeover.Guards(read_back=False)
    found = explore(Takeover(guards), states_max=STATES_MAX)
    assert found.violation is not None
    assert len(found.violation.trace) == found.depth == 12
    text = str(found.violation)
    assert text.startswith(
        "acknowledged is recovered: 1.0 was acknowledged at offset 0 and is lost"
    )
    assert "2: seals at wal/1/0" in text
    assert "1: acknowledges 0" in text


def test_the_model_can_do_what_it_is_about() -> None:
    """Not safe because nothing happens: every kind of step is taken, and records are recovered."""
    rng = random.Random(1)
    model: Model[takeover.State] = Takeover(records=(2, 2))
    labels: set[str] = set()
    recovered = 0
    for _ in range(300):
        steps = walk(model, rng, steps_max=80)
        labels |= {label.rstrip("0123456789/") for label, _ in steps}
        recovered = max(recovered, len(takeover.Takeover().view(steps[-1][1].log).committed))
    assert recovered == 2
    for kind in ("is fenced at", "seals at", "lost number", "trims", "sweeps", "uploads"):
        assert any(kind in label for label in labels), kind


class Counter:
    """Counts up to a limit, two ways; for the checker's own tests."""

    def __init__(self, limit: int, bad: int) -> None:
        self.limit = limit
        self.invariants = {"not bad": lambda state: "bad" if state == bad else None}

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> list[tuple[str, int]]:
        return [(f"+{n}", state + n) for n in (1, 3) if state + n <= self.limit]


def test_the_checker_finds_the_shortest_way() -> None:
    found: Exploration[int] = explore(Counter(100, bad=7), states_max=1000)
    assert found.violation is not None
    assert sorted(found.violation.trace) == ["+1", "+3", "+3"]


def test_the_checker_visits_each_state_once_and_says_when_there_are_too_many() -> None:
    found: Exploration[int] = explore(Counter(100, bad=-1), states_max=1000)
    assert (found.states, found.steps, found.violation) == (101, 198, None)
    with pytest.raises(TooManyStates):
        explore(Counter(100, bad=-1), states_max=50)
