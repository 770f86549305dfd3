"""A model of checkpoints and the boundary of the metadata log.

Processes follow a log of numbered entries and put their own; now and then one of them writes a
checkpoint (all entries so far), moves the boundary to it, and deletes the entries below. A put that
was sent may arrive at any time, again and again, so a number that was deleted may be taken once
more, by an entry that nobody must believe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

Name = tuple[str, int]


class Guards(NamedTuple):
    """What the implementation does to be safe; a test turns each off in turn."""

    checkpoint_first: bool = True
    """The checkpoint is there before the boundary moves to it …"""
    boundary_first: bool = True
    """… and the boundary has moved before an entry below it is deleted."""
    boundary_checked: bool = True
    """An entry that was read, one's own put included, counts only above the boundary …"""
    boundary_read_last: bool = True
    """… as it stands after the entry was read."""
    writers_remembered: bool = True
    """Who finds its number below the boundary looks whether the checkpoint knows its entry."""
    put_if_absent: bool = True
    """A number that is taken is not overwritten."""


ALL = Guards()


class Process(NamedTuple):
    """What a process knows."""

    seen: tuple[str, ...] = ()
    """The entries that it has applied."""
    proposal: str | None = None
    put: bool = False
    """Its proposal was sent to number `len(seen)`."""
    read: str | None = None
    """The entry at that number, read and not yet judged."""
    cleared: bool = False
    """It has looked at the boundary before it reads (which is too early)."""
    done: tuple[str, ...] = ()
    """What it was told is committed."""


class State(NamedTuple):
    """What happened, what the store holds, what is on its way, what the processes know."""

    history: tuple[str, ...] = ()
    """The entries that were first at their numbers: the truth."""
    entries: frozenset[tuple[int, str]] = frozenset()
    checkpoints: frozenset[tuple[str, ...]] = frozenset()
    boundary: int = 0
    on_the_way: frozenset[tuple[int, str]] = frozenset()
    processes: tuple[Process, ...] = (Process(), Process())


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Boundary:
    """The model; see the module's docstring."""

    guards: Guards = ALL
    proposals: tuple[int, ...] = (2, 1)
    """How many entries each process wants to put."""

    @property
    def invariants(self) -> dict[str, Callable[[State], str | None]]:
        """See `Model`."""
        return {
            "every view is a part of the truth": self._misled,
            "what was told is so, once": self._untrue,
            "a newcomer sees everything": self._blinded,
        }

    def initial(self) -> State:
        """See `Model`."""
        return State()

    def steps(self, state: State) -> Iterator[Step]:
        """See `Model`."""
        entries = dict(state.entries)
        for number, body in sorted(state.on_the_way):
            if number not in entries or (not self.guards.put_if_absent and entries[number] != body):
                yield f"{body} arrives at {number}", _arrived(state, number, body)
        for who, process in enumerate(state.processes):
            yield from self._follow(state, who, process)
            yield from self._propose(state, who, process)
            yield from self._clean(state, who, process)

    def _propose(self, state: State, who: int, process: Process) -> Iterator[Step]:
        number = len(process.seen)
        if process.proposal is None:
            if len(process.done) < self.proposals[who]:
                name = f"{who}.{len(process.done)}"
                yield f"{who}: wants {name}", _with(state, who, process._replace(proposal=name))
        elif not process.put and process.read is None:
            sent = state._replace(on_the_way=state.on_the_way | {(number, process.proposal)})
            after = _with(sent, who, process._replace(put=True))
            yield f"{who}: puts {process.proposal} at {number}", after

    def _follow(self, state: State, who: int, process: Process) -> Iterator[Step]:
        number = len(process.seen)
        if process.read is None:
            found = dict(state.entries).get(number)
            if not self.guards.boundary_read_last and not process.cleared:
                if state.boundary <= number:
                    looked = process._replace(cleared=True)
                    yield f"{who}: sees the boundary below", _with(state, who, looked)
            elif found is not None:
                read = process._replace(read=found)
                yield f"{who}: reads {found} at {number}", _with(state, who, read)
        elif not self.guards.boundary_checked or process.cleared or state.boundary <= number:
            seen = (*process.seen, process.read)
            applied = Process(seen, process.proposal, done=process.done)
            if process.read == process.proposal:
                applied = Process(seen, done=(*process.done, process.read))
            yield f"{who}: applies {process.read}", _with(state, who, applied)
        if state.boundary > number:
            for checkpoint in sorted(state.checkpoints):
                if len(checkpoint) == state.boundary:
                    jumped = Process(checkpoint, process.proposal, done=process.done)
                    if process.proposal in checkpoint and self.guards.writers_remembered:
                        done = (*process.done, str(process.proposal))
                        jumped = Process(checkpoint, done=done)
                    yield f"{who}: opens the checkpoint", _with(state, who, jumped)

    def _clean(self, state: State, who: int, process: Process) -> Iterator[Step]:
        number = len(process.seen)
        if number > state.boundary:
            if process.seen not in state.checkpoints:
                written = state._replace(checkpoints=state.checkpoints | {process.seen})
                yield f"{who}: writes a checkpoint at {number}", written
            if process.seen in state.checkpoints or not self.guards.checkpoint_first:
                moved = state._replace(boundary=number)
                yield f"{who}: moves the boundary to {number}", moved
        limit = state.boundary
        if not self.guards.boundary_first:
            limit = max([limit, *(len(checkpoint) for checkpoint in state.checkpoints)])
        for entry in sorted(state.entries):
            if entry[0] < limit:
                deleted = state._replace(entries=state.entries - {entry})
                yield f"{who}: deletes entry {entry[0]}", deleted

    # ------------------------------------------------------------- what must hold

    @staticmethod
    def _misled(state: State) -> str | None:
        for who, process in enumerate(state.processes):
            if process.seen != state.history[: len(process.seen)]:
                return f"{who} has seen {process.seen}, the truth is {state.history}"
        return None

    @staticmethod
    def _untrue(state: State) -> str | None:
        if len(set(state.history)) < len(state.history):
            return f"an entry counts twice: {state.history}"
        for who, process in enumerate(state.processes):
            if not set(process.done) <= set(state.history):
                return f"{who} was told {process.done}, the truth is {state.history}"
        return None

    @staticmethod
    def _blinded(state: State) -> str | None:
        if state.boundary and state.history[: state.boundary] not in state.checkpoints:
            return f"there is no checkpoint at the boundary, {state.boundary}"
        for number in range(state.boundary, len(state.history)):
            if (number, state.history[number]) not in state.entries:
                return f"entry {number} is above the boundary and not there"
        return None


def _arrived(state: State, number: int, body: str) -> State:
    entries = frozenset((n, b) for n, b in state.entries if n != number) | {(number, body)}
    history = state.history
    if number == len(history):
        history = (*history, body)
    return state._replace(entries=entries, history=history)


def _with(state: State, who: int, process: Process) -> State:
    processes = list(state.processes)
    processes[who] = process
    return state._replace(processes=tuple(processes))
