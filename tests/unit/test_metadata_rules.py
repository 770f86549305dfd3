"""Single rules of the metadata state: what a record demands, and what it leaves behind."""

from dataclasses import replace

import msgspec
import pytest

from lakehead.storage.errors import EntryRejected
from lakehead.storage.format.feature_level import BASE_LEVEL
from lakehead.storage.format.object_names import JOB_ENTRIES_MAX, JobName
from lakehead.storage.garbage import Verdict, judge
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.records import Entry, Record
from lakehead.storage.metadata.rules import apply_entry, apply_in_steps, apply_records
from lakehead.storage.metadata.state import MetadataImage

TOPIC = "a" * 32


def entry(*records: Record, time_ms: int = 0) -> Entry:
    return Entry(version=BASE_LEVEL, writer="w", nonce="n", time_ms=time_ms, records=records)


def register(node_id: int, epoch: int) -> r.RegisterNode:
    return r.RegisterNode(node_id=node_id, epoch=epoch, incarnation="i", host="h", port=1)


def start() -> MetadataImage:
    """Nodes 0 and 1, and a topic whose one stream is open on node 0."""
    return apply_entry(
        MetadataImage(),
        entry(
            register(0, 0),
            register(1, 0),
            r.CreateTopic(name="t", topic_id=TOPIC),
            r.CreateStream(stream_id=0, topic_id=TOPIC, partition=0),
            r.OpenStream(stream_id=0, epoch=0, node_id=0, node_epoch=0),
        ),
    )


def committed(key: str, first: int, end: int, kind: str = "wal") -> r.CommittedObject:
    span = r.CommittedRange(
        stream_id=0, epoch=0, start_offset=first, end_offset=end, max_timestamp=0, size=1
    )
    return r.CommittedObject(key=key, kind=kind, size=1, created_ms=0, ranges=(span,))


def test_the_wal_floor_only_grows_and_outlives_a_registration() -> None:
    def floor(epoch: int, number: int) -> r.CommitObjects:
        return r.CommitObjects(
            node_id=0, node_epoch=0, objects=(), wal_epoch=epoch, wal_floor=number
        )

    state = apply_entry(start(), entry(floor(0, 7)))
    assert (state.nodes[0].wal_epoch, state.nodes[0].wal_floor) == (0, 7)
    for refused in (floor(0, 6), floor(1, 0)):  # back, and into an epoch that is not there
        with pytest.raises(EntryRejected, match="WAL floor"):
            apply_entry(state, entry(refused))
    state = apply_entry(state, entry(register(0, 1)))
    assert (state.nodes[0].wal_epoch, state.nodes[0].wal_floor) == (0, 7)
    plain = r.CommitObjects(node_id=0, node_epoch=1, objects=())
    assert apply_entry(state, entry(plain)).nodes[0].wal_floor == 7


def test_a_live_node_commits_for_a_fenced_one_and_for_no_other() -> None:
    take = r.CommitObjects(
        node_id=0,
        node_epoch=0,
        objects=(committed("wal/0/0/0", 0, 5),),
        wal_epoch=1,
        taker_id=1,
        taker_epoch=0,
    )
    with pytest.raises(EntryRejected, match="not a fenced one"):
        apply_entry(start(), entry(take))
    fenced = apply_entry(start(), entry(r.FenceNode(node_id=0, epoch=0)))
    state = apply_entry(fenced, entry(take))
    assert state.streams[0].end_offset == 5
    assert (state.nodes[0].wal_epoch, state.nodes[0].wal_floor) == (1, 0)
    late = r.CommitObjects(node_id=0, node_epoch=0, objects=(committed("wal/0/0/1", 5, 6),))
    with pytest.raises(EntryRejected, match="fenced"):
        apply_entry(state, entry(late))
    both = apply_entry(fenced, entry(r.FenceNode(node_id=1, epoch=0)))
    with pytest.raises(EntryRejected, match="fenced"):
        apply_entry(both, entry(take))
    again = apply_entry(fenced, entry(register(0, 1)))
    with pytest.raises(EntryRejected, match="not a fenced one"):
        apply_entry(again, entry(take))


def test_a_fenced_nodes_stream_is_opened_elsewhere_only_once_its_wal_is_recovered() -> None:
    move = r.OpenStream(stream_id=0, epoch=1, node_id=1, node_epoch=0)
    with pytest.raises(EntryRejected, match="is open on node 0"):
        apply_entry(start(), entry(move))
    fenced = apply_entry(start(), entry(r.FenceNode(node_id=0, epoch=0)))
    with pytest.raises(EntryRejected, match="not recovered"):
        apply_entry(fenced, entry(move))
    recovered = r.CommitObjects(
        node_id=0, node_epoch=0, objects=(), wal_epoch=1, taker_id=1, taker_epoch=0
    )
    assert apply_entry(fenced, entry(recovered, move)).streams[0].node_id == 1


