"""Uploads: the log cache becomes objects, then one metadata entry, then the WAL may be trimmed.

`UploadQueue` seals the log cache by size, age or WAL use. Uploads overlap; commits happen in the
order of seals, so that every stream's ranges are contiguous, and the WAL is trimmed after each
commit. Some streams can be uploaded ahead of the others; the next upload of everything trims the
WAL then.

`Uploader` writes an upload set. A stream with much data gets objects of its own, the others share
one; no object exceeds a limit.

`UploadPace` spreads building and putting over time, at twice the rate at which data comes in: a
steady stream rather than a burst that delays producers and consumers. It is faster as memory and
WAL fill up, and unlimited before producers would have to wait.
"""

import asyncio
import random
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from operator import attrgetter, sub
from typing import NamedTuple

import msgspec

from lakehead.storage.backoff import Backoff
from lakehead.storage.clock import Clock
from lakehead.storage.errors import (
    CorruptObject,
    Fenced,
    LakeheadError,
    OutcomeUnknown,
    StorageError,
    UnsupportedFormat,
)
from lakehead.storage.event_logger import event_logger
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.object_names import DataName
from lakehead.storage.format.object_writer import ObjectWriter, WrittenObject
from lakehead.storage.format.producer_headers import producer_headers
from lakehead.storage.format.stream_object import ObjectIndex, StreamInfo, read_index
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import (
    TAIL,
    CloseStream,
    CommitObjects,
    CommittedObject,
    CommittedRange,
    Record,
    state_kind,
)
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.object_store.put import put_if_absent
from lakehead.storage.stream.log_cache import CacheBlock, CachedBatch, LogCache
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal.protocol import WalFloor, WriteAheadLog

_HEADROOM = 2.0
_RATE_MIN = 32 * 1024 * 1024
"""Bytes per second: what an idle node does with what is left."""
_SAMPLE_S = 0.5
_WEIGHT = 0.3
_FILL_CALM = 0.5
_FILL_FULL = 0.75
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.001, 0.1


