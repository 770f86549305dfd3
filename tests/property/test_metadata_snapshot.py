"""A state and its checkpoint are the same: after every entry, and whatever comes later."""

import random
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.errors import CorruptObject, EntryRejected
from lakehead.storage.format.checkpoint import Checkpoint, decode, encode
from lakehead.storage.format.columns import Longs, Texts
from lakehead.storage.format.feature_level import BASE_LEVEL, METADATA_VERSION, NEWEST_LEVEL
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.checkpoints import state_of, tables_of
from lakehead.storage.metadata.extents import Extent, Extents
from lakehead.storage.metadata.records import Entry, Record
from lakehead.storage.metadata.rules import apply_entry, apply_records
from lakehead.storage.metadata.state import WRITERS_MAX, MetadataImage
from tests.property.test_cluster_state import check, record_values, start
from tests.support.repetitions import examples


def finish(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def stored(state: MetadataImage) -> bytes:
    return b"".join(finish(encode(finish(tables_of(state)))))


def reloaded(state: MetadataImage) -> MetadataImage:
    found = finish(state_of("k", finish(decode("k", stored(state)))))
    assert isinstance(found, MetadataImage)
    return found


def folded(state: MetadataImage) -> MetadataImage:
    """As a running node does it: on the columns themselves, not on the file."""
    found = finish(state_of("k", finish(tables_of(state))))
    assert isinstance(found, MetadataImage)
    return found


def entry(number: int, *records: Record) -> Entry:
    return Entry(
        version=BASE_LEVEL,
        writer=f"w{number % 3}",
        nonce=f"n{number}",
        time_ms=number,
        records=records,
    )


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(record_values, min_size=1, max_size=2), st.integers(0, 3)), max_size=40
    )
)
def test_checkpoint_and_tail_give_the_state_of_a_full_replay_after_every_entry(
    steps: list[tuple[list[Record], int]],
) -> None:
    newest = r.FeatureLevel(name=METADATA_VERSION, level=NEWEST_LEVEL)
    whole = apply_entry(start(), entry(0, newest))  # what is generated is of the newest level, too
    followed = reloaded(whole)  # sometimes goes on from a checkpoint of what it is
    assert followed == whole
    for number, (records, what) in enumerate(steps):
        made = entry(number, *records)
        try:
            whole = apply_entry(whole, made)
        except EntryRejected:
            with pytest.raises(EntryRejected):
                apply_entry(followed, made)
            whole, followed = whole.refuse(made), followed.refuse(made)
        else:
            followed = apply_entry(followed, made)
        assert followed == whole
        assert stored(followed) == stored(whole)
        if what:
            followed = reloaded(followed) if what == 1 else folded(followed)
            assert followed == whole
            check(followed)


