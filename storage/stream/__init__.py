"""Streams: the storage of partitions, over one write-ahead log, caches and objects."""
