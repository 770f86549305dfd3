"""Write-ahead logs: what makes an append durable before it is part of any object."""

from lakehead.storage.wal.address import open_wal, take_wal
from lakehead.storage.wal.block import BlockWal
from lakehead.storage.wal.block_settings import BlockWalSettings, BlockWalStats
from lakehead.storage.wal.memory import MemoryWal
from lakehead.storage.wal.object import ObjectWal, ObjectWalSettings
from lakehead.storage.wal.protocol import Buffer, WalListener, WalOwner, WalRecord, WriteAheadLog

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
