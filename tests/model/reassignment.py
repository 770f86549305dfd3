"""A model of how one stream's leadership moves: assignment, hand-over, fencing, takeover, restart.

The metadata log is one value here (`View`) and a commit is one step, judged by the rules against
the newest view: how an entry gets its number is modelled in `takeover` and `boundary`. A process
sees the log as late as it likes, so what it does by its own belief may come at any later step; and
one that is paused for ever takes no step. The controller assigns and fences whom it likes, when it
likes, with or without a reason.

Each incarnation of a node has a write-ahead log. A record is durable there, then acknowledged, then
committed. A taker seals the log (nothing is durable in it after that) and commits what it holds.

`Guards` are the rules that make it safe, and keep it going. With any one of them off, some
invariant breaks, or the stream is stuck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.model.reassignment_state import (
    ALL,
    NOBODY,
    Guards,
    Member,
    Process,
    Record,
    State,
    Take,
    View,
    changed,
    is_live,
    name_of,
    with_member,
)

Step = tuple[str, State]
CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Reassignment:
    """The model; see the module's docstring. `incarnations` by node; `epochs` of the stream."""

    guards: Guards = ALL
    incarnations: tuple[int, ...] = (2, 1)
    epochs: int = 3
    records: int = 1
    """How many records are accepted under each epoch."""
    terms: int = 0
    """How often the lease passes on."""
    mortals: tuple[int, ...] = (0, 1, 2)
    """The nodes that the controller may fence."""

    @property
    def invariants(self) -> dict[str, Callable[[State], str | None]]:
        """See `Model`."""
        return {
            "acknowledged is kept": _lost,
            "one value per offset": _torn,
            "the assigned node leads": lambda s: "it was not assigned" if s.usurped else None,
            "one controller": lambda s: "its term was over" if s.misled else None,
        }

    def initial(self) -> State:
        """See `Model`: the nodes run, nobody leads."""
        return State(
            view=View(members=(Member(),) * len(self.incarnations)),
            processes=tuple(
                Process(node, epoch, phase="new" if epoch else "up")
                for node, count in enumerate(self.incarnations)
                for epoch in range(count)
            ),
        )

    def steps(self, state: State) -> Iterator[Step]:
        """See `Model`."""
        yield from self._control(state)
        for at, process in enumerate(state.processes):
            yield from self._recover(state, at, process)
            if process.phase == "new":
                yield from _register(state, at, process)
            if process.phase == "up":
                yield from self._take(state, at, process)
            if process.phase == "up" or not self.guards.recover_before_open:
                yield from self._open(state, at, process)
            if process.phase not in {"new", "stopped"}:
                yield from self._close_inherited(state, at, process)
            yield from self._lead(state, at, process)

    @staticmethod
    def is_served(state: State) -> bool:
        """Return true if the assigned node leads, and takes records."""
        view = state.view
        return any(
            view.is_open
            and process.leads == view.epoch
            and process.accepts
            and process.node == view.assigned
            for process in state.processes
        )

    def is_excused(self, state: State) -> bool:
        """Return true if no node can serve: no assigned one lives, or epochs ran out."""
        view = state.view
        # A hand-over needs one more epoch than a node that only opens: two are left.
        is_out = view.epoch >= self.epochs - 1
        return is_out or view.assigned == NOBODY or view.members[view.assigned].is_fenced

    # ------------------------------------------------------------- the controller

    def _control(self, state: State) -> Iterator[Step]:
        view = state.view
        if view.term < self.terms:
            after = state._replace(view=view._replace(term=view.term + 1))
            yield f"{CONTROLLER} {view.term + 1} takes the lease", after
        for term in range(view.term + 1):
            is_past = term < view.term
            if is_past and self.guards.term_checked:
                continue
            told = state._replace(misled=state.misled or is_past)
            for node, member in enumerate(view.members):
                if member.is_fenced:
                    continue
                if node in self.mortals:
                    fenced = with_member(view, node, member._replace(is_fenced=True))
                    yield f"{CONTROLLER} {term} fences {node}", told._replace(view=fenced)
                if view.assigned != node:
                    assigned = view._replace(assigned=node)
                    yield f"{CONTROLLER} {term} assigns {node}", told._replace(view=assigned)

    # ------------------------------------------------------------- recovery of logs

    def _recover(self, state: State, at: int, process: Process) -> Iterator[Step]:
        take = process.take
        if take is None:
            return
        who, view = name_of(process), state.view
        if take.at < take.before:
            yield from self._seal(state, at, process, take)
            return
        member = view.members[take.node]
        if take.node == process.node:
            may = is_live(view, process)
        else:
            is_right = member.is_fenced or not self.guards.fence_first
            may = is_live(view, process) and is_right and member.epoch == take.before - 1
        floor = take.before
        done = process._replace(take=None, phase="up")
        if not may or (member.recovered >= floor and not take.is_told):
            yield f"{who} finds nothing left to recover of {take.node}", changed(state, at, done)
            return
        grown = self._grown(view, take.node, take.found)
        told = with_member(view, take.node, member._replace(recovered=floor))
        if self.guards.one_entry or take.is_told:
            # The rules judge each record, so one that does not count was left out before.
            after = told._replace(committed=grown)
            yield f"{who} commits what {take.node} left", changed(state, at, done, after)
        else:
            half = process._replace(take=take._replace(is_told=True))
            yield f"{who} says that {take.node} is recovered", changed(state, at, half, told)

    def _seal(self, state: State, at: int, process: Process, take: Take) -> Iterator[Step]:
        who = name_of(process)
        other = next(
            n for n, p in enumerate(state.processes) if (p.node, p.epoch) == (take.node, take.at)
        )
        target = state.processes[other]
        target_name = name_of(target)
        read = take._replace(found=take.found + target.log)
        further = read._replace(at=take.at + 1)
        if not self.guards.seal_first and not take.is_read:
            reading = process._replace(take=read._replace(is_read=True))
            yield f"{who} reads the log of {target_name}", changed(state, at, reading)
            return
        if take.is_read:
            further = take._replace(at=take.at + 1, is_read=False)
        sealed = changed(state, other, target._replace(is_sealed=True))
        after = changed(sealed, at, process._replace(take=further))
        yield f"{who} seals the log of {target_name}", after

    def _take(self, state: State, at: int, process: Process) -> Iterator[Step]:
        """A node that runs takes over another one, whoever else does."""
        if process.take is not None:
            return
        for node, member in enumerate(state.view.members):
            is_dead = member.is_fenced or not self.guards.fence_first
            if node != process.node and is_dead and member.recovered <= member.epoch:
                take = Take(node, member.epoch + 1, member.recovered)
                after = changed(state, at, process._replace(take=take))
                yield f"{name_of(process)} takes {node} over", after

    def _grown(self, view: View, node: int, records: tuple[Record, ...]) -> tuple[Record, ...]:
        """Return what is committed once a log's records are that count."""
        committed = view.committed
        for record in records:
            owns = view.is_open and (view.owner, view.epoch) == (node, record.epoch)
            continues = record.offset == len(committed) or not self.guards.continuity_checked
            if owns and continues:
                committed = (*committed, record)
        return committed

    # ------------------------------------------------------------- the leader

    def may_open(self, view: View, node: int, epoch: int) -> bool:
        """Return true if the rules let an incarnation of a node open the stream."""
        member = view.members[node]
        if member.epoch != epoch or member.is_fenced:
            return False
        if self.guards.assigned_checked and view.assigned not in {NOBODY, node}:
            return False
        if not view.is_open or view.owner == node or not self.guards.owner_recovered:
            return True
        owner = view.members[view.owner]
        return owner.recovered > owner.epoch

    def _open(self, state: State, at: int, process: Process) -> Iterator[Step]:
        view, node = state.view, process.node
        if view.epoch + 1 >= self.epochs or process.leads >= 0 or process.phase == "stopped":
            return
        if not self.may_open(view, node, process.epoch):
            return
        opened = view._replace(epoch=view.epoch + 1, owner=node, is_open=True)
        leads = process._replace(leads=opened.epoch, accepts=True, base=len(view.committed))
        usurped = view.assigned not in {NOBODY, node}
        after = changed(state, at, leads, opened)._replace(usurped=state.usurped or usurped)
        yield f"{name_of(process)} opens under epoch {opened.epoch}", after

    def _lead(self, state: State, at: int, process: Process) -> Iterator[Step]:
        """What a leader does, whether it is one still or not."""
        who, view, epoch = name_of(process), state.view, process.leads
        if process.acked < len(process.log):
            after = changed(state, at, process._replace(acked=process.acked + 1))
            yield f"{who} acknowledges {process.log[process.acked].value}", after
        if epoch < 0:
            return
        mine = [record for record in process.log if record.epoch == epoch]
        if process.accepts and len(mine) < self.records:
            if process.is_sealed:
                stopped = process._replace(phase="stopped", leads=-1, accepts=False, take=None)
                yield f"{who} finds its log sealed", changed(state, at, stopped)
            else:
                record = Record(epoch, process.base + len(mine), f"{epoch}.{who}.{len(mine)}")
                after = changed(state, at, process._replace(log=(*process.log, record)))
                yield f"{who} makes {record.value} durable", after
        confirmed = tuple(r for r in process.log[: process.acked] if r.epoch == epoch)
        uncommitted = tuple(r for r in confirmed if r not in view.committed)
        grown = self._grown(view, process.node, uncommitted)
        if is_live(view, process) and grown != view.committed:
            after = changed(state, at, process, view._replace(committed=grown))
            yield f"{who} commits {uncommitted[-1].value}", after
        if process.accepts:
            after = changed(state, at, process._replace(accepts=False))
            yield f"{who} stops accepting", after
        if not process.accepts or not self.guards.stop_first:
            yield from self._close(state, at, process, is_all=not uncommitted)

    def _close(self, state: State, at: int, process: Process, *, is_all: bool) -> Iterator[Step]:
        view = state.view
        is_drained = process.acked == len(process.log)
        if self.guards.drain_first and not is_drained:
            return
        if self.guards.upload_first and not is_all:
            return
        if not self.guards.hand_over_ends and view.assigned == process.node:
            return
        gone = process._replace(leads=-1) if self.guards.stop_first else process
        if view.is_open and view.epoch == process.leads:
            closed = view._replace(is_open=False)
            yield f"{name_of(process)} closes", changed(state, at, gone, closed)
        else:
            yield f"{name_of(process)} has lost the stream", changed(state, at, gone)

    def _close_inherited(self, state: State, at: int, process: Process) -> Iterator[Step]:
        view = state.view
        owns = view.is_open and view.owner == process.node and process.leads != view.epoch
        if not owns or process.phase != "up" or not is_live(view, process):
            return
        if self.guards.inherited_is_closed:
            after = changed(state, at, process, view._replace(is_open=False))
            yield f"{name_of(process)} closes what its past owned", after


