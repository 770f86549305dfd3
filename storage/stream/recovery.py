"""Recovery: commit the part of a write-ahead log that is not in committed objects yet.

A log of records is read, and the records that count are uploaded. A log of objects is sealed, and
its objects are committed as they are, without a copy. Both may be killed at any time and repeated;
a repetition skips what is committed.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol

from lakehead.storage.errors import WalCorrupted
from lakehead.storage.event_logger import event_logger
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.record_batch import max_timestamp
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import (
    HEADERS,
    CommitObjects,
    CommittedObject,
    CommittedRange,
    OpenStream,
    Record,
)
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.stream.log_cache import CacheBlock, CachedBatch
from lakehead.storage.stream.upload import Uploader, UploadSet
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal.object import LogSealer
from lakehead.storage.wal.protocol import (
    SealableLog,
    SealedLog,
    SealedObject,
    WalFloor,
    WalOwner,
    WalRange,
    WalRecord,
    WriteAheadLog,
)

BLOCK_SIZE = 62 * 1024 * 1024
"""With the batch that goes beyond it, no more than an object may be by default: one for each."""
_WRITES_MAX = 3

_log = event_logger("storage.recovery")


class RecoveringNode(NamedTuple):
    """A live node that commits what a fenced one left behind."""

    node_id: int
    node_epoch: int


class Owner(NamedTuple):
    """The node whose data is committed: this node, or a fenced one for which `taker` commits."""

    node_id: int
    node_epoch: int
    taker: RecoveringNode | None = None

    def commit(self, objects: Sequence[CommittedObject], floor: WalFloor) -> CommitObjects:
        """Return what commits objects, and moves the floor of the node's log."""
        return CommitObjects(
            node_id=self.node_id,
            node_epoch=self.node_epoch,
            objects=tuple(objects),
            wal_epoch=floor.epoch,
            wal_floor=floor.number,
            taker_id=-1 if self.taker is None else self.taker.node_id,
            taker_epoch=-1 if self.taker is None else self.taker.node_epoch,
        )


def log_in_cluster(store: ObjectStore, owner: WalOwner) -> LogSealer:
    """Return what there may be of a node's log in the cluster's store (one that retries)."""
    return LogSealer(
        store,
        cluster_id=owner.cluster_id,
        node_id=owner.node_id,
        sealer_id=owner.node_id,
        incarnation=owner.incarnation,
        clock=owner.clock,
        rng=owner.rng,
    )


async def recover_wal(
    wal: WriteAheadLog,
    metadata: MetadataLog,
    uploader: Uploader,
    in_cluster: LogSealer,
    owner: Owner,
    *,
    block_size: int,
    scope: TaskScope,
) -> int | None:
    """Commit what earlier epochs of this node left in its log; `owner` is it, in its new epoch.

    A log elsewhere may be a new one: then a crash may have left something in the cluster's store
    (`in_cluster`), where the node's log was before. Every start recovers all that is older, so no
    two places have something at once.

    Returns the position to trim to once the log has started; None without one. Raises
    StoreUnavailable, WalCorrupted, CorruptObject, EntryRejected (the node has been superseded).
    """
    objects, position = wal.objects, None
    floor = WalFloor(owner.node_epoch, 0)
    sealed = None
    if objects is None or not objects.are_shared:
        await commit_left_in_cluster(in_cluster, metadata, owner, floor)
    if objects is not None:
        sealed = await objects.seal(floor_of(metadata.state, owner.node_id), before=floor.epoch)
        failpoint("wal_sealed")
    if objects is None or not objects.are_shared:
        position = await _upload_records(wal, metadata, uploader, owner, block_size, scope)
    if objects is not None and sealed is not None:
        await _commit_sealed(objects, metadata, sealed, owner, floor)
    return position


async def commit_left_in_cluster(
    in_cluster: LogSealer, metadata: MetadataLog, owner: Owner, floor: WalFloor
) -> None:
    """Commit what is in the cluster's store of a node whose log is elsewhere, and move its floor;
    mostly nothing, which one listing shows.
    """
    now = floor_of(metadata.state, owner.node_id)
    if not await in_cluster.is_empty(now):
        left = await in_cluster.seal(now, before=floor.epoch)
        await _commit_sealed(in_cluster, metadata, left, owner, floor)


async def take_objects(
    log: SealableLog, metadata: MetadataLog, *, node_id: int, last_epoch: int, taker: RecoveringNode
) -> int:
    """Commit for another node, fenced in `last_epoch`, what it left in the cluster's store.

    Returns how many objects were committed, all in one entry. Of several that try, one commits and
    the others find nothing left to do. Raises StoreUnavailable, WalCorrupted, CorruptObject,
    EntryRejected (the node is not fenced, or the taker is).
    """
    floor = WalFloor(last_epoch + 1, 0)
    sealed = await log.seal(floor_of(metadata.state, node_id), before=floor.epoch)
    failpoint("wal_sealed")
    return await _commit_sealed(log, metadata, sealed, Owner(node_id, last_epoch, taker), floor)


