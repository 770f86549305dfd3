"""What the metadata alone, and a listing of the bucket, tell of damage: pure."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.state import ClusterState, StreamState
from lakehead.storage.verification.damage import Damage, Place, lost, misplaced

SAMPLE_ALL = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRange:
    """What an object is to hold of a stream, as the metadata say. `is_state`: trimmed, and kept for
    the partition's state alone.
    """

    place: Place
    size: int
    max_timestamp: int
    topic_id: str
    is_state: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedObject:
    """An object as the metadata know it."""

    key: str
    kind: str
    size: int
    ranges: tuple[ExpectedRange, ...]


def expected_objects(
    state: ClusterState, *, topic: str | None, sample_percent: int, seed: int
) -> tuple[ExpectedObject, ...]:
    """Return the objects to look at: those that streams (of one topic) refer to, or a share of
    them, the same for the same seed.
    """
    ranges: dict[str, list[ExpectedRange]] = {}
    for stream in _streams(state, topic):
        for extents, is_state in ((stream.extents, False), (stream.state_extents, True)):
            for extent in extents:
                if _is_sampled(extent.object_key, sample_percent, seed):
                    expected = _range(state, stream, extent, is_state=is_state)
                    ranges.setdefault(extent.object_key, []).append(expected)
    return tuple(
        ExpectedObject(
            key=key,
            kind=state.objects[key].kind,
            size=state.objects[key].size,
            ranges=tuple(held),
        )
        for key, held in sorted(ranges.items())
        if key in state.objects
    )


def _is_sampled(key: str, percent: int, seed: int) -> bool:
    return percent >= SAMPLE_ALL or crc32c(f"{seed}/{key}".encode()) % SAMPLE_ALL < percent


def _streams(state: ClusterState, topic: str | None) -> Iterator[StreamState]:
    if topic is None:
        yield from state.streams.values()
        return
    for stream_id in state.topics[topic].partitions:
        if stream_id in state.streams:
            yield state.streams[stream_id]


def _range(
    state: ClusterState, stream: StreamState, extent: Extent, *, is_state: bool
) -> ExpectedRange:
    return ExpectedRange(
        place=place_of(state, stream, extent.start_offset, extent.end_offset),
        size=extent.size,
        max_timestamp=extent.max_timestamp,
        topic_id=stream.topic_id,
        is_state=is_state,
    )


def place_of(state: ClusterState, stream: StreamState, start: int, end: int) -> Place:
    """Return offsets of a stream, with its topic's name."""
    return Place(
        stream_id=stream.stream_id,
        topic=state.topic_names.get(stream.topic_id, ""),
        partition=stream.partition,
        start_offset=start,
        end_offset=end,
    )


def catalog_damages(state: ClusterState, topic: str | None) -> Iterator[Damage]:
    """Yield where streams are not what their extents make: each offset in one object, without a
    gap, from the start to the end.
    """
    for stream in _streams(state, topic):
        yield from _stream_damages(state, stream)


def _stream_damages(state: ClusterState, stream: StreamState) -> Iterator[Damage]:
    at = stream.extents[0].start_offset if stream.extents else stream.end_offset
    if at > stream.start_offset:
        place = place_of(state, stream, stream.start_offset, at)
        yield misplaced(place, "", f"no object holds offsets {stream.start_offset} to {at - 1}")
    for extent in stream.extents:
        if extent.start_offset != at or extent.end_offset <= extent.start_offset:
            place = place_of(state, stream, at, extent.start_offset)
            yield misplaced(place, extent.object_key, f"offset {extent.start_offset} follows {at}")
        known = state.objects.get(extent.object_key)
        if known is None or stream.stream_id not in known.stream_ids:
            place = place_of(state, stream, extent.start_offset, extent.end_offset)
            yield misplaced(
                place, extent.object_key, "the metadata do not know that the object is in use"
            )
        at = extent.end_offset
    if at != stream.end_offset:
        place = place_of(state, stream, at, stream.end_offset)
        yield misplaced(place, "", f"objects end at {at}, the stream at {stream.end_offset}")


def missing_objects(objects: Sequence[ExpectedObject], missing: Container[str]) -> Iterator[Damage]:
    """Yield what is lost with objects that no listing shows."""
    for one in objects:
        if one.key in missing:
            yield from (lost(held.place, one.key) for held in one.ranges)
