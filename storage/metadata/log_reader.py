"""Follow the log: the newest state known here, from a checkpoint and the entries after it.

When an entry is real. A number that was deleted is free again, and a slow put could fill it a
second time. So a reader trusts an entry, or a put of its own, only after it has seen that no number
from there on had been deleted by then. The boundary shows this: it is an object whose name was
never used before, and deleting entries below a new boundary begins only once every older boundary
object is gone. While the boundary object that a reader knows is still there, nothing at or above
its number has ever been deleted, and whatever was read or put there before is the first of its
name. When it is gone, the reader looks for the new one, and if it has fallen behind it, starts
again from a checkpoint.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from lakehead.storage.errors import (
    CorruptObject,
    EntryRejected,
    ObjectNotFound,
    StoreUnavailable,
)
from lakehead.storage.event_logger import event_logger
from lakehead.storage.format import checkpoint as checkpoint_file
from lakehead.storage.metadata.checkpoints import state_of
from lakehead.storage.metadata.entry import decode_entry, entry_key
from lakehead.storage.metadata.layout import BOUNDARIES, META, Boundary, Listing, checkpoint_key
from lakehead.storage.metadata.records import Entry
from lakehead.storage.metadata.rules import apply_in_steps
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.tasks import task_group

_log = event_logger("storage.metadata")

T = TypeVar("T")

_READS_AT_ONCE = 32
_BATCH = 256
_LOADS_MAX = 10
_QUIET_POLLS = 4
"""At every so many polls without news the boundary is looked at: there may be none because what was
next is deleted.
"""


@dataclass(slots=True)
class MetadataStats:
    """Counters of one node's part in the metadata log."""

    commits: int = 0
    """Plans of callers that were committed."""
    entries_put: int = 0
    """Entries that this process created; commits / entries_put is how well they are grouped."""
    races_lost: int = 0
    """Numbers that another had first."""
    unknown_outcomes: int = 0
    """Puts whose outcome only reading could show."""
    entries_applied: int = 0
    entries_refused: int = 0
    """Entries that took a number and changed nothing, by the rules."""
    loads: int = 0
    """Starts from a checkpoint: at opening, and whenever this process had fallen behind."""
    corrupt_checkpoints: int = 0
    checkpoints_written: int = 0
    checkpoint_bytes: int = 0
    """Size of the last checkpoint written here."""
    objects_deleted: int = 0
    """Entries, checkpoints and boundaries deleted from `meta/`."""