async def _commit_sealed(
    log: SealableLog, metadata: MetadataLog, sealed: SealedLog, owner: Owner, floor: WalFloor
) -> int:
    """Move a node's floor, with the objects below it that count; delete the others."""
    found: list[CommittedObject] = []

    def plan(state: MetadataImage) -> Sequence[Record]:
        found.clear()
        if floor_of(state, owner.node_id) >= floor:
            return ()
        if log.are_shared:
            found.extend(uncommitted(sealed.objects, state, owner.node_id))
        return (owner.commit(found, floor),)

    state = await metadata.commit_with(plan)
    failpoint("wal_objects_committed")
    await discard_uncommitted(log, sealed, state)
    if sealed.objects:
        _log.info(
            "wal_sealed", node_id=owner.node_id, found=len(sealed.objects), committed=len(found)
        )
    return len(found)


async def discard_uncommitted(log: SealableLog, sealed: SealedLog, state: MetadataImage) -> None:
    """Delete what a sealed log holds and the metadata does not name."""
    keys = (*sealed.leftovers, *(item.key for item in sealed.objects))
    await log.discard([key for key in keys if key not in state.objects])


def uncommitted(
    sealed: Sequence[SealedObject], state: MetadataImage, node_id: int
) -> list[CommittedObject]:
    """Return what of sealed objects is to be committed, each with the ranges that count.

    A range counts if its stream is still open on the node under the epoch it was written in, and
    continues the stream's committed end. Raises WalCorrupted when data is missing in between.
    """
    ends: dict[int, tuple[int, int]] = {}
    found = []
    for item in sealed:
        ranges = []
        for stream_id, epoch, start, end, newest, size, has_headers in item.ranges:
            known = ends.get(stream_id)
            if known is None:
                known = ends[stream_id] = _epoch_and_end(state, stream_id, node_id)
            if epoch != known[0] or end <= known[1]:
                continue
            if start != known[1]:
                raise WalCorrupted(
                    f"{item.key}: stream {stream_id} goes on at offset {start}, "
                    f"but the data before ends at {known[1]}"
                )
            ends[stream_id] = (epoch, end)
            ranges.append(
                CommittedRange(
                    stream_id=stream_id,
                    epoch=epoch,
                    start_offset=start,
                    end_offset=end,
                    max_timestamp=newest,
                    size=size,
                    state=HEADERS if has_headers else "",
                )
            )
        if ranges:
            found.append(
                CommittedObject(
                    key=item.key,
                    kind="wal",
                    size=item.size,
                    created_ms=item.created_ms,
                    ranges=tuple(ranges),
                )
            )
    return found


def _epoch_and_end(state: MetadataImage, stream_id: int, node_id: int) -> tuple[int, int]:
    """Return under which epoch a node may add to a stream, and from where on; -1: it may not."""
    stream = state.streams.get(stream_id)
    if stream is None or not stream.is_open or stream.node_id != node_id:
        return -1, 0
    return stream.epoch, stream.end_offset


def floor_of(state: MetadataImage, node_id: int) -> WalFloor:
    """Return where the objects of a node's log begin."""
    node = state.nodes[node_id]
    return WalFloor(node.wal_epoch, node.wal_floor)


async def _upload_records(
    wal: WriteAheadLog,
    metadata: MetadataLog,
    uploader: Uploader,
    owner: Owner,
    block_size: int,
    scope: TaskScope,
) -> int | None:
    """Upload and commit the log's records above the committed offsets; return their end."""
    position = None
    choice = Uncommitted(metadata.state, owner.node_id, newer_epochs=True)
    blocks = chosen_blocks(wal, choice, block_size)
    async with aclosing(written_blocks(blocks, uploader, scope)) as upload_sets:
        async for upload_set in upload_sets:
            position = upload_set.wal_position
            if upload_set.objects:
                await _reopen(metadata, owner, upload_set)
                await uploader.commit(upload_set)
    if position is not None:
        _log.info("wal_recovered", position=position, node_id=owner.node_id)
    return position


async def written_blocks(
    blocks: AsyncGenerator[tuple[CacheBlock, int], None], uploader: Uploader, scope: TaskScope
) -> AsyncGenerator[UploadSet, None]:
    """Write blocks as objects, some at once, while more is read; yield them in their order, each
    once it is written, without its data. At most `_WRITES_MAX + 1` are in memory.
    """
    state = uploader.metadata.state
    writes: deque[tuple[UploadSet, asyncio.Task[None]]] = deque()

    async def write(upload_set: UploadSet) -> None:
        with uploader.hurry():
            await uploader.write(upload_set, in_few=True)
        upload_set.block.batches = {}

    try:
        async with aclosing(blocks):
            async for block, position in blocks:
                infos = {one: state.stream_info(one, None) for one in block.batches}
                upload_set = UploadSet(block=block, infos=infos, wal_position=position)
                writing = scope.spawn(write(upload_set), name="upload a log", is_awaited=True)
                writes.append((upload_set, writing))
                if len(writes) == _WRITES_MAX:
                    await writes[0][1]
                    yield writes.popleft()[0]
        while writes:
            await writes[0][1]
            yield writes.popleft()[0]
    finally:
        for _, writing in writes:
            writing.cancel()


