"""Restores a cluster from a backup, or from a copy of its prefix, in another store or in place.

Objects are copied first, then one checkpoint makes the cluster: until it is there, the target is
none, and a restore that was killed begins again where it was.

A copy of a cluster's prefix, as S3 replication makes it, may have metadata that name objects which
have not arrived. There the newest entry counts at which everything is there.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from lakehead.storage.backoff import Backoff
from lakehead.storage.backup.completeness import Completeness
from lakehead.storage.backup.copying import Progress, copy_objects, no_progress
from lakehead.storage.backup.manifest import (
    PREFIX,
    RESTORING,
    Manifest,
    list_manifests,
    named_objects,
    read_manifest,
    read_state,
)
from lakehead.storage.backup.pruning import refuse_others
from lakehead.storage.backup.restored_state import restored_state
from lakehead.storage.clock import Clock
from lakehead.storage.errors import (
    CorruptObject,
    NotFound,
    ObjectExists,
    ObjectNotFound,
    RequestRefused,
)
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.batch_writer import KeyValue, encode_batch
from lakehead.storage.format.object_names import JobName
from lakehead.storage.format.object_writer import ObjectWriter
from lakehead.storage.format.record_batch import patch
from lakehead.storage.garbage import listed
from lakehead.storage.metadata.beginning import close_below_checkpoint, put_checkpoint
from lakehead.storage.metadata.entry import decode_entry, entry_key
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.layout import META, Listing
from lakehead.storage.metadata.log_reader import read_checkpoint
from lakehead.storage.metadata.records import Entry
from lakehead.storage.metadata.state import MetadataImage, ObjectState
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.object_store.put import put_if_absent
from lakehead.storage.stream.wal_tails import WalTails, nodes_in_cluster

_RETRY_S = 0.1
_RETRY_MAX_S = 5.0

Corrections = Callable[[ObjectStore, MetadataImage], Awaitable[Mapping[int, Sequence[KeyValue]]]]
"""Returns records to append to streams, by stream id, before the cluster begins: corrections of
what the loss made wrong. It reads the streams from the store that is given.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """A state from which a cluster can be restored: all objects that it names are there.
    `position_ms` is when the cluster was in it, milliseconds since the epoch; -1: not known.

    `entries_left` entries after it are there and were left out, the last of them of `left_until_ms`
    (-1: none, or not known): the objects `missing` that they name are not there, or an entry before
    them. `damaged` are the newer backups that cannot be read, by number.
    """

    state: MetadataImage
    position_ms: int
    manifest: Manifest | None = None
    entries_left: int = 0
    left_until_ms: int = -1
    missing: tuple[str, ...] = ()
    damaged: Mapping[int, CorruptObject] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore: the state of the new cluster, what was copied, and how many records
    were appended as corrections.
    """

    state: MetadataImage
    copied_objects: int
    copied_bytes: int
    corrections: int


async def find_point(source: ObjectStore, number: int | None = None) -> RestorePoint:
    """Return the newest complete state in a store, or that of backup `number`.

    Raises NotFound (there is none), CorruptObject, UnsupportedFormat, StoreUnavailable.
    """
    numbers = await list_manifests(source)
    if number is not None and number not in numbers:
        raise NotFound(f"there is no backup {number} in {source.uri}")
    there = {one.key for one in await listed(source)}
    if not numbers:
        found = await newest_in_copy(source, there)
        return replace(found, state=await copied_tails(source).of_copy(found.state))
    damaged: dict[int, CorruptObject] = {}
    for one in reversed(numbers if number is None else [number]):
        try:
            manifest = await read_manifest(source, one)
            state = await read_state(source, manifest)
        except ObjectNotFound:
            continue  # it was pruned meanwhile
        except CorruptObject as error:
            if number is not None:
                raise
            damaged[one] = error
            continue
        missing = [key for key in named_objects(state) if key not in there]
        if not missing:
            return RestorePoint(
                state=state,
                position_ms=manifest.position_ms,
                manifest=manifest,
                damaged=damaged,
            )
        if number is not None:
            raise CorruptObject(missing[0], 0, f"backup {one} names it, and it is missing")
    for reason in damaged.values():
        raise NotFound(f"no backup in {source.uri} is whole; the newest: {reason}")
    raise NotFound(f"no backup in {source.uri} has all of its objects")


async def newest_in_copy(source: ObjectStore, there: Collection[str]) -> RestorePoint:
    """Return the newest complete state of a copy of a cluster's prefix, without the tails of
    write-ahead logs: that of a checkpoint, or after an entry that follows it. `there` are the keys
    of the objects that are there. Raises NotFound, StoreUnavailable, UnsupportedFormat.

    A boundary may have arrived before the checkpoint that it stands at, and no more may arrive: so
    an earlier checkpoint counts as well, with the entries that follow it.
    """
    listing = Listing.of(await source.list(META))
    for number in (*reversed(listing.checkpoints), 0):
        try:
            state = await read_checkpoint(source, number) if number else MetadataImage()
        except (ObjectNotFound, CorruptObject):
            continue
        missing = [key for key in named_objects(state) if key not in there]
        found = Completeness(state, missing, there.__contains__)
        while (entry := await read_entry(source, found.newest.next_entry)) is not None:
            found.add(entry)
            await asyncio.sleep(0)
        if found.complete is not None and found.complete.cluster_id:
            return await _point_in_copy(source, listing, found, found.complete)
    raise NotFound(
        f"in {source.uri} there is neither a backup nor a cluster with all of its objects"
    )


async def _point_in_copy(
    source: ObjectStore, listing: Listing, found: Completeness, complete: MetadataImage
) -> RestorePoint:
    """Return the point of a complete state, with what was left out, beyond a gap too."""
    left = [number for number in listing.entries if number >= complete.next_entry]
    last = await _read_whole(source, left[-1]) if left else None
    return RestorePoint(
        state=complete,
        position_ms=found.complete_ms,
        entries_left=max(len(left), found.entries_left),
        left_until_ms=-1 if last is None else last.time_ms,
        missing=tuple(sorted(found.missing)),
    )


async def _read_whole(source: ObjectStore, number: int) -> Entry | None:
    """Return an entry; None if it is damaged or not there."""
    try:
        return await read_entry(source, number)
    except CorruptObject:
        return None


def copied_tails(source: ObjectStore) -> WalTails:
    """Return what reads the tails of write-ahead logs that are in a copy of a cluster's prefix."""
    return WalTails(source, nodes_in_cluster)


