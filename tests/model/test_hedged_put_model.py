"""Promise: two puts of one name and the same bytes are as safe as one, whatever comes between them.

Every state is visited: a late winner, a seal between the two, a deleted object that a late put
makes again. Then each rule is taken away in turn, and a promise must break without it.
"""

import random

import pytest

from tests.model.checker import explore, explore_stuck, walk
from tests.model.hedged_put import ENDED, Guards, HedgedPuts, State

STATES_MAX = 200_000
BROKEN = {
    "same_bytes": "one content per name",
    "read_back": "acknowledged is recovered",
    "in_sequence": "acknowledged is recovered",
    "delete_waits": "known outcomes leave nothing",
    "seals_stay": "one content per name",
    "sweep_below_floor": "one content per name",
}
"""Without a sweep no promise breaks, but garbage stays: see the test of that."""


def is_internal(label: str) -> bool:
    """Return true for steps that happen without a decision of a node."""
    return label.startswith("sweeps") or label.endswith("lands")


def test_hedged_puts_keep_their_promises_in_every_state() -> None:
    found = explore(HedgedPuts(), states_max=STATES_MAX)
    assert found.violation is None, str(found.violation)
    assert found.states > 100_000


@pytest.mark.parametrize("guard", sorted(BROKEN))
def test_hedged_puts_break_without(guard: str) -> None:
    found = explore(HedgedPuts(Guards()._replace(**{guard: False})), states_max=STATES_MAX)
    assert found.violation is not None, f"{guard} is for show"
    assert found.violation.invariant == BROKEN[guard], str(found.violation)


def test_each_rule_has_a_test_that_fails_without_it() -> None:
    assert {*BROKEN, "sweeps"} == set(Guards._fields)


def test_an_object_that_a_late_put_made_again_is_swept_from_every_state() -> None:
    model = HedgedPuts(records=1)
    stuck = explore_stuck(
        model, states_max=STATES_MAX, is_good=model.is_clean, is_internal=is_internal
    )
    assert stuck is None, stuck
    without = HedgedPuts(Guards(sweeps=False), records=1)
    stuck = explore_stuck(
        without, states_max=STATES_MAX, is_good=without.is_clean, is_internal=is_internal
    )
    assert stuck is not None, "the sweep is for show"


def test_the_model_can_do_what_it_is_about() -> None:
    """Not safe because nothing happens."""
    rng = random.Random(1)
    seen = dict.fromkeys(
        (
            "a hedge wins",
            "a hedge finds the first try's object",
            "a late put makes a deleted object again",
            "a put finds a seal",
            "the writer goes on to acknowledge after it was fenced",
        ),
        False,
    )
    for _ in range(3000):
        before = HedgedPuts().initial()
        for label, after in walk(HedgedPuts(), rng, steps_max=40):
            for what in _seen(label, before, after):
                seen[what] = True
            before = after
    assert all(seen.values()), seen


def _seen(label: str, before: State, after: State) -> list[str]:
    found = []
    added = after.store - before.store
    if label.startswith("hedge") and label.endswith("lands"):
        if added and not before.acked:
            found.append("a hedge wins")
        if any(hedge.state == "taken" for _, hedge in after.tries) and not added:
            found.append("a hedge finds the first try's object")
    if label.endswith("lands") and added & before.made:
        found.append("a late put makes a deleted object again")
    if after.writer == "stopped":
        found.append("a put finds a seal")
    if after.acked > before.acked and after.floor == ENDED:
        found.append("the writer goes on to acknowledge after it was fenced")
    return found
