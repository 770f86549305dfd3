"""Streams: append, fetch and trim over a write-ahead log, a cache and an object store."""
