"""Bugs on purpose in what makes nodes a cluster: the simulated clusters must notice each of them.

A mutant replaces one function of the real code for the length of a test. What it breaks is in its
name; `wal` says which clusters it lives in.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import pytest

from lakehead.broker.cluster import controller, replica_manager
from lakehead.broker.cluster.broker_lifecycle import Session
from lakehead.broker.cluster.log_recovery import LogRecovery
from lakehead.broker.cluster.replica_manager import Transition, transition_of
from lakehead.storage.metadata.state import NodeState
from lakehead.storage.stream.engine import PendingAppends
from lakehead.storage.wal.object.seal import LogSealer

Patch = pytest.MonkeyPatch


def open_what_is_not_recovered(patch: Patch) -> None:
    patch.setattr(NodeState, "is_recovered", property(lambda self: self.is_fenced))


def hand_over_what_is_still_being_written(patch: Patch) -> None:
    async def mutant(self: Any) -> None:
        return None

    patch.setattr(PendingAppends, "wait", mutant)


def take_over_without_a_tombstone(patch: Patch) -> None:
    async def mutant(self: Any, epoch: int, number: int) -> None:
        return None

    patch.setattr(LogSealer, "_claim", mutant)


def answer_reads_for_ever(patch: Patch) -> None:
    patch.setattr(Session, "is_current", lambda self: self._is_unfenced())


def fence_nobody(patch: Patch) -> None:
    patch.setattr(controller, "unfenced_dead", lambda state, view: [])


def recover_nobody(patch: Patch) -> None:
    patch.setattr(LogRecovery, "_check", lambda self, state: None)


def keep_what_an_earlier_life_had_open(patch: Patch) -> None:
    def mutant(state: Any, stream: Any, node_id: int, *, is_held: bool) -> Transition:
        transition = transition_of(state, stream, node_id, is_held=is_held)
        return Transition.NONE if transition is Transition.RESIGN and not is_held else transition

    patch.setattr(replica_manager, "transition_of", mutant)


def move_without_need(patch: Patch) -> None:
    def mutant(
        leads: Any, loads: Any, *, imbalance: float
    ) -> Generator[None, None, list[tuple[int, int]]]:
        yield
        nodes = sorted(leads)
        moves = [(streams[0], nodes[n - 1]) for n, streams in enumerate(leads.values()) if streams]
        return moves[:1] if len(nodes) > 1 else []

    patch.setattr(controller, "balance", mutant)


class Mutant(NamedTuple):
    """A bug and the clusters it is let loose in, from `first_seed` on."""

    apply: Callable[[Patch], None]
    wal: str
    first_seed: int = 0


MUTANTS = [
    Mutant(open_what_is_not_recovered, "object"),
    Mutant(hand_over_what_is_still_being_written, "object"),
    Mutant(take_over_without_a_tombstone, "object"),
    Mutant(answer_reads_for_ever, "object"),
    Mutant(fence_nobody, "object", first_seed=5),
    Mutant(recover_nobody, "object", first_seed=5),
    Mutant(keep_what_an_earlier_life_had_open, "memory"),
    Mutant(move_without_need, "object"),
]
