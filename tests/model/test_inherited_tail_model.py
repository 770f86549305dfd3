"""Promise: a stream that opens before the rest of its dead owner's log is uploaded loses nothing.

See docs/storage/recovery.md. Every state is visited: late entries, owners that die before the tails
of earlier ones are committed, nodes that come back. Then each rule is taken away in turn, and a
promise must break without it. The real rules go the same ways.
"""

import random
from collections.abc import Callable

import pytest

from tests.model.checker import explore, explore_stuck, walk
from tests.model.inherited_tail import Guards, InheritedTail, State
from tests.model.inherited_tail_twin import InheritedTailTwin

STATES_MAX = 200_000
WALKS = 300
TWO = InheritedTail(writes=(2, 1), crashes_max=1)
"""The dead owner writes two records, its successor one; each may start again."""
THREE = InheritedTail(writes=(1, 1, 0), crashes_max=1, starts_max=0)
"""Two nodes may recover the owner, and no process starts again."""
BROKEN = {
    "index_after_release": "no false alarm",
    "lock_first": "acknowledged is kept",
    "fenced_epoch": "acknowledged is kept",
    "proof_continues": "no false alarm",
    "open_after_proof": "acknowledged is kept",
    "begin_behind_tails": "acknowledged is kept",
    "prove_behind_tails": "no false alarm",
    "in_place": "acknowledged is kept",
    "own_tails_at_start": "acknowledged is kept",
    "trim_after_commit": "acknowledged is kept",
    "floor_after_tails": "acknowledged is kept",
}


@pytest.mark.parametrize(("model", "states"), [(TWO, 60_000), (THREE, 15_000)])
def test_tails_keep_their_promises_in_every_state(model: InheritedTail, states: int) -> None:
    found = explore(model, states_max=STATES_MAX)
    assert found.violation is None, str(found.violation)
    assert found.states > states


@pytest.mark.parametrize("guard", sorted(BROKEN))
def test_tails_break_without(guard: str) -> None:
    guards = Guards()._replace(**{guard: False})
    base = THREE if guard == "proof_continues" else TWO
    model = InheritedTail(
        guards=guards, writes=base.writes, crashes_max=1, starts_max=base.starts_max
    )
    found = explore(model, states_max=STATES_MAX)
    assert found.violation is not None, f"{guard} is for show"
    assert found.violation.invariant == BROKEN[guard], str(found.violation)


def test_each_rule_has_a_test_that_fails_without_it() -> None:
    assert BROKEN.keys() == set(Guards._fields)


def test_tails_are_committed_from_every_state() -> None:
    model = InheritedTail(writes=(1, 1), crashes_max=1)
    stuck = explore_stuck(
        model, states_max=STATES_MAX, is_good=model.is_settled, is_internal=is_internal
    )
    assert stuck is None


def is_internal(label: str) -> bool:
    """Return true for steps that need no producer and no failure."""
    return not any(word in label for word in ("fenced", "crashes", "writes", "acknowledges"))


class Search(InheritedTail):
    """Takes the state that is looked for as a violation."""

    __slots__ = ()

    @property
    def invariants(self) -> dict[str, Callable[[State], str | None]]:
        """See `Model`."""
        return {"found": lambda state: "two tails" if len(_owners(state)) > 1 else None}


def _owners(state: State) -> set[int]:
    return {tail.node for tail in state.tails}


def test_the_model_can_do_what_it_is_about() -> None:
    """Not safe because nothing happens: a second owner dies while the tail of the first is in no
    object, a proof lands after its node's end, a node commits its own tail when it is back.
    """
    searched = Search(writes=(1, 1, 0), crashes_max=1, starts_max=0)
    found = explore(searched, states_max=STATES_MAX)
    assert found.violation is not None
    rng = random.Random(1)
    seen = dict.fromkeys(("a proof of a dead node", "an own tail"), False)
    for _ in range(3000):
        for label, state in walk(TWO, rng, steps_max=60):
            if "an entry of 1 about 0" in label and state.processes[1].phase == "down":
                seen["a proof of a dead node"] = True
            if "a tail of its own" in label:
                seen["an own tail"] = True
    assert all(seen.values()), seen


@pytest.mark.parametrize("model", [TWO, THREE])
def test_the_real_rules_and_the_real_choice_of_records_agree_with_the_model(
    model: InheritedTail,
) -> None:
    """Along random walks, with late entries that are refused."""
    rng = random.Random(2)
    refused = tails = 0
    for _ in range(WALKS):
        twin, before = InheritedTailTwin(model), model.initial()
        for label, state in walk(model, rng, steps_max=60):
            twin.follow(label, before, state)
            twin.compare(state)
            twin.choose(state)
            before = state
            tails += bool(state.tails)
        refused += twin.refused
    assert min(refused, tails) > 30
