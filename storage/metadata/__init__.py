"""Cluster metadata: typed records, the pure state they make, and the log that orders them."""
