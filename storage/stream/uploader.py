"""Uploads sealed cache blocks: objects first, then one metadata entry, then the WAL may be trimmed.

Uploads overlap; commits happen in the order of seals, so that every stream's ranges continue each
other.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from crc32c import crc32c

from storage.clock import Clock
from storage.errors import ObjectExists, OutcomeUnknown
from storage.failpoints import failpoint
from storage.format.object_writer import ObjectWriter, WrittenObject
from storage.format.stream_object import StreamInfo
from storage.metadata.log import MetadataLog
from storage.metadata.records import CommitObjects, CommittedObject, CommittedRange
from storage.object_store.protocol import ObjectStore
from storage.stream.cache import CacheBlock, CachedBatch
from storage.wal.protocol import WalFloor

_log = structlog.get_logger("storage.uploader")

_RETRY_S = 0.1
_RETRY_MAX_S = 10.0
_YIELD_BYTES = 1 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who writes objects: goes into their names and their extension blocks."""

    cluster_id: str
    node_id: int
    node_epoch: int
    incarnation: str


Describe = Callable[[int, int], StreamInfo]
"""What an object says of a stream whose data in it ends at an offset."""


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """A sealed block on its way: what the streams are, and their partition states at the block's
    end.
    """

    block: CacheBlock
    infos: dict[int, StreamInfo]
    wal_position: int
    wal_floor: WalFloor | None = None
    """What the commit says of a WAL whose floor is kept in the metadata."""
    objects: list[CommittedObject] = field(default_factory=list)


class Uploader:
    """Writes snapshots as objects and commits them."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        metadata: MetadataLog,
        writer: Writer,
        clock: Clock,
        rng: random.Random,
        stream_object_size: int,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._writer = writer
        self._clock = clock
        self._rng = rng
        self._stream_object_size = stream_object_size
        self._next_object = 0

    async def write(self, snapshot: Snapshot) -> None:
        """Write the snapshot's objects: one for each large stream, one for all the rest."""
        small = []
        for stream_id in sorted(snapshot.block.batches):
            batches = snapshot.block.batches[stream_id]
            if sum(len(batch.payload) for batch in batches) >= self._stream_object_size:
                await self._write_object("so", [stream_id], snapshot)
            else:
                small.append(stream_id)
        if small:
            await self._write_object("so" if len(small) == 1 else "sso", small, snapshot)
        failpoint("upload_objects_written")

    async def commit(self, snapshot: Snapshot) -> None:
        """Commit the written objects in one entry. Raises EntryRejected if this node was fenced."""
        floor = snapshot.wal_floor
        await self._metadata.commit(
            [
                CommitObjects(
                    node_id=self._writer.node_id,
                    node_epoch=self._writer.node_epoch,
                    objects=tuple(snapshot.objects),
                    wal_epoch=-1 if floor is None else floor.epoch,
                    wal_floor=0 if floor is None else floor.number,
                )
            ]
        )
        failpoint("upload_committed")

    async def _write_object(self, kind: str, stream_ids: list[int], snapshot: Snapshot) -> None:
        created_ms = self._clock.now_ms()
        writer = ObjectWriter(
            kind=kind,
            cluster_id=self._writer.cluster_id,
            node_id=self._writer.node_id,
            node_epoch=self._writer.node_epoch,
            writer_id=self._writer.incarnation,
            created_ms=created_ms,
        )
        epochs = {}
        for stream_id in stream_ids:
            writer.begin_stream(snapshot.infos[stream_id])
            batches = snapshot.block.batches[stream_id]
            epochs[stream_id] = batches[-1].epoch
            await _add_batches(writer, batches)
        written = writer.finish()
        key = self._next_key()
        await self._create(key, written)
        snapshot.objects.append(
            CommittedObject(
                key=key,
                kind=kind,
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
                    )
                    for span in written.ranges
                ),
            )
        )

    def _next_key(self) -> str:
        """Return a name that was never used: the node epoch and the counter make it unique."""
        name = f"{self._writer.node_id}-{self._writer.node_epoch}-{self._next_object}"
        self._next_object += 1
        return f"data/{crc32c(name.encode()) & 0xFF:02x}/{name}"

    async def _create(self, key: str, written: WrittenObject) -> None:
        pause = _RETRY_S
        while True:
            try:
                await self._store.create(key, written.pieces)
                return
            except ObjectExists:
                return  # an earlier try of ours: nobody else writes this name
            except OutcomeUnknown as error:
                _log.warning("put_unknown", key=key, error=str(error))
            await asyncio.sleep(pause * (0.5 + self._rng.random()))
            pause = min(pause * 2, _RETRY_MAX_S)


async def _add_batches(writer: ObjectWriter, batches: list[CachedBatch]) -> None:
    """Add a stream's batches, giving way to other work of the loop now and then."""
    unyielded = 0
    for batch in batches:
        count = batch.end_offset - batch.base_offset
        writer.add(batch.epoch, batch.base_offset, count, batch.payload, batch.max_timestamp)
        unyielded += len(batch.payload)
        if unyielded >= _YIELD_BYTES:
            unyielded = 0
            await asyncio.sleep(0)
