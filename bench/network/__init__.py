"""Measures connections: the CPU of a GB with TLS, by the ways in which a node could serve it."""
