"""A model of hedged puts: two tries of each number of an object WAL, and all that may come between.

A writer puts its records, each by one try or two, and a look with the second. A request lands
once, late perhaps, also after its sender gave it up; its response comes later still, or not at all.
Meanwhile the writer acknowledges in sequence, commits what it acknowledged elsewhere, which moves
the floor, and deletes below it. Another node may fence it at any moment, seal the log, commit its
objects in place, replace them later, and sweep. So a late try may find its name taken by the other
one or by a seal, or free again: the object was deleted, and the try makes it once more.

`Guards` are the rules that make it safe. With any one of them off, some promise breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

SEAL = "seal"
ENDED = 99
"""The floor once another epoch has begun: above all numbers."""


class Guards(NamedTuple):
    """Rules that keep the implementation safe; a test turns each off in turn."""

    same_bytes: bool = True
    """A hedge carries the bytes of the first try."""
    read_back: bool = True
    """A try that finds its name taken counts only if the object is the writer's."""
    in_sequence: bool = True
    """A record is acknowledged after all before it, whichever try was quicker."""
    delete_waits: bool = True
    """An object is deleted after the outcome of its tries is known, or was given up."""
    seals_stay: bool = True
    """A sweep leaves seals alone."""
    sweep_below_floor: bool = True
    """A sweep takes objects below the floor only."""
    sweeps: bool = True
    """A sweep takes an object that a late try has made again."""


ALL = Guards()


class Try(NamedTuple):
    """One request. `state`: unsent, flying, done or taken (its response is on its way), lost (its
    sender has given it up, and it may still land), over.
    """

    state: str = "unsent"

    @property
    def is_known_to_fly(self) -> bool:
        """Return true if its sender still waits for it."""
        return self.state in {"flying", "done", "taken"}


