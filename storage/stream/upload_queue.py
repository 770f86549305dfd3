"""When to upload: seals the log cache by size, age or WAL use, and commits the snapshots in order.

Uploads overlap; commits happen in the order of seals, so that every stream's ranges continue each
other, and the WAL is trimmed after each commit.
"""

import asyncio
from collections.abc import Callable

import structlog

from storage.clock import Clock
from storage.errors import LakeheadError
from storage.failpoints import failpoint
from storage.stream.cache import LogCache
from storage.stream.settings import StorageSettings
from storage.stream.upload_pace import UploadPace
from storage.stream.uploader import Describe, Snapshot, Uploader
from storage.tasks import TaskScope
from storage.wal.protocol import WriteAheadLog

_log = structlog.get_logger("storage.upload")


class UploadQueue:
    """The uploads of one node. Size and age of what is not uploaded trigger one: `size` bytes,
    fewer than the setting says where cache or WAL are small.

    `describe(stream_id, end_offset)` tells what an object says of a stream; `on_done` is called
    after each upload, with the error when the queue cannot go on.
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
        self._sealed_position = wal.next_position
        self._has_failed = False

    async def run(self) -> None:
        """Upload when it is time to, for ever."""
        while True:
            age = self._clock.monotonic() - self._sealed_at
            try:
                async with asyncio.timeout(max(0.0, self._age_s - age)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            async with self._slots:
                pass  # all slots taken: let the active block grow meanwhile
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
        if not self._cache.active.batches:
            return
        block = self._cache.seal()
        position = self._sealed_position = self._wal.released_position
        infos = {
            stream_id: self._describe(stream_id, batches[-1].end_offset)
            for stream_id, batches in block.batches.items()
        }
        failpoint("upload_sealed")
        objects = self._wal.objects
        snapshot = Snapshot(
            block=block,
            infos=infos,
            wal_position=position,
            wal_floor=None if objects is None else objects.floor_at(position),
        )
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
                if self._has_failed:
                    return
                await self._uploader.commit(snapshot)
            self._cache.committed(snapshot.block)
            await self._wal.trim(snapshot.wal_position)
            failpoint("wal_trimmed")
        except LakeheadError as error:
            _log.error("upload_failed", error=str(error))
            self._has_failed = True
            self._on_done(error)
            return
        self._on_done(None)
