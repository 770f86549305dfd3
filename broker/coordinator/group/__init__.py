"""Consumer groups: the classic protocol, committed offsets, and the shell that stores both."""