async def read_entry(source: ObjectStore, number: int) -> Entry | None:
    """Return an entry of the metadata; None if it is not there. Raises StoreUnavailable,
    CorruptObject, UnsupportedFormat.
    """
    key = entry_key(number)
    try:
        return decode_entry(key, await source.get(key))
    except ObjectNotFound:
        return None


async def refuse_occupied(target: ObjectStore, *, is_in_place: bool) -> None:
    """Raise RequestRefused if a cluster cannot be restored in a store, since one is there, or
    another backup.
    """
    if await target.list(META):
        if is_in_place and await list_manifests(target):
            raise RequestRefused(
                f"{target.uri} was made a cluster of a backup already: start its nodes there"
            )
        raise RequestRefused(
            f"{target.uri} holds a cluster already: "
            + (
                "if it is a copy that S3 replication has filled, stop that and give --replicated"
                if is_in_place
                else "restore to an empty prefix"
            )
        )
    if not is_in_place and await target.list(PREFIX):
        raise RequestRefused(
            f"{target.uri} holds backups: restore them with --in-place, or to an empty prefix"
        )


async def restore_cluster(
    point: RestorePoint,
    source: ObjectStore,
    target: ObjectStore,
    *,
    correct: Corrections,
    clock: Clock,
    rng: random.Random,
    on_progress: Progress = no_progress,
) -> Restored:
    """Make the cluster of a restore point in `target`; the same store as `source`: in place.

    Raises CorruptObject (an object has vanished from the source), RequestRefused (a cluster was
    made there meanwhile, or the backup was deleted), SettingsError (the target has objects that are
    not of this cluster), StoreUnavailable, OutcomeUnknown.
    """
    copied_objects = copied_bytes = 0
    if source is not target:
        there = {one.key: one.size for one in await listed(target)}
        named = named_objects(point.state)
        # Sizes prove nothing here: no checksum was looked at, and they may be those of encryption.
        await refuse_others(target, there, {}, point.state.cluster_id)
        missing = {key: size for key, size in named.items() if key not in there}
        copied = await copy_objects(source, target, missing, rng, on_progress)
        for key in copied.gone:
            raise CorruptObject(key, 0, "it was deleted while the backup was restored")
        copied_objects, copied_bytes = copied.objects, copied.bytes
    elif point.manifest is not None:
        await mark_restoring(target, point.manifest)
    failpoint("restore_objects_copied")
    secret = f"{rng.getrandbits(256):064x}"
    now_ms = clock.now_ms()
    keys = [one.key for one in await listed(target)]
    state = restored_state(point.state, keys=keys, node_secret=secret, time_ms=now_ms)
    corrections = await correct(target, state)
    state = await append_corrections(target, state, corrections, now_ms, rng)
    failpoint("restore_corrected")
    await refuse_occupied(target, is_in_place=source is target)
    await put_checkpoint(target, state)
    failpoint("restore_published")
    await close_below_checkpoint(target, state, rng)
    if source is target:
        await target.delete([RESTORING])  # the metadata keep backups away by now
    return Restored(
        state=state,
        copied_objects=copied_objects,
        copied_bytes=copied_bytes,
        corrections=sum(map(len, corrections.values())),
    )


