"""The store itself: one request of S3 for each call, more only for long lists and large objects.

Nothing is repeated here (see `client`). The clients are made at the first use, so that opening a
store is cheap and safe before a fork.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import obstore

from lakehead.storage.errors import (
    CorruptObject,
    ObjectExists,
    OutcomeUnknown,
    StorageError,
    StoreUnavailable,
)
from lakehead.storage.object_store.protocol import Buffer, ObjectMeta, Owns, every_key
from lakehead.storage.object_store.s3.client import object_client
from lakehead.storage.object_store.s3.errors import CLIENT_ERRORS, obstore_error
from lakehead.storage.object_store.s3.limits import (
    DELETES_AT_ONCE,
    LISTED_AT_ONCE,
    MULTIPART_SIZE_MIN,
)
from lakehead.storage.object_store.s3.multipart import Multipart, OldVersion
from lakehead.storage.object_store.s3.settings import S3Settings, parse_uri

if TYPE_CHECKING:
    from obstore.store import S3Store as Client

_READ_S = 5.0
_WRITE_S = 10.0
_BYTES_PER_S = 2 * 1024 * 1024
_SLACK_MAX = 16.0
_RECOVERY = 0.9


class Deadlines:
    """A fixed time and a time by size, both stretched while requests miss them.

    S3 responds to nearly every request within a second: one that takes several is better given up
    and sent again, over another connection. A link that is merely slow would never get a large
    object through so, hence the stretching: up to 16 times, which is 128 KiB/s.
    """

    def __init__(self) -> None:
        self._slack = 1.0

    def read(self, size: int) -> float:
        """Return the seconds that reading `size` bytes may take."""
        return (_READ_S + size / _BYTES_PER_S) * self._slack

    def write(self, size: int) -> float:
        """Return the seconds that writing `size` bytes may take."""
        return (_WRITE_S + size / _BYTES_PER_S) * self._slack

    def met(self) -> None:
        """A request ended in time."""
        self._slack = max(1.0, self._slack * _RECOVERY)

    def missed(self) -> None:
        """A request was given up."""
        self._slack = min(_SLACK_MAX, self._slack * 2)


T = TypeVar("T")

_LIST_PAGE_BYTES = 512 * 1024
_UPLOADS_AT_ONCE = 4
_JOINED_SIZE_MAX = 8 * 1024 * 1024
"""A body of this size is copied into one piece: the client's threads take pieces one by one, and
wait for Python's lock for each, while the event loop works. A larger one goes as it is."""
_JOINED_MAX = 32 * 1024 * 1024
"""Memory of the copies that are on their way: bodies beyond it go as they are too."""


