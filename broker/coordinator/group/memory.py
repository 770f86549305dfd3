"""The memory that all groups of a node take together (`group.memory.size`)."""

import math

GROUP_COST = 1024
"""Bytes that a group costs beside its name and its members."""
MEMBER_OBJECTS = 512
"""Bytes that a member costs beside its texts and protocols: it is kept, and stored once more."""


class GroupMemory:
    """`capacity` bytes. Groups that are found in the log are taken, room or not."""

    def __init__(self, capacity: float = math.inf) -> None:
        self.capacity = capacity
        self.used = 0

    @property
    def room(self) -> float:
        """Bytes that groups may still grow by; below 0 where more was found in the log."""
        return self.capacity - self.used

    def change(self, before: int, after: int) -> None:
        """A group takes `after` bytes, and took `before`."""
        self.used += after - before
        assert self.used >= 0, "more was given back than taken"
