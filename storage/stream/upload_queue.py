"""When to upload: seals the log cache by size, age or WAL use, and commits the snapshots in order.

Uploads overlap; commits happen in the order of seals, so that every stream's ranges continue each
other, and the WAL is trimmed after each commit. Some streams can be uploaded ahead of the others;
the WAL is trimmed then by the next upload of everything.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import structlog

from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.stream.cache import CacheBlock, LogCache
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.stream.upload_pace import UploadPace
from lakehead.storage.stream.uploader import Describe, Snapshot, Uploader
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal.protocol import WriteAheadLog

_log = structlog.get_logger("storage.upload")


class UploadQueue:
    """The uploads of one node. Size and age of what is not uploaded trigger one: `size` bytes,
    fewer than the setting says where cache or WAL are small.

    `describe(stream_id, start_offset, end_offset)` tells what an object says of a stream; `on_done`
    is called after each upload, with the error when the queue cannot go on.
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
        """Ask for an upload if enough has gathered, in memory or, by small writes, in the WAL."""
        used = self._wal.released_position - self._sealed_position
        if self._cache.active.size >= self.size or used >= self._wal.capacity // 4:
            self._wanted.set()

    def start(self) -> None:
        """Seal what is cached and upload it in the background."""
        self._sealed_at = self._clock.monotonic()
        if not self._cache.active.batches and not self._is_trim_due:
            return
        self._is_trim_due = False
        block = self._cache.seal()
        position = self._sealed_position = self._wal.released_position
        objects = self._wal.objects
        floor = None if objects is None else objects.floor_at(position)
        self._spawn(
            Snapshot(block=block, infos=self._infos(block), wal_position=position, wal_floor=floor)
        )

    async def all_now(self) -> None:
        """Upload and commit everything that is cached, or find that this will never be."""
        await self._wait_unheld()
        self.start()
        await self.wait_idle()

    async def finish(self, stream_ids: Collection[int], closing: Sequence[int] = ()) -> None:
        """Upload and commit what is cached of these streams, and close those in `closing` in the
        same entry. Raises what stopped the queue.
        """
        block = self._cache.seal(stream_ids)
        self._is_trim_due |= bool(block.batches)
        self._spawn(Snapshot(block=block, infos=self._infos(block), closing=tuple(closing)))
        await self.wait_idle()
        if self._error is not None:
            raise self._error

    def start_ahead(self, stream_ids: Collection[int]) -> None:
        """Seal what is cached of these streams and upload it in the background, ahead of the
        others; unless streams are handed over, which would have to wait for it.

        Sealing waits for no place among the uploads: what a block has of its streams' states would
        grow with it.
        """
        if self._holds:
            return
        block = self._cache.seal(stream_ids)
        if block.batches:
            self._is_trim_due = True
            self._spawn(Snapshot(block=block, infos=self._infos(block)))

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

    def _infos(self, block: CacheBlock) -> dict[int, StreamInfo]:
        return {
            stream_id: self._describe(stream_id, batches[0].base_offset, batches[-1].end_offset)
            for stream_id, batches in block.batches.items()
        }

    def _spawn(self, snapshot: Snapshot) -> None:
        failpoint("upload_sealed")
        self._last = self._scope.spawn(self._upload(snapshot, self._last), name="upload snapshot")

    async def wait_idle(self) -> None:
        """Wait until what was started has been committed, or never will be."""
        if self._last is not None:
            with self._pace.hurry():
                await asyncio.wait([self._last])

    async def _upload(self, snapshot: Snapshot, previous: asyncio.Task[None] | None) -> None:
        try:
            async with self._slots:
                await self._uploader.write(snapshot)
                if previous is not None:
                    await asyncio.wait([previous])
                if self._error is not None:
                    return
                await self._uploader.commit(snapshot)
            self._cache.committed(snapshot.block)
            if snapshot.wal_position is not None:
                await self._wal.trim(snapshot.wal_position)
                failpoint("wal_trimmed")
        except LakeheadError as error:
            _log.error("upload_failed", error=str(error))
            self._error = error
            self._on_done(error)
            return
        self._on_done(None)
