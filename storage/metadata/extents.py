"""The extents of a stream: a sequence that grows, is trimmed and never changes.

A stream may have a million of them, so a new version shares all but its ends with the one before:
it is a tuple of segments, each a small tuple of extents or a range of rows of a checkpoint.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import overload

from lakehead.storage.format.columns import Longs, Texts

_SEGMENT_MAX = 128
_SIZED_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Offsets [start_offset, end_offset) of a stream lie in an object, in `size` bytes."""

    start_offset: int
    end_offset: int
    object_key: str
    max_timestamp: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtentColumns:
    """The extents of all streams in a checkpoint, by stream and offset. `objects` are rows of
    `keys`.
    """

    stream_ids: Longs
    start_offsets: Longs
    end_offsets: Longs
    objects: Longs
    max_timestamps: Longs
    sizes: Longs
    keys: Texts


class ExtentRows:
    """Rows [first, end) of a checkpoint's extents, made into values when they are read."""

    __slots__ = ("columns", "end", "first")

    def __init__(self, columns: ExtentColumns, first: int, end: int) -> None:
        self.columns = columns
        self.first = first
        self.end = end

    def __len__(self) -> int:
        return self.end - self.first

    def at(self, index: int) -> Extent:
        """Return one extent."""
        columns, row = self.columns, self.first + index
        return Extent(
            start_offset=columns.start_offsets[row],
            end_offset=columns.end_offsets[row],
            object_key=columns.keys[columns.objects[row]],
            max_timestamp=columns.max_timestamps[row],
            size=columns.sizes[row],
        )

    def start(self, index: int) -> int:
        """Return the start offset of one extent."""
        return self.columns.start_offsets[self.first + index]

    def drop(self, count: int) -> "ExtentRows":
        """Return what is left without the first `count`."""
        return ExtentRows(self.columns, self.first + count, self.end)

    def take(self, count: int) -> "ExtentRows":
        """Return the first `count`."""
        return ExtentRows(self.columns, self.first, self.first + count)

    def among(self, keys: Collection[str]) -> list[int]:
        """Return which extents lie in these objects."""
        rows = {self.columns.keys.find(key) for key in keys}
        objects = self.columns.objects.values[self.first : self.end]
        return [index for index, row in enumerate(objects) if row in rows]


