"""Whatever entries the rules accept, in whatever order: every object that a stream refers to, for
its records or for its partition's state, is in the table of objects, also through checkpoints.

Entries are made to fit the state that they meet, so that nearly all of them are accepted.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.feature_level import BASE_LEVEL
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.checkpoints import tables_of
from lakehead.storage.metadata.records import Entry, Record
from lakehead.storage.metadata.rules import apply_entry, apply_records
from lakehead.storage.metadata.state import MetadataImage, StreamState
from tests.property.test_cluster_state import check
from tests.property.test_metadata_snapshot import finish, folded, reloaded
from tests.support.repetitions import examples

STREAMS = 3
TOPICS = ["a" * 32, "b" * 32]
KINDS = ("", r.WHOLE, r.HEADERS, r.INCREMENTAL)


class Draws:
    """Choices out of a few drawn numbers, which shrink to zeros."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)

    def below(self, count: int) -> int:
        """Return a number below `count`."""
        return (self._numbers.pop() if self._numbers else 0) % count

    def some(self, values: Sequence[str]) -> list[str]:
        """Return some of the values, at least one if there are any."""
        first = self.below(len(values)) if values else 0
        return [one for n, one in enumerate(values) if n == first or self.below(2)]


def begun() -> MetadataImage:
    """A node and two topics, the first with three partitions that it leads."""
    state = MetadataImage()
    for records in (
        [r.RegisterNode(node_id=0, epoch=0, incarnation="i", host="h", port=1)],
        topic(0, 0),
    ):
        state = apply_records(state, records, 0)
    return state


def topic(number: int, first: int) -> list[Record]:
    """A topic, its streams, and a leader of each."""
    made: list[Record] = [r.CreateTopic(name=f"t{number}", topic_id=TOPICS[number])]
    for n in range(STREAMS):
        made += [
            r.CreateStream(stream_id=first + n, topic_id=TOPICS[number], partition=n),
            r.OpenStream(stream_id=first + n, epoch=0, node_id=0, node_epoch=0),
        ]
    return made


def span(stream: StreamState, start: int, end: int, kind: str) -> r.CommittedRange:
    return r.CommittedRange(
        stream_id=stream.stream_id,
        epoch=stream.epoch,
        start_offset=start,
        end_offset=end,
        max_timestamp=end,
        size=end - start,
        state=kind,
        state_since=max(start - 3, 0) if kind == r.INCREMENTAL else -1,
    )


def committed(key: str, spans: Sequence[r.CommittedRange]) -> r.CommittedObject:
    return r.CommittedObject(key=key, kind="sso", size=9, created_ms=0, ranges=tuple(spans))


def commit(state: MetadataImage, draws: Draws, number: int) -> list[Record]:
    """Objects with one range or more of some streams."""
    ends = {stream.stream_id: stream.end_offset for stream in state.streams.values()}
    objects = []
    for n in range(1 + draws.below(2)):
        spans = []
        for stream in list(state.streams.values()) * 2:
            if draws.below(2):
                start = ends[stream.stream_id]
                ends[stream.stream_id] = start + 1 + draws.below(3)
                kind = KINDS[draws.below(4)]
                spans.append(span(stream, start, ends[stream.stream_id], kind))
        objects.append(committed(f"data/{number}-{n}", spans))
    return [r.CommitObjects(node_id=0, node_epoch=0, objects=tuple(objects))]


def trim(state: MetadataImage, draws: Draws, number: int) -> list[Record]:
    """One stream, to anywhere, with or without its partition's state."""
    streams = list(state.streams.values())
    if not streams:
        return []
    stream = streams[draws.below(len(streams))]
    offset = stream.start_offset + draws.below(stream.end_offset - stream.start_offset + 1)
    drops = draws.below(3) == 1
    return [r.TrimStream(stream_id=stream.stream_id, start_offset=offset, drops_state=drops)]


def rewrite(state: MetadataImage, draws: Draws, number: int) -> list[Record]:
    """Other objects in the place of some, for all streams or for some of them."""
    used = sorted(key for key, known in state.objects.items() if known.stream_ids)
    sources = draws.some(used)
    if not sources:
        return []
    streams = [one for one in state.streams.values() if one.extents.among(sources)]
    if named := bool(draws.below(2)):
        streams = [one for one in streams if draws.below(2)]
        if not streams:
            return []
    spans = [
        [
            span(stream, one.start_offset, one.end_offset, "")
            for one in stream.extents
            if one.object_key in sources
        ]
        for stream in streams
    ]
    if draws.below(2):  # one object for each stream, or one for all
        spans = [[one for each in spans for one in each]]
    objects = tuple(committed(f"data/m{number}-{n}", each) for n, each in enumerate(spans) if each)
    ids = tuple(one.stream_id for one in streams) if named else ()
    return [r.ReplaceObjects(sources=tuple(sources), objects=objects, streams=ids)]


def drop(state: MetadataImage, draws: Draws, number: int) -> list[Record]:
    """Some of what nothing refers to."""
    return [r.DropObjects(keys=tuple(draws.some(sorted(state.unreferenced))))]


def reopen(state: MetadataImage, draws: Draws, number: int) -> list[Record]:
    """Every stream under its next epoch."""
    return [
        record
        for one in state.streams.values()
        for record in (
            r.CloseStream(stream_id=one.stream_id, epoch=one.epoch),
            r.OpenStream(stream_id=one.stream_id, epoch=one.epoch + 1, node_id=0, node_epoch=0),
        )
    ]


def remake(state: MetadataImage, draws: Draws, number: int) -> list[Record]:
    """A topic goes, or comes."""
    chosen = draws.below(2)
    if state.topic_by_id(TOPICS[chosen]) is not None:
        return [r.DeleteTopic(topic_id=TOPICS[chosen])]
    return topic(chosen, state.next_stream_id)


Move = Callable[[MetadataImage, Draws, int], list[Record]]
MOVES: tuple[Move, ...] = (commit, trim, rewrite, drop, reopen, remake)
moves = st.tuples(
    st.sampled_from((*MOVES, commit, commit, trim, rewrite)),
    st.lists(st.integers(0, 11), max_size=24).map(tuple),
    st.integers(0, 4),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(moves, max_size=30))
def test_what_streams_refer_to_is_there(steps: list[tuple[Move, tuple[int, ...], int]]) -> None:
    state = begun()
    for number, (move, numbers, what) in enumerate(steps):
        records = tuple(move(state, Draws(numbers), number))
        made = Entry(version=BASE_LEVEL, writer="w", nonce="n", time_ms=number, records=records)
        state = apply_entry(state, made)
        check(state)
        if what < 3:
            known = state
            state = reloaded(state) if what == 0 else folded(state)
            assert state == known
            check(state)


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_state_that_lacks_an_object_is_not_written_down(is_checkpointed: bool) -> None:
    draws = Draws([1] * 40)
    state = apply_records(begun(), commit(begun(), draws, 0), 0)
    state = reloaded(state) if is_checkpointed else state
    gone = next(iter(state.objects))
    broken = replace(state, objects=state.objects.delete(gone))
    with pytest.raises(CorruptObject, match=gone):
        finish(tables_of(broken))
