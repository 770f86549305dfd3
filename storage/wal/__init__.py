"""Write-ahead logs: what makes an append durable before it is part of any object."""

from storage.wal.address import open_wal, take_wal
from storage.wal.block import BlockWal
from storage.wal.block_settings import BlockWalSettings, BlockWalStats
from storage.wal.memory import MemoryWal
from storage.wal.object import ObjectWal, ObjectWalSettings
from storage.wal.protocol import Buffer, WalListener, WalOwner, WalRecord, WriteAheadLog

__all__ = [
    "BlockWal",
    "BlockWalSettings",
    "BlockWalStats",
    "Buffer",
    "MemoryWal",
    "ObjectWal",
    "ObjectWalSettings",
    "WalListener",
    "WalOwner",
    "WalRecord",
    "WriteAheadLog",
    "open_wal",
    "take_wal",
]