class S3Store:
    """Objects in an S3 bucket, below a prefix. `uri` is `s3://bucket/prefix?option=value`; what it
    does not say comes from the standard `AWS_…` variables and files.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.settings: S3Settings = parse_uri(uri)
        self.may_multipart = self.settings.may_multipart
        self.checks_crc = False
        """The server is known to refuse a body that does not have its CRC: see `check`."""
        self._client: Client | None = None
        self._multipart: Multipart | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._deadlines = Deadlines()
        self.joined_bytes = 0
        """Memory of the copies that are on their way."""

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """See `ObjectStore.create`: a PUT with `If-None-Match: *`, or parts that are put together
        with it.
        """
        views = [memoryview(piece).cast("B") for piece in pieces]
        try:
            await self._create(key, views, sum(len(view) for view in views))
        except OutcomeUnknown:
            # A server may refuse a taken name before it has read a large body, and break off: the
            # refusal is lost then, at each try. A look for the object settles that.
            if await self._exists(key):
                raise ObjectExists(key) from None
            raise

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""

        async def read(deadline: asyncio.Timeout) -> bytes:
            result = await obstore.get_async(client, key)
            now = asyncio.get_running_loop().time()
            deadline.reschedule(now + self._deadlines.read(result.meta["size"]))
            return (await result.bytes_async()).to_bytes()

        client = await self._open()
        return await self._until(self._deadlines.read(0), key, read)

    async def get_range(self, key: str, start: int, length: int) -> memoryview:
        """See `ObjectStore.get_range`."""
        return memoryview(await self._get_range(key, start, length))

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        """See `ObjectStore.get_range_into`."""
        target[:] = memoryview(await self._get_range(key, start, len(target)))

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """See `ObjectStore.get_suffix`."""

        async def read(_: asyncio.Timeout) -> tuple[bytes, int]:
            result = await obstore.get_async(client, key, options={"range": {"suffix": length}})
            size = result.meta["size"]
            return (await result.bytes_async()).to_bytes(), size

        client = await self._open()
        return await self._until(self._deadlines.read(length), key, read)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        """See `ObjectStore.list`."""
        found: list[ObjectMeta] = []
        folder = prefix.rpartition("/")[0]

        async def read(deadline: asyncio.Timeout) -> None:
            loop = asyncio.get_running_loop()
            pages = obstore.list(
                client, folder or None, offset=start_after or None, chunk_size=LISTED_AT_ONCE
            )
            async for page in pages:
                deadline.reschedule(loop.time() + self._deadlines.read(_LIST_PAGE_BYTES))
                found.extend(
                    ObjectMeta(
                        key=meta["path"],
                        size=meta["size"],
                        modified_ms=int(meta["last_modified"].timestamp() * 1000),
                    )
                    for meta in page
                    if meta["path"].startswith(prefix) and meta["path"] > start_after
                )
                if limit is not None and len(found) >= limit:
                    return

        client = await self._open()
        await self._until(self._deadlines.read(_LIST_PAGE_BYTES), prefix, read)
        found.sort(key=lambda meta: meta.key)
        return found[:limit]

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        client = await self._open()
        for first in range(0, len(keys), DELETES_AT_ONCE):
            batch = list(keys[first : first + DELETES_AT_ONCE])
            what = batch[0] if len(batch) == 1 else f"{batch[0]} and {len(batch) - 1} more"
            deleted = obstore.delete_async(client, batch)
            await self._within(self._deadlines.read(_LIST_PAGE_BYTES), what, deleted)

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:
        """See `ObjectStore.abort_uploads`."""
        multipart = self.multipart
        return await self.in_thread(lambda: multipart.abort_before(before_ms, owns))

    async def old_versions(self, prefix: str) -> Sequence[OldVersion]:
        """Return the versions below `prefix` that are not the newest of their objects, as a bucket
        with versioning has of what was deleted. Raises StoreRefused without the permission
        `s3:ListBucketVersions`, StoreUnavailable.
        """
        multipart = self.multipart
        return await self.in_thread(lambda: multipart.old_versions(prefix))

    async def get_version(self, version: OldVersion) -> bytes:
        """Return the content of a version. Raises StoreRefused without the permission
        `s3:GetObjectVersion`, ObjectNotFound, StoreUnavailable.
        """
        multipart = self.multipart
        return await self.in_thread(lambda: multipart.get_version(version))

    async def delete_version(self, version: OldVersion) -> None:
        """Delete a version for good. Raises StoreRefused without the permission
        `s3:DeleteObjectVersion`, StoreUnavailable, OutcomeUnknown.
        """
        multipart = self.multipart
        await self.in_thread(lambda: multipart.delete_version(version))

    async def close(self) -> None:
        """Forget the clients. An upload in parts is not repeated any more, and fails soon."""
        self._client = None
        if self._multipart is not None:
            self._multipart.close()
            self._multipart = None
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    @property
    def multipart(self) -> Multipart:
        """The multipart uploads of this store, with boto3's client. Blocking: see `in_thread`."""
        if self._multipart is None:
            self._multipart = Multipart(self.uri, self.settings)
        return self._multipart

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run a blocking call in one of the store's few threads."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_UPLOADS_AT_ONCE, thread_name_prefix="s3-upload")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _create(self, key: str, views: Sequence[memoryview], size: int) -> None:
        if size >= MULTIPART_SIZE_MIN and self.may_multipart:
            multipart = self.multipart
            await self.in_thread(lambda: multipart.create(key, views))
            return
        client = await self._open()
        if len(views) == 1:
            await self._put(client, key, views[0], size)
            return
        if size > _JOINED_SIZE_MAX or self.joined_bytes + size > _JOINED_MAX:
            await self._put(client, key, views, size)
            return
        self.joined_bytes += size
        try:
            await self._put(client, key, b"".join(views), size)
        finally:
            self.joined_bytes -= size

    async def _put(
        self, client: "Client", key: str, body: Buffer | Sequence[memoryview], size: int
    ) -> None:
        put = obstore.put_async(client, key, body, mode="create", use_multipart=False)
        await self._within(self._deadlines.write(size), key, put, is_write=True)

    async def _get_range(self, key: str, start: int, length: int) -> obstore.Bytes:
        client = await self._open()
        read = obstore.get_range_async(client, key, start=start, length=length)
        body = await self._within(self._deadlines.read(length), key, read)
        if len(body) != length:
            raise CorruptObject(key, start, f"wanted {length} bytes, got {len(body)}")
        return body

    async def _exists(self, key: str) -> bool:
        """Return true if the key certainly has an object. False does not prove that it has none."""
        head = obstore.head_async(await self._open(), key)
        try:
            await self._within(self._deadlines.read(0), key, head)
        except StorageError:
            return False
        return True

    async def _open(self) -> "Client":
        if self._client is None:  # a role's credentials come over the network
            has_crc = self.checks_crc
            self._client = await self.in_thread(
                lambda: object_client(self.settings, has_crc=has_crc)
            )
        return self._client

    def use_crc(self, *, is_checked: bool) -> None:
        """Have bodies carry a CRC from the next request on, or the SHA-256 again."""
        self.checks_crc = is_checked
        self._client = None

    async def _within(
        self, seconds: float, key: str, call: Awaitable[T], *, is_write: bool = False
    ) -> T:
        async def awaited(_: asyncio.Timeout) -> T:
            return await call

        return await self._until(seconds, key, awaited, is_write=is_write)

    async def _until(
        self,
        seconds: float,
        key: str,
        call: Callable[[asyncio.Timeout], Awaitable[T]],
        *,
        is_write: bool = False,
    ) -> T:
        try:
            async with asyncio.timeout(seconds) as deadline:
                result = await call(deadline)
        except TimeoutError:
            self._deadlines.missed()
            what = f"{self.uri}: {key}: no response in time ({seconds:.0f} s or more by size)"
            raise (OutcomeUnknown(what) if is_write else StoreUnavailable(what)) from None
        except CLIENT_ERRORS as error:
            raise obstore_error(self.uri, key, error, is_write=is_write) from None
        self._deadlines.met()
        return result
