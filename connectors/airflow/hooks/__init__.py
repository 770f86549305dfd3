"""The hook of the connection type `lakehead`."""
