"""One rebuild of a catalog: list the bucket, read the indexes of objects, decide, publish.

Offsets that no object holds any more are bridged by an object with empty batches, which readers
pass over as they pass over compacted records.

The rebuilt state becomes the cluster's by one checkpoint, put where nodes look for the newest one.
Its number is above that of everything under `meta/`, so putting it is the one moment at which the
new catalog takes the place of the old one. The old one is untouched until then, and a copy of it is
kept. The boundary that follows closes everything older.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from crc32c import crc32c

from lakehead.storage.certificates import Certificates
from lakehead.storage.compaction.batches import GAP_MAX, filler
from lakehead.storage.compaction.rewrite import put_object
from lakehead.storage.errors import (
    CorruptObject,
    NotFound,
    ObjectExists,
    ObjectNotFound,
    SettingsError,
    StoreUnavailable,
    UnsupportedFormat,
)
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.object_names import JobName
from lakehead.storage.format.object_writer import ObjectWriter, WrittenObject
from lakehead.storage.format.record_batch import NO_TIMESTAMP
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.garbage import listed
from lakehead.storage.jobs.job import JobContext, results_of
from lakehead.storage.metadata.beginning import close_below_checkpoint, put_checkpoint
from lakehead.storage.metadata.boundaries import delete_boundaries_below
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.layout import EARLIER, META, Listing
from lakehead.storage.metadata.log_reader import LogReader
from lakehead.storage.metadata.records import COMPACTED
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import open_retrying_store
from lakehead.storage.object_store.protocol import ObjectMeta, ObjectStore
from lakehead.storage.rebuild.catalog import Rebuilt, rebuilt_catalog
from lakehead.storage.rebuild.found import FoundObject, FoundRange, look_into
from lakehead.storage.tasks import for_each
from lakehead.storage.wal.object.names import WalName, is_seal_size


def filler_object(
    before: FoundRange, start: int, end: int, cluster_id: str, entry: int
) -> tuple[Extent, WrittenObject]:
    """Return the object that has offsets [start, end) of the stream of `before`, and its extent.
    The same hole gives the same name.
    """
    epoch = before.epochs[-1][0]
    writer = ObjectWriter(
        kind=COMPACTED,
        cluster_id=cluster_id,
        node_id=-1,
        node_epoch=-1,
        writer_id="rebuild-catalog",
        created_ms=before.created_ms,
    )
    writer.begin_stream(
        StreamInfo(
            stream_id=before.stream_id,
            topic_id=before.topic_id,
            topic=before.topic,
            partition=before.partition,
            headers=b"",
        )
    )
    at = start
    while at < end:
        until = min(end, at + GAP_MAX)
        writer.add(epoch, at, until - at, filler(at, until, epoch), NO_TIMESTAMP)
        at = until
    written = writer.finish()
    (held,) = written.ranges
    nonce = crc32c(f"{before.stream_id} {start} {end}".encode()) | (1 << 63)
    extent = Extent(
        start_offset=start,
        end_offset=end,
        object_key=JobName(entry, nonce).key,
        max_timestamp=held.max_timestamp,
        size=held.size,
    )
    return extent, written


def next_number(found: Sequence[ObjectMeta]) -> int:
    """Return the first number above all that are listed under `meta/`; 0 where nothing is."""
    listing = Listing.of(found)
    numbers = [*listing.entries, *listing.checkpoints, *(one.number for one in listing.boundaries)]
    return max(numbers, default=-1) + 1


async def publish(store: ObjectStore, state: MetadataImage, rng: random.Random) -> str:
    """Make `state` the cluster's. Returns where the old metadata are kept; empty if there were
    none. Raises StoreUnavailable, OutcomeUnknown, CorruptObject.
    """
    found = await store.list(META)
    number, kept = state.next_entry, ""
    # Also where there is nothing to keep: objects that this state leaves out are not garbage before
    # an operator has looked.
    with suppress(ObjectExists):
        await store.create(f"{EARLIER}{number}.rebuilt", [b"%d\n" % number])
    if found:
        kept = f"{EARLIER}{number}/"
        await _copy([one.key for one in found], kept, store)
        failpoint("rebuild_copied")
    await put_checkpoint(store, state)
    failpoint("rebuild_published")
    await close_below_checkpoint(store, state, rng)
    # A node that was paused looks for the boundary that it knows before it goes on.
    if await delete_boundaries_below(store, number) is None:
        raise StoreUnavailable(
            f"older boundaries of the metadata in {store.uri} come back: a node still writes there"
        )
    return kept


async def _copy(keys: Sequence[str], folder: str, store: ObjectStore) -> None:
    for key in keys:
        try:
            await store.create(folder + key.removeprefix(META), [await store.get(key)])
        except ObjectExists:
            continue  # by an earlier try


T = TypeVar("T")

_ITEM_OBJECTS = 500
_READS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildItem:
    """Objects whose indexes one process reads; they have `size` bytes in all."""

    path: str
    keys: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObjects:
    """The objects that an item found, and those that could not be read: (key, reason)."""

    objects: tuple[FoundObject, ...]
    unreadable: tuple[tuple[str, str], ...]


def _in_store(uri: str, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
    async def run() -> T:
        store = open_retrying_store(uri, rng=random.SystemRandom())
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def counted(found: Sequence[ObjectMeta]) -> list[ObjectMeta]:
    """Return the objects that may count: no seals, and nothing of a write-ahead log that lies above
    one, which was never acknowledged.
    """
    seals: dict[tuple[int, int], int] = {}
    for one in found:
        name = WalName.parse(one.key)
        if name is not None and is_seal_size(one.size):
            at = (name.node_id, name.epoch)
            seals[at] = min(name.number, seals.get(at, name.number))
    kept = []
    for one in found:
        name = WalName.parse(one.key)
        if name is None or name.number < seals.get((name.node_id, name.epoch), name.number + 1):
            kept.append(one)
    return kept


def _items(path: str, found: Sequence[ObjectMeta]) -> Iterator[RebuildItem]:
    for first in range(0, len(found), _ITEM_OBJECTS):
        some = found[first : first + _ITEM_OBJECTS]
        keys = tuple(one.key for one in some)
        yield RebuildItem(path=path, keys=keys, size=sum(one.size for one in some))


def read_item(item: RebuildItem) -> FoundObjects:
    """Read the indexes of an item's objects. Raises StoreUnavailable."""

    async def work(store: ObjectStore) -> FoundObjects:
        found: list[FoundObject] = []
        unreadable: list[tuple[str, str]] = []

        async def read(key: str) -> None:
            try:
                found.append(await look_into(store, key))
            except ObjectNotFound:
                pass  # swept since it was listed
            except CorruptObject as error:
                unreadable.append((key, error.reason))

        await for_each(item.keys, read, at_once=_READS_AT_ONCE)
        return FoundObjects(
            objects=tuple(sorted(found, key=lambda one: one.key)), unreadable=tuple(unreadable)
        )

    return _in_store(item.path, work)


