"""Partitions: offsets, producer states and waiting readers over one stream each."""
