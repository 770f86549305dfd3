"""Backups: a copy of a cluster in another store, from which it can be restored."""
