"""A model of one node's life after life: object WAL, seal, fencing, upload, commit, trim, sweep.

Incarnation 1 serves from the start, 2 and 3 come when they like: each registers in the metadata
log, seals the WAL of those before it, commits what it found and serves. Nobody is told to stop: an
incarnation that is not chosen any more has crashed or sleeps, and may go on at any later step.

The network is as bad as can be: a put that was sent may arrive at any time, again and again, for
ever, or never; a sender learns its fate only by seeing what lies under the name. Puts are
if-absent. Names: ("log", n), ("wal", epoch, n), ("data", epoch, n). Record n of incarnation 1 has
offset n; later incarnations continue where the committed offsets end.

`Guards` are the rules that make it safe. With any one of them off, some invariant breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

Name = tuple[str | int, ...]
Position = tuple[int, int]


class Guards(NamedTuple):
    """What the implementation does to be safe; a test turns each off in turn."""

    ack_only_what_exists: bool = True
    """A record is acknowledged when its WAL object is known to be there …"""
    ack_in_sequence: bool = True
    """… and all before it."""
    read_back: bool = True
    """A put that finds its name taken asks by whom: another's object means fenced."""
    seal: bool = True
    """Recovery ends at a tombstone of its own, not at the first number that is absent just now."""
    include_what_won: bool = True
    """Where data was quicker than the tombstone, it is included and the walk goes on."""
    tombstones_stay: bool = True
    """A sweep leaves tombstones alone."""
    walk_from_floor: bool = True
    """Recovery begins at the floor that the metadata tells, not at the first number."""
    register_first: bool = True
    """Recovery begins after the new epoch is registered."""
    put_if_absent: bool = True
    """An entry of the metadata log is never overwritten."""
    entry_read_back: bool = True
    """An entry whose number is taken is ours only if it says so."""
    epoch_check: bool = True
    """Commits of an epoch that is not the newest are refused."""
    continuity_check: bool = True
    """Commits that do not continue the committed offsets are refused."""
    object_first: bool = True
    """A data object is there before it is committed."""
    trim_after_commit: bool = True
    """A WAL object is deleted after its data is committed elsewhere."""
    sweep_below_floor: bool = True
    """A sweep takes WAL objects below the floor only …"""
    sweep_unreferenced: bool = True
    """… and only those that no committed range refers to."""
    sweep_superseded: bool = True
    """A sweep takes data objects of past epochs only: no commit of them can be accepted."""


ALL = Guards()


class Entry(NamedTuple):
    """An entry of the metadata log. `spans`: (offset, value, where it lies)."""

    kind: str
    writer: int
    spans: tuple[tuple[int, str, Name], ...] = ()
    floor: Position = (0, 0)


class View(NamedTuple):
    """What a prefix of the log means."""

    epoch: int = 1
    floor: Position = (1, 0)
    committed: tuple[tuple[str, Name], ...] = ()
    """By offset: the value and where it lies."""


class Process(NamedTuple):
    """What an incarnation knows."""

    phase: str = "new"
    """new -> recovering -> committing -> serving; stopped once it knows that it is fenced."""
    seen: int = 0
    """Entries of the log that it has applied."""
    proposal: Entry | None = None
    """Its entry on the way to number `seen`."""
    cursor: Position = (1, 0)
    """Where its recovery walks."""
    found: tuple[tuple[str, Name], ...] = ()
    base: int = 0
    """The offset of its first own record."""
    sent: int = 0
    known: frozenset[int] = frozenset()
    """Its WAL objects that it knows to be there."""
    acked: frozenset[int] = frozenset()
    uploaded: int = 0
    committed: int = 0
    trimmed: int = 0


class State(NamedTuple):
    """Everything: what the store holds, what is on its way, what the incarnations know."""

    store: frozenset[tuple[Name, object]] = frozenset()
    on_the_way: frozenset[tuple[Name, object]] = frozenset()
    log: tuple[Entry, ...] = ()
    rewritten: bool = False
    processes: tuple[Process, ...] = ()


Step = tuple[str, State]
TOMBSTONE = "tombstone"