def test_a_retired_node_id_goes_on_counting_epochs() -> None:
    state = apply_entry(
        start(), entry(r.CloseStream(stream_id=0, epoch=0), r.RetireNode(node_id=0))
    )
    assert 0 not in state.nodes
    with pytest.raises(EntryRejected, match="not 1"):
        apply_entry(state, entry(register(0, 0)))
    again = apply_entry(state, entry(register(0, 1)))
    assert (again.nodes[0].epoch, again.nodes[0].wal_epoch) == (1, 1)
    assert not again.retired_nodes


def test_what_is_committed_lies_where_data_lies() -> None:
    """It is deleted some day: a commit must not be able to name the metadata."""
    for key in ("meta/log/00000000000000000000.json", "", "x"):
        stolen = r.CommitObjects(node_id=0, node_epoch=0, objects=(committed(key, 0, 1),))
        with pytest.raises(EntryRejected, match="not the name of a data object"):
            apply_entry(start(), entry(stolen))


def test_an_object_knows_since_when_nothing_refers_to_it() -> None:
    objects = (committed("data/a", 0, 5), committed("data/b", 5, 9))
    state = apply_entry(start(), entry(r.CommitObjects(node_id=0, node_epoch=0, objects=objects)))
    assert state.objects["data/a"].unreferenced_ms == state.objects["data/b"].unreferenced_ms == -1
    state = apply_entry(state, entry(r.TrimStream(stream_id=0, start_offset=5), time_ms=10))
    assert state.objects["data/a"].unreferenced_ms == 10
    merged = r.ReplaceObjects(
        sources=("data/a", "data/b"), objects=(committed("data/c", 5, 9, "so"),)
    )
    state = apply_entry(state, entry(merged, time_ms=20))
    assert [state.objects[f"data/{key}"].unreferenced_ms for key in "abc"] == [10, 20, -1]
    state = apply_entry(state, entry(r.DeleteTopic(topic_id=TOPIC), time_ms=30))
    assert state.objects["data/c"].unreferenced_ms == 30
    orphan = r.CommitObjects(node_id=0, node_epoch=0, objects=(committed("data/d", 9, 10),))
    assert apply_entry(state, entry(orphan, time_ms=40)).objects["data/d"].unreferenced_ms == 40


def test_a_replacement_is_whole_and_names_each_object_once() -> None:
    held = r.CommitObjects(node_id=0, node_epoch=0, objects=(committed("data/a", 0, 5),))
    state = apply_entry(start(), entry(held))
    whole = committed("data/b", 0, 5, "so")
    for replacement in (
        r.ReplaceObjects(sources=(), objects=(whole,)),
        r.ReplaceObjects(sources=("data/a",), objects=(committed("data/b", 0, 4, "so"),)),
        r.ReplaceObjects(sources=("data/a",), objects=(whole, committed("data/c", 5, 5, "so"))),
        r.ReplaceObjects(
            sources=("data/a",),
            objects=(committed("data/b", 0, 3, "so"), committed("data/b", 3, 5, "so")),
        ),
    ):
        with pytest.raises(EntryRejected):
            apply_entry(state, entry(replacement))
    apply_entry(state, entry(r.ReplaceObjects(sources=("data/a",), objects=(whole,))))


def stating(key: str, first: int, end: int, kept: str, since: int = -1) -> r.CommitObjects:
    plain = committed(key, first, end)
    span = msgspec.structs.replace(plain.ranges[0], state=kept, state_since=since)
    return r.CommitObjects(
        node_id=0, node_epoch=0, objects=(msgspec.structs.replace(plain, ranges=(span,)),)
    )


