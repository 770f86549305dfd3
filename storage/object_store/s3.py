"""Object stores reached by obstore: S3 and whatever speaks its API, with conditional puts.

The client is made at the first use, so that opening a store is cheap and safe before a fork.
"""

from collections.abc import Sequence
from typing import NoReturn

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
)
from obstore.store import S3Store as Client

from storage.errors import (
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    SettingsError,
    StoreRefused,
    StoreUnavailable,
)
from storage.object_store.protocol import Buffer, ObjectMeta

_DELETE_BATCH = 1000
_CLIENT_ERRORS = (BaseError, FileNotFoundError)
"""What obstore raises; an absent key is Python's own error."""


class S3Store:
    """Objects in an S3 bucket, below a prefix. `uri` is `s3://bucket/prefix`; region, endpoint and
    credentials come from the standard `AWS_…` variables.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._client: Client | None = None

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """See `ObjectStore.create`: one PUT with `If-None-Match: *`."""
        body = memoryview(pieces[0]).cast("B") if len(pieces) == 1 else b"".join(pieces)
        try:
            await obstore.put_async(self._open(), key, body, mode="create", use_multipart=False)
        except _CLIENT_ERRORS as error:
            self._raise(key, error, writing=True)

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        try:
            result = await obstore.get_async(self._open(), key)
            return (await result.bytes_async()).to_bytes()
        except _CLIENT_ERRORS as error:
            self._raise(key, error)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        try:
            body = (
                await obstore.get_range_async(self._open(), key, start=start, length=length)
            ).to_bytes()
        except _CLIENT_ERRORS as error:
            self._raise(key, error)
        if len(body) != length:
            raise CorruptObject(key, start, f"wanted {length} bytes, got {len(body)}")
        return body

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """See `ObjectStore.get_suffix`."""
        try:
            result = await obstore.get_async(
                self._open(), key, options={"range": {"suffix": length}}
            )
            size = result.meta["size"]
            return (await result.bytes_async()).to_bytes(), size
        except _CLIENT_ERRORS as error:
            self._raise(key, error)

    async def list(self, prefix: str, *, start_after: str = "") -> Sequence[ObjectMeta]:
        """See `ObjectStore.list`."""
        folder = prefix.rpartition("/")[0]
        found = []
        try:
            async for page in obstore.list(
                self._open(), folder or None, offset=start_after or None
            ):
                found += [
                    ObjectMeta(
                        key=meta["path"],
                        size=meta["size"],
                        modified_ms=int(meta["last_modified"].timestamp() * 1000),
                    )
                    for meta in page
                    if meta["path"].startswith(prefix) and meta["path"] > start_after
                ]
        except _CLIENT_ERRORS as error:
            self._raise(prefix, error)
        found.sort(key=lambda meta: meta.key)
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        for first in range(0, len(keys), _DELETE_BATCH):
            try:
                await obstore.delete_async(self._open(), list(keys[first : first + _DELETE_BATCH]))
            except FileNotFoundError:
                continue
            except _CLIENT_ERRORS as error:
                self._raise(keys[first], error)

    async def close(self) -> None:
        """Forget the client."""
        self._client = None

    def _open(self) -> Client:
        if self._client is None:
            try:
                self._client = Client.from_url(self.uri)
            except _CLIENT_ERRORS as error:
                raise SettingsError(f"cannot use the store {self.uri}: {error}") from error
        return self._client

    def _raise(self, key: str, error: Exception, *, writing: bool = False) -> NoReturn:
        if isinstance(error, AlreadyExistsError | PreconditionError):
            raise ObjectExists(key) from None
        if isinstance(error, FileNotFoundError):
            raise ObjectNotFound(key) from None
        summary = str(error).partition("\n")[0]  # the rest is a dump of the client's state
        if isinstance(error, PermissionDeniedError):
            raise StoreRefused(f"{self.uri}: permission denied for {key}") from error
        if writing:
            raise OutcomeUnknown(f"{self.uri}: put of {key}: {summary}") from error
        raise StoreUnavailable(f"{self.uri}: {key}: {summary}") from error
