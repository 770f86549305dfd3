"""Follows a copy of a cluster while it grows, for a standby, and writes nothing.

A copy is the target of `lakehead backup --follow`, or a cluster's prefix that something else
replicates. Of backups the newest one counts, of a prefix the newest state at which every object is
there (`completeness`), with the tails of object write-ahead logs as far as they are there.

A point of the copy is never behind the one before: no stream ends earlier. Replication may delete
an object of a write-ahead log before it delivers the entry that replaces it: then the point before
stands until that entry arrives.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from lakehead.storage.backup.completeness import Completeness, added_keys
from lakehead.storage.backup.led_streams import stream_heads
from lakehead.storage.backup.manifest import (
    Manifest,
    list_manifests,
    read_manifest,
    read_state,
)
from lakehead.storage.backup.promotion import is_promoted
from lakehead.storage.backup.restore import (
    RestorePoint,
    copied_tails,
    find_point,
    newest_in_copy,
    read_entry,
)
from lakehead.storage.errors import CopyPromoted, CorruptObject, NotFound, ObjectNotFound
from lakehead.storage.event_logger import event_logger
from lakehead.storage.garbage import listed
from lakehead.storage.metadata.layout import BOUNDARIES, META, Listing
from lakehead.storage.metadata.records import Entry
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.tasks import for_each

_log = event_logger("storage.backup")
_LOOKS_AT_ONCE = 32
_LOOKED_FOR_MAX = 1_000
"""Objects that are looked for one by one; of more, all of the store are listed."""
_AHEAD_MAX = 2_000
"""Entries that are kept in memory while an object of theirs is missing. If there are this many, the
log is read again from a checkpoint.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPoint:
    """A state of the copy that may be served. The cluster was in it at `position_ms`, milliseconds
    since the epoch by its own clock; -1: not known. `entries_behind` entries of the metadata are in
    the copy that cannot count yet.
    """

    state: MetadataImage
    position_ms: int
    entries_behind: int


class FollowedCopy(Protocol):
    """A copy of a cluster, of one of the two kinds."""

    async def look(self) -> CopyPoint:
        """Return the newest point that may be served: the same state as before if there is no
        newer one. Raises CopyPromoted, NotFound (at first: there is none), StoreUnavailable,
        CorruptObject, UnsupportedFormat.
        """


async def follow_copy(store: ObjectStore) -> FollowedCopy:
    """Return the copy of a cluster in a store. Raises StoreUnavailable."""
    return BackupCopy(store) if await list_manifests(store) else PrefixCopy(store)


