"""A small explicit-state model checker: breadth first, so that a counterexample is a shortest one.

A model gives its first state, the labelled steps that are possible in a state, and its invariants:
functions that return what is broken, or None. States are values (hashable, compared by what they
hold); two ways to one state are one state.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)
M = TypeVar("M", bound=Hashable)


class Model(Protocol[M]):
    """What `explore` needs of a model."""

    @property
    def invariants(self) -> Mapping[str, Callable[[M], str | None]]:
        """By name; each returns what is broken in a state."""

    def initial(self) -> M:
        """Return the state that everything begins with."""

    def steps(self, state: M) -> Iterable[tuple[str, M]]:
        """Return what may happen next: labels and the states they lead to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation(Generic[S]):
    """An invariant, what breaks it, and the shortest way there."""

    invariant: str
    reason: str
    trace: tuple[str, ...]
    state: S

    def __str__(self) -> str:
        lines = [f"{self.invariant}: {self.reason}, after"]
        lines += [f"  {number:2}. {label}" for number, label in enumerate(self.trace, 1)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration(Generic[S]):
    """What an exploration has found. `depth` in steps."""

    states: int
    steps: int
    depth: int
    violation: Violation[S] | None


class TooManyStates(Exception):
    """The model is larger than it was said to be."""


def explore(model: Model[S], *, states_max: int) -> Exploration[S]:
    """Visit every state that can be reached, until one breaks an invariant."""
    first = model.initial()
    parents: dict[S, tuple[S, str] | None] = {first: None}
    depths = {first: 0}
    queue = deque([first])
    steps = depth = 0
    while queue:
        state = queue.popleft()
        depth = depths[state]
        for name, invariant in model.invariants.items():
            reason = invariant(state)
            if reason is not None:
                violation = Violation(
                    invariant=name, reason=reason, trace=_way_to(state, parents), state=state
                )
                return Exploration(
                    states=len(parents), steps=steps, depth=depth, violation=violation
                )
        for label, following in model.steps(state):
            steps += 1
            if following not in parents:
                parents[following] = (state, label)
                depths[following] = depth + 1
                queue.append(following)
        if len(parents) > states_max:
            raise TooManyStates(f"more than {states_max}")
    return Exploration(states=len(parents), steps=steps, depth=depth, violation=None)


def explore_stuck(
    model: Model[S],
    *,
    states_max: int,
    is_good: Callable[[S], bool],
    is_internal: Callable[[str], bool],
) -> S | None:
    """Return a state from which no internal steps lead to a good one; the nearest to the first.

    Internal are the steps that a model takes by itself, when nobody outside does anything any more.
    """
    first = model.initial()
    order = {first: None}
    before: dict[S, list[S]] = {}
    queue = deque([first])
    good: list[S] = []
    while queue:
        state = queue.popleft()
        if is_good(state):
            good.append(state)
        for label, following in model.steps(state):
            if is_internal(label):
                before.setdefault(following, []).append(state)
            if following not in order:
                order[following] = None
                queue.append(following)
        if len(order) > states_max:
            raise TooManyStates(f"more than {states_max}")
    reached = set(good)
    while good:
        for previous in before.get(good.pop(), ()):
            if previous not in reached:
                reached.add(previous)
                good.append(previous)
    return next((state for state in order if state not in reached), None)


def walk(model: Model[S], rng: random.Random, *, steps_max: int) -> list[tuple[str, S]]:
    """Take random steps from the first state, until none is possible; return them."""
    state = model.initial()
    taken: list[tuple[str, S]] = []
    while len(taken) < steps_max:
        possible = list(model.steps(state))
        if not possible:
            break
        label, state = rng.choice(possible)
        taken.append((label, state))
    return taken


def _way_to(state: S, parents: Mapping[S, tuple[S, str] | None]) -> tuple[str, ...]:
    trace: list[str] = []
    step = parents[state]
    while step is not None:
        state, label = step
        trace.append(label)
        step = parents[state]
    return tuple(reversed(trace))