def test_what_a_state_is_made_of_outlives_its_records_until_there_is_a_newer_one() -> None:
    """From the newest whole state on, with the headers that came after it; nothing else."""
    kept = [("", 0), (r.WHOLE, 5), (r.WHOLE, 10), ("", 15), (r.HEADERS, 20)]
    commits = [stating(f"data/{first}", first, first + 5, what) for what, first in kept]
    state = apply_entry(start(), entry(*commits))
    assert state.streams[0].state_from == 10
    state = apply_entry(state, entry(r.TrimStream(stream_id=0, start_offset=14), time_ms=1))
    assert set(state.unreferenced) == {"data/0", "data/5"}
    assert not state.streams[0].state_extents
    state = apply_entry(state, entry(r.TrimStream(stream_id=0, start_offset=20), time_ms=2))
    state = apply_entry(state, entry(r.TrimStream(stream_id=0, start_offset=25), time_ms=3))
    assert not state.streams[0].extents
    assert [e.object_key for e in state.streams[0].state_sources] == [
        "data/10",
        "data/15",
        "data/20",
    ]
    assert set(state.unreferenced) == {"data/0", "data/5"}
    with pytest.raises(EntryRejected, match="still holds data"):
        apply_entry(state, entry(r.DropObjects(keys=("data/10",))))
    later = apply_entry(state, entry(stating("data/25", 25, 30, r.HEADERS)))
    assert [e.start_offset for e in later.streams[0].state_sources] == [10, 15, 20, 25]
    newer = apply_entry(later, entry(stating("data/30", 30, 35, r.WHOLE), time_ms=4))
    assert set(newer.unreferenced) == {f"data/{n}" for n in (0, 5, 10, 15, 20)}
    assert [e.start_offset for e in newer.streams[0].state_sources] == [25, 30]
    gone = apply_entry(state, entry(r.DeleteTopic(topic_id=TOPIC)))
    assert set(gone.unreferenced) == set(gone.objects)


def test_incremental_states_keep_all_that_make_them_whole() -> None:
    """Trimmed or not, up to the round that was complete last; a state never counts from later on
    than it begins.
    """
    state = apply_entry(start(), entry(stating("data/0", 0, 5, r.WHOLE)))
    for first in (5, 10, 15, 20):
        state = apply_entry(
            state, entry(stating(f"data/{first}", first, first + 5, r.INCREMENTAL, 0))
        )
        assert state.streams[0].state_from == 0
    state = apply_entry(state, entry(r.TrimStream(stream_id=0, start_offset=25), time_ms=1))
    assert not state.streams[0].extents
    assert [e.start_offset for e in state.streams[0].state_sources] == [0, 5, 10, 15, 20]
    state = apply_entry(state, entry(stating("data/25", 25, 30, r.INCREMENTAL, 12), time_ms=2))
    assert [e.start_offset for e in state.streams[0].state_sources] == [10, 15, 20, 25]
    assert set(state.unreferenced) == {"data/0", "data/5"}
    late = apply_entry(state, entry(stating("data/30", 30, 35, r.INCREMENTAL, 3)))
    assert late.streams[0].state_from == 12, "what was let go of is not asked for again"
    whole = apply_entry(late, entry(stating("data/35", 35, 40, r.WHOLE)))
    assert [e.start_offset for e in whole.streams[0].state_sources] == [25, 30, 35]
    assert whole.streams[0].state_from == 35
    with pytest.raises(EntryRejected, match="beyond"):
        apply_entry(state, entry(stating("data/30", 30, 35, r.INCREMENTAL, 31)))


def test_headers_alone_are_kept_where_no_state_was_ever_uploaded() -> None:
    """A crash before the first upload, and a deletion of all records soon after."""
    commits = [stating("data/a", 0, 5, ""), stating("data/b", 5, 9, r.HEADERS)]
    state = apply_entry(start(), entry(*commits, r.TrimStream(stream_id=0, start_offset=9)))
    assert [e.object_key for e in state.streams[0].state_sources] == ["data/b"]
    assert set(state.unreferenced) == {"data/a"}


def test_an_object_that_is_replaced_stays_for_the_state_of_a_trimmed_partition() -> None:
    state = apply_entry(
        start(),
        entry(
            stating("data/a", 0, 5, r.WHOLE),
            r.CommitObjects(node_id=0, node_epoch=0, objects=(committed("data/b", 5, 9),)),
            r.TrimStream(stream_id=0, start_offset=5),
        ),
    )
    merged = committed("data/m", 5, 9, kind="so")
    state = apply_entry(
        state, entry(r.ReplaceObjects(sources=("data/a", "data/b"), objects=(merged,)))
    )
    assert set(state.unreferenced) == {"data/b"}
    assert [e.object_key for e in state.streams[0].state_sources] == ["data/a", "data/m"]