@dataclass(frozen=True, slots=True)
class Takeover:
    """The model; see the module's docstring."""

    guards: Guards = ALL
    records: tuple[int, ...] = (2, 1)
    """How many records each incarnation writes. Only the first one uploads: others would do the
    same.
    """

    @property
    def invariants(self) -> dict[str, Callable[[State], str | None]]:
        """See `Model`."""
        return {
            "acknowledged is recovered": self._lost,
            "one value per offset": self._torn,
            "what is committed exists": self._dangling,
            "one entry per number": self._rewritten,
        }

    def initial(self) -> State:
        """See `Model`."""
        others = (Process(),) * (len(self.records) - 1)
        return State(processes=(Process(phase="serving"), *others))

    def steps(self, state: State) -> Iterator[Step]:
        """See `Model`."""
        yield from self._arrivals(state)
        for epoch, process in enumerate(state.processes, 1):
            yield from self._propose_and_learn(state, epoch, process)
            match process.phase:
                case "new":
                    yield from self._register(state, epoch, process)
                case "recovering":
                    yield from self._recover(state, epoch, process)
                case "serving":
                    yield from self._write(state, epoch, process)
                    yield from self._upload(state, epoch, process)
                    yield from self._sweep(state, epoch, process)

    # ------------------------------------------------------------- the store

    def _arrivals(self, state: State) -> Iterator[Step]:
        taken = {name for name, _ in state.store}
        for name, body in sorted(state.on_the_way, key=repr):
            if name[0] == "log":
                assert isinstance(body, Entry)
                number = int(name[1])
                if number == len(state.log):
                    after = state._replace(log=(*state.log, body))
                    yield f"{_shown(body)} becomes entry {number}", after
                elif not self.guards.put_if_absent and state.log[number] != body:
                    log = (*state.log[:number], body, *state.log[number + 1 :])
                    after = state._replace(log=log, rewritten=True)
                    yield f"{_shown(body)} overwrites entry {number}", after
            elif name not in taken:
                after = state._replace(store=state.store | {(name, body)})
                yield f"{body} arrives at {_key(name)}", after

    @staticmethod
    def _send(state: State, name: Name, body: object) -> State:
        return state._replace(on_the_way=state.on_the_way | {(name, body)})

    @staticmethod
    def _delete(state: State, name: Name) -> State:
        return state._replace(store=frozenset(pair for pair in state.store if pair[0] != name))

    # ------------------------------------------------------------- the metadata log

    def view(self, log: tuple[Entry, ...]) -> View:
        """Return what a log means: every reader refuses the same entries."""
        return _view(self.guards, log)

    def _propose_and_learn(self, state: State, epoch: int, process: Process) -> Iterator[Step]:
        who = f"{epoch}:"
        if process.proposal is None:
            if process.seen < len(state.log):
                newest = process._replace(seen=len(state.log))
                yield f"{who} reads the log", _with(state, epoch, newest)
            return
        if process.seen >= len(state.log):
            return
        found = state.log[process.seen]
        at = process._replace(seen=process.seen + 1, proposal=None)
        if found == process.proposal or not self.guards.entry_read_back:
            done = self._decided(at, epoch, process.proposal)
            yield f"{who} has put entry {process.seen}", _with(state, epoch, done)
        else:
            phase = "recovering" if process.phase == "committing" else process.phase
            again = _with(state, epoch, at._replace(phase=phase))
            yield f"{who} lost number {process.seen}", again

    def _propose(self, state: State, epoch: int, process: Process, entry: Entry) -> State:
        sent = self._send(state, ("log", process.seen), entry)
        return _with(sent, epoch, process._replace(proposal=entry))

    @staticmethod
    def _decided(process: Process, epoch: int, entry: Entry) -> Process:
        if entry.kind == "register":
            return process._replace(phase="recovering")
        if process.phase == "committing":
            return process._replace(phase="serving")
        return process._replace(committed=entry.floor[1])

    # ------------------------------------------------------------- recovery

    def _register(self, state: State, epoch: int, process: Process) -> Iterator[Step]:
        if not self.guards.register_first and process.cursor[0] < epoch:
            yield from self._walk(state, epoch, process)
        elif process.proposal is None and self.view(state.log[: process.seen]).epoch == epoch - 1:
            entry = Entry("register", epoch)
            yield f"{epoch}: proposes itself", self._propose(state, epoch, process, entry)

    def _recover(self, state: State, epoch: int, process: Process) -> Iterator[Step]:
        view = self.view(state.log[: process.seen])
        if process.cursor[0] < epoch:
            if self.guards.walk_from_floor and process.cursor < view.floor:
                process = process._replace(cursor=view.floor)
            yield from self._walk(state, epoch, process)
        elif process.proposal is None and view.epoch == epoch:
            offset = len(view.committed)
            known = {value for value, _ in view.committed}
            new = tuple(pair for pair in process.found if pair[0] not in known)
            spans = tuple((offset + n, value, name) for n, (value, name) in enumerate(new))
            committing = process._replace(phase="committing", base=offset + len(new))
            entry = Entry("commit", epoch, spans, (epoch, 0))
            proposed = self._propose(state, epoch, committing, entry)
            yield f"{epoch}: proposes what it recovered", proposed

    def _walk(self, state: State, epoch: int, process: Process) -> Iterator[Step]:
        at, number = process.cursor
        name: Name = ("wal", at, number)
        body = dict(state.store).get(name)
        mine = (name, TOMBSTONE) in state.on_the_way
        ended = process._replace(cursor=(at + 1, 0))
        if body is None:
            if not self.guards.seal:
                yield f"{epoch}: takes {_key(name)} for the end", _with(state, epoch, ended)
            elif not mine:
                sealing = self._send(state, name, TOMBSTONE)
                yield f"{epoch}: seals at {_key(name)}", _with(sealing, epoch, process)
        elif body == TOMBSTONE or (mine and not self.guards.include_what_won):
            yield f"{epoch}: finds epoch {at} sealed at {number}", _with(state, epoch, ended)
        else:
            further = process._replace(
                cursor=(at, number + 1), found=(*process.found, (str(body), name))
            )
            yield f"{epoch}: finds {body} at {_key(name)}", _with(state, epoch, further)

    # ------------------------------------------------------------- serving

    def _write(self, state: State, epoch: int, process: Process) -> Iterator[Step]:
        if process.sent < self.records[epoch - 1]:
            name: Name = ("wal", epoch, process.sent)
            sent = self._send(state, name, f"{epoch}.{process.sent}")
            after = _with(sent, epoch, process._replace(sent=process.sent + 1))
            yield f"{epoch}: writes {_key(name)}", after
        store = dict(state.store)
        for n in range(process.sent):
            body = store.get(("wal", epoch, n))
            if n not in process.known and body is not None and n >= process.trimmed:
                if body == f"{epoch}.{n}" or not self.guards.read_back:
                    knows = process._replace(known=process.known | {n})
                    yield f"{epoch}: knows that {n} is there", _with(state, epoch, knows)
                else:
                    stopped = process._replace(phase="stopped")
                    yield f"{epoch}: is fenced at {n}", _with(state, epoch, stopped)
            exists = n in process.known or not self.guards.ack_only_what_exists
            is_next = n == len(process.acked) or not self.guards.ack_in_sequence
            if exists and is_next and n not in process.acked:
                acks = process._replace(acked=process.acked | {n})
                yield f"{epoch}: acknowledges {n}", _with(state, epoch, acks)

    def _upload(self, state: State, epoch: int, process: Process) -> Iterator[Step]:
        if epoch != 1:
            return
        n = process.uploaded
        if n in process.acked:
            sent = self._send(state, ("data", epoch, n), f"{epoch}.{n}")
            after = _with(sent, epoch, process._replace(uploaded=n + 1))
            yield f"{epoch}: uploads {n}", after
        names = {name for name, _ in state.store}
        view = self.view(state.log[: process.seen])
        for n in range(process.uploaded):
            name: Name = ("data", epoch, n)
            is_there = name in names or not self.guards.object_first
            may_commit = process.proposal is None and n >= process.committed and is_there
            entry = Entry("commit", epoch, ((n, f"{epoch}.{n}", name),), (epoch, n + 1))
            if may_commit and _accepts(self.guards, view, entry):
                proposed = self._propose(state, epoch, process, entry)
                yield f"{epoch}: proposes to commit {n}", proposed
        free = process.committed if self.guards.trim_after_commit else process.uploaded
        if process.trimmed < free:
            name = ("wal", epoch, process.trimmed)
            trimmed = self._delete(state, name)
            after = _with(trimmed, epoch, process._replace(trimmed=process.trimmed + 1))
            yield f"{epoch}: trims {_key(name)}", after

    def _sweep(self, state: State, epoch: int, process: Process) -> Iterator[Step]:
        view = self.view(state.log[: process.seen])
        referenced = {name for _, name in view.committed}
        for name, body in sorted(state.store, key=repr):
            if body == TOMBSTONE and self.guards.tombstones_stay:
                continue
            if name in referenced and self.guards.sweep_unreferenced:
                continue
            if name[0] == "wal":
                is_garbage = name[1:] < view.floor or not self.guards.sweep_below_floor
            else:
                is_garbage = int(name[1]) < view.epoch or not self.guards.sweep_superseded
            if is_garbage:
                yield f"{epoch}: sweeps {_key(name)}", self._delete(state, name)

    # ------------------------------------------------------------- what must hold

    def _lost(self, state: State) -> str | None:
        """What was acknowledged under an epoch is committed once a later epoch serves."""
        view = self.view(state.log)
        serving = max(
            (n for n, p in enumerate(state.processes, 1) if p.phase in {"serving", "stopped"}),
            default=0,
        )
        for epoch, process in enumerate(state.processes[: serving - 1], 1):
            for n in process.acked:
                offset = process.base + n
                if offset >= len(view.committed) or view.committed[offset][0] != f"{epoch}.{n}":
                    return f"{epoch}.{n} was acknowledged at offset {offset} and is lost"
        return None

    def _torn(self, state: State) -> str | None:
        view = self.view(state.log)
        values = dict(enumerate(value for value, _ in view.committed))
        if len(set(values.values())) < len(values):
            return f"one record at two offsets: {values}"
        for epoch, process in enumerate(state.processes, 1):
            for n in process.acked:
                value = values.setdefault(process.base + n, f"{epoch}.{n}")
                if value != f"{epoch}.{n}":
                    return f"offset {process.base + n} holds {value} and {epoch}.{n}"
        return None

    def _dangling(self, state: State) -> str | None:
        names = {name for name, _ in state.store}
        for value, name in self.view(state.log).committed:
            if name not in names:
                return f"{value} is committed in {_key(name)}, which is not there"
        return None

    @staticmethod
    def _rewritten(state: State) -> str | None:
        return "an entry was overwritten" if state.rewritten else None


