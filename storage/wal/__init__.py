"""Write-ahead logs: what makes an append durable before it is part of any object."""

from storage.wal.protocol import Buffer, WalListener, WalRecord, WriteAheadLog

__all__ = ["Buffer", "WalListener", "WalRecord", "WriteAheadLog"]
