"""Measure how much of a stream is not compacted yet, and group its objects for replacement. Pure.

Objects of kind `compacted` were written by log compaction. It rewrites a stream from its start, so
the compacted part is the beginning of the stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.records import COMPACTED
from lakehead.storage.metadata.state import MetadataImage, StreamState

MAP_MEMORY = 128 * 1024 * 1024
"""Bytes that the keys of one pass may take, where nothing else is said: Kafka's default."""
EXTENTS_MAX = 1000
"""Objects that are replaced at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirtiness:
    """A stream before compaction. Its extents are `clean`, then `dirty`; what comes after those
    is too young.
    """

    clean: tuple[Extent, ...]
    dirty: tuple[Extent, ...]
    oldest_ms: int
    """When the oldest dirty object was written; 0 without any."""

    @property
    def ratio(self) -> float:
        """The share of dirty bytes: 0 to 1."""
        dirty = sum(extent.size for extent in self.dirty)
        total = dirty + sum(extent.size for extent in self.clean)
        return dirty / total if total else 0.0

    @property
    def dirty_offsets(self) -> int:
        """The number of dirty offsets: at least the number of records."""
        return sum(extent.end_offset - extent.start_offset for extent in self.dirty)

    @property
    def first_dirty(self) -> int:
        """The first offset that is not compacted. There must be one."""
        return self.dirty[0].start_offset


def dirtiness(state: MetadataImage, stream: StreamState, *, until_ms: int) -> Dirtiness:
    """Look at a stream's objects, up to the first inherited tail. Those from the first dirty one on
    that holds a timestamp above `until_ms` are too young.
    """
    clean: list[Extent] = []
    dirty: list[Extent] = []
    for extent in state.uploaded_extents(stream):
        if not dirty and state.objects[extent.object_key].kind == COMPACTED:
            clean.append(extent)
        elif extent.max_timestamp > until_ms:
            break
        else:
            dirty.append(extent)
    oldest_ms = state.objects[dirty[0].object_key].created_ms if dirty else 0
    return Dirtiness(clean=tuple(clean), dirty=tuple(dirty), oldest_ms=oldest_ms)


def groups(extents: Sequence[Extent], size_max: int) -> list[tuple[Extent, ...]]:
    """Cut extents into groups that are replaced one after the other: none above `size_max` bytes
    unless one extent is, none of so many that an entry of the metadata log becomes large.
    """
    found: list[list[Extent]] = []
    size = 0
    for extent in extents:
        is_full = bool(found) and len(found[-1]) >= EXTENTS_MAX
        if not found or is_full or size + extent.size > size_max:
            found.append([])
            size = 0
        found[-1].append(extent)
        size += extent.size
    return [tuple(group) for group in found]