class UploadPace:
    """`produced()` returns the bytes that have come in since the start; `fill()` the used share of
    memory and WAL, 1 being where producers wait.
    """

    def __init__(
        self, clock: Clock, *, produced: Callable[[], int], fill: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._produced = produced
        self._fill = fill
        self._rate = 0.0
        self._sampled_at = self._paid_at = clock.monotonic()
        self._sampled = produced()
        self._debt = 0.0
        self._hurries = 0

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """While a caller waits for the uploads: no limit."""
        self._hurries += 1
        try:
            yield
        finally:
            self._hurries -= 1

    def rate(self) -> float:
        """Return the bytes per second that may be uploaded now; infinity without a limit."""
        now = self._clock.monotonic()
        elapsed = now - self._sampled_at
        if elapsed >= _SAMPLE_S:
            produced = self._produced()
            weight = 1 - (1 - _WEIGHT) ** (elapsed / _SAMPLE_S)
            self._rate += weight * ((produced - self._sampled) / elapsed - self._rate)
            self._sampled, self._sampled_at = produced, now
        fill = self._fill()
        if self._hurries or fill >= _FILL_FULL:
            return float("inf")
        hurry = max(0.0, fill - _FILL_CALM) / (_FILL_FULL - fill)
        return max(_RATE_MIN, self._rate * _HEADROOM) * (1 + hurry)

    async def spend(self, size: int) -> None:
        """Wait until what was sent before has been paid for, then take `size` bytes."""
        while True:
            rate, now = self.rate(), self._clock.monotonic()
            self._debt = max(0.0, self._debt - min(rate, 1e15) * (now - self._paid_at))
            self._paid_at = now
            if rate == float("inf"):
                self._debt = 0.0
            if self._debt < 1:
                self._debt = float(size)
                return
            await asyncio.sleep(max(_PAUSE_MIN_S, min(self._debt / rate, _PAUSE_MAX_S)))


_log = event_logger("storage.upload")

_RETRY_S = 0.1
_RETRY_MAX_S = 10.0
_CHECKS = 5
"""Reads of an object that has a name of this node's, until one is right."""
_YIELD_BYTES = 1 * 1024 * 1024
_YIELD_BATCHES = 256
_YIELD_PLANNED = 8192
"""Batches that are planned in a millisecond, more or less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The identity of the node that writes objects, for their names and their extension blocks."""

    cluster_id: str
    node_id: int
    node_epoch: int
    incarnation: str


Describe = Callable[[int, int, int], StreamInfo]
"""The description of a stream in an object that has its offsets [start, end)."""


@dataclass(slots=True, kw_only=True)
class UploadSet:
    """A sealed block on its way: what the streams are, and their partition states at the block's
    end.
    """

    block: CacheBlock
    infos: dict[int, StreamInfo]
    wal_position: int | None = None
    """The position to which the WAL can be trimmed after the commit."""
    wal_floor: WalFloor | None = None
    """The record by which the commit moves the floor of a WAL, if the metadata has it."""
    closing: Mapping[int, int] = field(default_factory=dict)
    """Streams that the commit closes, under these epochs: nothing of theirs comes after the block.
    """
    objects: list[CommittedObject] = field(default_factory=list)


class Part(NamedTuple):
    """Batches [first, end) of a stream's in a block. `is_last`: the stream's last in the block."""

    stream_id: int
    first: int
    end: int
    is_last: bool


class PlannedObject(NamedTuple):
    """An object to write, of about `size` bytes. `kind`: `so` of one stream, `sso` of several."""

    kind: str
    parts: list[Part]
    size: int


async def plan_objects(
    batches: dict[int, list[CachedBatch]], *, stream_object_size: int, object_size_max: int
) -> list[PlannedObject]:
    """Plan the objects of a block: those of each large stream, and what the others share. A stream
    that has to be cut is large, too, since an object holds each stream once.

    No object becomes larger than `object_size_max` by more than a batch. A stream's parts come in
    order. Other work of the loop has a turn now and then: there may be a million batches.
    """
    planned: list[PlannedObject] = []
    shared: list[Part] = []
    shared_size = 0
    for stream_id in sorted(batches):
        cuts = await _cuts(batches[stream_id], object_size_max)
        parts = [
            Part(stream_id, first, end, is_last=end == len(batches[stream_id]))
            for first, end, _ in cuts
        ]
        size = sum(cut.size for cut in cuts)
        if size >= stream_object_size or len(cuts) > 1:
            planned += [
                PlannedObject("so", [part], cut.size) for part, cut in zip(parts, cuts, strict=True)
            ]
            continue
        if shared and shared_size + size > object_size_max:
            planned.append(_shared(shared, shared_size))
            shared, shared_size = [], 0
        shared += parts
        shared_size += size
    if shared:
        planned.append(_shared(shared, shared_size))
    return planned


_epoch, _payload = attrgetter("epoch"), attrgetter("payload")
_base_offset, _end_offset = attrgetter("base_offset"), attrgetter("end_offset")
_max_timestamp = attrgetter("max_timestamp")


class _Cut(NamedTuple):
    first: int
    end: int
    size: int


async def _cuts(batches: list[CachedBatch], size_max: int) -> list[_Cut]:
    cuts: list[_Cut] = []
    first = size = 0
    for begun in range(0, len(batches), _YIELD_PLANNED):
        if begun:
            await asyncio.sleep(0)
        some = batches[begun : begun + _YIELD_PLANNED]
        whole = sum(map(len, map(_payload, some)))
        if size + whole <= size_max:
            size += whole
            continue
        for number, batch in enumerate(some, begun):
            added = len(batch.payload)
            if size and size + added > size_max:
                cuts.append(_Cut(first, number, size))
                first, size = number, 0
            size += added
    cuts.append(_Cut(first, len(batches), size))
    return cuts


def _shared(parts: list[Part], size: int) -> PlannedObject:
    return PlannedObject("so" if len(parts) == 1 else "sso", parts, size)


@dataclass(slots=True)
class UploadStats:
    """Uploads since the start."""

    objects: int = 0
    """Objects written, committed or not yet."""
    bytes: int = 0
    upload_sets: int = 0
    """Upload sets committed."""
    unknown_puts: int = 0
    """Puts whose outcome had to be found out by putting again."""


class Uploader:
    """Write upload sets as objects and commit them."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        metadata: MetadataLog,
        writer: Writer,
        clock: Clock,
        rng: random.Random,
        pace: UploadPace,
        settings: StorageSettings,
    ) -> None:
        self.stats = UploadStats()
        self.positions_last: bool = False
        """True if positions of the node's log mean the same in its next life."""
        self._store = store
        self.metadata = metadata
        self._writer = writer
        self._clock = clock
        self._rng = rng
        self._pace = pace
        self._settings = settings
        self._next_object = 0

    def hurry(self) -> AbstractContextManager[None]:
        """While a caller waits for the uploads: no limit of speed."""
        return self._pace.hurry()

    async def write(self, upload_set: UploadSet, *, in_few: bool = False) -> None:
        """Write the objects of an upload set: those of each large stream, one for all others; or
        as few as their largest size allows, since each takes a flush or a request.
        """
        size_max = self._settings.object_size_max
        planned = await plan_objects(
            upload_set.block.batches,
            stream_object_size=size_max if in_few else self._settings.stream_object_size,
            object_size_max=size_max,
        )
        for one in planned:
            await self._pace.spend(one.size)
            await self._write_object(one, upload_set)
        failpoint("upload_objects_written")

    async def commit(self, upload_set: UploadSet) -> None:
        """Commit the written objects in one entry. Raises EntryRejected if this node was fenced."""
        floor = upload_set.wal_floor
        committed = CommitObjects(
            node_id=self._writer.node_id,
            node_epoch=self._writer.node_epoch,
            objects=tuple(upload_set.objects),
            wal_epoch=-1 if floor is None else floor.epoch,
            wal_floor=0 if floor is None else floor.number,
        )

        def plan(state: MetadataImage) -> Sequence[Record]:
            closed = self._closed(state, upload_set.closing)
            is_empty = not (upload_set.objects or floor or closed)
            return () if is_empty else (self._positioned(state, committed, upload_set), *closed)

        await self.metadata.commit_with(plan)
        self.stats.upload_sets += 1
        failpoint("upload_committed")

    def _positioned(
        self, state: MetadataImage, committed: CommitObjects, upload_set: UploadSet
    ) -> CommitObjects:
        """Say how far the node's log reaches, if it is one whose positions last: an older state of
        it is known by that.
        """
        node, position = state.nodes.get(self._writer.node_id), upload_set.wal_position
        if position is None or not self.positions_last or node is None or not node.log.log_id:
            return committed
        return msgspec.structs.replace(committed, wal_position=position)

    def _closed(self, state: MetadataImage, epochs: Mapping[int, int]) -> list[CloseStream]:
        """Return what closes those that are still open on this node under their epochs. That the
        node is the one that opened them, the commit beside it makes sure of.
        """
        return [
            CloseStream(stream_id=stream_id, epoch=epoch)
            for stream_id, epoch in epochs.items()
            if state.is_open(stream_id, epoch)
            and state.stream(stream_id).node_id == self._writer.node_id
        ]

    async def _write_object(self, planned: PlannedObject, upload_set: UploadSet) -> None:
        created_ms = self._clock.now_ms()
        writer = self._object_writer(planned.kind, created_ms)
        epochs, infos = dict[int, int](), dict[int, StreamInfo]()
        for part in planned.parts:
            batches = upload_set.block.batches[part.stream_id][part.first : part.end]
            info = _info_of(upload_set.infos[part.stream_id], part, batches)
            writer.begin_stream(info)
            epochs[part.stream_id] = batches[-1].epoch
            infos[part.stream_id] = info
            await _add_batches(writer, batches)
        key, written = await self._put(writer)
        upload_set.objects.append(
            CommittedObject(
                key=key,
                kind=planned.kind,
                size=written.size,
                created_ms=created_ms,
                ranges=tuple(
                    CommittedRange(
                        stream_id=span.stream_id,
                        epoch=epochs[span.stream_id],
                        start_offset=span.start_offset,
                        end_offset=span.end_offset,
                        max_timestamp=span.max_timestamp,
                        size=span.size,
                        state=state_kind(infos[span.stream_id]),
                        state_since=infos[span.stream_id].state_since,
                    )
                    for span in written.ranges
                ),
            )
        )

    async def write_tail(
        self, ranges: Sequence[CommittedRange], infos: Mapping[int, StreamInfo]
    ) -> CommittedObject:
        """Write an object that has the descriptions of these ranges' streams, with headers, and no
        records: those lie in a log yet.
        """
        created_ms = self._clock.now_ms()
        writer = self._object_writer(TAIL, created_ms)
        for stream_id in sorted(infos):
            writer.begin_stream(infos[stream_id])
        key, written = await self._put(writer)
        return CommittedObject(
            key=key, kind=TAIL, size=written.size, created_ms=created_ms, ranges=tuple(ranges)
        )

    @property
    def taker(self) -> tuple[int, int]:
        """Id and epoch of the node that uploads."""
        return self._writer.node_id, self._writer.node_epoch

    def _object_writer(self, kind: str, created_ms: int) -> ObjectWriter:
        return ObjectWriter(
            kind=kind,
            cluster_id=self._writer.cluster_id,
            node_id=self._writer.node_id,
            node_epoch=self._writer.node_epoch,
            writer_id=self._writer.incarnation,
            created_ms=created_ms,
        )

    async def _put(self, writer: ObjectWriter) -> tuple[str, WrittenObject]:
        """Write a finished object under a new name."""
        written, key = writer.finish(), self._next_key()
        await put_if_absent(
            self._store,
            key,
            written.pieces,
            Backoff(self._rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S),
            on_unknown=partial(self._put_unknown, key),
            check_taken=partial(self._check_own, key, written.size),
        )
        self.stats.objects += 1
        self.stats.bytes += written.size
        return key, written

    async def _check_own(self, key: str, size: int) -> None:
        """Raise Fenced if the object that has a name of this node's is another writer's: it would
        be read in the place of what was acknowledged. A read that fails is repeated: it may have
        been spoilt on its way, and the node would end by it. Raises as `read_index`.
        """
        index, writer = await self._read_own(key), self._writer
        found = (index.cluster_id, index.node_id, index.node_epoch, index.writer_id, index.size)
        own = (writer.cluster_id, writer.node_id, writer.node_epoch, writer.incarnation, size)
        if found != own:
            raise Fenced(
                f"{key} was written by node {index.node_id} of cluster {index.cluster_id}, "
                f"incarnation {index.writer_id}, in epoch {index.node_epoch} already"
            )

    async def _read_own(self, key: str) -> ObjectIndex:
        """Return the index of an object, after a few tries."""
        backoff = Backoff(self._rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)
        for _ in range(_CHECKS - 1):
            try:
                return await read_index(self._store, key)
            except (CorruptObject, UnsupportedFormat) as error:
                _log.warning("object_read_again", key=key, error=str(error))
            await backoff.wait()
        return await read_index(self._store, key)

    def _next_key(self) -> str:
        """Return a name that was never used: the node epoch and the counter make it unique."""
        name = DataName(self._writer.node_id, self._writer.node_epoch, self._next_object)
        self._next_object += 1
        return name.key

    def _put_unknown(self, key: str, error: OutcomeUnknown) -> None:
        self.stats.unknown_puts += 1
        _log.warning("put_unknown", key=key, error=str(error))


def _info_of(info: StreamInfo, part: Part, batches: list[CachedBatch]) -> StreamInfo:
    """Describe a stream in an object: its state is as of the block's end. For a recovered block the
    state is unknown: then the headers that it is made of go along.
    """
    if info.state is None:
        headers = producer_headers([batch.payload for batch in batches])
        return msgspec.structs.replace(info, headers=headers)
    if info.aborted:
        start, end = batches[0].base_offset, batches[-1].end_offset
        here = tuple(entry for entry in info.aborted if start <= entry.last_offset < end)
        info = msgspec.structs.replace(info, aborted=here)
    return info if part.is_last else msgspec.structs.replace(info, state=None, state_since=-1)


async def _add_batches(writer: ObjectWriter, batches: list[CachedBatch]) -> None:
    """Add a stream's batches, giving way to other work of the loop now and then."""
    begun = 0
    while begun < len(batches):
        some = batches[begun : begun + _YIELD_BATCHES]
        sizes = list(accumulate(map(len, map(_payload, some))))
        some = some[: bisect_left(sizes, _YIELD_BYTES) + 1]
        base_offsets = list(map(_base_offset, some))
        writer.add_run(
            list(map(_epoch, some)),
            base_offsets,
            list(map(sub, map(_end_offset, some), base_offsets)),
            list(map(_payload, some)),
            list(map(_max_timestamp, some)),
        )
        begun += len(some)
        if sizes[len(some) - 1] >= _YIELD_BYTES or len(some) == _YIELD_BATCHES:
            await asyncio.sleep(0)


class UploadQueue:
    """The uploads of one node. Size and age of what is not uploaded trigger one: `size` bytes,
    fewer than the setting says where cache or WAL are small.

    `describe(stream_id, start_offset, end_offset)` returns the description of a stream in an
    object; `on_done` is called after each upload, with the error when the queue cannot go on.
    """

    def __init__(
        self,
        *,
        cache: LogCache,
        wal: WriteAheadLog,
        uploader: Uploader,
        pace: UploadPace,
        describe: Describe,
        on_done: Callable[[Exception | None], None],
        clock: Clock,
        scope: TaskScope,
        settings: StorageSettings,
    ) -> None:
        self.size = min(settings.upload_size, settings.cache_size // 2, wal.capacity // 4)
        self._cache = cache
        self._wal = wal
        self._uploader = uploader
        self._pace = pace
        self._describe = describe
        self._on_done = on_done
        self._clock = clock
        self._scope = scope
        self._age_s = settings.upload_age_s
        self._wanted = asyncio.Event()
        self._slots = asyncio.Semaphore(settings.uploads_max)
        self._last: asyncio.Task[None] | None = None
        self._sealed_at = clock.monotonic()
        self._sealed_position = 0
        self._is_trim_due = False
        self._error: LakeheadError | None = None
        self._holds = 0
        self._unheld = asyncio.Event()

    async def run(self) -> None:
        """Upload when it is time to, for ever. The WAL has just begun its epoch."""
        self._sealed_position = self._wal.released_position
        while True:
            age = self._clock.monotonic() - self._sealed_at
            try:
                async with asyncio.timeout(max(0.0, self._age_s - age)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            async with self._slots:
                pass  # all slots taken: let the active block grow meanwhile
            await self._wait_unheld()
            self._wanted.clear()
            self.start()

    def check(self) -> None:
        """Request an upload if enough has gathered, in memory or, by small writes, in the WAL."""
        used = self._wal.released_position - self._sealed_position
        if self._cache.active.size >= self.size or used >= self._wal.capacity // 4:
            self._wanted.set()

    def start(self) -> None:
        """Seal what is cached and upload it in the background."""
        self._sealed_at = self._clock.monotonic()
        if not self._cache.active.batches and not self._is_trim_due:
            return
        self._is_trim_due = False
        position, objects = self._wal.released_position, self._wal.objects
        floor = None if objects is None else objects.floor_at(position)
        upload_set = self._sealed()
        self._sealed_position = upload_set.wal_position = position
        upload_set.wal_floor = floor
        self._spawn(upload_set)

    async def all_now(self) -> None:
        """Upload and commit everything that is cached. Raises what stopped the queue."""
        await self._wait_unheld()
        self.start()
        await self._finished()

    async def finish(
        self, stream_ids: Collection[int], closing: Mapping[int, int] | None = None
    ) -> None:
        """Upload and commit what is cached of these streams, and close those in `closing`, by their
        epochs, in the same entry. Raises what stopped the queue.
        """
        upload_set = self._sealed(stream_ids)
        self._is_trim_due |= bool(upload_set.block.batches)
        upload_set.closing = closing or {}
        self._spawn(upload_set)
        await self._finished()

    def start_ahead(self, stream_ids: Collection[int]) -> None:
        """Seal what is cached of these streams and upload it in the background, ahead of the
        others; unless streams are handed over, which would have to wait for it.

        Sealing waits for no place among the uploads: what a block has of its streams' states would
        grow with it.
        """
        if self._holds:
            return
        with suppress(LakeheadError):  # the queue has stopped, and its owner has the reason
            upload_set = self._sealed(stream_ids)
            if upload_set.block.batches:
                self._is_trim_due = True
                self._spawn(upload_set)

    def waiting_bytes(self, stream_ids: Collection[int]) -> int:
        """Return how much of these streams no upload has begun with."""
        return self._cache.active.bytes_of(stream_ids)

    @contextmanager
    def others_held(self) -> Iterator[None]:
        """Begin no other uploads: what `finish` starts has none before it to wait for."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._unheld.set()

    async def _wait_unheld(self) -> None:
        while self._holds:
            self._unheld.clear()
            await self._unheld.wait()

    def _sealed(self, stream_ids: Collection[int] | None = None) -> UploadSet:
        """Seal what is cached, of these streams or of all. Raises LakeheadError if it cannot be
        described: its records are in the log alone then, and no later upload may trim that.
        """
        block = self._cache.seal(stream_ids)
        try:
            infos = {
                stream_id: self._describe(stream_id, batches[0].base_offset, batches[-1].end_offset)
                for stream_id, batches in block.batches.items()
            }
        except Exception as error:
            raise self.stop(error) from error
        return UploadSet(block=block, infos=infos)

    def stop(self, error: BaseException) -> LakeheadError:
        """Commit and trim nothing any more, whatever the reason: what was not uploaded is in the
        log alone. Returns the reason for those that wait.
        """
        reason = self._refuse_all(error)
        _log.error("upload_failed", error=str(reason))
        self._on_done(reason)
        return reason

    def _refuse_all(self, error: BaseException) -> LakeheadError:
        reason = error if isinstance(error, LakeheadError) else StorageError(f"defect: {error!r}")
        self._error = self._error or reason
        return reason

    def _spawn(self, upload_set: UploadSet) -> None:
        """Upload what is sealed. Raises LakeheadError if that cannot be begun: its records are in
        no other upload.
        """
        failpoint("upload_sealed")
        try:
            self._last = self._scope.spawn(self._upload(upload_set, self._last), name="upload")
        except Exception as error:
            raise self.stop(error) from error

    async def _finished(self) -> None:
        """Wait until what was started has been committed. Raises what stopped the queue."""
        last = self._last
        if last is not None:
            with self._pace.hurry():
                await asyncio.wait([last])
            if last.cancelled():  # perhaps before its first step
                self._refuse_all(asyncio.CancelledError())
        if self._error is not None:
            raise self._error

    async def _upload(self, upload_set: UploadSet, previous: asyncio.Task[None] | None) -> None:
        try:
            async with self._slots:
                await self._uploader.write(upload_set)
                if previous is not None:
                    await asyncio.wait([previous])
                if self._error is not None:
                    return
                await self._uploader.commit(upload_set)
            self._cache.committed(upload_set.block)
            if upload_set.wal_position is not None:
                await self._wal.trim(upload_set.wal_position)
                failpoint("wal_trimmed")
        except LakeheadError as error:
            self.stop(error)
            return
        except BaseException as error:  # a library in Rust that panics raises no Exception
            if self._scope.is_closed:  # the node ends, and its owner knows
                self._refuse_all(error)
            else:
                self.stop(error)
            raise
        self._on_done(None)
