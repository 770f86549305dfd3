"""Ends the writes of a node's earlier epochs, and returns the objects that they have written.

The rule of acknowledgement is that number k counts once all of 0..k exist by the writer's hand. So
a seal at the first number that has no object ends the log there, exactly: the writer's own put of
that number must fail, and whatever lies above it was never acknowledged, whether it was there
before the seal or comes hours later. Put-if-absent is the only thing this rests on. A listing shows
where to look, so that the walk reads many objects at once; never where the end is.

A seal that finds data in its place has met a writer that is still at work, and that may be quicker
than the walk. So the next one is put ahead of it, as a barrier: the writer cannot pass, and the
walk comes to an end below. Extra seals above the first one do no harm.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from lakehead.storage.backoff import Backoff
from lakehead.storage.clock import Clock
from lakehead.storage.errors import (
    CorruptObject,
    LakeheadError,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    SettingsError,
    StoreUnavailable,
    WalCorrupted,
)
from lakehead.storage.event_logger import event_logger
from lakehead.storage.format.stream_object import (
    INDEX_ITEM,
    ObjectIndex,
    StreamRecord,
    check_item,
    iter_records,
    metadata_start,
    parse_index,
)
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.wal.object.names import (
    Seal,
    WalName,
    decode_seal,
    is_seal_size,
    node_prefix,
    wal_key,
)
from lakehead.storage.wal.protocol import SealedLog, SealedObject, SealedRange, WalFloor

K = TypeVar("K")
T = TypeVar("T")

CALLS_AT_ONCE = 32


async def in_order(call: Callable[[K], Awaitable[T]], items: Iterable[K]) -> list[T]:
    """Call for each item, a bounded count at once; return the results in order.

    All calls end before the first error, in order, is raised: so one schedule of a simulated world
    is one outcome.
    """
    slots = asyncio.Semaphore(CALLS_AT_ONCE)

    async def one(item: K) -> T | LakeheadError:
        async with slots:
            try:
                return await call(item)
            except LakeheadError as error:
                return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    results: list[T] = []
    for task in tasks:
        result = task.result()
        if isinstance(result, LakeheadError):
            raise result
        results.append(result)
    return results


_log = event_logger("storage.wal")

_SUFFIX_GUESS = 64 * 1024
_RETRY_S = 0.05
_RETRY_MAX_S = 5.0
_DELETE_BATCH = 1000


async def read_wal_object(store: ObjectStore, key: str) -> Seal | ObjectIndex:
    """Return what is under a number of a log. Raises ObjectNotFound, StoreUnavailable,
    CorruptObject, UnsupportedFormat.
    """
    suffix, size = await store.get_suffix(key, _SUFFIX_GUESS)
    if is_seal_size(size):
        return decode_seal(key, suffix)
    start = metadata_start(key, suffix, size)
    if size - start > len(suffix):
        return parse_index(key, await store.get_range(key, start, size - start), size)
    return parse_index(key, suffix, size)


class LogSealer:
    """A `SealableLog`: of one node, in one store (one that retries), for the node itself or for
    another that takes over. `are_shared`: the store is the cluster's. `sealer_id` and `incarnation`
    name the writer of the seals, for the operators that find them.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        cluster_id: str,
        node_id: int,
        sealer_id: int,
        incarnation: str,
        clock: Clock,
        rng: random.Random,
        are_shared: bool = True,
    ) -> None:
        self.are_shared = are_shared
        self._store = store
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._sealer_id = sealer_id
        self._incarnation = incarnation
        self._clock = clock
        self._rng = rng

    async def seal(self, floor: WalFloor, *, before: int) -> SealedLog:
        """See `WalObjects.seal`."""
        listed = await self._list(floor)
        objects: list[SealedObject] = []
        for epoch in range(floor.epoch, before):
            first = floor.number if epoch == floor.epoch else 0
            objects += await self._seal_epoch(epoch, first, listed.get(epoch, {}))
        kept = {item.key for item in objects}
        leftovers = tuple(
            wal_key(self._node_id, epoch, number)
            for epoch, numbers in sorted(listed.items())
            for number, size in sorted(numbers.items())
            if epoch < before
            and not is_seal_size(size)
            and wal_key(self._node_id, epoch, number) not in kept
        )
        return SealedLog(tuple(objects), leftovers)

    async def is_empty(self, floor: WalFloor) -> bool:
        """Return true if a listing shows no data from the floor on: for a node whose log is
        elsewhere.
        """
        listed = await self._list(floor)
        sizes = [
            size
            for epoch, numbers in listed.items()
            for number, size in numbers.items()
            if (epoch, number) >= floor
        ]
        return all(map(is_seal_size, sizes))

    async def discard(self, keys: Sequence[str]) -> None:
        """See `WalObjects.discard`."""
        for first in range(0, len(keys), _DELETE_BATCH):
            batch = keys[first : first + _DELETE_BATCH]
            try:
                await self._store.delete(batch)
            except StoreUnavailable as error:
                _log.warning("wal_delete_failed", objects=len(batch), error=str(error))

    async def _list(self, floor: WalFloor) -> dict[int, dict[int, int]]:
        """Return the sizes of the node's objects from the floor's epoch on, by epoch and number."""
        prefix = node_prefix(self._node_id)
        found: dict[int, dict[int, int]] = {}
        for meta in await self._store.list(prefix, start_after=f"{prefix}{floor.epoch:010d}"):
            name = WalName.parse(meta.key)
            if name is not None and name.epoch >= floor.epoch:
                found.setdefault(name.epoch, {})[name.number] = meta.size
        return found

    async def _seal_epoch(
        self, epoch: int, first: int, listed: dict[int, int]
    ) -> list[SealedObject]:
        end = first
        while end in listed and not is_seal_size(listed[end]):
            end += 1
        objects = await in_order(lambda number: self._read_listed(epoch, number), range(first, end))
        width = 1
        while True:
            claims = await in_order(
                lambda number: self._claim(epoch, number), range(end, end + width)
            )
            for found in claims:
                if found is None:
                    _check_one_writer(epoch, objects)
                    return [sealed for sealed, _ in objects]
                objects.append(found)
            end += width
            if width == 1:
                await self._bar(epoch, end)
                width = CALLS_AT_ONCE

    async def _bar(self, epoch: int, number: int) -> None:
        """Put a seal somewhere above `number`, ahead of the writer there."""
        distance = 2 * CALLS_AT_ONCE
        while await self._claim(epoch, number + distance) is not None:
            distance *= 4

    async def _read_listed(self, epoch: int, number: int) -> tuple[SealedObject, str]:
        key = wal_key(self._node_id, epoch, number)
        try:
            found = await read_wal_object(self._store, key)
        except ObjectNotFound:
            raise WalCorrupted(
                f"{key}: listed, needed and gone: another process recovers the same node"
            ) from None
        if isinstance(found, Seal):
            raise WalCorrupted(f"{key}: a seal with the size of data")
        return self._sealed(key, epoch, found)

    async def _claim(self, epoch: int, number: int) -> tuple[SealedObject, str] | None:
        """Put a seal. None: a seal, this one or another, ends the log here; else the data that was
        there.
        """
        key = wal_key(self._node_id, epoch, number)
        seal = Seal(
            sealer_id=self._sealer_id,
            incarnation=self._incarnation,
            created_ms=self._clock.now_ms(),
        ).encode()
        backoff = Backoff(self._rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)
        while True:
            try:
                await self._store.create(key, [seal])
                return None
            except ObjectExists:
                pass
            except OutcomeUnknown as error:
                _log.warning("seal_unknown", key=key, error=str(error))
            try:
                found = await read_wal_object(self._store, key)
            except ObjectNotFound:  # not there yet: only putting it settles the owner of the number
                await backoff.wait()
                continue
            return None if isinstance(found, Seal) else self._sealed(key, epoch, found)

    def _sealed(self, key: str, epoch: int, index: ObjectIndex) -> tuple[SealedObject, str]:
        """Return an object with its writer's id."""
        if index.cluster_id != self._cluster_id:
            raise SettingsError(
                f"{self._store.uri} holds the log of node {self._node_id} of another cluster, "
                f"{index.cluster_id}: give this one a prefix of its own"
            )
        if (index.kind, index.node_id, index.node_epoch) != ("wal", self._node_id, epoch):
            raise WalCorrupted(
                f"{key} was written as {index.kind} of node {index.node_id} in epoch "
                f"{index.node_epoch}"
            )
        return sealed_object(index), index.writer_id


