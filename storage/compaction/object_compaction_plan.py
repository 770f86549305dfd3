"""Choose the small objects to merge into large ones. Pure.

There are two kinds of work. Small objects that many streams share (group commits of an object WAL,
uploads of a quiet node) are gathered: one item takes many of them, for all their streams at once,
so that each is read once. Small objects of one stream are then merged stream by stream. Nothing is
rewritten often: a merged object is at least twice as large as the largest of its sources, or large
enough to stay.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.records import COMPACTED, HEADERS, TAIL
from lakehead.storage.metadata.state import MetadataImage, StreamState

T = TypeVar("T")

UNMERGED_KINDS = frozenset({COMPACTED, TAIL, HEADERS})
"""Kinds of objects that are not merged: those of log compaction, and those without records."""

SOURCES_MAX = 1000
"""Objects that one entry of the metadata log replaces."""
_SHARED_BY = 4
"""Objects with this many streams are gathered; with fewer, streams are read one by one."""
_GATHERED_SHARE = 8
"""Objects of at least this part of the target are not gathered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRules:
    """When objects are merged: as soon as they make half of `target_bytes` (what an object is to
    have at most, and about what a merge takes in memory), or there are `count_min` of them.
    """

    target_bytes: int = 128 * 1024 * 1024
    count_min: int = 32

    @property
    def large_bytes(self) -> int:
        """The size from which on an object stays as it is."""
        return self.target_bytes // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RebatchSettings:
    """Batches below `small_bytes` are merged to at most about `target_bytes` of records, inflated;
    compressed ones below `small_compressed_bytes`, since they must be compressed again. 0: none is.
    """

    small_bytes: int = 4 * 1024
    small_compressed_bytes: int = 0
    target_bytes: int = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeItem:
    """One merge: what these objects hold of these streams. `size` in bytes."""

    sources: tuple[str, ...]
    streams: tuple[int, ...]
    size: int


def plan_merges(
    state: MetadataImage, rules: MergeRules, *, excluded: AbstractSet[int] = frozenset()
) -> tuple[MergeItem, ...]:
    """Return what is due, without the `excluded` streams. No object is in two items of a stream."""
    gathered = list(_gathered(state, rules, excluded))
    taken = {key for item in gathered for key in item.sources}
    merged = [
        item
        for stream in state.streams.values()
        if stream.stream_id not in excluded
        for item in stream_merges(state, stream, rules, taken)
    ]
    return (*gathered, *merged)


def stream_merges(
    state: MetadataImage,
    stream: StreamState,
    rules: MergeRules,
    taken: AbstractSet[str] = frozenset(),
) -> Iterator[MergeItem]:
    """Yield what is due of one stream, in the order of offsets; objects in `taken` are left out."""
    for run in _small_runs(state, stream, rules, taken):
        for group in _groups(run, lambda extent: extent.size, rules):
            keys = dict.fromkeys(extent.object_key for extent in group)
            size = sum(extent.size for extent in group)
            yield MergeItem(sources=tuple(keys), streams=(stream.stream_id,), size=size)


def _small_runs(
    state: MetadataImage, stream: StreamState, rules: MergeRules, taken: AbstractSet[str]
) -> Iterator[list[Extent]]:
    """Yield neighbours that are small. Objects of `UNMERGED_KINDS` are left out."""
    run: list[Extent] = []
    for extent in stream.extents:
        is_small = extent.size < rules.large_bytes and extent.object_key not in taken
        if is_small and state.objects[extent.object_key].kind not in UNMERGED_KINDS:
            run.append(extent)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _gathered(
    state: MetadataImage, rules: MergeRules, excluded: AbstractSet[int]
) -> Iterator[MergeItem]:
    """Yield what is due of objects that many streams share, in the order they were written."""
    most = rules.target_bytes // _GATHERED_SHARE
    shared = [
        known
        for known in state.objects.values()
        if known.size < most
        and known.kind not in UNMERGED_KINDS
        and len(known.stream_ids - excluded) >= _SHARED_BY
    ]
    shared.sort(key=lambda known: (known.created_ms, known.key))
    for group in _groups(shared, lambda known: known.size, rules):
        streams = frozenset[int]().union(*(known.stream_ids for known in group)) - excluded
        yield MergeItem(
            sources=tuple(known.key for known in group),
            streams=tuple(sorted(streams)),
            size=sum(known.size for known in group),
        )


def _groups(
    ordered: Sequence[T], size_of: Callable[[T], int], rules: MergeRules
) -> Iterator[Sequence[T]]:
    """Cut a sequence into the groups that are to be merged; what is not yet due is in none."""
    first = size = 0
    for place, one in enumerate(ordered):
        if place > first and (
            size + size_of(one) > rules.target_bytes or place - first >= SOURCES_MAX
        ):
            if place - first > 1:
                yield ordered[first:place]
            first, size = place, 0
        size += size_of(one)
    rest = list(ordered[first:])
    if size < rules.large_bytes:
        while rest and 2 * size_of(rest[0]) > size:  # it waits until as much has come
            size -= size_of(rest.pop(0))
    if len(rest) > 1 and (size >= rules.large_bytes or len(rest) >= rules.count_min):
        yield rest
