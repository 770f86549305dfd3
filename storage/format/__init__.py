"""Formats of what is stored: record batches, stream objects."""
