"""What the metadata log of a world says, followed from outside, and what no entry may ever do.

It keeps its own books beside the project's rules: entries are judged when they land in the bucket,
by simple arithmetic over node epochs, owners and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakehead.storage.errors import EntryRejected
from lakehead.storage.format.object_names import DataName, JobName
from lakehead.storage.metadata.entry import decode_entry, entry_number
from lakehead.storage.metadata.layout import BOUNDARIES, Boundary, checkpoint_key
from lakehead.storage.metadata.records import (
    CloseStream,
    CommitObjects,
    CommitTail,
    CommittedObject,
    Entry,
    FenceNode,
    InheritTail,
    OpenStream,
    RegisterNode,
    ReplaceObjects,
)
from lakehead.storage.metadata.rules import apply_entry
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.wal.object.names import WalName, is_seal_size
from tests.simulation.bucket import Bucket
from tests.simulation.ledger import Violation


class MetadataOracle:
    """Watches a bucket. `state` is what a reader of the whole log would have now."""

    def __init__(
        self,
        bucket: Bucket,
        wal_bucket: Bucket,
        *,
        fail: Callable[[Exception], None],
        now_s: Callable[[], float],
        grace_s: float,
    ) -> None:
        self.state = MetadataImage()
        self.entries: list[Entry] = []
        self.rejected = 0
        self.was_refused = False
        """True if the rules have refused the newest entry."""
        self.grace_s = grace_s
        """Readers of an older view find an object for so long after its last reference went."""
        self._bucket = bucket
        self._fail = fail
        self._now_s = now_s
        self.ended_at: dict[tuple[int, int], float] = {}
        """When the epochs of nodes came to an end, by fencing or by a successor."""
        self.given_up: set[str] = set()
        """Objects of jobs that are committed never or never again."""
        self._unreferenced_at: dict[str, float] = {}
        self._nodes: dict[int, tuple[int, bool]] = {}
        self._streams: dict[int, tuple[int, int, bool]] = {}
        self._ends: dict[int, int] = {}
        bucket.on_create.append(self._created)
        bucket.on_delete.append(self._deleted)
        wal_bucket.on_delete.append(self._deleted)

    def epoch_of(self, node_id: int) -> int:
        """Return the newest registered epoch of a node, -1 without any."""
        return self._nodes.get(node_id, (-1, False))[0]

    def is_current(self, node_id: int, epoch: int) -> bool:
        """Return true if a node's epoch is its newest and was not fenced."""
        return self._nodes.get(node_id) == (epoch, False)

    def _created(self, key: str, body: bytes) -> None:
        number = entry_number(key)
        if number is None:
            return
        if number < self.state.next_entry:
            return  # behind the boundary, where nobody reads: it has lost
        if number > self.state.next_entry:
            self._broken(f"entry {number} was put where {self.state.next_entry} is next")
            return
        entry = decode_entry(key, body)
        self.entries.append(entry)
        self.was_refused = False
        try:
            self.state = apply_entry(self.state, entry)
        except EntryRejected:
            self.rejected += 1
            self.was_refused = True
            self.state = self.state.refuse(entry)
            return
        for record in entry.records:
            self._judge(record)
        now = self._now_s()
        self._unreferenced_at = {
            key: self._unreferenced_at.get(key, now) for key in self.state.unreferenced
        }

    def _deleted(self, key: str, body: bytes) -> None:
        """Return true if an object may go at this moment."""
        number = entry_number(key)
        if number is not None:
            found = [
                Boundary.of(name) for name in self._bucket.objects if name.startswith(BOUNDARIES)
            ]
            closed = max((boundary.number for boundary in found if boundary), default=0)
            if number >= closed or checkpoint_key(closed) not in self._bucket.objects:
                self._broken(f"entry {number} was deleted above the boundary, {closed}")
            return
        known = self.state.objects.get(key)
        data, wal, job = DataName.parse(key), WalName.parse(key), JobName.parse(key)
        if known is not None and known.stream_ids:
            self._broken(f"{key} was deleted while streams {set(known.stream_ids)} refer to it")
        elif known is not None:
            if self._now_s() - self._unreferenced_at[key] < self.grace_s:
                self._broken(f"{key} was deleted before its grace was over")
            # A late PUT may write it again; its job has committed it once, and cannot again.
            self.given_up.add(key)
        elif data is not None and self.is_current(data.node_id, data.epoch):
            self._broken(f"{key} was deleted while its writer may commit it")
        elif job is not None and key in self.given_up:
            pass  # if it is named after all, it will be missed
        elif job is not None and job.may_enter(self.state.next_entry):
            self._broken(f"{key} was deleted while the job may commit it")
        elif wal is not None:
            node = self.state.nodes[wal.node_id]
            if is_seal_size(len(body)):
                self._broken(f"the tombstone {key} was deleted")
            elif (wal.epoch, wal.number) >= (node.wal_epoch, node.wal_floor):
                self._broken(f"{key} was deleted while recovery may need it")

    def _broken(self, how: str) -> None:
        self._fail(Violation(how))

    def _judge(self, record: object) -> None:
        match record:
            case RegisterNode():
                last = self.epoch_of(record.node_id)
                if record.epoch <= last:
                    self._broken(f"node {record.node_id} registered epoch {record.epoch} again")
                self.ended_at.setdefault((record.node_id, last), self._now_s())
                self._nodes[record.node_id] = (record.epoch, False)
            case FenceNode():
                self.ended_at[record.node_id, record.epoch] = self._now_s()
                self._nodes[record.node_id] = (record.epoch, True)
            case OpenStream():
                self._streams[record.stream_id] = (record.epoch, record.node_id, True)
            case CloseStream():
                epoch, node_id, _ = self._streams[record.stream_id]
                self._streams[record.stream_id] = (epoch, node_id, False)
            case CommitObjects() | InheritTail():
                self._judge_commit(record)
            case CommitTail():
                if not self.is_current(record.taker_id, record.taker_epoch):
                    self._broken(f"a tail that node {record.taker_id} commits in its past counts")
                self._judge_objects(record.objects)
            case ReplaceObjects():
                self._judge_objects(record.objects)
            case _:
                pass

    def _judge_commit(self, record: CommitObjects | InheritTail) -> None:
        committer = (record.node_id, record.node_epoch)
        if record.taker_id >= 0:
            if self._nodes.get(record.node_id) != (record.node_epoch, True):
                self._broken(f"node {record.node_id} was taken over, unfenced")
            committer = (record.taker_id, record.taker_epoch)
        if not self.is_current(*committer):
            self._broken(f"a commit of node {committer[0]}'s past epoch {committer[1]} counts")
        self._judge_objects(record.objects)
        for committed in record.objects:
            for span in committed.ranges:
                if span.stream_id not in self.state.streams:
                    continue
                if self._streams[span.stream_id] != (span.epoch, record.node_id, True):
                    self._broken(f"stream {span.stream_id} grew under epoch {span.epoch}")
                if span.start_offset != self._ends.get(span.stream_id, 0):
                    self._broken(f"stream {span.stream_id} has a hole at {span.start_offset}")
                self._ends[span.stream_id] = span.end_offset

    def _judge_objects(self, objects: Sequence[CommittedObject]) -> None:
        for committed in objects:
            found = self._bucket.objects.get(committed.key)
            if found is None or len(self._bucket.plain(committed.key, found)) != committed.size:
                self._broken(f"{committed.key} was committed before it was there")
