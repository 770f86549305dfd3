"""Sinks: from topics to elsewhere."""
