"""Rules of consumer groups (KIP-848) that hold while coordinators move and die.

1. A partition has one member in a member epoch.
2. While a member has a partition, no other gets it: until the member gives it back, leaves,
   dies, is fenced, or was silent for the session timeout. One that was silent for so long itself,
   and wakes up, may not know that it has lost its partitions: it proves nothing.
3. A committed offset never goes back, and the next owner of a partition is given the last one.
4. In the end each record was read at least once.

The response of a coordinator that another one has followed, and does not know it, proves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.ledger import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld


@dataclass(slots=True)
class _Partition:
    epochs: dict[int, str] = field(default_factory=dict)
    """Members by member epoch."""
    owners: set[str] = field(default_factory=set)
    committed: int = 0
    read: set[int] = field(default_factory=set)
    """Offsets of records."""


class ConsumerJudge:
    """Follows one group."""

    def __init__(self, world: ClusterWorld, session_s: float) -> None:
        self.assignments = 0
        self.commits = 0
        self._world = world
        self._session_s = session_s
        self._partitions: dict[int, _Partition] = defaultdict(_Partition)
        self._alive_until: dict[str, float] = {}
        """The time until which no coordinator may take a member for dead."""

    # ------------------------------------------------------------- partitions

    def beats(self, member_id: str, sent_s: float) -> None:
        """A coordinator has heard a member: a heartbeat that was sent at this time."""
        self._alive_until[member_id] = sent_s + self._session_s

    def assigned(self, index: int, member_id: str, epoch: int) -> None:
        """A partition is a member's in an epoch: see rule 1."""
        known = self._partitions[index].epochs.setdefault(epoch, member_id)
        self._expect(
            known == member_id,
            f"partition {index} is of {known} and of {member_id} in epoch {epoch}",
        )

    def adopt(self, index: int, member_id: str) -> None:
        """A member begins to read a partition: see rule 2."""
        self.assignments += 1
        partition = self._partitions[index]
        if not self._is_alive(member_id):
            partition.owners.add(member_id)
            return
        for other in partition.owners - {member_id}:
            self._expect(
                not self._is_alive(other),
                f"{member_id} gets partition {index}, which {other} has and may have until "
                f"{self._alive_until.get(other, 0.0):.3f} s",
            )
        partition.owners = {member_id}

    def _is_alive(self, member_id: str) -> bool:
        """Return true if no coordinator may have taken a member for dead by now."""
        return self._world.virtual_s < self._alive_until.get(member_id, 0.0)

    def give_back(self, index: int, member_id: str) -> None:
        """A member reads a partition no more."""
        self._partitions[index].owners.discard(member_id)

    def gone(self, member_id: str) -> None:
        """A member is dead, or is about to leave."""
        for partition in self._partitions.values():
            partition.owners.discard(member_id)

    # ------------------------------------------------------------- offsets

    def commit(self, index: int, member_id: str, offset: int, before: int) -> None:
        """A commit was taken, with a response; `before` was committed when the member sent it: see
        rule 3. A member that slept may read the response after others have committed more.
        """
        self.commits += 1
        partition = self._partitions[index]
        self._expect(
            offset >= before,
            f"{member_id} has committed {offset} of partition {index} after {before}",
        )
        partition.committed = max(partition.committed, offset)

    def committed(self, index: int) -> int:
        """Return the offset that is certainly committed."""
        return self._partitions[index].committed

    def fetch_committed(self, index: int, member_id: str, offset: int, before: int) -> None:
        """A member is given the committed offset of its partition; `before` was committed when it
        sent its request: see rule 3.
        """
        self._expect(
            offset >= before,
            f"{member_id} is given {offset} of partition {index}, {before} was committed",
        )

    # ------------------------------------------------------------- records

    def read(self, index: int, first_offset: int, end_offset: int) -> None:
        """A member has read records."""
        self._partitions[index].read.update(range(first_offset, end_offset))

    def judge(self, index: int, end_offset: int) -> None:
        """Every record was read: see rule 4."""
        missed = [o for o in range(end_offset) if o not in self._partitions[index].read]
        if missed:
            raise Violation(f"partition {index}: {missed[:5]} of {end_offset} were never read")

    def _expect(self, condition: bool, otherwise: str) -> None:
        if not condition:
            self._world.fail(Violation(otherwise))
