"""Settings and counters of a block WAL."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lakehead.storage.wal.block_format import SECTOR, sector_down

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWalSettings:
    """Sizes in bytes. They may differ from start to start; small rings lower them."""

    block_size: int = _MIB
    """A block is written when it has reached this, if not before."""
    writes_in_flight_max: int = 4
    window_size: int = 16 * _MIB
    """Writes in flight stay within this many bytes of the released position."""
    record_size_max: int = 112 * _MIB
    pending_size_max: int = 256 * _MIB
    """Bytes that may be appended and not released: the memory that the log takes."""
    pool_size: int = 32 * _MIB
    """Bytes of free buffers that the log keeps at most, for the next time that it is behind."""
    index_interval: int = 16 * _MIB
    """An index begins each piece of the ring of this many bytes; 0: there is none. A ring that is
    no larger has none.
    """
    device_timeout_s: float = 5.0
    """Seconds after which a write, read or flush that has not returned ends the log."""

    def fitted_to(self, ring_length: int) -> BlockWalSettings:
        """Return settings under which any record finds room once a ring is trimmed."""
        block = max(SECTOR, sector_down(min(self.block_size, ring_length // 16)))
        window = max(block, sector_down(min(self.window_size, ring_length // 4)))
        record = min(self.record_size_max, ring_length // 2 - 2 * SECTOR)
        return replace(self, block_size=block, window_size=window, record_size_max=record)


@dataclass(slots=True)
class BlockWalStats:
    """Counted since the log was opened; bytes are those on the device."""

    writes: int = 0
    """Blocks handed to the device: group commits."""
    written_bytes: int = 0
    """Their bytes, rounded up to sectors."""
    in_flight: int = 0
    """Blocks with the device now."""
    window_waits: int = 0
    """Times a slot was free and the window was full."""
    header_writes: int = 0
    """Headers made durable: starts and trims."""
