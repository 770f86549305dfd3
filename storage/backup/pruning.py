"""Deletes backups that need not be kept, and objects that no backup names any more.

Kept are the newest backups, and of each of the last hours the first one. An object goes with the
last backup that names it, wherever that lies: a cluster that was restored from an earlier backup,
and one whose catalog was rebuilt, name objects again that the backups in between do not.

A manifest is deleted before the objects that it alone named: a backup that is listed is complete.
Before the objects go, the pruner looks for a restore in place. That marks the place and then looks
for the manifest: one of them sees the other, and the objects of what becomes the cluster stay.

While a backup is there whose manifest or metadata are damaged, or whose metadata are missing,
nothing is deleted: the objects that it names are not known.

A user may keep other files beside the backups. So an object that no backup names is deleted only if
it says itself that it is of the cluster.

Backups name mostly the same objects, and there may be a million of them. So the names of the newest
one are in memory, and of each other one the difference to these. A backup that was there before the
process is read once, one at a time.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from lakehead.storage.backup.manifest import (
    RESTORING,
    Manifest,
    is_restoring,
    manifest_key,
    named_objects,
    read_manifest,
    read_state,
)
from lakehead.storage.errors import (
    CorruptObject,
    ObjectNotFound,
    RequestRefused,
    SettingsError,
    UnsupportedFormat,
)
from lakehead.storage.event_logger import event_logger
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.object_names import DataName, JobName
from lakehead.storage.format.stream_object import read_index
from lakehead.storage.metadata.layout import META
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.tasks import for_each
from lakehead.storage.wal.object import WalName

_log = event_logger("storage.backup")
_HOUR_MS = 3_600_000
_DELETED_AT_ONCE = 1000
_READS_AT_ONCE = 16
_NAMES = (DataName, JobName, WalName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The number of the newest backups that are kept, at least one, and the number of hours before
    the newest of which the first backup is kept.
    """

    newest: int = 2
    hours: int = 24


class _Difference(NamedTuple):
    """The objects that a backup names and the newest one does not, and those that it lacks."""

    more: frozenset[str]
    missing: frozenset[str]


_SAME = _Difference(frozenset(), frozenset())


class Pruner:
    """The backups of one target, and what of them is kept."""

    def __init__(self, target: ObjectStore, kept: Kept) -> None:
        self._target = target
        self._kept = kept
        self._backups: list[Manifest] = []
        self._state: MetadataImage | None = None
        self._newest: frozenset[str] = frozenset()
        """The objects that the newest backup names; its metadata are `_state`."""
        self._differences: dict[int, _Difference] = {}
        """By number: of those of the backups that were looked at."""
        self._unnamed: set[str] | None = None
        self._damage: CorruptObject | None = None

    async def open(self, numbers: Sequence[int], held: Iterable[str]) -> Manifest | None:
        """Read the manifests of the backups that are there; `held` are the objects there. Return
        the newest that can be read. Raises StoreUnavailable, UnsupportedFormat.
        """
        for number in numbers:
            try:
                self._backups.append(await read_manifest(self._target, number))
            except ObjectNotFound:
                continue  # another process deleted it meanwhile
            except CorruptObject as error:
                self._note(error)
        self._unnamed = set(held)
        return self._backups[-1] if self._backups else None

    def _note(self, error: CorruptObject) -> None:
        if self._damage is None:
            self._damage = error
            _log.warning("backups_not_deleted", target=self._target.uri, error=str(error))

    async def prune(self, newest: Manifest, state: MetadataImage) -> set[str]:
        """Delete what need not be kept beside `newest`, whose metadata are `state`; return the keys
        of the objects that are gone. Raises RequestRefused (a restore in place has begun there),
        StoreUnavailable, UnsupportedFormat.
        """
        self._backups.append(newest)
        if state is not self._state:
            self._change_newest(frozenset(named_objects(state)))
            self._state = state
        self._differences[newest.number] = _SAME
        removed: set[str] = set()
        kept = kept_numbers(self._backups, self._kept, await self._store_ms(newest))
        try:
            for manifest in [one for one in self._backups if one.number not in kept]:
                if self._damage is None:
                    removed |= await self._remove(manifest)
            if self._damage is None:
                removed |= await self._remove_unnamed()
        except CorruptObject as error:
            self._note(error)
        self._differences = {
            number: found for number, found in self._differences.items() if number in kept
        }
        return removed

    def _change_newest(self, named: frozenset[str]) -> None:
        """Note the names of a newer backup, and the differences to these in place of the former."""
        gone, new = self._newest - named, named - self._newest
        self._newest = named
        self._differences = {
            number: _Difference(
                more=(one.more - new) | (gone - one.missing),
                missing=(one.missing - gone) | (new - one.more),
            )
            for number, one in self._differences.items()
        }

    async def _store_ms(self, newest: Manifest) -> int:
        """Return when the newest backup was put, by the clock of the store: that of this machine
        may be wrong, and would end the hours of all other backups.
        """
        found = [one.modified_ms for one in await self._target.list(newest.key)]
        return min([newest.position_ms, *found])

    async def _remove(self, manifest: Manifest) -> set[str]:
        others = [one for one in self._backups if one is not manifest]
        doomed = await self._only_in(await self._more_in(manifest), others)
        await self._target.delete([manifest_key(manifest.number)])
        failpoint("backup_manifest_deleted")
        await refuse_restored(self._target)
        self._backups = others
        if all(one.state != manifest.state for one in self._backups):
            await self._target.delete([manifest.state])
        await self._delete(doomed)
        return doomed

    async def _remove_unnamed(self) -> set[str]:
        """Delete, once, the objects of the cluster that were there at the start and that no backup
        names: killed processes have left them.
        """
        if self._unnamed is None:
            return set()
        unnamed, self._unnamed = self._unnamed - self._newest, None
        doomed = await self._only_in(unnamed, self._backups)
        doomed = await objects_of(self._target, doomed, self._backups[-1].cluster_id)
        await refuse_restored(self._target)
        await self._delete(doomed)
        return doomed

    async def _only_in(self, keys: AbstractSet[str], others: Sequence[Manifest]) -> set[str]:
        """Return those of some objects, none of the newest backup, that no other backup names."""
        left = set(keys)
        for one in reversed(others):
            if not left:
                break
            left -= await self._more_in(one)
        return left

    async def _more_in(self, manifest: Manifest) -> frozenset[str]:
        """Return the objects that a backup names, and the newest one does not."""
        known = self._differences.get(manifest.number)
        if known is None:
            try:
                named = frozenset(named_objects(await read_state(self._target, manifest)))
            except ObjectNotFound:
                reason = f"backup {manifest.number} names it, and it is missing"
                raise CorruptObject(manifest.state, 0, reason) from None
            known = _Difference(more=named - self._newest, missing=self._newest - named)
            self._differences[manifest.number] = known
        return known.more

    async def _delete(self, keys: Iterable[str]) -> None:
        doomed = sorted(keys)
        for first in range(0, len(doomed), _DELETED_AT_ONCE):
            await self._target.delete(doomed[first : first + _DELETED_AT_ONCE])


