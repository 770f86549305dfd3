"""Memory of the read path: the log cache, and what is read back from objects."""

from lakehead.broker.observability.measures.measure import counter, gauge

MEASURES = (
    gauge("log_cache_bytes", "Recent data held in memory.", lambda n: n.engine.cache.size),
    gauge(
        "log_cache_capacity_bytes",
        "Bound of the log cache (cache.size).",
        lambda n: n.engine.cache.capacity,
    ),
    gauge(
        "log_cache_uncommitted_bytes",
        "Data in the log cache that is not in objects yet; producers wait when it fills the cache.",
        lambda n: n.engine.cache.uncommitted,
    ),
    counter(
        "block_cache_hits",
        "Blocks that were in the block cache when a reader wanted them.",
        lambda n: n.engine.reader.stats.hits,
    ),
    counter(
        "block_cache_misses",
        "Blocks that a reader had to wait for.",
        lambda n: n.engine.reader.stats.misses,
    ),
    gauge(
        "block_cache_bytes", "Data read back from objects.", lambda n: n.engine.reader.blocks.size
    ),
    gauge(
        "block_cache_capacity_bytes",
        "Bound of the block cache (block.cache.size).",
        lambda n: n.engine.reader.blocks.capacity,
    ),
    gauge("index_cache_bytes", "Indexes of objects held.", lambda n: n.engine.reader.indexes.size),
    counter("index_reads", "Indexes of objects read.", lambda n: n.engine.reader.indexes.reads),
    counter(
        "cold_read_gets", "Ranged GETs of data by readers.", lambda n: n.engine.reader.stats.gets
    ),
    counter("cold_read_bytes", "Bytes of those.", lambda n: n.engine.reader.stats.get_bytes),
    gauge(
        "cold_read_in_flight_bytes",
        "Bytes on their way from the store to readers.",
        lambda n: n.engine.reader.budget.in_flight,
    ),
    counter(
        "readahead_bytes",
        "Bytes asked for before a reader wanted them.",
        lambda n: n.engine.reader.stats.ahead_bytes,
    ),
    counter(
        "readahead_wasted",
        "Times that data fetched ahead was evicted before it was read.",
        lambda n: n.engine.reader.stats.wasted,
    ),
    counter(
        "corrupt_blocks",
        "Blocks that failed their checksum twice; the log names object and position.",
        lambda n: n.engine.reader.stats.corrupt_blocks,
    ),
)