def test_an_object_of_several_streams_is_replaced_for_one_of_them() -> None:
    """A job that works on one partition must not have to rewrite all that share its objects."""
    state = apply_entry(
        start(),
        entry(
            r.CreateStream(stream_id=1, topic_id=TOPIC, partition=1),
            r.OpenStream(stream_id=1, epoch=0, node_id=0, node_epoch=0),
        ),
    )
    mine = committed("data/a", 0, 5, "sso")
    others = msgspec.structs.replace(mine.ranges[0], stream_id=1)
    shared = msgspec.structs.replace(mine, ranges=(mine.ranges[0], others))
    state = apply_entry(state, entry(r.CommitObjects(node_id=0, node_epoch=0, objects=(shared,))))
    new = committed("data/n", 0, 5, "so")
    with pytest.raises(EntryRejected):
        apply_entry(state, entry(r.ReplaceObjects(sources=("data/a",), objects=(new,))))
    with pytest.raises(EntryRejected):
        apply_entry(
            state, entry(r.ReplaceObjects(sources=("data/a",), objects=(new,), streams=(1,)))
        )
    one = r.ReplaceObjects(sources=("data/a",), objects=(new,), streams=(0,))
    state = apply_entry(state, entry(one, time_ms=7))
    assert [extent.object_key for extent in state.streams[0].extents] == ["data/n"]
    assert [extent.object_key for extent in state.streams[1].extents] == ["data/a"]
    assert state.objects["data/a"].stream_ids == {1}
    assert not state.unreferenced
    state = apply_entry(state, entry(r.TrimStream(stream_id=1, start_offset=5), time_ms=8))
    assert dict(state.unreferenced) == {"data/a": 8}


def test_what_a_job_wrote_long_ago_is_not_committed_any_more() -> None:
    """So that a sweep may delete it: no clock says when a job that was killed has ended."""
    held = r.CommitObjects(node_id=0, node_epoch=0, objects=(committed("data/a", 0, 5),))
    state = apply_entry(start(), entry(held))
    now = state.next_entry
    keys = {back: JobName(now - back, 7).key for back in (-1, 0, 1)}

    def replaced(state: MetadataImage, key: str) -> MetadataImage:
        new = committed(key, 0, 5, "so")
        return apply_entry(state, entry(r.ReplaceObjects(sources=("data/a",), objects=(new,))))

    for back in (0, 1):
        assert keys[back] in replaced(state, keys[back]).objects
        assert judge(state, keys[back], 1) is Verdict.UPLOADING
    with pytest.raises(EntryRejected):
        replaced(state, keys[-1])
    # Who has not read so far cannot know what became of it.
    assert judge(state, keys[-1], 1) is Verdict.UPLOADING
    late = replace(state, next_entry=now + JOB_ENTRIES_MAX)
    assert keys[0] in replaced(late, keys[0]).objects
    assert judge(late, keys[1], 1) is Verdict.ORPHAN
    with pytest.raises(EntryRejected, match="too long"):
        replaced(late, keys[1])
    upload = r.CommitObjects(node_id=0, node_epoch=0, objects=(committed(keys[0], 5, 6),))
    with pytest.raises(EntryRejected, match="no upload"):
        apply_entry(state, entry(upload))


def test_an_incremental_state_counts_from_the_first_record_that_is_left() -> None:
    over = r.TrimStream(stream_id=0, start_offset=5, drops_state=True)
    state = apply_entry(start(), entry(stating("data/a", 0, 5, ""), over))
    late = stating("data/b", 5, 9, r.INCREMENTAL, since=2)
    stream = apply_entry(state, entry(late)).streams[0]
    assert (stream.state_from, stream.state_sources[0].start_offset) == (5, 5)


def test_a_state_that_is_over_keeps_nothing_of_trimmed_records() -> None:
    over = r.TrimStream(stream_id=0, start_offset=5, drops_state=True)
    state = apply_entry(start(), entry(stating("data/a", 0, 5, r.WHOLE)))
    gone = apply_entry(state, entry(over))
    assert set(gone.unreferenced) == {"data/a"}
    assert gone.streams[0].state_from == -1
    later = apply_entry(
        apply_entry(state, entry(r.TrimStream(stream_id=0, start_offset=5))), entry(over)
    )
    assert later.streams[0] == gone.streams[0]
    assert set(later.unreferenced) == {"data/a"}
    both = apply_entry(state, entry(stating("data/b", 5, 9, r.HEADERS), over))
    assert set(both.unreferenced) == {"data/a"}
    assert both.streams[0].state_from == 5
    assert [e.object_key for e in both.streams[0].state_sources] == ["data/b"]


def test_a_node_is_retired_in_steps_between_which_others_have_turns() -> None:
    made = [r.CreateStream(stream_id=n, topic_id=TOPIC, partition=n) for n in range(1, 5_000)]
    state = apply_records(start(), made, 0)
    assert len(list(apply_in_steps(state, [r.RetireNode(node_id=1)], 0))) >= 9
    with pytest.raises(EntryRejected, match="node 0 owns 1 streams"):
        apply_records(state, [r.RetireNode(node_id=0)], 0)
