"""The write-ahead log in an object store: each group commit is one object, created if absent."""

from lakehead.storage.wal.object.batching import BatchingSettings
from lakehead.storage.wal.object.log import ObjectWal
from lakehead.storage.wal.object.names import WalName, is_seal_size, wal_key
from lakehead.storage.wal.object.seal import LogSealer, sealed_object
from lakehead.storage.wal.object.settings import ObjectWalSettings, ObjectWalStats

__all__ = [
    "BatchingSettings",
    "LogSealer",
    "ObjectWal",
    "ObjectWalSettings",
    "ObjectWalStats",
    "WalName",
    "is_seal_size",
    "sealed_object",
    "wal_key",
]
