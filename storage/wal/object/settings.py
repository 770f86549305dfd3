"""Settings and counters of an object WAL."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakehead.storage.wal.object.batching import BatchingSettings
from lakehead.storage.wal.object.hedging import HedgingSettings

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectWalSettings:
    """Sizes in bytes, times in seconds."""

    capacity: int = 1024 * _MIB
    """Bytes that may be appended and not trimmed: recovery has no more than this to look at."""
    record_size_max: int = 112 * _MIB
    pending_size_max: int = 256 * _MIB
    """Bytes that may be appended and not released: the memory that the log holds on to."""
    objects_max: int = 50_000
    """Objects released and not trimmed."""
    put_timeout_s: float = 5.0
    """A put that takes longer, and longer than 1 MB/s explains, is tried again beside it."""
    batching: BatchingSettings = field(default_factory=BatchingSettings)
    hedging: HedgingSettings = field(default_factory=HedgingSettings)


@dataclass(slots=True)
class ObjectWalStats:
    """For operators. Counts since the start, and the newest values of what adapts."""

    puts: int = 0
    """Puts sent, repeated ones and hedges included."""
    put_bytes: int = 0
    """Bytes of objects that exist, index and footer included."""
    put_retries: int = 0
    """Puts repeated, whatever the reason."""
    put_unknown: int = 0
    """Puts of unknown outcome: timeouts and lost responses."""
    hedges: int = 0
    """Second puts sent beside slow ones."""
    hedges_won: int = 0
    """Hedges that ended before the put that they were sent beside."""
    appended_bytes: int = 0
    """Bytes appended: record batches and their headers in objects."""
    objects_trimmed: int = 0
    """Objects deleted, or left to the sweep when that failed."""
    puts_per_mib: float = 0.0
    """Puts for each MiB appended, since the start."""
    in_flight: int = 0
    """Puts on their way."""
    in_flight_limit: int = 0
    """Puts that may be on their way at present."""
    put_latency_s: float = 0.0
    """Time of a put, smoothed."""
    linger_s: float = 0.0
    """Present interval between the starts of puts of small groups."""