def sealed_object(index: ObjectIndex) -> SealedObject:
    """Return what a WAL object holds, by its index."""
    return SealedObject(index.key, index.size, index.created_ms, _ranges(index))


def _ranges(index: ObjectIndex) -> tuple[SealedRange, ...]:
    """Return what an object holds of each stream."""
    ranges: dict[int, SealedRange] = {}
    rows = zip(INDEX_ITEM.iter_unpack(index.table), index.max_timestamps, strict=True)
    for (stream_id, start, delta, _, _, size), timestamp in rows:
        known = ranges.get(stream_id)
        if known is None:
            info = index.streams[stream_id]
            found = SealedRange(
                stream_id, info.epoch, start, start + delta, timestamp, size, bool(info.headers)
            )
        else:
            found = known._replace(
                end_offset=start + delta,
                max_timestamp=max(known.max_timestamp, timestamp),
                size=known.size + size,
            )
        ranges[stream_id] = found
    return tuple(ranges.values())


def _check_one_writer(epoch: int, objects: Sequence[tuple[SealedObject, str]]) -> None:
    writers = {writer for _, writer in objects}
    if len(writers) > 1:
        key = objects[-1][0].key
        raise WalCorrupted(f"{key}: epoch {epoch} has objects of {len(writers)} writers")


_READS_AT_ONCE = 16
_BYTES_AT_ONCE = 32 * 1024 * 1024


async def sealed_records(
    store: ObjectStore, objects: Sequence[SealedObject]
) -> AsyncGenerator[StreamRecord, None]:
    """Yield the records of objects in order: of one object, stream after stream.

    Raises ObjectNotFound, StoreUnavailable, CorruptObject.
    """
    at = 0
    while at < len(objects):
        some = _some(objects, at)
        at += len(some)
        bodies = await in_order(store.get, [item.key for item in some])
        for item, body in zip(some, bodies, strict=True):
            for record in _records(item.key, body):
                yield record


def _some(objects: Sequence[SealedObject], first: int) -> Sequence[SealedObject]:
    """Return what is read at once: bounded in number and, beyond one object, in bytes."""
    size, end = objects[first].size, first + 1
    while end < len(objects) and end - first < _READS_AT_ONCE:
        size += objects[end].size
        if size > _BYTES_AT_ONCE:
            break
        end += 1
    return objects[first:end]


def _records(key: str, body: bytes) -> Iterator[StreamRecord]:
    index = parse_index(key, body, len(body))
    view = memoryview(body)
    for item in index.items:
        data = view[item.position : item.position + item.size]
        check_item(key, item, data)
        try:
            yield from iter_records(data)
        except ValueError as error:
            raise CorruptObject(key, item.position, str(error)) from error