async def mark_restoring(store: ObjectStore, manifest: Manifest) -> None:
    """Mark a place of backups, of which one becomes the cluster: a process that follows deletes
    nothing of it after that. Raises RequestRefused if it has begun to.
    """
    with suppress(ObjectExists):  # of an earlier try
        await store.create(RESTORING, [b""])
    try:
        await store.get(manifest.key)  # a listing may be older
    except ObjectNotFound:
        raise RequestRefused(
            f"backup {manifest.number} was deleted just now: stop the process that makes backups "
            f"in {store.uri}, and run this again"
        ) from None


async def append_corrections(
    target: ObjectStore,
    state: MetadataImage,
    records: Mapping[int, Sequence[KeyValue]],
    time_ms: int,
    rng: random.Random,
) -> MetadataImage:
    """Return the state with a batch at the end of each of these streams, in one new object. Raises
    StoreUnavailable.
    """
    changed = {stream_id: some for stream_id, some in sorted(records.items()) if some}
    if not changed:
        return state
    writer = ObjectWriter(
        kind="sso",
        cluster_id=state.cluster_id,
        node_id=-1,
        node_epoch=-1,
        writer_id="restore",
        created_ms=time_ms,
    )
    for stream_id, some in changed.items():
        stream = state.streams[stream_id]
        batch = encode_batch(some, time_ms)
        patch(batch, 0, stream.end_offset, stream.epoch)
        info = state.stream_info(stream_id, None)
        writer.begin_stream(msgspec.structs.replace(info, headers=b""))
        writer.add(stream.epoch, stream.end_offset, len(some), batch, time_ms)
    written = writer.finish()
    key = JobName(state.next_entry, rng.getrandbits(64)).key
    backoff = Backoff(rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)
    await put_if_absent(target, key, written.pieces, backoff)
    streams = state.streams
    for held in written.ranges:
        stream = streams[held.stream_id]
        extent = Extent(
            start_offset=held.start_offset,
            end_offset=held.end_offset,
            object_key=key,
            max_timestamp=held.max_timestamp,
            size=held.size,
        )
        streams = streams.set(
            held.stream_id,
            replace(
                stream,
                end_offset=held.end_offset,
                extents=stream.extents.extend([extent]),
                epochs=(*stream.epochs, (stream.epoch, held.start_offset)),
            ),
        )
    made = ObjectState(
        key=key,
        kind="sso",
        size=written.size,
        node_id=-1,
        node_epoch=-1,
        created_ms=time_ms,
        stream_ids=frozenset(changed),
    )
    return replace(state, streams=streams, objects=state.objects.set(key, made))
