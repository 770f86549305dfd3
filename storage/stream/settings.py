"""Settings of a stream engine: the identity of its node, sizes and times.

The sizes bound its memory: `cache_size` + `wal_pending_max` for what is produced,
`block_cache_size` + `index_cache_size` + `cold_read_max` for what is read back.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """The identity of a node: its id, its address for other nodes, and the address of its WAL for
    other nodes if it dies (see `RegisterNode`, which has `tables` and `endpoints` too). An operator
    accepts the loss of the log that it wrote last by `accept_log_loss`, the node's present epoch in
    the metadata; -1: none.
    """

    node_id: int
    host: str
    port: int
    rack: str | None = None
    host_id: str = ""
    wal: str = ""
    process: str = ""
    tables: str = ""
    endpoints: str = ""
    accept_log_loss: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Sizes in bytes, times in seconds."""

    upload_size: int = 256 * 1024 * 1024
    """An upload begins when this much is not uploaded yet …"""
    upload_age_s: float = 10.0
    """… or the oldest of it is this old."""
    uploads_max: int = 3
    """Uploads in flight."""
    stream_object_size: int = 8 * 1024 * 1024
    """A stream with this much in an upload set gets objects of its own."""
    object_size_max: int = 64 * 1024 * 1024
    """Objects are cut at this size: between two of them an upload can hold its rate down."""
    cache_size: int = 512 * 1024 * 1024
    """Log cache. Producers wait when this much is not uploaded."""
    block_cache_size: int = 256 * 1024 * 1024
    """Memory for data that was read back from objects, or fetched ahead."""
    index_cache_size: int = 32 * 1024 * 1024
    cold_read_max: int = 64 * 1024 * 1024
    """Bytes of cold reads on their way from the store."""
    search_memory_max: int = 32 * 1024 * 1024
    """Batches decompressed by searches for timestamps; one of them alone may be larger."""
    wal_pending_max: int = 64 * 1024 * 1024
    """Producers wait when this much is on its way to the WAL."""
    metadata_poll_s: float = 1.0
    """The metadata log is polled at this interval while it grows …"""
    metadata_poll_max_s: float = 5.0
    """… and ever more seldom, down to this one, while it does not."""
    metadata_checkpoint_entries: int = 1000
    """A checkpoint of the metadata is written every so many entries."""
    garbage_grace_s: float = 600.0
    """Readers of an older view find an object for this long after its last reference went."""
    garbage_interval_s: float = 60.0
    """Interval of the search for such objects; it costs no request while there are none."""
    garbage_sweep_s: float = 6 * 3600.0
    """Interval of listings of the bucket, for objects that crashes left."""
