"""Encrypts objects on their way to a store, and decrypts them on their way back.

A cluster's data, logs and metadata are encrypted. Tables are read by other engines and stay as they
are, and so do objects of at most 64 bytes: these have no record, and a seal of an object WAL is
recognised in a listing by its size. Sizes in a listing are
those that are stored. A reader recognises by an object's end whether it is encrypted: so encryption
may be turned on and off, and keys may change. If encryption is required, plain objects of a
cluster are refused instead, but for those of at most 64 bytes.

Chunks of large objects are encrypted and decrypted in a thread, so the event loop goes on.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from lakehead.storage.clock import Clock
from lakehead.storage.encryption.chunks import (
    CHUNK_SIZE,
    SALT_SIZE,
    TAG_SIZE,
    TRAILER_SIZE,
    ObjectCipher,
    Trailer,
    is_encrypted,
)
from lakehead.storage.encryption.data_keys import DataKeys, data_keys
from lakehead.storage.encryption.settings import (
    KEY_FILE,
    KMS_KEY,
    PROVIDER,
    REQUIRED,
    EncryptionSettings,
)
from lakehead.storage.errors import KeyUnavailable, NotEncrypted
from lakehead.storage.object_store.protocol import (
    Buffer,
    ObjectMeta,
    ObjectStore,
    Owns,
    every_key,
    size_of,
)

T = TypeVar("T")

PREFIXES = ("data/", "wal/", "meta/", "meta-before-", "forget/", "backup/", "runs/")
"""The beginnings of the keys of encrypted objects."""
PLAIN_SIZE_MAX = 64
_READ_BACK = "data/"
"""Objects of these keys may be read by ranges by the node that wrote them."""
_THREAD_BYTES = 256 * 1024
"""Bytes from which on a thread encrypts or decrypts them: about 0.1 ms of work."""
_KEPT = 4096


class EncryptedStore:
    """Wraps a store. Belongs above `CountedStore`, which counts requests and stored bytes, and
    below `RetryingStore`, which repeats requests for keys too.
    """

    def __init__(self, inner: ObjectStore, keys: DataKeys) -> None:
        self.uri = inner.uri
        self.keys = keys
        self._inner = inner
        self._ciphers: OrderedDict[str, ObjectCipher | None] = OrderedDict()
        self._looking: dict[str, asyncio.Lock] = {}

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """See `ObjectStore.create`. Raises KeyUnavailable, NotEncrypted, too."""
        size = size_of(pieces)
        if size <= PLAIN_SIZE_MAX or not key.startswith(PREFIXES):
            await self._inner.create(key, pieces)
            return
        if not self.keys.is_on:
            if self.keys.is_required:
                raise NotEncrypted(f"{self.uri}: {key} needs {PROVIDER}, as {REQUIRED} is true")
            await self._inner.create(key, pieces)
            return
        data_key = await self.keys.current()
        salt = self.keys.rng.randbytes(SALT_SIZE)
        trailer = Trailer(salt=salt, plain_size=size, key=data_key.wrapped)
        cipher = ObjectCipher(key, trailer, data_key.plain)
        chunks = await _worked(size, lambda: cipher.encrypt(pieces))
        await self._inner.create(key, [*chunks, trailer.encode()])
        if key.startswith(_READ_BACK):
            self._keep(key, cipher)

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`. Raises KeyUnavailable, NotEncrypted, CorruptObject,
        UnsupportedFormat, too.
        """
        body = await self._inner.get(key)
        cipher = await self._cipher_by(key, body, len(body))
        if cipher is None:
            return body
        plain = bytearray(cipher.size)
        stored, target = memoryview(body)[:-TRAILER_SIZE], memoryview(plain)
        await _worked(cipher.size, lambda: cipher.decrypt_into(stored, 0, target))
        return bytes(plain)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See `ObjectStore.get_range`. Raises KeyUnavailable, NotEncrypted,
        UnsupportedFormat, too.
        """
        cipher = await self._cipher_of(key)
        if cipher is None:
            return await self._inner.get_range(key, start, length)
        plain = memoryview(bytearray(length))
        await self._decrypt_range(key, cipher, start, plain)
        return plain.toreadonly()

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        """See `ObjectStore.get_range_into`. Raises KeyUnavailable, NotEncrypted,
        UnsupportedFormat, too.
        """
        cipher = await self._cipher_of(key)
        if cipher is None:
            await self._inner.get_range_into(key, start, target)
        else:
            await self._decrypt_range(key, cipher, start, target)

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """See `ObjectStore.get_suffix`. Raises KeyUnavailable, NotEncrypted, CorruptObject,
        UnsupportedFormat, too.
        """
        if not self._may_be_encrypted(key):
            end, size = await self._inner.get_suffix(key, length)
            await self._cipher_by(key, end, size)
            return end, size
        chunks = length // CHUNK_SIZE + 2
        stored_length = chunks * (CHUNK_SIZE + TAG_SIZE) + TRAILER_SIZE
        end, size = await self._inner.get_suffix(key, stored_length)
        cipher = await self._cipher_by(key, end, size)
        self._keep(key, cipher)
        if cipher is None:
            return (end[-length:] if length else b""), size
        wanted = min(length, cipher.size)
        start = cipher.size - wanted
        at, _ = cipher.stored_range(start, wanted)
        first = at - (size - len(end))
        plain = bytearray(wanted)
        if first < 0:  # larger chunks, of a later release
            await self._decrypt_range(key, cipher, start, memoryview(plain))
        else:
            stored, target = memoryview(end)[first:-TRAILER_SIZE], memoryview(plain)
            await _worked(wanted, lambda: cipher.decrypt_into(stored, start, target))
        return bytes(plain), cipher.size

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        """See `ObjectStore.list`. Sizes are those that are stored."""
        return await self._inner.list(prefix, start_after=start_after, limit=limit)

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        for key in keys:
            self._ciphers.pop(key, None)
        await self._inner.delete(keys)

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:
        """See `ObjectStore.abort_uploads`."""
        return await self._inner.abort_uploads(before_ms=before_ms, owns=owns)

    async def close(self) -> None:
        """See `ObjectStore.close`."""
        await self._inner.close()

    def _may_be_encrypted(self, key: str) -> bool:
        return (self.keys.can_read or self.keys.is_required) and key.startswith(PREFIXES)

    async def _cipher_of(self, key: str) -> ObjectCipher | None:
        """Return what decrypts an object, by its end if that is not known yet; None: it is plain.

        Without any key, it is the caller's checksum that finds an encrypted object.
        """
        if not self._may_be_encrypted(key):
            return None
        if key not in self._ciphers:
            lock = self._looking.setdefault(key, asyncio.Lock())
            try:
                async with lock:
                    if key not in self._ciphers:
                        end, size = await self._inner.get_suffix(key, TRAILER_SIZE)
                        self._keep(key, await self._cipher_by(key, end, size))
                    return self._ciphers[key]
            finally:
                self._looking.pop(key, None)
        self._ciphers.move_to_end(key)
        return self._ciphers[key]

    async def _cipher_by(self, key: str, end: Buffer, size: int) -> ObjectCipher | None:
        """Return what decrypts an object of `size` bytes that ends so; None: it is plain. Raises
        NotEncrypted if it must not be.
        """
        if not key.startswith(PREFIXES):
            return None
        if not is_encrypted(end):
            if self.keys.is_required and size > PLAIN_SIZE_MAX:
                self.keys.stats.plain_refused += 1
                raise NotEncrypted(f"{self.uri}: {key} is not encrypted, and {REQUIRED} is true")
            return None
        trailer = Trailer.decode(key, end, size)
        if not self.keys.can_read:
            raise KeyUnavailable(
                f"{self.uri} is encrypted by the key {trailer.key.key_id!r}: set {PROVIDER}, and "
                f"{KEY_FILE} or {KMS_KEY}"
            )
        try:
            data_key = await self.keys.unwrap(trailer.key)
        except KeyUnavailable as error:
            raise KeyUnavailable(f"cannot decrypt {key}: {error}") from None
        return ObjectCipher(key, trailer, data_key)

    async def _decrypt_range(
        self, key: str, cipher: ObjectCipher, start: int, target: memoryview
    ) -> None:
        position, length = cipher.stored_range(start, len(target))
        if length:
            stored = memoryview(await self._inner.get_range(key, position, length))
            await _worked(length, lambda: cipher.decrypt_into(stored, start, target))

    def _keep(self, key: str, cipher: ObjectCipher | None) -> None:
        self._ciphers[key] = cipher
        self._ciphers.move_to_end(key)
        if len(self._ciphers) > _KEPT:
            self._ciphers.popitem(last=False)


def encrypted(
    store: ObjectStore, settings: EncryptionSettings, *, clock: Clock, rng: random.Random
) -> EncryptedStore:
    """Return the store with encryption by settings; `rng` is the system's."""
    return EncryptedStore(store, data_keys(settings, place_of(store), clock=clock, rng=rng))


def place_of(store: ObjectStore) -> str:
    """Return the bucket and prefix of a store, or its folder, for a key's encryption context."""
    return store.uri.partition("?")[0].partition(":")[2].removeprefix("//")


async def _worked(size: int, work: Callable[[], T]) -> T:
    """Do work with `size` bytes, in a thread if that is `_THREAD_BYTES` or more."""
    if size < _THREAD_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, work)
