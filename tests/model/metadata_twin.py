"""The real metadata rules beside the model of reassignment: the same steps, as real records.

What the model commits, the real rules must accept, and come to the same; what the model refuses,
they must refuse.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakehead.storage.errors import EntryRejected
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage
from tests.model.reassignment import Reassignment
from tests.model.reassignment_state import Process, State, View
from tests.model.reassignment_state import Record as Written

TOPIC = "0" * 32
STREAM = 0


class MetadataTwin:
    """A real state that goes the way of a walk."""

    def __init__(self, model: Reassignment) -> None:
        self._model = model
        self._objects = 0
        self.state = apply_records(
            MetadataImage(),
            [
                r.CreateTopic(name="t", topic_id=TOPIC),
                r.CreateStream(stream_id=STREAM, topic_id=TOPIC, partition=0),
                *(_registration(node, 0) for node in range(len(model.incarnations))),
                r.ControllerLease(node_id=0, node_epoch=0, term=0),
            ],
            0,
        )

    def follow(self, label: str, before: State, after: State) -> None:
        """Take a step of the model. The rules must accept what it commits."""
        if before.view == after.view and "commits what" not in label:
            return
        for records in self._records(label, before, after):
            self.state = apply_records(self.state, records, 0)

    def _records(self, label: str, before: State, after: State) -> list[Sequence[r.Record]]:
        who, _, what = label.partition(" ")
        view = before.view
        if who == "controller":
            term, _, what = what.partition(" ")
            return [self._decision(what, int(term), view)]
        process = _process(before, who)
        node, epoch = process.node, process.epoch
        if what == "registers":
            return [[_registration(node, epoch)]]
        if what.startswith("opens"):
            return [[_opening(node, epoch, view)]]
        if what.startswith("closes"):
            return [[r.CloseStream(stream_id=STREAM, epoch=view.epoch)]]
        grown = after.view.committed[len(view.committed) :]
        if "commits what" in what:
            assert process.take is not None
            taken = process.take.node
            is_own = taken == node
            return [
                [
                    r.CommitObjects(
                        node_id=taken,
                        node_epoch=epoch if is_own else view.members[taken].epoch,
                        objects=self._objects_of(grown, after.view),
                        wal_epoch=process.take.before,
                        taker_id=-1 if is_own else node,
                        taker_epoch=-1 if is_own else epoch,
                    )
                ]
            ]
        assert "commits" in what, label
        return [[self._commit(process, grown, after.view)]]

    def _decision(self, what: str, term: int, view: View) -> Sequence[r.Record]:
        if what == "takes the lease":
            return self._lease(view, term)
        node = int(what[-1])
        if what.startswith("fences"):
            return [r.FenceNode(node_id=node, epoch=view.members[node].epoch, term=term)]
        return [r.AssignStreams(node_id=node, stream_ids=(STREAM,), term=term)]

    @staticmethod
    def _lease(view: View, term: int) -> Sequence[r.Record]:
        for node, member in enumerate(view.members):
            if not member.is_fenced:
                return [r.ControllerLease(node_id=node, node_epoch=member.epoch, term=term)]
        # The model says not who holds the lease: here a node comes that does nothing else.
        return [_registration(9, 0), r.ControllerLease(node_id=9, node_epoch=0, term=term)]

    def _commit(self, process: Process, records: Sequence[Written], view: View) -> r.CommitObjects:
        return r.CommitObjects(
            node_id=process.node,
            node_epoch=process.epoch,
            objects=self._objects_of(records, view),
        )

    def _objects_of(self, records: Sequence[Written], view: View) -> tuple[r.CommittedObject, ...]:
        if not records:
            return ()
        self._objects += 1
        span = r.CommittedRange(
            stream_id=STREAM,
            epoch=records[0].epoch,
            start_offset=records[0].offset,
            end_offset=records[-1].offset + 1,
            max_timestamp=0,
            size=1,
        )
        key = f"data/00/0-0-{self._objects}"
        return (r.CommittedObject(key=key, kind="sso", size=1, created_ms=0, ranges=(span,)),)

    # ------------------------------------------------------------- comparison

    def compare(self, view: View) -> None:
        """Both must have come to the same."""
        stream = self.state.stream(STREAM)
        found = (stream.epoch, stream.node_id, stream.is_open, stream.assigned)
        assert found == (view.epoch, view.owner, view.is_open, view.assigned)
        assert stream.end_offset == len(view.committed)
        assert self.state.controller.term == view.term
        for node, member in enumerate(view.members):
            known = self.state.nodes[node]
            assert (known.epoch, known.is_fenced) == (member.epoch, member.is_fenced)
            assert known.wal_epoch == member.recovered

    def probe(self, state: State) -> None:
        """Try in vain, or not, what somebody may want to commit now."""
        view = state.view
        for process in state.processes:
            node, epoch = process.node, process.epoch
            may_open = self._model.may_open(view, node, epoch)
            assert self.accepts(_opening(node, epoch, view)) == may_open
            member = view.members[node]
            is_live = member.epoch == epoch and not member.is_fenced
            fencing = r.FenceNode(node_id=node, epoch=epoch, term=view.term)
            assert self.accepts(fencing) == is_live
            record = Written(view.epoch, len(view.committed), "")
            owns = view.is_open and view.owner == node
            commit = self._commit(process, [record], view)
            assert self.accepts(commit) == (is_live and owns)
            assert not self.accepts(self._commit(process, [record._replace(epoch=9)], view))
            gap = record._replace(offset=record.offset + 1)
            assert not self.accepts(self._commit(process, [gap], view))
            self._probe_take(process, state)
        for epoch in range(self._model.epochs):
            is_right = view.is_open and view.epoch == epoch
            assert self.accepts(r.CloseStream(stream_id=STREAM, epoch=epoch)) == is_right
        for node, member in enumerate(view.members):
            assigning = r.AssignStreams(node_id=node, stream_ids=(STREAM,), term=view.term)
            assert self.accepts(assigning) == (not member.is_fenced)
            if view.term > 0:
                late = r.AssignStreams(node_id=node, stream_ids=(STREAM,), term=view.term - 1)
                assert not self.accepts(late)

    def _probe_take(self, process: Process, state: State) -> None:
        """Nobody recovers the log of a node that is not fenced, nor does one that was fenced."""
        view = state.view
        taker = view.members[process.node]
        is_live = taker.epoch == process.epoch and not taker.is_fenced
        for node, member in enumerate(view.members):
            if node == process.node:
                continue
            taking = r.CommitObjects(
                node_id=node,
                node_epoch=member.epoch,
                objects=(),
                wal_epoch=member.epoch + 1,
                taker_id=process.node,
                taker_epoch=process.epoch,
            )
            assert self.accepts(taking) == (is_live and member.is_fenced)

    def accepts(self, record: r.Record) -> bool:
        """Return true if the real rules accept a record now."""
        try:
            apply_records(self.state, [record], 0)
        except EntryRejected:
            return False
        return True


def _registration(node: int, epoch: int) -> r.RegisterNode:
    return r.RegisterNode(
        node_id=node, epoch=epoch, incarnation=f"{node}/{epoch}", host="h", port=1
    )


def _opening(node: int, epoch: int, view: View) -> r.OpenStream:
    return r.OpenStream(stream_id=STREAM, epoch=view.epoch + 1, node_id=node, node_epoch=epoch)


def _process(state: State, who: str) -> Process:
    node, _, epoch = who.partition("/")
    return next(p for p in state.processes if (p.node, p.epoch) == (int(node), int(epoch)))
