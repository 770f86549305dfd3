"""Keeps the log short: writes checkpoints, moves the boundary, deletes what lies below it.

Any node may do it, several at once: every step is a put of a name that is fixed by its content or
was never used, or a delete of what is closed for good. In this order:

1. write the checkpoint, by put-if-absent, and read it back;
2. create the boundary at the checkpoint before it: two checkpoints stay, and the entries between;
3. delete the older boundaries, until a listing shows none;
4. only then delete the entries and checkpoints below the boundary.

A crash between any two leaves what the next round deletes. See `log_reader.py` for why step 3 comes
before step 4.
"""

import random
from collections.abc import Generator

import structlog

from lakehead.storage.errors import CorruptObject, ObjectExists, ObjectNotFound, OutcomeUnknown
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format import checkpoint as checkpoint_file
from lakehead.storage.metadata.entry import entry_key
from lakehead.storage.metadata.layout import BOUNDARIES, META, Boundary, Listing, checkpoint_key
from lakehead.storage.metadata.log_reader import LogReader, in_steps
from lakehead.storage.metadata.snapshot import state_of, tables_of
from lakehead.storage.object_store.protocol import ObjectStore

_log = structlog.get_logger("storage.metadata")

_DELETES_AT_ONCE = 1000
_SWEEPS_MAX = 10


class LogCleaner:
    """The upkeep of the log by one node."""

    def __init__(self, store: ObjectStore, reader: LogReader, *, rng: random.Random) -> None:
        self._store = store
        self._reader = reader
        self._rng = rng
        self._is_busy = False
        # Not all nodes at once: who comes first does it, and the others see it in the listing.
        self._patience = 1 + rng.random() / 4

    async def maintain(self, every: int) -> None:
        """Do what is due when a checkpoint is wanted every so many entries. Raises
        StoreUnavailable, UnsupportedFormat.
        """
        if self._is_busy or not self._reader.state.cluster_id:
            return
        self._is_busy = True
        try:
            if self._reader.boundary is None:
                await self._first_boundary()
            elif self._reader.state.next_entry - self._reader.loaded >= every * self._patience:
                await self._round(every)
        finally:
            self._is_busy = False

    async def _first_boundary(self) -> None:
        """Create the boundary below which there is nothing: reading it is cheaper than listing."""
        if not Listing.of(await self._store.list(BOUNDARIES)).boundaries:
            await self._create_boundary(0)
        listing = Listing.of(await self._store.list(BOUNDARIES))
        if listing.boundary is not None and listing.boundary.number == 0:
            self._reader.boundary = listing.boundary

    async def _round(self, every: int) -> None:
        number, pieces = await self._fold()
        listing = Listing.of(await self._store.list(META))
        newest = listing.checkpoints[-1] if listing.checkpoints else 0
        # Only who has just read the newest checkpoint back deletes what it stands for.
        if number - newest >= every and await self._write(number, await in_steps(pieces)):
            await self._clean(Listing.of(await self._store.list(META)))

    async def _fold(self) -> tuple[int, Generator[None, None, list[bytes]]]:
        """Put the state on columns of its own time; return its number and how to encode it."""
        state = self._reader.state
        self._reader.remember()
        found = await in_steps(tables_of(state))
        await self._reader.rebase(await in_steps(state_of("this state", found)))
        return found.number, checkpoint_file.encode(found)

    async def _write(self, number: int, pieces: list[bytes]) -> bool:
        """Write a checkpoint and read it back; return whether it is good."""
        try:
            await self._store.create(checkpoint_key(number), pieces)
            failpoint("checkpoint_put")
        except ObjectExists:
            pass  # another node's: of the same entries, so of the same state
        except OutcomeUnknown:
            return False  # if it is there, the next round finds it
        try:
            key = checkpoint_key(number)
            await in_steps(checkpoint_file.decode(key, await self._store.get(key)))
        except ObjectNotFound:
            return False
        except CorruptObject as error:
            # It stays, for who wants to know why; nothing below it is deleted.
            self._reader.stats.corrupt_checkpoints += 1
            _log.error("checkpoint_corrupt", error=str(error))
            return False
        stats = self._reader.stats
        stats.checkpoints_written += 1
        stats.checkpoint_bytes = sum(map(len, pieces))
        _log.info("checkpoint_written", number=number, size=stats.checkpoint_bytes)
        return True

    async def _clean(self, listing: Listing) -> None:
        """Move the boundary to the last checkpoint but one, and delete what lies below."""
        boundary = listing.boundary.number if listing.boundary else 0
        if len(listing.checkpoints) > 1 and listing.checkpoints[-2] > boundary:
            boundary = listing.checkpoints[-2]
            await self._create_boundary(boundary)
            failpoint("boundary_put")
        if boundary == 0 or not await self._close(boundary):
            return
        keys = [checkpoint_key(number) for number in listing.checkpoints if number < boundary]
        keys += [entry_key(number) for number in listing.entries if number < boundary]
        await self._delete(keys)

    async def _create_boundary(self, number: int) -> None:
        """Create a boundary under a name of its own, at each try a new one."""
        while True:
            boundary = Boundary(number=number, nonce=f"{self._rng.getrandbits(64):016x}")
            try:
                await self._store.create(boundary.key, [b"%d\n" % number])
                return
            except (ObjectExists, OutcomeUnknown):
                continue

    async def _close(self, number: int) -> bool:
        """Delete the boundaries below `number`; return whether none is left, and it stands."""
        for _ in range(_SWEEPS_MAX):
            listing = Listing.of(await self._store.list(BOUNDARIES))
            if listing.boundary is None or listing.boundary.number < number:
                return False
            older = [one.key for one in listing.boundaries if one.number < number]
            if not older:
                return True
            await self._delete(older)
            failpoint("boundaries_deleted")
        return False

    async def _delete(self, keys: list[str]) -> None:
        for start in range(0, len(keys), _DELETES_AT_ONCE):
            await self._store.delete(keys[start : start + _DELETES_AT_ONCE])
        self._reader.stats.objects_deleted += len(keys)
