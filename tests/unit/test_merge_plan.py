"""Which small objects are merged: by the metadata alone."""

from collections.abc import Sequence

import msgspec

from lakehead.storage.compaction.object_compaction_plan import (
    MergeItem,
    MergeRules,
    plan_merges,
    stream_merges,
)
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.rules import apply_entry
from lakehead.storage.metadata.state import MetadataImage
from tests.unit.test_inherited_tail import FENCE, MOVED, REACHED, after
from tests.unit.test_maintenance_rules import compacted, uploads
from tests.unit.test_metadata_rules import TOPIC, committed, entry, register

RULES = MergeRules(target_bytes=1000, count_min=4)


def sizes(state: MetadataImage, items: Sequence[MergeItem]) -> list[list[int]]:
    """The sizes of the extents in each item."""
    (stream,) = state.streams.values()
    held = {extent.object_key: extent.size for extent in stream.extents}
    return [[held[key] for key in item.sources] for item in items]


def planned(*object_sizes: int) -> list[list[int]]:
    state = uploads(*((size, 1) for size in object_sizes))
    return sizes(state, plan_merges(state, RULES))


def test_few_and_small_wait() -> None:
    assert planned() == planned(10) == planned(10, 10, 10) == []
    assert planned(10, 10, 10, 10) == [[10, 10, 10, 10]]
    assert planned(250, 250) == [[250, 250]], "half of the target is worth while"


def test_no_merge_is_larger_than_the_target() -> None:
    assert planned(*[300] * 7) == [[300] * 3, [300] * 3]
    assert planned(499, 499, 499) == [[499, 499]]


def test_large_objects_stay_and_part_their_neighbours() -> None:
    assert planned(10, 10, 500, 10, 10) == []
    assert planned(10, 10, 10, 10, 900, 10, 10, 10, 10) == [[10] * 4, [10] * 4]


def test_what_was_merged_waits_until_as_much_has_come() -> None:
    assert planned(200, 10, 10, 10, 10) == [[10, 10, 10, 10]]
    assert planned(200, 40, 10, 10, 10) == []
    assert planned(80, 40, 20, 20, 20) == [[80, 40, 20, 20, 20]]


def test_what_is_compacted_by_keys_is_left_alone() -> None:
    state = compacted(uploads(*[(10, 1)] * 6), 20, 5)
    assert sizes(state, plan_merges(state, RULES)) == [[10] * 4]
    assert plan_merges(state, RULES, excluded=frozenset({0})) == ()


def test_the_end_of_a_lost_log_is_left_alone() -> None:
    """The object of an inherited tail whose log an operator gave up has offsets and no records."""

    def uploaded(first: int, node_id: int, epoch: int) -> r.CommitObjects:
        made = [committed(f"data/{at}", at, at + 10, "so") for at in range(first, first + 40, 10)]
        spans = [msgspec.structs.replace(one.ranges[0], epoch=epoch, size=10) for one in made]
        objects = tuple(
            msgspec.structs.replace(one, ranges=(span,))
            for one, span in zip(made, spans, strict=True)
        )
        return r.CommitObjects(node_id=node_id, node_epoch=0, objects=objects)

    tail = msgspec.structs.replace(REACHED, objects=(committed("data/tail", 40, 50, r.TAIL),))
    log = r.StartLog(node_id=0, node_epoch=1, log_id="a" * 32)
    loss = r.AcceptLogLoss(node_id=0, node_epoch=1, log_id="", streams=1)
    state = after(uploaded(0, 0, 0), FENCE, tail, MOVED, register(0, 1), log, loss)
    state = apply_entry(state, entry(uploaded(50, 1, 1)))
    assert sizes(state, plan_merges(state, RULES)) == [[10] * 4, [10] * 4]
    assert "data/tail" not in {key for one in plan_merges(state, RULES) for key in one.sources}


def shared(objects: int, streams: int, size: int = 50) -> MetadataImage:
    """Objects of the same streams, which have `size` bytes each in them."""
    state = uploads()
    for stream_id in range(1, streams):
        state = apply_entry(
            state,
            entry(
                r.CreateStream(stream_id=stream_id, topic_id=TOPIC, partition=stream_id),
                r.OpenStream(stream_id=stream_id, epoch=0, node_id=0, node_epoch=0),
            ),
        )
    for number in range(objects):
        ranges = tuple(
            r.CommittedRange(
                stream_id=stream_id,
                epoch=0,
                start_offset=number,
                end_offset=number + 1,
                max_timestamp=1,
                size=size,
            )
            for stream_id in range(streams)
        )
        made = r.CommittedObject(
            key=f"wal/0/0/{number}",
            kind="wal",
            size=streams * size,
            created_ms=number,
            ranges=ranges,
        )
        state = apply_entry(state, entry(r.CommitObjects(node_id=0, node_epoch=0, objects=(made,))))
    return state


def test_what_many_streams_share_is_read_once_for_all() -> None:
    rules = MergeRules(target_bytes=100_000, count_min=4)
    (item,) = plan_merges(shared(9, 6), rules)
    assert (len(item.sources), item.streams, item.size) == (9, tuple(range(6)), 9 * 300)
    (item,) = plan_merges(shared(9, 6), rules, excluded=frozenset({2}))
    assert item.streams == (0, 1, 3, 4, 5)
    assert [len(one.streams) for one in plan_merges(shared(9, 3), rules)] == [1, 1, 1]
    large = MergeRules(target_bytes=300 * 8, count_min=4)
    assert [len(one.streams) for one in plan_merges(shared(9, 6), large)] == [1] * 6
    state = shared(9, 6)
    assert not list(stream_merges(state, state.streams[0], rules, {*state.objects}))