async def in_steps(steps: Generator[None, None, T]) -> T:
    """Run steps to their end and return their result; others have a turn between any two."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


class LogReader:
    """The newest known state, and how it is brought up to date. One caller at a time."""

    def __init__(self, store: ObjectStore) -> None:
        self.state = MetadataImage()
        self.boundary: Boundary | None = None
        self.loaded = 0
        """The number of the checkpoint that the state is based on."""
        self.stats = MetadataStats()
        self.subscribers: list[Callable[[MetadataImage, Entry | None], None]] = []
        """Called with each state and the entry that led to it; None: read from a checkpoint."""
        self._store = store
        self._listed_end = 0
        self._quiet_polls = 0
        self._tail: list[Entry] | None = None

    async def load(self) -> None:
        """Start from the newest checkpoint that can be read.

        Raises CorruptObject (none can be read, and the entries before it are gone),
        UnsupportedFormat, StoreUnavailable.
        """
        for _ in range(_LOADS_MAX):
            listing = Listing.of(await self._store.list(META))
            state = await self._newest_state(listing)
            if state is not None:
                self.boundary = listing.boundary
                self.state = state
                self.loaded = state.next_entry
                self.stats.loads += 1
                self._listed_end = listing.entries[-1] + 1 if listing.entries else 0
                self._tail = None
                self._notify(None)
                return
        raise StoreUnavailable(f"checkpoints in {self._store.uri} vanish faster than they are read")

    async def _newest_state(self, listing: Listing) -> MetadataImage | None:
        """Return what to start from; None when what was listed is gone by now."""
        floor = listing.boundary.number if listing.boundary else 0
        damaged: list[CorruptObject] = []
        for number in reversed(listing.checkpoints):
            if number < floor:
                break
            try:
                return await read_checkpoint(self._store, number)
            except ObjectNotFound:
                return None
            except CorruptObject as error:
                self.stats.corrupt_checkpoints += 1
                _log.error("checkpoint_corrupt", error=str(error))
                damaged.append(error)
        if floor == 0:
            return MetadataImage()
        if damaged:
            newest = damaged[0]
            raise CorruptObject(
                newest.key,
                newest.position,
                f"{newest.reason}; no other checkpoint at or above entry {floor} can be read, and "
                "the entries before it are deleted",
            )
        return None

    async def catch_up(self, *, surely: bool = False, until: int = 0) -> bool:
        """Apply every entry from the next number on; return true if these are surely all that there
        were when the call began. A poll that finds nothing is sure of it now and then only, or if
        `surely`. With `until` the entries below that number are known to be there, and no others
        are requested. Raises CorruptObject, UnsupportedFormat, StoreUnavailable.
        """
        if surely:
            self._quiet_polls = _QUIET_POLLS - 1
        while True:
            first = self.state.next_entry
            if 0 < until <= first:
                return False
            bodies, is_end = await self._read_ahead(first, until)
            if not await self._is_genuine(first, bool(bodies)):
                await self.load()
                continue
            for number, body in enumerate(bodies, first):
                await self.apply(await self._decoded(number, body))
            if is_end:
                return not until and self._quiet_polls % _QUIET_POLLS == 0

    async def _is_genuine(self, first: int, is_news: bool) -> bool:
        if is_news:
            self._quiet_polls = 0
            return await self.holds(first)
        self._quiet_polls += 1
        return self._quiet_polls % _QUIET_POLLS != 0 or await self.holds(first)

    async def holds(self, number: int) -> bool:
        """Return true if whatever was read or put at `number` or above before this call is real: no
        number from there on had been deleted. `number` is not below the known boundary.
        """
        if self.boundary is not None:
            try:
                await self._store.get(self.boundary.key)
                return True
            except ObjectNotFound:
                pass
        self.boundary = Listing.of(await self._store.list(BOUNDARIES)).boundary
        return self.boundary is None or self.boundary.number <= number

    async def apply(self, entry: Entry, after: MetadataImage | None = None) -> None:
        """Apply the next entry and call the subscribers. `after` is what its records make of the
        present state, where that is known already.
        """
        try:
            if after is None:
                after = await in_steps(apply_in_steps(self.state, entry.records, entry.time_ms))
            self.state = after.refuse(entry)
            self.stats.entries_applied += 1
        except EntryRejected:
            # Every reader refuses it by the same rules: it takes its number and does nothing.
            self.state = self.state.refuse(entry)
            self.stats.entries_refused += 1
        if self._tail is not None:
            self._tail.append(entry)
        self._notify(entry)

    def remember(self) -> None:
        """Keep the entries that are applied from now on, for `rebase`."""
        self._tail = []

    async def rebase(self, base: MetadataImage) -> None:
        """Stand on `base`, the state at the time of `remember`, and the entries since: the same
        state, on new columns. Nothing happens if a checkpoint was loaded meanwhile.
        """
        tail, state = self._tail, base
        if tail is None:
            return
        for entry in tail:  # which grows meanwhile
            after = state
            with contextlib.suppress(EntryRejected):
                after = await in_steps(apply_in_steps(state, entry.records, entry.time_ms))
            state = after.refuse(entry)
        if self._tail is not tail:
            return
        self._tail = None
        assert state.next_entry == self.state.next_entry
        self.state = state
        self.loaded = base.next_entry

    def _notify(self, entry: Entry | None) -> None:
        for callback in self.subscribers:
            callback(self.state, entry)

    async def _read_ahead(self, first: int, until: int) -> tuple[list[bytes], bool]:
        """Return entries from `first` on, and whether they were the last (wanted): what was listed,
        or is known, at once, then one probe, then twice as many each time.
        """
        bodies: list[bytes] = []
        if until:
            count = min(until - first, _READS_AT_ONCE)
            bodies = await self._read(first, count)
            return bodies, len(bodies) < count or first + count >= until
        probes = 1
        while len(bodies) < _BATCH:
            at = first + len(bodies)
            known = self._listed_end - at
            width = min(known if known > 0 else probes, _READS_AT_ONCE)
            found = await self._read(at, width)
            bodies += found
            if len(found) < width:
                return bodies, True
            if known <= 0:
                probes *= 2
        return bodies, False

    async def _read(self, first: int, count: int) -> list[bytes]:
        """Return entries from `first` on up to the first that is not there."""
        if count == 1:
            body = await self._read_or_none(first)
            return [] if body is None else [body]
        async with task_group() as group:
            tasks = [
                group.create_task(self._read_or_none(number))
                for number in range(first, first + count)
            ]
        bodies = []
        for task in tasks:
            body = task.result()
            if body is None:
                break
            bodies.append(body)
        return bodies

    async def _read_or_none(self, number: int) -> bytes | None:
        try:
            return await self._store.get(entry_key(number))
        except ObjectNotFound:
            return None

    async def _decoded(self, number: int, body: bytes) -> Entry:
        key = entry_key(number)
        try:
            return decode_entry(key, body)
        except CorruptObject:
            # Bytes from the wire may be damaged although the stored ones are not.
            again = await self._read_or_none(number)
            return decode_entry(key, body if again is None else again)


async def read_checkpoint(store: ObjectStore, number: int) -> MetadataImage:
    """Return the state of a stored checkpoint. Raises ObjectNotFound, CorruptObject,
    UnsupportedFormat, StoreUnavailable.
    """
    return await read_checkpoint_at(store, checkpoint_key(number))


async def read_checkpoint_at(store: ObjectStore, key: str) -> MetadataImage:
    """Return the state of a checkpoint under any key. Raises as `read_checkpoint`."""
    found = await in_steps(checkpoint_file.decode(key, await store.get(key)))
    return await in_steps(state_of(key, found))
