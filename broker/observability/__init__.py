"""Observability of a node: metrics by name, over HTTP."""
