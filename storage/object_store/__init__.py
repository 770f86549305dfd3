"""Object stores by URI."""

import random

from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.encryption.settings import of_environment, split_address
from lakehead.storage.errors import SettingsError
from lakehead.storage.object_store.encrypted import encrypted
from lakehead.storage.object_store.file import FileStore
from lakehead.storage.object_store.memory import MemoryStore
from lakehead.storage.object_store.protocol import Buffer, ObjectMeta, ObjectStore
from lakehead.storage.object_store.retrying import RetryingStore

__all__ = [
    "Buffer",
    "FileStore",
    "MemoryStore",
    "ObjectMeta",
    "ObjectStore",
    "check_store",
    "open_retrying_store",
    "open_store",
]


def open_store(uri: str) -> ObjectStore:
    """Return the store for `uri`: `file:/path` or a plain path, `memory:`, `s3://bucket/prefix`
    with options (see `lakehead.storage.object_store.s3.settings`). It has objects as they are
    stored, encrypted or not.

    Cheap and lazy: no connection is made and no thread started before the first call, so a forked
    worker may use it. Raises SettingsError for a scheme that is not known.
    """
    scheme, colon, rest = uri.partition(":")
    if not colon or "/" in scheme:
        return FileStore(uri)
    if scheme == "file":
        return FileStore(rest.removeprefix("//"))
    if scheme == "memory":
        return MemoryStore()
    if scheme == "s3":
        from lakehead.storage.object_store.s3.store import S3Store

        return S3Store(uri)
    raise SettingsError(
        f"unknown object store {uri!r}: use file:/path, s3://bucket/prefix or memory:"
    )


async def check_store(store: ObjectStore, *, rng: random.Random) -> None:
    """Try out an S3 store; other stores need no check.

    Raises SettingsError, one line: the fault (bucket, region, credentials, permissions by name, no
    conditional put); StoreUnavailable if it cannot be reached.
    """
    if store.uri.startswith("s3:"):
        from lakehead.storage.object_store.s3.check import check_store as check_s3_store

        await check_s3_store(store, rng=rng)


def open_retrying_store(uri: str, *, rng: random.Random, clock: Clock | None = None) -> ObjectStore:
    """Return the store for `uri` as commands and jobs use it: a few seconds of trouble are waited
    out, and objects are encrypted and decrypted by the settings in `uri` or in the environment (see
    `lakehead.storage.encryption.settings`).
    """
    place, settings = split_address(uri)
    settings = settings or of_environment()
    store = encrypted(
        open_store(place), settings, clock=clock or SystemClock(), rng=random.SystemRandom()
    )
    return RetryingStore(store, rng=rng)