class ExtentChunk:
    """A few extents as values."""

    __slots__ = ("values",)

    def __init__(self, values: tuple[Extent, ...]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def at(self, index: int) -> Extent:
        """Return one extent."""
        return self.values[index]

    def start(self, index: int) -> int:
        """Return the start offset of one extent."""
        return self.values[index].start_offset

    def drop(self, count: int) -> "ExtentChunk":
        """Return what is left without the first `count`."""
        return ExtentChunk(self.values[count:])

    def take(self, count: int) -> "ExtentChunk":
        """Return the first `count`."""
        return ExtentChunk(self.values[:count])

    def among(self, keys: Collection[str]) -> list[int]:
        """Return which extents lie in these objects."""
        return [index for index, one in enumerate(self.values) if one.object_key in keys]


Segment = ExtentRows | ExtentChunk


class Extents(Sequence[Extent]):
    """Extents in the order of offsets; see the module's docstring."""

    __slots__ = ("_ends", "segments")

    def __init__(self, segments: tuple[Segment, ...] = ()) -> None:
        self.segments = segments
        self._ends = tuple(accumulate(map(len, segments)))

    @classmethod
    def of(cls, values: Iterable[Extent]) -> "Extents":
        """Return these extents."""
        known = tuple(values)
        return cls(
            tuple(
                ExtentChunk(known[first : first + _SEGMENT_MAX])
                for first in range(0, len(known), _SEGMENT_MAX)
            )
        )

    def extend(self, values: Sequence[Extent]) -> "Extents":
        """Return these extents and more."""
        segments, first = self.segments, 0
        last = segments[-1] if segments else None
        if isinstance(last, ExtentChunk) and len(last) < _SEGMENT_MAX:
            first = _SEGMENT_MAX - len(last)
            segments = (*segments[:-1], ExtentChunk((*last.values, *values[:first])))
        more = Extents.of(values[first:]).segments
        return Extents((*segments, *more))

    def then(self, more: "Extents") -> "Extents":
        """Return these extents and those that follow them."""
        return Extents((*self.segments, *more.segments)) if self.segments else more

    def among(self, keys: Collection[str]) -> list[int]:
        """Return the places of the extents that lie in these objects, in order."""
        firsts = (0, *self._ends)
        return [
            first + index
            for first, segment in zip(firsts, self.segments, strict=False)
            for index in segment.among(keys)
        ]

    def splice(self, first: int, end: int, values: Sequence[Extent]) -> "Extents":
        """Return these extents with others in the place of [first, end)."""
        return Extents(
            (*self._until(first), *Extents.of(values).segments, *self._since(end).segments)
        )

    def until(self, count: int) -> "Extents":
        """Return the first `count` extents."""
        return Extents(self._until(count))

    def _until(self, count: int) -> tuple[Segment, ...]:
        at = bisect_right(self._ends, count)
        inside = count - (self._ends[at - 1] if at else 0)
        whole = self.segments[:at]
        return (*whole, self.segments[at].take(inside)) if inside else whole

    def _since(self, count: int) -> "Extents":
        at = bisect_right(self._ends, count)
        if at == len(self.segments):
            return Extents()
        inside = count - (self._ends[at - 1] if at else 0)
        first = self.segments[at].drop(inside) if inside else self.segments[at]
        return Extents((first, *self.segments[at + 1 :]))

    def trim(self, offset: int) -> tuple["Extents", list[Extent]]:
        """Return the extents that reach beyond `offset`, and those that do not."""
        count = bisect_right(self, offset, key=lambda extent: extent.end_offset)
        dropped = [self[index] for index in range(count)]
        return self._since(count), dropped

    def find(self, offset: int) -> Extent | None:
        """Return the extent that holds an offset."""
        index = self.index_of(offset)
        return None if index < 0 else self[index]

    def size_from(self, offset: int, most: int) -> int:
        """Return how many bytes of objects may have records at `offset` or above; `most` if they
        are more, in too many extents to look at, or if no extent holds the offset.
        """
        size, first = 0, self.index_of(offset)
        if first < 0:
            return most
        for index in range(first, min(first + _SIZED_MAX, len(self))):
            size += self[index].size
            if size >= most:
                return most
        return size if first + _SIZED_MAX >= len(self) else most

    def index_of(self, offset: int) -> int:
        """Return which extent holds an offset; -1 if none does."""
        at = bisect_right(self.segments, offset, key=lambda segment: segment.start(0)) - 1
        if at < 0:
            return -1
        segment = self.segments[at]
        inside = bisect_right(range(len(segment)), offset, key=segment.start) - 1
        if segment.at(inside).end_offset <= offset:
            return -1
        return inside + (self._ends[at - 1] if at else 0)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Extent: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Extent, ...]: ...
    def __getitem__(self, index: int | slice) -> Extent | tuple[Extent, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        at = bisect_right(self._ends, index)
        return self.segments[at].at(index - (self._ends[at - 1] if at else 0))

    def __iter__(self) -> Iterator[Extent]:
        for segment in self.segments:
            for index in range(len(segment)):
                yield segment.at(index)

    def __reversed__(self) -> Iterator[Extent]:
        for segment in reversed(self.segments):
            for index in reversed(range(len(segment))):
                yield segment.at(index)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Extents):
            same = self.segments is other.segments or len(self) == len(other)
            return same and all(a == b for a, b in zip(self, other, strict=True))
        if isinstance(other, Sequence):
            return tuple(self) == tuple(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to tuples, which hash otherwise

    def __repr__(self) -> str:
        return f"Extents.of({list(self)!r})"
