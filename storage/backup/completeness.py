"""The newest complete state of a copy of a cluster: one whose objects are all there.

Replication knows no order: an entry of the metadata may arrive before an object that it names. So
entries are applied as far as there are any, and the newest state counts at which nothing is
missing. An object that a later entry replaces or drops is not missed any more.

Records that lie in the log of a dead node alone are not missed either: they were in no object at
any state before, so an earlier one would have less.
"""

from collections.abc import Callable, Iterable

from lakehead.storage.errors import EntryRejected
from lakehead.storage.metadata.records import (
    CommitObjects,
    CommitTail,
    Entry,
    InheritTail,
    ReplaceObjects,
)
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage


class Completeness:
    """Begins at `state`, of whose objects those in `missing` are not there. `is_there` returns true
    for the key of an object that is.
    """

    def __init__(
        self, state: MetadataImage, missing: Iterable[str], is_there: Callable[[str], bool]
    ) -> None:
        self.newest = state
        """The state after all entries."""
        self.complete: MetadataImage | None = None
        """The newest complete state; None: there is none."""
        self.complete_ms = -1
        """The time of the entry that led to it, milliseconds; -1: it is the one to begin at."""
        self.missing = set(missing)
        """Objects that the state after all entries names, and that are not there."""
        self._is_there = is_there
        self._check(-1)

    def add(self, entry: Entry) -> None:
        """Apply the next entry. One that the rules refuse takes its number and changes nothing."""
        state = self.newest
        try:
            state = apply_records(state, entry.records, entry.time_ms)
        except EntryRejected:
            pass  # as every reader refuses it
        else:
            self.missing.update(key for key in added_keys(entry) if not self._is_there(key))
            self.missing = {
                key
                for key in self.missing
                if key in state.objects and key not in state.unreferenced
            }
        self.newest = state.refuse(entry)
        self._check(entry.time_ms)

    @property
    def entries_left(self) -> int:
        """The number of entries after the newest complete state; of all without one."""
        begin = 0 if self.complete is None else self.complete.next_entry
        return self.newest.next_entry - begin

    def _check(self, time_ms: int) -> None:
        if not self.missing:
            self.complete, self.complete_ms = self.newest, time_ms


def added_keys(entry: Entry) -> list[str]:
    """Return the keys of the objects that an entry names for the first time."""
    return [
        one.key
        for record in entry.records
        if isinstance(record, CommitObjects | ReplaceObjects | InheritTail | CommitTail)
        for one in record.objects
    ]
