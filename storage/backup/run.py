"""Makes backups of a cluster in another store: once, or again and again.

A backup is complete with its manifest, which is put last: the process may be killed at any moment,
and the backup before it stands. The next one copies what is missing. Objects never change, so each
is copied once.

The object write-ahead logs are listed first, then the metadata are read, then all that they name is
copied. The cluster goes on meanwhile: objects that compaction, retention or an upload have deleted
before they were copied are not in newer metadata. So the backup goes on with those, and has less to
copy each time: the listing stays, so records that are acknowledged after it add nothing, and what
was in a log is in objects that stay by then. However fast nodes upload, a backup comes to its end.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from lakehead.storage.backoff import Backoff
from lakehead.storage.backup.copying import Copied, Progress, copy_objects, no_progress
from lakehead.storage.backup.manifest import (
    LogElsewhere,
    Manifest,
    list_manifests,
    manifest_key,
    named_objects,
    state_key,
)
from lakehead.storage.backup.pruning import Kept, Pruner, refuse_others, refuse_restored
from lakehead.storage.clock import Clock
from lakehead.storage.errors import (
    CorruptObject,
    ObjectExists,
    OutcomeUnknown,
    RequestRefused,
    SettingsError,
    StoreUnavailable,
)
from lakehead.storage.failpoints import failpoint
from lakehead.storage.garbage import listed
from lakehead.storage.metadata.beginning import checkpoint_pieces
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.object_store.put import put_if_absent
from lakehead.storage.stream.wal_tails import IN_CLUSTER, WalListing, WalTails, nodes_in_cluster
from lakehead.storage.wal.object.names import PREFIX as WAL_PREFIX

_ROUNDS_MAX = 50
_SHORT_MS = 30_000
"""A copy that took longer is followed by another one, of newer metadata."""
_SETTLING_MAX = 5
_LOOK_S = 3600.0
"""Seconds until a process that goes on lists the target again: a rule of a bucket, or a user, may
have deleted objects there, which are copied once more then.
"""
_RETRY_S = 0.1
_RETRY_MAX_S = 5.0
_TAIL_LOOKS = 10


def _soonest_gone(state: MetadataImage) -> list[tuple[str, int]]:
    """Return the keys and sizes of the objects that a state names: those of write-ahead logs first,
    which an upload deletes within seconds.
    """
    named = named_objects(state).items()
    return sorted(named, key=lambda one: not one[0].startswith(WAL_PREFIX))


def logs_elsewhere(state: MetadataImage) -> tuple[LogElsewhere, ...]:
    """Return the nodes in whose logs, outside of the store, streams may have records."""
    streams: dict[int, set[int]] = {}
    for stream in state.streams.values():
        node = state.nodes.get(stream.node_id)
        if stream.is_open and node is not None and node.wal != IN_CLUSTER:
            streams.setdefault(node.node_id, set()).add(stream.stream_id)
    for node_id in set(state.tails.values()):
        streams.setdefault(node_id, set()).update(state.places_in(state.tails_of(node_id)))
    return tuple(
        LogElsewhere(
            node_id=node_id, wal=state.nodes[node_id].wal or "unknown", streams=len(of_node)
        )
        for node_id, of_node in sorted(streams.items())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupDone:
    """A backup, and what it took: objects and bytes copied, milliseconds."""

    manifest: Manifest
    copied_objects: int
    copied_bytes: int
    took_ms: int


class _Moment(NamedTuple):
    """The moment up to which a backup has all: its time (ms), and the WAL objects of then."""

    position_ms: int
    listing: WalListing


class Backups:
    """The backups of the cluster in `source` that this process makes in `target`. One process makes
    the backups in a target.
    """

    def __init__(
        self,
        source: ObjectStore,
        target: ObjectStore,
        log: MetadataLog,
        *,
        clock: Clock,
        rng: random.Random,
        kept: Kept,
    ) -> None:
        self._source = source
        self._target = target
        self._log = log
        self._clock = clock
        self._rng = rng
        self._tails = WalTails(source, nodes_in_cluster)
        self._pruner = Pruner(target, kept)
        self._held: set[str] = set()
        self._looked_at = 0.0
        self._last: tuple[MetadataImage, Manifest] | None = None
        self._number = 0

    @classmethod
    async def open(
        cls,
        source: ObjectStore,
        target: ObjectStore,
        log: MetadataLog,
        *,
        clock: Clock,
        rng: random.Random,
        kept: Kept,
    ) -> Self:
        """Look at the target. Raises SettingsError (it is no place for backups of this cluster),
        RequestRefused (a cluster was restored there), StoreUnavailable, UnsupportedFormat.
        """
        backups = cls(source, target, log, clock=clock, rng=rng, kept=kept)
        await refuse_restored(target)
        numbers = await list_manifests(target)
        held = {one.key: one.size for one in await listed(target)}
        last = await backups._pruner.open(numbers, held)
        backups._number = max(numbers, default=-1) + 1
        if last is not None:
            if last.cluster_id != log.state.cluster_id:
                raise SettingsError(
                    f"{target.uri} has backups of another cluster, {last.cluster_id}: give this "
                    "one a place of its own"
                )
            if last.next_entry > log.state.next_entry:
                raise SettingsError(
                    f"{target.uri} has backups of a newer state of this cluster, up to entry "
                    f"{last.next_entry} where {source.uri} has {log.state.next_entry}: it was "
                    "restored elsewhere, or its catalog was rebuilt; give this one a place of its "
                    "own"
                )
        if last is None:
            await refuse_others(target, held, named_objects(log.state), log.state.cluster_id)
        backups._held, backups._looked_at = set(held), clock.monotonic()
        return backups

    async def make(self, on_progress: Progress = no_progress) -> BackupDone:
        """Make a backup of the cluster as it is now.

        Raises RequestRefused (another process makes backups in the target, or a cluster was
        restored there), CorruptObject (an object that the metadata name is gone for good),
        StoreUnavailable, OutcomeUnknown, UnsupportedFormat.
        """
        begun = self._clock.monotonic()
        has_looked = begun - self._looked_at >= _LOOK_S
        if has_looked:
            self._held = {one.key for one in await listed(self._target)}
        copied, looks = Copied(), iter(range(_TAIL_LOOKS))
        moment: _Moment | None = None
        for turn in range(_ROUNDS_MAX):
            turn_begun = self._clock.monotonic()
            moment, state = await self._settled(looks, moment)
            if self._last is not None and self._last[0] is state and not has_looked:
                break
            missing = {k: n for k, n in _soonest_gone(state) if k not in self._held}
            more = await copy_objects(self._source, self._target, missing, self._rng, on_progress)
            self._held |= missing.keys() - set(more.gone)
            copied.objects += more.objects
            copied.bytes += more.bytes
            copied.damaged += more.damaged
            if more.gone:
                await self._refuse_lost(more.gone, moment)
                continue
            took_ms = (self._clock.monotonic() - turn_begun) * 1000
            if took_ms < _SHORT_MS or turn >= _SETTLING_MAX:
                break
            moment = None
        else:
            raise StoreUnavailable(
                f"objects of {self._source.uri} are deleted faster than they are copied"
            )
        if has_looked:  # and what was gone is there again
            self._looked_at = begun
        failpoint("backup_objects_copied")
        await refuse_restored(self._target)
        manifest = await self._publish(state, moment.position_ms, copied)
        removed = await self._pruner.prune(manifest, state)
        self._held -= removed
        return BackupDone(
            manifest=manifest,
            copied_objects=copied.objects,
            copied_bytes=copied.bytes,
            took_ms=round((self._clock.monotonic() - begun) * 1000),
        )

    async def _settled(
        self, looks: Iterator[int], moment: _Moment | None
    ) -> tuple[_Moment, MetadataImage]:
        """Return the newest metadata, with the tails of a moment, which is now if none is given.
        Waits for the upload of inherited tails, which takes seconds, while there are `looks` left:
        where their log is lost, a backup that names its node is better than none.
        """
        backoff = Backoff(self._rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)
        while True:
            if moment is None:
                position_ms = self._clock.now_ms()
                listing = await self._tails.look(await self._log.refresh(surely=True))
                moment = _Moment(position_ms, listing)
            state = await self._tails.at_newest(self._log, moment.listing)
            if not state.tails or next(looks, None) is None:
                return moment, state
            await backoff.wait()
            moment = None

    async def _refuse_lost(self, gone: Sequence[str], moment: _Moment) -> None:
        """Raise CorruptObject if objects that are gone are named by the newest metadata."""
        state = await self._tails.at_newest(self._log, moment.listing)
        for key in gone:
            if key in state.objects and key not in state.unreferenced:
                raise CorruptObject(
                    key, 0, "it is missing, and the metadata name it; see: lakehead verify"
                )

    async def _publish(self, state: MetadataImage, position_ms: int, copied: Copied) -> Manifest:
        """Put metadata and manifest; return the manifest."""
        if self._last is not None and self._last[0] is state:
            key = self._last[1].state
        else:
            key = state_key(self._number, self._rng.getrandbits(64))
            pieces = await checkpoint_pieces(state)
            backoff = Backoff(self._rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)
            await put_if_absent(self._target, key, pieces, backoff)
            failpoint("backup_state_put")
        manifest = self._manifest(key, state, position_ms, copied)
        if not await self._put_manifest(manifest):
            raise RequestRefused(
                f"another process makes backups in {self._target.uri}: this one ends"
            )
        failpoint("backup_manifest_put")
        self._number += 1
        self._last = (state, manifest)
        return manifest

    def _manifest(
        self, key: str, state: MetadataImage, position_ms: int, copied: Copied
    ) -> Manifest:
        named = named_objects(state)
        return Manifest(
            number=self._number,
            cluster_id=state.cluster_id,
            position_ms=position_ms,
            next_entry=state.next_entry,
            state=key,
            objects=len(named),
            size=sum(named.values()),
            tail_objects=len(self._tails.indexes),
            logs_elsewhere=logs_elsewhere(state),
            damaged=tuple(sorted(copied.damaged)),
        )

    async def _put_manifest(self, manifest: Manifest) -> bool:
        """Put a manifest; return false if another process has its number."""
        body = manifest.encode()
        backoff = Backoff(self._rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)
        while True:
            try:
                await self._target.create(manifest.key, [body])
                return True
            except ObjectExists:
                return await self._target.get(manifest_key(manifest.number)) == body
            except OutcomeUnknown:
                await backoff.wait()
