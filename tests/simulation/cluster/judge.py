"""What no node of a simulated cluster may ever do, and what must have happened in the end.

Looks at the processes and at the entries of the metadata log as they land, and keeps books of its
own beside the project's rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehead.storage.metadata.entry import decode_entry, entry_number
from lakehead.storage.metadata.records import (
    AssignStreams,
    ControllerLease,
    Entry,
    FenceNode,
    OpenStream,
)
from lakehead.storage.stream.stream import Stream
from tests.simulation.ledger import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld
    from tests.simulation.cluster.member import Member


class ClusterJudge:
    """Follows a cluster. `moves` counts streams that were assigned since it was last set."""

    def __init__(self, world: ClusterWorld) -> None:
        self.moves = 0
        self.terms = 0
        self.fenced = 0
        self.recovered_streams = 0
        """Opened while their last owner was dead."""
        self.stale_reads = 0
        """Reads by a node that was fenced already, in a session that had not ended."""
        self._world = world
        self._accepting: dict[tuple[int, int], str] = {}
        self._assigned: dict[int, int] = {}
        self._holder = ""
        world.bucket.on_create.append(self._created)

    # ------------------------------------------------------------- entries

    def _created(self, key: str, body: bytes) -> None:
        """An entry has landed; the oracle has applied it, or refused it."""
        number, oracle = entry_number(key), self._world.oracle
        if number is None or number != oracle.state.next_entry - 1 or oracle.was_refused:
            return
        entry = decode_entry(key, body)
        for record in entry.records:
            match record:
                case ControllerLease():
                    self._holder = entry.writer
                    self.terms += 1
                    self._expect(record.term == self.terms - 1, f"term {record.term} out of turn")
                case FenceNode() | AssignStreams():
                    self._decided(entry, record)
                case OpenStream():
                    assigned = self._assigned.get(record.stream_id, -1)
                    self._expect(
                        assigned in {-1, record.node_id},
                        f"node {record.node_id} opened stream {record.stream_id} of {assigned}",
                    )
                case _:
                    pass

    def _decided(self, entry: Entry, record: FenceNode | AssignStreams) -> None:
        if record.term >= 0:
            is_right = record.term == self.terms - 1 and entry.writer == self._holder
            self._expect(is_right, f"{entry.writer} decided in term {record.term}: {record}")
        if isinstance(record, FenceNode):
            self.fenced += 1
            self._world.trace.add("log", f"fences node {record.node_id} (term {record.term})")
            return
        what = f"assigns {record.stream_ids} to node {record.node_id} (term {record.term})"
        self._world.trace.add("log", what)
        self.moves += len(record.stream_ids)
        self._assigned.update(dict.fromkeys(record.stream_ids, record.node_id))

    # ------------------------------------------------------------- processes

    def opened(self, member: Member, stream: Stream) -> None:
        """A process begins to serve a stream."""
        if self._world.oracle.ended_at and stream.epoch > 0:
            self.recovered_streams += 1
        self.accepts(member, stream)

    def accepts(self, member: Member, stream: Stream) -> None:
        """A process takes a batch: nobody else does under the same epoch of the stream."""
        name = self._accepting.setdefault((stream.stream_id, stream.epoch), member.name)
        self._expect(
            name == member.name,
            f"{name} and {member.name} lead stream {stream.stream_id} in epoch {stream.epoch}",
        )

    def is_recovered(self, member: Member) -> bool:
        """Return true if what a process' log holds is committed by others: it can add
        nothing more.
        """
        assert member.engine is not None
        known = self._world.oracle.state.nodes.get(member.node_id)
        epoch = member.engine.node_epoch
        return known is None or known.wal_epoch > epoch

    def reads(self, member: Member, stream_id: int, *, since_s: float = 0.0) -> None:
        """A process answers a read, or did so at most `since_s` ago: its epoch had not ended a
        session ago or longer.
        """
        assert member.engine is not None
        key = (member.node_id, member.engine.node_epoch)
        ended_at = self._world.oracle.ended_at.get(key)
        if ended_at is None:
            return
        self.stale_reads += 1
        since = self._world.virtual_s - ended_at
        self._expect(
            since <= self._world.session_s + since_s,
            f"{member.name} answers a read of stream {stream_id}, {since:.3f} s after its "
            "epoch has ended",
        )

    def _expect(self, condition: bool, otherwise: str) -> None:
        if not condition:
            self._world.fail(Violation(otherwise))
