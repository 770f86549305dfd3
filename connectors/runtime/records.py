"""What goes through a connector."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

Headers = tuple[tuple[str, bytes | None], ...]

Partition = Mapping[str, str]
"""What a source keeps a position of, such as a file: Kafka Connect's source partition."""

Position = Mapping[str, Any]
"""How far a source got in one: Kafka Connect's source offset; values as JSON has them."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record for a topic."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    """None: the time at which it is written."""
    partition: int | None = None
    """None: chosen by the key as Kafka's own clients do, or any."""
    place: str = ""
    """Where it came from, for people."""

    @property
    def size_bytes(self) -> int:
        """What it counts in limits: key and value."""
        return len(self.value or b"") + len(self.key or b"")


class Letter(msgspec.Struct, frozen=True, gc=False):
    """What a source read and cannot make a record of."""

    place: str
    """File and line, or the like, for people."""
    reason: str
    raw: bytes
    """What was there, or how it begins."""


class Batch(msgspec.Struct, frozen=True):
    """A part of what a source reads, small enough for memory, and the position behind it."""

    records: tuple[Record, ...]
    position: Position
    letters: tuple[Letter, ...] = ()
    read_bytes: int = 0
    is_whole: bool = True
    """Whether the position may be kept: False if only a later batch completes this one."""


class Work(NamedTuple):
    """A partition of a source with something to read."""

    partition: Partition
    name: str
    """For people."""
    size_bytes: int
    """What is left to read, about; 0 if unknown."""