async def refuse_restored(target: ObjectStore) -> None:
    """Raise RequestRefused if the place of backups is a cluster, or about to be one: it takes no
    more backups, and nothing is deleted there.
    """
    if await target.list(META):
        raise RequestRefused(
            f"{target.uri} holds a cluster, perhaps one that was restored there: make backups in a "
            "place of their own"
        )
    if await is_restoring(target):
        raise RequestRefused(
            f"a restore in place has begun in {target.uri}: run lakehead restore --in-place again, "
            f"or delete {RESTORING} there to go on with backups"
        )


async def objects_of(store: ObjectStore, keys: Iterable[str], cluster_id: str) -> set[str]:
    """Return the keys under which there are whole stream objects of a cluster. Raises
    StoreUnavailable.
    """
    found: set[str] = set()

    async def look(key: str) -> None:
        with suppress(ObjectNotFound, CorruptObject, UnsupportedFormat):
            if (await read_index(store, key)).cluster_id == cluster_id:
                found.add(key)

    named = [key for key in sorted(keys) if any(one.parse(key) for one in _NAMES)]
    await for_each(named, look, at_once=_READS_AT_ONCE)
    return found


async def refuse_others(
    target: ObjectStore, held: Mapping[str, int], named: Mapping[str, int], cluster_id: str
) -> None:
    """Raise SettingsError if a target that begins to take objects of a cluster has some that are
    not of it: one of the same name would count as copied, and the others as garbage of the cluster.
    `held` and `named` are sizes by key: those that are there, and those that the cluster names.
    """
    unknown = {key for key, size in held.items() if named.get(key) != size}
    unknown -= await objects_of(target, unknown, cluster_id)
    if unknown:
        raise SettingsError(
            f"{target.uri} has {min(unknown)}, which is not of this cluster: give it a place of "
            "its own"
        )


def kept_numbers(backups: Sequence[Manifest], kept: Kept, now_ms: int) -> set[int]:
    """Return the numbers of the backups that are kept at a time. `backups` are in the order of
    their numbers.
    """
    newest_hour = now_ms // _HOUR_MS
    first_of_hour: dict[int, int] = {}
    for one in backups:
        hour = one.position_ms // _HOUR_MS
        if newest_hour - hour < kept.hours:
            first_of_hour.setdefault(hour, one.number)
    return {*first_of_hour.values(), *(one.number for one in backups[-kept.newest :])}
