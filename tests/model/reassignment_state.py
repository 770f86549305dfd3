"""What the model of reassignment is made of: its guards, the view of the log, the processes."""

from __future__ import annotations

from typing import NamedTuple

NOBODY = -1


class Guards(NamedTuple):
    """What the implementation does to be safe; a test turns each off in turn."""

    stop_first: bool = True
    """Who hands over accepts nothing any more …"""
    drain_first: bool = True
    """… has waited for what it did accept …"""
    upload_first: bool = True
    """… and has committed all of it, before it closes the stream."""
    owner_recovered: bool = True
    """A stream that is open elsewhere is opened only when its owner's log is committed, which
    happens to the fenced only.
    """
    recover_before_open: bool = True
    """A node that starts commits what its own log holds before it opens anything."""
    seal_first: bool = True
    """A taker reads a log that is sealed."""
    fence_first: bool = True
    """A taker seals the log of a node that is fenced."""
    one_entry: bool = True
    """What a log held is committed in the entry that says that it is recovered."""
    continuity_checked: bool = True
    """Commits that do not continue the committed offsets are refused. (So are those of who does not
    own the stream: the search shows that this protocol would do without.)
    """
    assigned_checked: bool = True
    """Only the assigned node opens a stream."""
    term_checked: bool = True
    """Entries of a controller whose term is over are refused."""
    hand_over_ends: bool = True
    """A hand-over that was begun ends, even when the stream has been assigned back meanwhile."""
    inherited_is_closed: bool = True
    """A node that was restarted closes what its past owned and it is not to lead."""


ALL = Guards()


class Record(NamedTuple):
    """A record of the stream in somebody's log. `epoch` is the stream's."""

    epoch: int
    offset: int
    value: str


class Member(NamedTuple):
    """A node as the log has it. Its logs below incarnation `recovered` are committed."""

    epoch: int = 0
    is_fenced: bool = False
    recovered: int = 0


class View(NamedTuple):
    """What the metadata log means."""

    members: tuple[Member, ...]
    epoch: int = -1
    owner: int = NOBODY
    is_open: bool = False
    assigned: int = NOBODY
    committed: tuple[Record, ...] = ()
    term: int = 0


class Take(NamedTuple):
    """A recovery of the logs of `node`, incarnations below `before`; `at` is the next one."""

    node: int
    before: int
    at: int
    found: tuple[Record, ...] = ()
    is_read: bool = False
    """The log at `at` was read, and is not sealed yet: what `seal_first` forbids."""
    is_told: bool = False
    """The log says that it is recovered, its records are not committed: what `one_entry` forbids.
    """


class Process(NamedTuple):
    """An incarnation of a node."""

    node: int
    epoch: int
    phase: str = "new"
    """new -> recovering -> up; stopped once it knows that it is fenced."""
    log: tuple[Record, ...] = ()
    is_sealed: bool = False
    acked: int = 0
    """So many of its log's records are acknowledged."""
    leads: int = -1
    """The stream epoch under which it leads, -1 without."""
    accepts: bool = False
    base: int = 0
    take: Take | None = None


class State(NamedTuple):
    """Everything."""

    view: View
    processes: tuple[Process, ...]
    usurped: bool = False
    """A node that was not assigned has opened the stream."""
    misled: bool = False
    """An entry of a controller whose term was over has counted."""


def is_live(view: View, process: Process) -> bool:
    """Return true if the log has an incarnation as its node's, not fenced."""
    member = view.members[process.node]
    return member.epoch == process.epoch and not member.is_fenced


def name_of(process: Process) -> str:
    """Return what a process is called in traces."""
    return f"{process.node}/{process.epoch}"


def with_member(view: View, node: int, member: Member) -> View:
    """Return the view with another member."""
    members = list(view.members)
    members[node] = member
    return view._replace(members=tuple(members))


def changed(state: State, at: int, process: Process, view: View | None = None) -> State:
    """Return the state with another process, and view."""
    processes = list(state.processes)
    processes[at] = process
    return state._replace(processes=tuple(processes), view=view or state.view)
