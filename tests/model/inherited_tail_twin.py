"""The real rules, and the real choice of records from a log, beside the model of inherited tails.

The real rules must accept the records that the model commits, and come to the same; and refuse
those that the model refuses. Of each node's log the real code must choose the records that the
model does.
"""

from __future__ import annotations

from collections.abc import Iterator

from lakehead.storage.errors import EntryRejected
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.stream.inherited_tail import InTails
from lakehead.storage.stream.recovery import Uncommitted
from lakehead.storage.wal.protocol import WalRecord
from tests.model.inherited_tail import InheritedTail, Log, Sent, State, Tail

TOPIC = "0" * 32
STREAM = 0


class InheritedTailTwin:
    """A real state that goes the way of a walk."""

    def __init__(self, model: InheritedTail) -> None:
        self._model = model
        self._objects = 0
        self._keys: dict[Tail, str] = {}
        self.refused = 0
        self.state = apply_records(
            MetadataImage(),
            [
                r.CreateTopic(name="t", topic_id=TOPIC),
                r.CreateStream(stream_id=STREAM, topic_id=TOPIC, partition=0),
                *(_registration(node, 0) for node in range(len(model.writes))),
                *(_opening(0, 0, epoch) for epoch in (0, 1)),
            ],
            0,
        )

    def follow(self, label: str, before: State, after: State) -> None:
        """Take a step of the model. The rules must accept what it commits, and nothing else."""
        record = self._record(before, after)
        if record is None:
            return
        try:
            self.state = apply_records(self.state, [record], 0)
        except EntryRejected:
            assert label.endswith("refused"), label
            self.refused += 1
        else:
            assert not label.endswith("refused"), label

    def _record(self, before: State, after: State) -> r.Record | None:
        """Return what a step says to the metadata, if it does."""
        for node, (old, new) in enumerate(zip(before.members, after.members, strict=True)):
            if new.epoch > old.epoch:
                return _registration(node, new.epoch)
            if new.is_fenced and not old.is_fenced:
                return r.FenceNode(node_id=node, epoch=new.epoch)
        if after.epoch > before.epoch:
            return _opening(after.owner, after.processes[after.owner].epoch, after.epoch)
        landed = before.sent - after.sent
        if landed:
            return self._entry(next(iter(landed)), before)
        own = [tail for tail in before.tails if tail not in after.tails]
        if own:
            return self._commit_tail(own[0], own[0].node, before.processes[own[0].node].epoch)
        if len(after.committed) > len(before.committed):
            epoch = before.processes[before.owner].epoch
            spans = self._objects_of(len(before.committed), len(after.committed), before.epoch)
            return r.CommitObjects(node_id=before.owner, node_epoch=epoch, objects=spans)
        return None

    def _entry(self, sent: Sent, state: State) -> r.Record:
        """Return the record of an entry that lands."""
        tail = Tail(sent.node, sent.start, sent.end)
        if sent.values is not None:
            return self._commit_tail(tail, sent.by, sent.by_epoch)
        if sent.start == sent.end:
            return r.CommitObjects(
                node_id=sent.node,
                node_epoch=sent.epoch,
                objects=(),
                wal_epoch=sent.epoch + 1,
                taker_id=sent.by,
                taker_epoch=sent.by_epoch,
            )
        objects = self._objects_of(sent.start, sent.end, state.epoch, r.TAIL)
        self._keys[tail] = objects[0].key
        return r.InheritTail(
            node_id=sent.node,
            node_epoch=sent.epoch,
            taker_id=sent.by,
            taker_epoch=sent.by_epoch,
            objects=objects,
        )

    def _commit_tail(self, tail: Tail, node: int, epoch: int) -> r.CommitTail:
        return r.CommitTail(
            node_id=tail.node,
            taker_id=node,
            taker_epoch=epoch,
            sources=(self._keys.get(tail, "data/unknown"),),
            objects=self._objects_of(tail.start, tail.end, self.state.streams[STREAM].epoch),
            streams=(STREAM,),
        )

    def _objects_of(
        self, start: int, end: int, epoch: int, kind: str = "so"
    ) -> tuple[r.CommittedObject]:
        self._objects += 1
        span = r.CommittedRange(
            stream_id=STREAM,
            epoch=epoch,
            start_offset=start,
            end_offset=end,
            max_timestamp=0,
            size=1,
        )
        key = f"data/00/0-0-{self._objects}"
        return (r.CommittedObject(key=key, kind=kind, size=1, created_ms=0, ranges=(span,)),)

    # ------------------------------------------------------------- comparison

    def compare(self, state: State) -> None:
        """Both must have come to the same."""
        stream = self.state.stream(STREAM)
        assert (stream.epoch, stream.node_id) == (state.epoch, state.owner)
        assert (stream.end_offset, self.state.uploaded_end(stream)) == (state.end, state.uploaded)
        assert set(self._tails()) == set(state.tails)
        for node, member in enumerate(state.members):
            known = self.state.nodes[node]
            assert (known.epoch, known.is_fenced) == (member.epoch, member.is_fenced)
            assert known.is_recovered == member.is_proven
            assert self.state.is_settled(known) == member.is_recovered

    def _tails(self) -> Iterator[Tail]:
        for extent in self.state.stream(STREAM).extents:
            if extent.object_key in self.state.tails:
                node = self.state.tails[extent.object_key]
                yield Tail(node, extent.start_offset, extent.end_offset)

    def choose(self, state: State) -> None:
        """Choose records of each log, as a recovering node or the node's own start does."""
        for node, log in enumerate(state.logs):
            start, end, damage = self._model.readable(state, node)
            assert not damage
            chosen = Uncommitted(self.state, node)
            found = [one.base_offset for one in _records(log) if chosen.takes(one)]
            assert found == list(range(start, end))
            inherited = InTails(self.state, node)
            found = [one.base_offset for one in _records(log) if inherited.takes(one)]
            inherited.require_all()
            tails = [tail for tail in state.tails if tail.node == node]
            assert found == [offset for tail in tails for offset in range(tail.start, tail.end)]


def _records(log: Log) -> Iterator[WalRecord]:
    """Yield what a scan finds, up to the first write that has not landed."""
    for at, entry in enumerate(log.landed):
        if entry is None:
            return
        yield WalRecord(
            position=at,
            end_position=at + 1,
            stream_id=STREAM,
            epoch=entry.epoch,
            base_offset=entry.offset,
            count=1,
            payload=memoryview(b""),
        )


def _registration(node: int, epoch: int) -> r.RegisterNode:
    return r.RegisterNode(node_id=node, epoch=epoch, incarnation="i", host="h", port=1)


def _opening(node: int, node_epoch: int, epoch: int) -> r.OpenStream:
    return r.OpenStream(stream_id=STREAM, epoch=epoch, node_id=node, node_epoch=node_epoch)
