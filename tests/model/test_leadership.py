"""Promise: leadership of a stream moves safely and never gets stuck, whatever the controller does;
and a leader that was fenced answers no read once its session is over.

Every state that a small cluster can reach is visited. Then each rule is taken away in turn, and the
checker must find how a promise is broken or the stream is stuck. Last, the rules of the real
metadata log judge random walks through the model as the model does.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.model import reassignment_state, session
from tests.model.checker import Model, explore, explore_stuck, walk
from tests.model.metadata_twin import MetadataTwin
from tests.model.reassignment import CONTROLLER, Reassignment
from tests.model.session import Session

STATES_MAX = 100_000
RESTART = {"incarnations": (2, 1), "epochs": 2, "mortals": (0,)}
TWO_NODES = {"incarnations": (1, 1), "epochs": 3}
CLUSTERS = {
    "two nodes, three epochs": TWO_NODES,
    "two records": {"incarnations": (1, 1), "epochs": 2, "records": 2},
    "a node that is restarted": RESTART,
    "its taker is fenced": {"incarnations": (2, 1), "epochs": 2, "mortals": (1,)},
    "two takers": {"incarnations": (1, 1, 1), "epochs": 2, "mortals": (0,)},
    "nobody dies": {"incarnations": (1, 1), "epochs": 3, "mortals": ()},
    "two controllers": {"incarnations": (1, 1), "epochs": 2, "terms": 1},
}


def cluster(name: str, guards: reassignment_state.Guards = reassignment_state.ALL) -> Reassignment:
    return Reassignment(guards, **CLUSTERS[name])  # type: ignore[arg-type]


def stuck(model: Reassignment) -> reassignment_state.State | None:
    return explore_stuck(
        model,
        states_max=STATES_MAX,
        is_good=lambda state: model.is_served(state) or model.is_excused(state),
        is_internal=lambda label: not label.startswith(CONTROLLER),
    )


@pytest.mark.parametrize("name", CLUSTERS)
def test_leadership_moves_safely_in_every_state(name: str) -> None:
    found = explore(cluster(name), states_max=STATES_MAX)
    assert found.violation is None, str(found.violation)
    assert found.states > 500


@pytest.mark.parametrize("name", ["two nodes, three epochs", "a node that is restarted"])
def test_the_assigned_node_can_always_come_to_lead(name: str) -> None:
    """From every state, without a further word of the controller."""
    assert stuck(cluster(name)) is None


BROKEN = {
    "stop_first": ("two nodes, three epochs", "acknowledged is kept"),
    "drain_first": ("two nodes, three epochs", "acknowledged is kept"),
    "upload_first": ("two nodes, three epochs", "acknowledged is kept"),
    "owner_recovered": ("two nodes, three epochs", "acknowledged is kept"),
    "recover_before_open": ("a node that is restarted", "acknowledged is kept"),
    "seal_first": ("two nodes, three epochs", "acknowledged is kept"),
    "one_entry": ("two nodes, three epochs", "acknowledged is kept"),
    "continuity_checked": ("two nodes, three epochs", "one value per offset"),
    "assigned_checked": ("two nodes, three epochs", "the assigned node leads"),
    "term_checked": ("two controllers", "one controller"),
}
STUCK = {
    "fence_first": "nobody dies",
    "hand_over_ends": "two nodes, three epochs",
    "inherited_is_closed": "a node that is restarted",
}


def test_every_guard_is_tried() -> None:
    assert {*BROKEN, *STUCK} == set(reassignment_state.Guards._fields)


@pytest.mark.parametrize("guard", BROKEN)
def test_leadership_breaks_without(guard: str) -> None:
    name, invariant = BROKEN[guard]
    guards = reassignment_state.ALL._replace(**{guard: False})
    found = explore(cluster(name, guards), states_max=STATES_MAX)
    assert found.violation is not None, f"{guard} is for show"
    assert found.violation.invariant == invariant, str(found.violation)
    print(found.violation)


@pytest.mark.parametrize("guard", STUCK)
def test_leadership_is_stuck_without(guard: str) -> None:
    guards = reassignment_state.ALL._replace(**{guard: False})
    assert stuck(cluster(STUCK[guard], guards)) is not None, f"{guard} is for show"


# ----------------------------------------------------------------- sessions

CHAIN = Session()
"""Node 0 hears from 1, which hears from 2, which alone reaches the log."""
PAIR = Session(lines=((0, 1), (1, 0)), readers=(1,))
"""Two nodes that hear from each other, of which one reaches the log."""
AGREED = Session(lines=((0, 1),), readers=(1,), agrees=True)
"""Node 0 hears from 1, which reaches the log at times."""
RETURNED = Session(lines=((0, 1),), readers=(2,), agrees=True)
"""It does not hear from 2, which was fenced and may be back."""


@pytest.mark.parametrize("model", [CHAIN, PAIR], ids=["chain", "pair"])
def test_no_read_is_answered_a_session_after_the_fencing(model: Session) -> None:
    found = explore(model, states_max=STATES_MAX)
    assert found.violation is None, str(found.violation)
    assert found.states > 1_000


AGREEMENT = {
    "from_the_attempt": AGREED,
    "agreed_since": AGREED,
    "every_node_agrees": RETURNED,
    "knows_no_more": AGREED,
}


@pytest.mark.parametrize("model", [AGREED, RETURNED], ids=["agreed", "returned"])
def test_no_read_is_answered_a_session_after_another_node_knows_of_the_fencing(
    model: Session,
) -> None:
    """With the third proof. Before another node knows of the fencing, none leads in its place."""
    found = explore(model, states_max=STATES_MAX)
    assert found.violation is None, str(found.violation)
    assert found.states > 1_000


@pytest.mark.parametrize("guard", session.Guards._fields)
def test_a_fenced_leader_answers_reads_without(guard: str) -> None:
    guards = session.ALL._replace(**{guard: False})
    model = replace(AGREEMENT.get(guard, CHAIN), guards=guards)
    found = explore(model, states_max=STATES_MAX)
    assert found.violation is not None, f"{guard} is for show"
    print(found.violation)


class Serving(NamedTuple):
    """The chain, with what must be possible for an invariant."""

    initial: Callable[[], session.State] = CHAIN.initial
    steps: Callable[[session.State], Iterable[tuple[str, session.State]]] = CHAIN.steps
    is_found: Callable[[session.State], bool] = lambda s: s.nodes[0].proof < session.SESSION

    @property
    def invariants(self) -> dict[str, Callable[[session.State], str | None]]:
        return {"serves": lambda s: "it does" if self.is_found(s) else None}


def test_a_leader_serves_by_the_word_of_others() -> None:
    """Not safe because nothing happens."""
    found = explore(Serving(), states_max=STATES_MAX)
    assert found.violation is not None
    assert "1 has 2's answer" in found.violation.trace


def test_a_fencing_that_no_node_knows_of_may_last() -> None:
    """A node may answer reads for longer than a session after it: see docs/cluster.md."""
    served = Serving(
        AGREED.initial,
        AGREED.steps,
        lambda state: state.fenced == session.SESSION and state.agreement < session.SESSION,
    )
    found = explore(served, states_max=STATES_MAX)
    assert found.violation is not None
    assert "0's reading of the log fails" in found.violation.trace


# ----------------------------------------------------------------- the real rules


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_real_rules_judge_as_the_model_does(name: str) -> None:
    rng = random.Random(name)
    model: Reassignment = cluster(name)
    typed: Model[reassignment_state.State] = model
    labels: set[str] = set()
    for _ in range(60):
        twin = MetadataTwin(model)
        before = model.initial()
        for label, after in walk(typed, rng, steps_max=60):
            twin.probe(before)
            twin.follow(label, before, after)
            twin.compare(after.view)
            labels.add(label.split(" ", 1)[1])
            before = after
    words = {"opens under epoch 1", "closes"}
    if cluster(name).mortals:
        words.add("commits what 0 left")
    assert words <= labels