def test_a_long_life_with_many_checkpoints_keeps_everything() -> None:
    """Streams of several segments; compaction, trims and drops between checkpoints."""
    rng = random.Random(5)
    whole = start()
    followed = whole
    for number in range(1500):
        ends = [whole.streams[stream].end_offset for stream in (0, 1)]
        spans = tuple(
            r.CommittedRange(
                stream_id=stream,
                epoch=0,
                start_offset=ends[stream],
                end_offset=ends[stream] + rng.randint(1, 5),
                max_timestamp=number,
                size=7,
                state=(kept := rng.choice(["", r.WHOLE, r.HEADERS, r.INCREMENTAL])),
                state_since=max(ends[stream] - 9, 0) if kept == r.INCREMENTAL else -1,
            )
            for stream in (0, 1)
            if rng.random() < 0.7
        )
        committed = r.CommittedObject(
            key=f"data/{rng.getrandbits(60)}", kind="sso", size=9, created_ms=1, ranges=spans
        )
        records: list[Record] = [r.CommitObjects(node_id=0, node_epoch=0, objects=(committed,))]
        if number % 100 == 99:
            stream = whole.streams[number // 100 % 2]
            offset = stream.start_offset + rng.randint(0, stream.end_offset // 20)
            records.append(r.TrimStream(stream_id=stream.stream_id, start_offset=offset))
        if number % 150 == 149:
            gone = rng.sample(sorted(whole.unreferenced), len(whole.unreferenced) // 2)
            records.append(r.DropObjects(keys=tuple(gone)))
        if number % 40 == 39:
            records = [replacement(whole, number, rng)]
        made = entry(number, *records)
        whole, followed = apply_entry(whole, made), apply_entry(followed, made)
        if number % 97 == 0:
            followed = reloaded(followed) if number % 2 else folded(followed)
    assert followed == whole
    check(followed)
    assert len(followed.streams[0].extents) > 300


def replacement(state: MetadataImage, number: int, rng: random.Random) -> Record:
    """Compact a few extents of a stream that are alone in their objects."""
    extents = [
        extent
        for extent in state.streams[0].extents
        if state.objects[extent.object_key].stream_ids == {0}
    ]
    keys = tuple({extent.object_key: None for extent in rng.sample(extents, 3)})
    chosen = [extent for extent in extents if extent.object_key in keys]
    spans = tuple(
        r.CommittedRange(
            stream_id=0,
            epoch=0,
            start_offset=extent.start_offset,
            end_offset=extent.end_offset,
            max_timestamp=extent.max_timestamp,
            size=extent.size,
        )
        for extent in chosen
    )
    merged = r.CommittedObject(key=f"data/m{number}", kind="so", size=9, created_ms=1, ranges=spans)
    return r.ReplaceObjects(sources=keys, objects=(merged,))


@given(st.lists(st.integers(1, 3), max_size=400), st.integers(1, 300), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_extents_behave_as_a_list_does(lengths: list[int], step: int, data: st.DataObject) -> None:
    plain: list[Extent] = []
    extents, offset = Extents(), 0
    added: list[Extent] = []
    for number, length in enumerate(lengths):
        extent = Extent(
            start_offset=offset,
            end_offset=offset + length,
            object_key=f"data/{offset}",
            max_timestamp=0,
            size=length,
        )
        added.append(extent)
        offset += length
        if number % step == 0 or number + 1 == len(lengths):
            before = extents
            extents = extents.extend(added)
            assert len(before) == len(plain)
            plain += added
            added = []
    cut = data.draw(st.integers(0, offset))
    kept, dropped = extents.trim(cut)
    assert list(extents) == plain
    assert dropped == [extent for extent in plain if extent.end_offset <= cut]
    assert list(kept) == [extent for extent in plain if extent.end_offset > cut]
    assert list(reversed(kept)) == list(kept)[::-1]
    assert [kept[n] for n in range(-len(kept), len(kept))] == list(kept) * 2
    assert kept == Extents.of(kept)
    first = data.draw(st.integers(0, len(kept)))
    end = data.draw(st.integers(first, len(kept)))
    others = plain[: data.draw(st.integers(0, 3))]
    spliced = kept.splice(first, end, others)
    assert list(spliced) == [*list(kept)[:first], *others, *list(kept)[end:]]
    keys = {extent.object_key for extent in others} | {"data/none"}
    assert spliced.among(keys) == [n for n, one in enumerate(spliced) if one.object_key in keys]
    for wanted in range(-1, offset + 2):
        held = [e for e in kept if e.start_offset <= wanted < e.end_offset]
        assert kept.find(wanted) == (held[0] if held else None)


def test_the_last_entry_of_a_thousand_writers_is_known() -> None:
    state = MetadataImage()
    for number in range(WRITERS_MAX + 5):
        made = Entry(version=1, writer=f"w{number}", nonce=f"n{number}", time_ms=0, records=())
        state = apply_entry(state, made)
    assert len(state.writers) == WRITERS_MAX
    assert state.forgotten_entry == 4
    assert state.wrote("w5", "n5")
    assert not state.wrote("w5", "n4")
    assert not state.wrote("w4", "n4")
    assert reloaded(state) == state


def test_tables_that_hold_no_state_are_corrupt() -> None:
    whole = finish(tables_of(start()))
    for tables in (
        {},
        {"cluster": {"cluster_id": Texts.of(["c"])}},
        whole.tables | {"objects": {"key": Longs([1])}},
        whole.tables | {"topics": {"topic": Texts.of(["t"])}},
    ):
        with pytest.raises(CorruptObject, match="object k"):
            finish(state_of("k", Checkpoint(number=1, tables=tables)))
    with pytest.raises(CorruptObject, match="not 9"):
        finish(state_of("k", Checkpoint(number=9, tables=whole.tables)))


def test_a_checkpoint_of_an_older_release_has_nobody_assigned() -> None:
    """Its tables lack the columns that came later."""
    state = MetadataImage()
    for records in (
        [r.ClusterCreated(cluster_id="c")],
        [r.RegisterNode(node_id=3, epoch=0, incarnation="i", host="h", port=1, host_id="m")],
        [r.CreateTopic(name="t", topic_id="a" * 32)],
        [r.CreateStream(stream_id=0, topic_id="a" * 32, partition=0)],
        [r.AssignStreams(node_id=3, stream_ids=(0,))],
    ):
        state = apply_records(state, records, 0)
    checkpoint = finish(tables_of(state))
    assert finish(state_of("key", checkpoint)).streams[0].assigned == 3
    gone = {"assigned", "preferred", "host_id", "wal", "is_draining"}
    tables = {
        name: {column: values for column, values in columns.items() if column not in gone}
        for name, columns in checkpoint.tables.items()
    }
    older = finish(state_of("key", replace(checkpoint, tables=tables)))
    assert (older.streams[0].assigned, older.streams[0].preferred) == (-1, -1)
    assert (older.nodes[3].host_id, older.nodes[3].wal) == ("", "")
    again = finish(state_of("key", finish(tables_of(older))))
    assert again == older
