"""A model of opening streams before the rest of a dead owner's log is uploaded.

docs/storage/recovery.md, "Opening before uploading". One stream, and nodes with a log each. A
recovering node ends the writer of the log, reads how far it reaches, and commits that as a *tail*:
offsets of the stream that lie in that log and in no object yet. From then on the stream may be
opened behind its tails, and grow. Records of tails are committed in their places later, in any
order.

A process may crash at any step, and be fenced while it lives; a fenced one goes on until it is
ended or notices. It may start again in its next epoch, then with its own log. The entries that a
recovering node puts may land late, after its end, or never; which number an entry gets, the models
`boundary` and `takeover` are about. `inherited_tail_twin` takes the real code along.

`Guards` are the rules that make it safe. With any one of them off, some promise breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Guards(NamedTuple):
    """Rules that keep the design safe; a test turns each off in turn."""

    index_after_release: bool = True
    """An index of the log covers what was released before it was written, and nothing later."""
    lock_first: bool = True
    """The log is read after its writer was ended."""
    fenced_epoch: bool = True
    """A proof counts for the fenced epoch that it names, and for no later one."""
    proof_continues: bool = True
    """A proof counts if its range begins behind the tails as they are now."""
    open_after_proof: bool = True
    """A stream of a fenced node may be opened when the ends of its log are proven."""
    begin_behind_tails: bool = True
    """A new owner begins behind the tails, not where they begin."""
    prove_behind_tails: bool = True
    """The part of a log that counts begins behind the known tails, not where they begin."""
    in_place: bool = True
    """The records of a tail take the offsets of the tail, wherever the stream ends by then."""
    own_tails_at_start: bool = True
    """A node that comes back commits the tails in its log, though it owns the stream no more."""
    trim_after_commit: bool = True
    """A log is trimmed when its tails are committed, not when they are proven."""
    floor_after_tails: bool = True
    """A node counts as recovered when its tails are committed: then it may be forgotten."""


ALL = Guards()


class Entry(NamedTuple):
    """A record of a log: of stream epoch `epoch`."""

    offset: int
    value: str
    epoch: int


class Tail(NamedTuple):
    """Offsets [start, end) that are in the log of `node`, and in no object."""

    node: int
    start: int
    end: int


class Member(NamedTuple):
    """A node in the metadata."""

    epoch: int = 0
    is_fenced: bool = False
    is_proven: bool = False
    is_recovered: bool = False


class Log(NamedTuple):
    """A log: `landed` by place, None where a write has not landed. `indexed`: the places that its
    newest index covers. `holder`: the node whose process has it locked, -1: none.
    """

    landed: tuple[Entry | None, ...] = ()
    indexed: int = 0
    holder: int = -1


class Sent(NamedTuple):
    """An entry on its way from process `by` of `by_epoch`: that the log of `node`, fenced in
    `epoch`, reaches from `start` to `end`; with `values`, that objects have that range now.
    """

    by: int
    by_epoch: int
    node: int
    epoch: int
    start: int
    end: int
    values: tuple[str, ...] | None = None


class Process(NamedTuple):
    """A process of a node. `phase`: down, starting, up. `opened`: the stream epoch that it
    writes under, 0: none. `target`: the node that it recovers.
    """

    phase: str = "up"
    epoch: int = 0
    opened: int = 0
    next_offset: int = 0
    written: int = 0
    flying: tuple[tuple[int, Entry], ...] = ()
    unacked: tuple[tuple[int, Entry], ...] = ()
    target: int = -1


class State(NamedTuple):
    """Everything. `committed`: values by offset, None where a record lies in a log. `acked`: values
    by offset, as producers know them.
    """

    members: tuple[Member, ...]
    processes: tuple[Process, ...]
    logs: tuple[Log, ...]
    owner: int = 0
    epoch: int = 1
    committed: tuple[str | None, ...] = ()
    tails: tuple[Tail, ...] = ()
    acked: frozenset[tuple[int, str]] = frozenset()
    sent: frozenset[Sent] = frozenset()
    crashes: int = 0
    fences: int = 0
    starts: int = 0
    damage: str = ""

    @property
    def end(self) -> int:
        """The offset at which a new owner begins."""
        return len(self.committed)

    @property
    def uploaded(self) -> int:
        """The offset at which the first tail begins."""
        return self.tails[0].start if self.tails else self.end

    def is_live(self, node: int, epoch: int) -> bool:
        """Return true if an epoch of a node is its newest, and not fenced."""
        return self.members[node].epoch == epoch and not self.members[node].is_fenced


Step = tuple[str, State]


@dataclass(frozen=True, slots=True, kw_only=True)
class InheritedTail:
    """The model; see the module's docstring. `writes`: records that each node may write at most."""

    guards: Guards = ALL
    writes: tuple[int, ...] = (2, 1, 1)
    crashes_max: int = 2
    fences_max: int = 2
    starts_max: int = 1

    @property
    def invariants(self) -> dict[str, Callable[[State], str | None]]:
        """See `Model`."""
        return {
            "acknowledged is kept": self._lost,
            "one value per offset": self._torn,
            "no false alarm": lambda state: state.damage or None,
        }

    @staticmethod
    def is_settled(state: State) -> bool:
        """Return true if objects have all tails, or no node can go on before another is started or
        fenced.
        """
        nodes = list(enumerate(state.processes))
        live = [node for node, process in nodes if state.is_live(node, process.epoch)]
        is_awaited = any(state.processes[node].phase == "down" for node in live)
        return not state.tails or is_awaited or not live

    def initial(self) -> State:
        """See `Model`."""
        count = len(self.writes)
        first = Process(opened=1)
        return State(
            members=(Member(),) * count,
            processes=(first, *(Process(),) * (count - 1)),
            logs=tuple(Log(holder=node) for node in range(count)),
        )

    def steps(self, state: State) -> Iterator[Step]:
        """See `Model`."""
        for sent in sorted(state.sent, key=repr):
            yield from self._land(state._replace(sent=state.sent - {sent}), sent)
        for node, process in enumerate(state.processes):
            yield from self._fail(state, node, process)
            match process.phase:
                case "down":
                    yield from self._start(state, node, process)
                case "starting":
                    yield from self._settle_own(state, node, process)
                case "up":
                    yield from self._write(state, node, process)
                    yield from self._upload(state, node, process)
                    yield from self._open(state, node, process)
                    yield from self._recover(state, node, process)

    # ------------------------------------------------------------- failures

    def _fail(self, state: State, node: int, process: Process) -> Iterator[Step]:
        member = state.members[node]
        if not member.is_fenced and state.fences < self.fences_max:
            fenced = _member(state, node, member._replace(is_fenced=True))
            yield f"{node} is fenced", fenced._replace(fences=state.fences + 1)
        if process.phase == "down":
            return
        if member.is_fenced:
            yield f"{node}: ends, for it is fenced", _ended(state, node)
        elif state.crashes < self.crashes_max:
            yield f"{node}: crashes", _ended(state, node)._replace(crashes=state.crashes + 1)

    def _start(self, state: State, node: int, process: Process) -> Iterator[Step]:
        """Open the own log, then register the next epoch."""
        if state.logs[node].holder >= 0 or state.starts >= self.starts_max:
            return
        epoch = state.members[node].epoch + 1
        began = Process("starting", epoch=epoch, written=process.written)
        locked = _log(state, node, state.logs[node]._replace(holder=node))
        registered = _member(locked, node, Member(epoch))
        after = _process(registered, node, began)._replace(starts=state.starts + 1)
        yield f"{node}: registers epoch {epoch}", after

    def _settle_own(self, state: State, node: int, process: Process) -> Iterator[Step]:
        """Commit what counts in the own log: its tails, and what follows if it owns the stream."""
        if not state.is_live(node, process.epoch):
            return
        tail = next((one for one in state.tails if one.node == node), None)
        if tail is not None and self.guards.own_tails_at_start:
            values = _values(state.logs[node], tail.start, tail.end)
            if len(values) < tail.end - tail.start:
                damage = _missing(tail, state.logs[node])
                yield f"{node}: does not find a tail", state._replace(damage=damage)
                return
            yield f"{node}: commits a tail of its own", self._filled(state, tail, values)
            return
        if state.owner == node:
            start, end, damage = self.readable(state, node)
            if damage:
                yield f"{node}: finds a gap in its log", state._replace(damage=damage)
                return
            if end > start:
                values = _values(state.logs[node], start, end)
                grown = state._replace(committed=state.committed[:start] + values)
                yield f"{node}: commits the rest of its own log", grown
                return
        empty = _log(state, node, Log(holder=node))
        up = _process(empty, node, process._replace(phase="up"))
        yield f"{node}: has nothing left in its log, and trims it", up

    # ------------------------------------------------------------- an owner

    def _write(self, state: State, node: int, process: Process) -> Iterator[Step]:
        log, holds = state.logs[node], state.logs[node].holder == node
        is_closed = process.opened == 0
        if not is_closed and holds and process.written < self.writes[node]:
            value = f"{node}.{process.epoch}.{process.written}"
            entry = Entry(process.next_offset, value, process.opened)
            at = len(log.landed)
            sent = process._replace(
                next_offset=process.next_offset + 1,
                written=process.written + 1,
                flying=(*process.flying, (at, entry)),
                unacked=(*process.unacked, (at, entry)),
            )
            grown = log._replace(landed=(*log.landed, None))
            yield f"{node}: writes {value}", _process(_log(state, node, grown), node, sent)
        for at, entry in process.flying:
            left = tuple(one for one in process.flying if one[0] != at)
            landed = (*log.landed[:at], entry, *log.landed[at + 1 :])
            after = _log(state, node, log._replace(landed=landed))
            landed_by = process._replace(flying=left)
            yield f"{node}: {entry.value} lands", _process(after, node, landed_by)
        flying = {at for at, _ in process.flying}
        if process.unacked and process.unacked[0][0] not in flying:
            entry = process.unacked[0][1]
            after = _process(state, node, process._replace(unacked=process.unacked[1:]))
            acked = state.acked | {(entry.offset, entry.value)}
            yield f"{node}: acknowledges {entry.value}", after._replace(acked=acked)
        first = process.unacked[0][0] if process.unacked else len(log.landed)
        covered = first if self.guards.index_after_release else len(log.landed)
        if node == 0 and not is_closed and holds and covered > log.indexed:
            indexed = _log(state, node, log._replace(indexed=covered))
            yield f"{node}: writes an index of {covered}", indexed

    def _upload(self, state: State, node: int, process: Process) -> Iterator[Step]:
        """Commit what this owner has written and that was released; then trim its log."""
        if (
            state.owner != node
            or process.opened != state.epoch
            or not state.is_live(node, process.epoch)
        ):
            return
        log, end = state.logs[node], state.end
        if process.unacked:
            return
        own = [one for one in log.landed if one is not None and one.epoch == process.opened]
        fresh = [one for one in own if one.offset >= end]
        if fresh:
            values = tuple(one.value for one in fresh)
            grown = state._replace(committed=state.committed + values)
            yield f"{node}: commits its own data", grown
        elif own and not any(tail.node == node for tail in state.tails):
            yield f"{node}: trims its log", _log(state, node, Log(holder=log.holder))

    def _open(self, state: State, node: int, process: Process) -> Iterator[Step]:
        owner = state.members[state.owner]
        may = owner.is_proven or not self.guards.open_after_proof
        is_own = state.owner == node and process.opened == 0
        if not state.is_live(node, process.epoch) or not (is_own or (owner.is_fenced and may)):
            return
        start = state.end if self.guards.begin_behind_tails else state.uploaded
        opened = process._replace(opened=state.epoch + 1, next_offset=start)
        after = _process(state, node, opened)._replace(owner=node, epoch=state.epoch + 1)
        yield f"{node}: opens at {start}", after

    # ------------------------------------------------------------- a recovering node

    def _recover(self, state: State, node: int, process: Process) -> Iterator[Step]:
        if process.target < 0:
            for other, member in enumerate(state.members):
                if other != node and member.is_fenced and not member.is_recovered:
                    yield from self._lock(state, node, other)
            return
        other, log = process.target, state.logs[process.target]
        member = state.members[other]
        tail = next((one for one in state.tails if one.node == other), None)
        if member.is_fenced and not member.is_proven:
            yield from self._read(state, node)
        elif member.is_fenced and tail is not None:
            values = _values(log, tail.start, tail.end)
            if len(values) < tail.end - tail.start:
                yield f"{node}: does not find a tail", state._replace(damage=_missing(tail, log))
                return
            sent = Sent(node, process.epoch, other, member.epoch, tail.start, tail.end, values)
            yield from self._send(state, sent)
        else:
            is_mine = log.holder == node
            left = Log() if is_mine and member.is_recovered and member.is_fenced else log
            freed = _log(state, other, left._replace(holder=-1) if is_mine else log)
            idle = process._replace(target=-1)
            yield f"{node}: leaves the log of {other}", _process(freed, node, idle)
        if not self.guards.trim_after_commit and member.is_proven and log.holder == node:
            yield f"{node}: trims the log of {other}", _log(state, other, Log(holder=node))

    @staticmethod
    def _send(state: State, sent: Sent) -> Iterator[Step]:
        if sent not in state.sent:
            what = "the tail" if sent.values is not None else "a proof"
            label = f"{sent.by}: puts {what} of {sent.node}: [{sent.start}, {sent.end})"
            yield label, state._replace(sent=state.sent | {sent})

    def _lock(self, state: State, node: int, other: int) -> Iterator[Step]:
        """End the process that has the log, unless it is one that recovers it and lives."""
        holder = state.logs[other].holder
        if not self.guards.lock_first:
            unlocked = _process(state, node, state.processes[node]._replace(target=other))
            yield f"{node}: looks at the log of {other}", unlocked
            return
        if holder >= 0 and not state.members[holder].is_fenced:
            return
        freed = state if holder < 0 else _ended(state, holder)
        locked = _log(freed, other, freed.logs[other]._replace(holder=node))
        after = _process(locked, node, state.processes[node]._replace(target=other))
        yield f"{node}: locks the log of {other}", after

    def _read(self, state: State, node: int) -> Iterator[Step]:
        process, other = state.processes[node], state.processes[node].target
        start, end, damage = self.readable(state, other)
        if damage:
            yield f"{node}: finds a gap in the log of {other}", state._replace(damage=damage)
            return
        epoch = state.members[other].epoch
        yield from self._send(state, Sent(node, process.epoch, other, epoch, start, end))

    def readable(self, state: State, other: int) -> tuple[int, int, str]:
        """Return what counts in a log, by its index and what follows; or what is missing."""
        start = state.end if self.guards.prove_behind_tails else state.uploaded
        if state.owner != other:
            return start, start, ""
        log, end = state.logs[other], start
        for at, entry in enumerate(log.landed):
            if entry is None and at >= log.indexed:
                break
            if entry is None:
                end += 1  # the index says that it is there
            elif entry.epoch == state.epoch and entry.offset >= end:
                if entry.offset != end:
                    return start, end, f"the log of {other} goes on at {entry.offset}, not {end}"
                end += 1
        return start, end, ""

    def _land(self, state: State, sent: Sent) -> Iterator[Step]:
        """An entry lands: it counts, or is refused."""
        member = state.members[sent.node]
        is_due = member.epoch == sent.epoch or not self.guards.fenced_epoch
        label = f"an entry of {sent.by} about {sent.node} lands: [{sent.start}, {sent.end})"
        if not (state.is_live(sent.by, sent.by_epoch) and member.is_fenced and is_due):
            yield f"{label}, refused", state
        elif sent.values is not None:
            yield from self._commit_tail(state, Tail(*sent[2:3], *sent[4:6]), sent.values, label)
        else:
            is_empty = sent.start == sent.end
            continues = state.owner == sent.node and sent.start == state.end
            if not (is_empty or continues) and self.guards.proof_continues:
                yield f"{label}, refused", state
                return
            after = state
            if not is_empty:
                after = state._replace(
                    tails=(*state.tails, Tail(*sent[2:3], *sent[4:6])),
                    committed=state.committed + (None,) * (sent.end - sent.start),
                )
            yield f"{label}, proven", _judged(after, self.guards, sent.node)

    def _commit_tail(
        self, state: State, tail: Tail, values: tuple[str, ...], label: str
    ) -> Iterator[Step]:
        if tail not in state.tails:
            yield f"{label}, refused", state
            return
        after = self._filled(state, tail, values)
        yield f"{label}, committed", _judged(after, self.guards, tail.node)

    def _filled(self, state: State, tail: Tail, values: tuple[str, ...]) -> State:
        """Return the state with the records of a tail in their places."""
        left = tuple(one for one in state.tails if one != tail)
        start = tail.start if self.guards.in_place else state.end - len(values)
        before, behind = state.committed[:start], state.committed[start + len(values) :]
        return state._replace(committed=before + values + behind, tails=left)

    # ------------------------------------------------------------- what must hold

    @staticmethod
    def _lost(state: State) -> str | None:
        """Acknowledged records are committed, or where the metadata says that they are."""
        for offset, value in sorted(state.acked):
            if offset < state.end and state.committed[offset] is not None:
                if state.committed[offset] != value:
                    return f"{value} was acknowledged at {offset}: {state.committed} is committed"
                continue
            tail = next((one for one in state.tails if one.start <= offset < one.end), None)
            node = state.owner if tail is None else tail.node
            if state.members[node].is_recovered:
                return f"{value} is in the log of {node}, which counts as recovered"
            if not any(one and one[:2] == (offset, value) for one in state.logs[node].landed):
                return f"{value} was acknowledged at {offset}, and the log of {node} has it not"
        return None

    @staticmethod
    def _torn(state: State) -> str | None:
        values = dict(state.acked)
        return None if len(values) == len(state.acked) else f"two at one offset: {state.acked}"