@cache
def _view(guards: Guards, log: tuple[Entry, ...]) -> View:
    if not log:
        return View()
    view, entry = _view(guards, log[:-1]), log[-1]
    if not _accepts(guards, view, entry):
        return view
    if entry.kind == "register":
        return view._replace(epoch=entry.writer)
    committed = view.committed + tuple((value, name) for _, value, name in entry.spans)
    return view._replace(committed=committed, floor=max(view.floor, entry.floor))


def _accepts(guards: Guards, view: View, entry: Entry) -> bool:
    if entry.kind == "register":
        return entry.writer == view.epoch + 1
    if guards.epoch_check and entry.writer != view.epoch:
        return False
    expected = range(len(view.committed), len(view.committed) + len(entry.spans))
    offsets = [offset for offset, _, _ in entry.spans]
    return not guards.continuity_check or offsets == list(expected)


def _with(state: State, epoch: int, process: Process) -> State:
    processes = list(state.processes)
    processes[epoch - 1] = process
    return state._replace(processes=tuple(processes))


def _key(name: Name) -> str:
    return "/".join(str(part) for part in name)


def _shown(entry: Entry) -> str:
    what = " ".join(f"{value}@{offset}" for offset, value, _ in entry.spans)
    return f"{entry.writer}'s {entry.kind} {what}".strip()