async def _reopen(metadata: MetadataLog, owner: Owner, upload_set: UploadSet) -> None:
    """Open streams under the epochs of a block's records, where the metadata know none of them."""
    epochs = {span.stream_id: span.epoch for one in upload_set.objects for span in one.ranges}

    def plan(state: MetadataImage) -> list[OpenStream]:
        return [
            OpenStream(
                stream_id=stream_id,
                epoch=epoch,
                node_id=owner.node_id,
                node_epoch=owner.node_epoch,
            )
            for stream_id, newest in epochs.items()
            for epoch in range(state.stream(stream_id).epoch + 1, newest + 1)
        ]

    opened = plan(metadata.state)
    if opened:
        await metadata.commit_with(plan)
        _log.warning("epochs_found_in_wal", node_id=owner.node_id, epochs=len(opened))


class Choice(Protocol):
    """Chooses records of a log, which come in its order."""

    def takes(self, record: WalRecord) -> bool:
        """Return true for a record that is to be uploaded. Raises WalCorrupted where one before it
        is missing.
        """


class Uncommitted:
    """Chooses the records that count and are in no object.

    A record counts if its stream is still open on this node under the epoch it was written in, and
    continues the stream's committed end. Others are in objects already, or belong to a stream that
    was deleted or has moved on: its owner now had all that was acknowledged before it took over.
    One that leaves a gap behind the end raises WalCorrupted: records that were acknowledged in
    between are in no known place. An epoch that is newer than those of the metadata shows that the
    metadata were rebuilt from objects, of which none had been written under it: with `newer_epochs`
    its records count.
    """

    def __init__(self, state: MetadataImage, node_id: int, *, newer_epochs: bool = False) -> None:
        self._state = state
        self._node_id = node_id
        self._newer_epochs = newer_epochs
        self._known: dict[int, tuple[int, int]] = {}

    def takes(self, record: WalRecord) -> bool:
        """See `Choice`."""
        stream_id = record.stream_id
        epoch, end = self._reached(stream_id)
        is_known = record.epoch == epoch or (self._newer_epochs and record.epoch > epoch >= 0)
        record_end = record.base_offset + record.count
        if not is_known or record_end <= end:
            return False
        if record.base_offset != end:
            raise self._gap(stream_id, record.epoch, record.base_offset, end)
        self._known[stream_id] = record.epoch, record_end
        return True

    def takes_from(self, span: WalRange) -> int | None:
        """Return from which offset on the records of a range count; None: none of them does. Some
        may be in objects already. Raises WalCorrupted where one before the range is missing.
        """
        epoch, end = self._reached(span.stream_id)
        if span.epoch != epoch or span.end_offset <= end:
            return None
        if span.start_offset > end:
            raise self._gap(span.stream_id, span.epoch, span.start_offset, end)
        self._known[span.stream_id] = epoch, span.end_offset
        return end

    def _reached(self, stream_id: int) -> tuple[int, int]:
        at = self._known.get(stream_id)
        if at is None:
            at = self._known[stream_id] = _epoch_and_end(self._state, stream_id, self._node_id)
        return at

    def _gap(self, stream_id: int, epoch: int, start: int, end: int) -> WalCorrupted:
        return WalCorrupted(
            f"the write-ahead log of node {self._node_id} goes on with stream {stream_id}, "
            f"epoch {epoch}, at offset {start}, but the data before ends at {end}"
        )


async def chosen_blocks(
    wal: WriteAheadLog, choice: Choice, block_size: int
) -> AsyncGenerator[tuple[CacheBlock, int], None]:
    """Yield blocks of about `block_size` bytes to upload, with the WAL position each ends at. A
    block has one epoch of a stream.
    """
    block = CacheBlock()
    position = None
    async with aclosing(wal.recover()) as records:
        async for record in records:
            if not choice.takes(record):
                position = record.end_position
                continue
            before = block.batches.get(record.stream_id)
            if before and before[-1].epoch != record.epoch and position is not None:
                yield block, position
                block = CacheBlock()
            position = record.end_position
            block.add(record.stream_id, _cached(record))
            if block.size >= block_size:
                yield block, position
                block = CacheBlock()
    if position is not None:
        yield block, position


def _cached(record: WalRecord) -> CachedBatch:
    end, payload = record.base_offset + record.count, record.payload
    return CachedBatch(record.base_offset, end, record.epoch, max_timestamp(payload), payload)