def _register(state: State, at: int, process: Process) -> Iterator[Step]:
    view, node = state.view, process.node
    member = view.members[node]
    if member.epoch == process.epoch - 1:
        registered = with_member(view, node, Member(process.epoch, recovered=member.recovered))
        take = Take(node, process.epoch, min(member.recovered, process.epoch))
        recovering = process._replace(phase="recovering", take=take)
        yield f"{name_of(process)} registers", changed(state, at, recovering, registered)


# ----------------------------------------------------------------- what must hold


def _lost(state: State) -> str | None:
    """What was acknowledged is committed once its epoch has ended."""
    view = state.view
    ended = view.epoch if view.is_open else view.epoch + 1
    for process in state.processes:
        for record in process.log[: process.acked]:
            if record.epoch < ended and record not in view.committed:
                return f"{record.value} was acknowledged at {record.offset} and is lost"
    return None


def _torn(state: State) -> str | None:
    values: dict[int, Record] = {}
    for offset, record in enumerate(state.view.committed):
        if record.offset != offset:
            return f"offset {offset} holds {record.value}, written at {record.offset}"
        values[offset] = record
    for process in state.processes:
        for record in process.log[: process.acked]:
            if values.setdefault(record.offset, record) != record:
                other = values[record.offset].value
                return f"offset {record.offset} holds {other} and {record.value}"
    return None