class State(NamedTuple):
    """Everything. By number: tries, whether the writer knows its object to be there."""

    tries: tuple[tuple[Try, Try], ...]
    known: frozenset[int] = frozenset()
    acked: frozenset[int] = frozenset()
    store: frozenset[tuple[int, str]] = frozenset()
    made: frozenset[tuple[int, str]] = frozenset()
    """Every content that a name has had."""
    floor: int = 0
    uploaded: int = 0
    """Numbers below are committed elsewhere, and the writer knows it."""
    trimmed: int = 0
    committed: tuple[str, ...] = ()
    """The records, by offset, that committed objects hold."""
    referenced: frozenset[int] = frozenset()
    """Objects of the log that were committed in place."""
    writer: str = "serving"
    taker: str = "away"
    """away -> sealing -> serving."""
    gave_up: bool = False
    """A try was given up: its outcome may stay unknown for ever."""


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class HedgedPuts:
    """The model; see the module's docstring."""

    guards: Guards = ALL
    records: int = 2

    @property
    def invariants(self) -> dict[str, Callable[[State], str | None]]:
        """See `Model`."""
        return {
            "acknowledged is recovered": self._lost,
            "one content per name": self._torn,
            "each record once": self._twice,
            "what is committed exists": self._dangling,
            "known outcomes leave nothing": self._left,
        }

    def initial(self) -> State:
        """See `Model`."""
        return State(tries=((Try(), Try()),) * self.records)

    def steps(self, state: State) -> Iterator[Step]:
        """See `Model`."""
        for number in range(self.records):
            for which in (0, 1):
                yield from self._network(state, number, which)
        if state.writer == "serving":
            yield from self._put(state)
            yield from self._acknowledge(state)
            yield from self._trim(state)
        yield from self._take_over(state)
        yield from self._sweep(state)

    # ------------------------------------------------------------- the store

    def _network(self, state: State, number: int, which: int) -> Iterator[Step]:
        found = state.tries[number][which].state
        name = f"{'hedge' if which else 'try'} of {number}"
        if found in {"flying", "lost"}:
            body = f"r{number}" + ("*" if which and not self.guards.same_bytes else "")
            there = dict(state.store).get(number)
            after = "over" if found == "lost" else "done" if there is None else "taken"
            landed = _with(state, number, which, after)
            if there is None:
                landed = landed._replace(
                    store=state.store | {(number, body)}, made=state.made | {(number, body)}
                )
            yield f"{name} lands", landed
        if state.writer != "serving":
            return
        if found == "flying":
            gone = _with(state, number, which, "lost")._replace(gave_up=True)
            yield f"{name} is given up", gone
        elif found in {"done", "taken"}:
            gone = _with(state, number, which, "over")._replace(gave_up=True)
            yield f"the response to {name} is lost", gone
            yield f"{name} responds", self._responded(state, number, which)

    def _responded(self, state: State, number: int, which: int) -> State:
        over = _with(state, number, which, "over")
        if number in state.known or not self.guards.read_back:
            return over._replace(known=state.known | {number})
        if state.tries[number][which].state == "done":
            return over._replace(known=state.known | {number})
        if number not in dict(state.store):  # deleted since, so its epoch has ended: put again
            return over
        return self._found(over, number)

    @staticmethod
    def _found(state: State, number: int) -> State:
        """Return what a writer knows that has read a name which is not free."""
        if dict(state.store)[number] == SEAL:
            return state._replace(writer="stopped")
        return state._replace(known=state.known | {number})

    # ------------------------------------------------------------- the writer

    def _put(self, state: State) -> Iterator[Step]:
        for number, (first, hedge) in enumerate(state.tries):
            before = number == 0 or state.tries[number - 1][0].state != "unsent"
            if first.state == "unsent" and before:
                yield f"puts {number}", _with(state, number, 0, "flying")
            if number in state.known:
                continue
            if first.is_known_to_fly and hedge.state == "unsent":
                yield f"hedges {number}", _with(state, number, 1, "flying")
            if hedge.state != "unsent" and number in dict(state.store):
                yield f"looks for {number}", self._found(state, number)
            if not (first.is_known_to_fly or hedge.is_known_to_fly) and first.state == "over":
                yield f"puts {number} again", _with(state, number, 0, "flying")

    def _acknowledge(self, state: State) -> Iterator[Step]:
        for number in sorted(state.known - state.acked):
            if number == len(state.acked) or not self.guards.in_sequence:
                yield f"acknowledges {number}", state._replace(acked=state.acked | {number})

    def _trim(self, state: State) -> Iterator[Step]:
        number = state.floor
        if state.taker == "away" and number in state.acked and number == len(state.committed):
            committed = (*state.committed, f"r{number}")
            moved = state._replace(committed=committed, floor=number + 1, uploaded=number + 1)
            yield f"commits {number}", moved
        number = state.trimmed
        if number >= state.uploaded:
            return
        if self.guards.delete_waits and any(one.is_known_to_fly for one in state.tries[number]):
            return
        yield f"deletes {number}", _delete(state, number)._replace(trimmed=number + 1)

    # ------------------------------------------------------------- another node

    def _take_over(self, state: State) -> Iterator[Step]:
        if state.taker == "away":
            yield "another node fences it", state._replace(taker="sealing")
        elif state.taker == "sealing":
            store = dict(state.store)
            number = state.floor
            while number in store and store[number] != SEAL:
                number += 1
            if number not in store:
                seal = (number, SEAL)
                sealed = state._replace(store=state.store | {seal}, made=state.made | {seal})
                yield f"it seals at {number}", sealed
            else:
                found = range(state.floor, number)
                committed = state._replace(
                    taker="serving",
                    floor=ENDED,
                    committed=(*state.committed, *(store[n] for n in found)),
                    referenced=frozenset(found),
                )
                yield "it commits what it found", committed
        else:
            for number in sorted(state.referenced):
                replaced = state._replace(referenced=state.referenced - {number})
                yield f"it replaces {number}", _delete(replaced, number)

    def _sweep(self, state: State) -> Iterator[Step]:
        for number, body in sorted(state.store):
            if body == SEAL and self.guards.seals_stay:
                continue
            if number in state.referenced or (body != SEAL and not self.guards.sweeps):
                continue
            if number < state.floor or not self.guards.sweep_below_floor:
                yield f"sweeps {number}", _delete(state, number)

    # ------------------------------------------------------------- what must hold

    def _lost(self, state: State) -> str | None:
        if state.taker != "serving":
            return None
        for number in sorted(state.acked):
            if f"r{number}" not in {record.rstrip("*") for record in state.committed}:
                return f"{number} was acknowledged and is lost"
        return None

    @staticmethod
    def _torn(state: State) -> str | None:
        names = dict(state.made)
        for number, body in state.made:
            if names[number] != body:
                return f"{number} had {body} and {names[number]}"
        return None

    @staticmethod
    def _twice(state: State) -> str | None:
        expected = [f"r{n}" for n in range(len(state.committed))]
        if [record.rstrip("*") for record in state.committed] != expected:
            return f"committed are {state.committed}"
        return None

    @staticmethod
    def _dangling(state: State) -> str | None:
        missing = state.referenced - {number for number, _ in state.store}
        return f"{sorted(missing)} are committed and gone" if missing else None

    def _left(self, state: State) -> str | None:
        """A writer that was not fenced and knows all outcomes leaves no object for a sweep."""
        if state.gave_up or state.taker != "away" or self._is_in_flight(state):
            return None
        left = [number for number, _ in state.store if number < state.trimmed]
        return f"{left} were deleted and are there" if left else None

    @staticmethod
    def _is_in_flight(state: State) -> bool:
        return any(one.state in {"flying", "lost"} for pair in state.tries for one in pair)

    def is_clean(self, state: State) -> bool:
        """Return true if nothing is on its way, and no data below the floor lacks a reference."""
        garbage = any(
            body != SEAL and number < state.floor and number not in state.referenced
            for number, body in state.store
        )
        return not garbage and not self._is_in_flight(state)


def _with(state: State, number: int, which: int, to: str) -> State:
    pair = list(state.tries[number])
    pair[which] = Try(to)
    tries = list(state.tries)
    tries[number] = (pair[0], pair[1])
    return state._replace(tries=tuple(tries))


def _delete(state: State, number: int) -> State:
    return state._replace(store=frozenset(one for one in state.store if one[0] != number))
