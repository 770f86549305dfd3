"""What becomes of an object that a listing shows: a pure function of its name and the metadata.

The metadata must be newer than the listing. No verdict rests on a clock: that an object which no
entry names is garbage follows from who could still commit it, which is nobody once the node epoch
in its name has ended, or the metadata log is too far beyond the entry in its name (every reader
refuses such a commit).
"""

from enum import StrEnum

from lakehead.storage.format.object_names import PREFIX as DATA_PREFIX
from lakehead.storage.format.object_names import DataName, JobName
from lakehead.storage.metadata.layout import META
from lakehead.storage.metadata.state import ClusterState
from lakehead.storage.wal.object.names import PREFIX as WAL_PREFIX
from lakehead.storage.wal.object.names import WalName, is_tombstone_size

PREFIXES = (DATA_PREFIX, WAL_PREFIX)
"""Where objects with data are."""


class Verdict(StrEnum):
    """What an object is."""

    REFERENCED = "referenced"
    """A stream's data."""
    UNREFERENCED = "unreferenced"
    """Committed, and no stream refers to it any more: goes after the grace period."""
    ORPHAN = "orphan"
    """Never committed, and never will be: its writer's epoch has ended."""
    UPLOADING = "uploading"
    """Not committed yet; its writer may still be at it."""
    WAL = "wal"
    """Of a write-ahead log: recovery may need it."""
    OLD_WAL = "old wal"
    """Of a write-ahead log, below what recovery needs."""
    TOMBSTONE = "tombstone"
    """The seal of a write-ahead log: stays as long as its node id."""
    HELD = "held"
    """Garbage by the metadata of today, which a rebuild of the catalog has made: stays while what
    it kept of the metadata before is there.
    """
    STRANGE = "strange"
    """Not a name that Lakehead gives: left alone."""


GARBAGE = frozenset({Verdict.ORPHAN, Verdict.OLD_WAL})
"""Can go at once."""


def judge(state: ClusterState, key: str, size: int) -> Verdict:
    """Return what a listed object is, by metadata that is newer than the listing."""
    if key in state.unreferenced:
        return Verdict.UNREFERENCED
    if key in state.objects:
        return Verdict.REFERENCED
    wal = WalName.parse(key)
    if wal is not None:
        return _judge_wal(state, wal, size)
    job = JobName.parse(key)
    if job is not None:
        return Verdict.UPLOADING if job.may_enter(state.next_entry) else Verdict.ORPHAN
    data = DataName.parse(key)
    if data is None:
        return Verdict.STRANGE
    if data.node_id not in state.nodes and data.node_id not in state.retired_nodes:
        return Verdict.STRANGE
    return Verdict.ORPHAN if _has_ended(state, data) else Verdict.UPLOADING


def is_own_name(key: str) -> bool:
    """Whether a cluster gives this name to an object, of whatever node: a table that lies within
    its prefix, or another program, gives others.
    """
    if key.startswith(META):
        return True
    return any(name.parse(key) is not None for name in (WalName, JobName, DataName))


def _has_ended(state: ClusterState, name: DataName) -> bool:
    """Whether the epoch of a name has ended, so that it can never be committed."""
    node = state.nodes.get(name.node_id)
    if node is None:
        return name.epoch <= state.retired_nodes[name.node_id]
    return name.epoch < node.epoch or (name.epoch == node.epoch and node.is_fenced)


def _judge_wal(state: ClusterState, name: WalName, size: int) -> Verdict:
    node = state.nodes.get(name.node_id)
    if node is None:
        last = state.retired_nodes.get(name.node_id)
        if last is None:
            return Verdict.STRANGE
        return Verdict.OLD_WAL if name.epoch <= last else Verdict.WAL
    if is_tombstone_size(size):
        return Verdict.TOMBSTONE
    below = (name.epoch, name.number) < (node.wal_epoch, node.wal_floor)
    return Verdict.OLD_WAL if below else Verdict.WAL