class BackupCopy:
    """The target of `lakehead backup`, as it is followed."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._manifest: Manifest | None = None
        self._point: CopyPoint | None = None
        self._damaged = -1

    async def look(self) -> CopyPoint:
        """See `FollowedCopy.look`."""
        if await self._store.list(META):
            raise _promoted(self._store)
        if self._point is None:
            found = await find_point(self._store)
            assert found.manifest is not None, "without backups it is another kind of copy"
            self._manifest = found.manifest
            self._point = _point(found)
            return self._point
        assert self._manifest is not None
        numbers = await list_manifests(self._store, after=self._manifest.number)
        for number in reversed(numbers):
            if await self._take(number, self._point):
                break
        return self._point

    async def _take(self, number: int, last: CopyPoint) -> bool:
        """Make a backup the point to serve, and return true if all of it is there. One that is
        damaged is passed over, as by a restore: the next one is on its way.
        """
        try:
            manifest = await read_manifest(self._store, number)
            assert self._manifest is not None
            is_same = manifest.state == self._manifest.state
            state = last.state if is_same else await read_state(self._store, manifest)
        except ObjectNotFound:
            return False  # it was pruned meanwhile
        except CorruptObject as error:
            if number > self._damaged:
                self._damaged = number
                _log.warning("backup_damaged", backup=number, error=str(error))
            return False
        if not is_same:
            held, unreferenced = last.state.objects, state.unreferenced
            unknown = [one for one in state.objects if one not in held and one not in unreferenced]
            if await missing_objects(self._store, unknown):
                return False
        self._manifest = manifest
        self._point = CopyPoint(state=state, position_ms=manifest.position_ms, entries_behind=0)
        return True


class PrefixCopy:
    """A copy of a cluster's prefix, into which its objects come in any order."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._tails = copied_tails(store)
        self._base: MetadataImage | None = None
        """The newest complete state, without tails."""
        self._base_ms = -1
        self._ahead: list[Entry] = []
        """The entries after it that are there, without a gap."""
        self._there: set[str] = set()
        """Objects that these name and that are there."""
        self._point: CopyPoint | None = None

    async def look(self) -> CopyPoint:
        """See `FollowedCopy.look`."""
        base = self._base
        if base is None or len(self._ahead) >= _AHEAD_MAX or await self._has_fallen_behind(base):
            await self._read_anew()
        else:
            await self._read_on(base)
        return await self._with_tails()

    async def _has_fallen_behind(self, base: MetadataImage) -> bool:
        """Return true if entries that come next may be deleted by now."""
        boundary = Listing.of(await self._store.list(BOUNDARIES)).boundary
        return boundary is not None and boundary.number > base.next_entry + len(self._ahead)

    async def _read_anew(self) -> None:
        if await is_promoted(self._store):
            raise _promoted(self._store)
        there = {one.key for one in await listed(self._store)}
        try:
            found = await newest_in_copy(self._store, there)
        except NotFound:
            if self._base is None:
                raise
            return  # the checkpoint that its log begins with by now has not arrived
        self._ahead, self._there = [], set()
        if self._base is None or found.state.next_entry >= self._base.next_entry:
            self._base, self._base_ms = found.state, found.position_ms

    async def _read_on(self, base: MetadataImage) -> None:
        while len(self._ahead) < _AHEAD_MAX:
            entry = await read_entry(self._store, base.next_entry + len(self._ahead))
            if entry is None:
                break
            self._ahead.append(entry)
        if not self._ahead:
            return
        wanted = {key for entry in self._ahead for key in added_keys(entry)} - self._there
        self._there |= wanted - await missing_objects(self._store, wanted)
        found = Completeness(base, (), self._there.__contains__)
        for entry in self._ahead:
            found.add(entry)
            await asyncio.sleep(0)
        assert found.complete is not None, "it began at a complete state"
        if found.complete is not base:
            self._base, self._base_ms = found.complete, found.complete_ms
            del self._ahead[: found.complete.next_entry - base.next_entry]
            self._there &= {key for entry in self._ahead for key in added_keys(entry)}

    async def _with_tails(self) -> CopyPoint:
        assert self._base is not None
        behind, last = len(self._ahead), self._point
        try:
            state = await self._tails.of_copy(self._base)
        except ObjectNotFound:  # deleted meanwhile: an entry that replaces it is on its way
            state = None
        if last is not None and (state is None or ends_earlier(state, last.state)):
            behind += self._base.next_entry - last.state.next_entry
            self._point = replace(last, entries_behind=behind)
            return self._point
        state = self._base if state is None else state
        self._point = CopyPoint(state=state, position_ms=self._base_ms, entries_behind=behind)
        return self._point


def _promoted(store: ObjectStore) -> CopyPromoted:
    return CopyPromoted(
        f"{store.uri} was made a cluster by lakehead restore --in-place: its nodes start without "
        "--standby"
    )


def _point(found: RestorePoint) -> CopyPoint:
    return CopyPoint(
        state=found.state, position_ms=found.position_ms, entries_behind=found.entries_left
    )


def ends_earlier(state: MetadataImage, last: MetadataImage) -> bool:
    """Return true if a stream ends earlier in a state than in the one that was served before."""
    now = stream_heads(state.streams)
    return any(
        stream_id in now and now[stream_id][1] < end_offset
        for stream_id, (_, end_offset) in stream_heads(last.streams).items()
    )


async def missing_objects(store: ObjectStore, keys: Collection[str]) -> set[str]:
    """Return which of these objects are not in a store. Raises StoreUnavailable."""
    if len(keys) > _LOOKED_FOR_MAX:
        return set(keys) - {one.key for one in await listed(store)}
    missing: set[str] = set()

    async def look_for(key: str) -> None:
        try:
            await store.get_suffix(key, 1)
        except ObjectNotFound:
            missing.add(key)

    await for_each(sorted(keys), look_for, at_once=_LOOKS_AT_ONCE)
    return missing