def _judged(state: State, guards: Guards, other: int) -> State:
    """Mark a node as proven, and as recovered when none of its tails is left."""
    is_settled = not any(tail.node == other for tail in state.tails)
    member = state.members[other]
    return _member(
        state,
        other,
        member._replace(is_proven=True, is_recovered=is_settled or not guards.floor_after_tails),
    )


def _missing(tail: Tail, log: Log) -> str:
    return f"[{tail.start}, {tail.end}) is a tail, and the log of {tail.node} has {log.landed}"


def _values(log: Log, start: int, end: int) -> tuple[str, ...]:
    """Return the newest value of each offset in a log, as far as there are any."""
    found = {one.offset: one.value for one in log.landed if one is not None}
    return tuple(found[offset] for offset in range(start, end) if offset in found)


def _ended(state: State, node: int) -> State:
    """End a process: writes that have not landed never will, and its locks are free."""
    process = state.processes[node]
    logs = tuple(log._replace(holder=-1) if log.holder == node else log for log in state.logs)
    down = Process("down", epoch=process.epoch, written=process.written)
    return _process(state._replace(logs=logs), node, down)


def _member(state: State, node: int, member: Member) -> State:
    return state._replace(members=_set(state.members, node, member))


def _process(state: State, node: int, process: Process) -> State:
    return state._replace(processes=_set(state.processes, node, process))


def _log(state: State, node: int, log: Log) -> State:
    return state._replace(logs=_set(state.logs, node, log))


def _set(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    return (*items[:at], item, *items[at + 1 :])