def rebuild(
    context: JobContext, *, without: frozenset[str], replace: bool
) -> tuple[Rebuilt, int, tuple[tuple[str, str], ...], str]:
    """Rebuild the catalog of the cluster at `context.path` `without` these topics, and publish it
    unless this is a dry run; with `replace` even if there are metadata that can be read.

    Return the catalog, the number of objects, those that cannot be read with the reason, and where
    the old metadata are kept. Raises SettingsError (an empty bucket, several clusters, or metadata
    that can be read and no `replace`), StoreUnavailable, UnsupportedFormat.
    """
    path, may_replace = context.path, replace or context.is_dry_run
    found, entry = _in_store(path, lambda store: _look(store, may_replace=may_replace))
    items = tuple(_items(path, counted(found)))
    results = list(results_of(context, read_item, items, size=lambda item: item.size))
    objects = sorted((o for result in results for o in result.objects), key=lambda one: one.key)
    fillers: dict[str, WrittenObject] = {}

    def fill(before: FoundRange, start: int, end: int) -> tuple[Extent, int]:
        extent, written = filler_object(before, start, end, objects[0].cluster_id, entry)
        fillers[extent.object_key] = written
        return extent, written.size

    rebuilt = rebuilt_catalog(
        objects,
        [one.key for one in found],
        entry=entry,
        without=without,
        filler=fill,
    )
    unreadable = tuple(one for result in results for one in result.unreadable)
    kept = ""
    if not context.is_dry_run:
        kept = _in_store(path, lambda store: _publish(store, rebuilt, fillers))
    return rebuilt, len(objects), unreadable, kept


def forgotten_keys(path: str) -> tuple[str, ...]:
    """Return a line for each request to forget keys that the store at `path` has: an object that no
    entry of the lost metadata named may have their records. Raises StoreUnavailable.
    """

    async def look(store: ObjectStore) -> tuple[str, ...]:
        certificates, lines = Certificates(store, random.SystemRandom()), list[str]()
        for number in await certificates.numbers():
            try:
                topic = (await certificates.request(number)).topic
            except (CorruptObject, NotFound, UnsupportedFormat) as error:
                lines.append(f"keys were forgotten, of a topic that is not known: {error}")
                continue
            lines.append(
                f"keys of topic {topic} were forgotten, and records of them may be back: lakehead "
                f"forget {topic} --check {number}"
            )
        return tuple(lines)

    return _in_store(path, look)


async def _look(store: ObjectStore, *, may_replace: bool) -> tuple[list[ObjectMeta], int]:
    """Return the objects that are there, and the number at which the log is to go on."""
    metadata = await store.list(META)
    if metadata and not may_replace and await _is_readable(store):
        raise SettingsError(
            f"the metadata in {store.uri} can be read: stop every node, look with --dry-run, and "
            "put the rebuilt catalog in its place with --replace"
        )
    return await listed(store), next_number(metadata)


async def _is_readable(store: ObjectStore) -> bool:
    reader = LogReader(store)
    try:
        await reader.load()
        await reader.catch_up()
    except CorruptObject:
        return False
    return bool(reader.state.cluster_id)


async def _publish(store: ObjectStore, rebuilt: Rebuilt, fillers: dict[str, WrittenObject]) -> str:
    rng = random.SystemRandom()
    for key, written in fillers.items():
        await put_object(store, key, written, rng)
    failpoint("rebuild_bridged")
    return await publish(store, rebuilt.state, rng)
