"""Streams of a fenced node open before its log is uploaded: each rule, and what readers see."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from lakehead.broker.cluster.metadata_image import delta_of
from lakehead.lake.catalog import Catalog
from lakehead.lake.positions import TopicPartition
from lakehead.storage.backup.manifest import LogElsewhere
from lakehead.storage.backup.restored_state import restored_state
from lakehead.storage.backup.run import logs_elsewhere
from lakehead.storage.errors import (
    CorruptObject,
    EntryRejected,
    StorageError,
    StreamClosed,
    WalCorrupted,
)
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.checkpoints import state_of, tables_of
from lakehead.storage.metadata.log_reader import in_steps
from lakehead.storage.metadata.records import Record
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.stream import Stream
from lakehead.storage.wal import MemoryWal, WalOwner
from tests.unit.test_metadata_rules import committed, register, start
from tests.unit.test_object_wal_recovery import running
from tests.unit.test_stream_engine import append, read_all
from tests.unit.test_takeover import Place, fence, some_node_died, two_takers

FENCE = r.FenceNode(node_id=0, epoch=0)
REACHED = r.InheritTail(
    node_id=0,
    node_epoch=0,
    taker_id=1,
    taker_epoch=0,
    objects=(committed("data/tail", 0, 5, r.TAIL),),
)
LIMIT_S = 60
MOVED = r.OpenStream(stream_id=0, epoch=1, node_id=1, node_epoch=0)


def commit_tail(
    *objects: r.CommittedObject, taker_id: int = 1, taker_epoch: int = 0
) -> r.CommitTail:
    return r.CommitTail(
        node_id=0,
        taker_id=taker_id,
        taker_epoch=taker_epoch,
        sources=("data/tail",),
        objects=objects,
        streams=(0,),
    )


DONE = commit_tail(committed("data/a", 0, 5, "so"))


def after(*records: Record) -> MetadataImage:
    return apply_records(start(), records, 0)


def refuse(state: MetadataImage, record: Record, reason: str) -> None:
    with pytest.raises(EntryRejected, match=reason):
        apply_records(state, [record], 0)


def test_a_stream_opens_behind_its_tail_and_grows_before_the_tail_is_uploaded() -> None:
    state = after(FENCE, REACHED, MOVED)
    assert (state.streams[0].end_offset, state.streams[0].epochs[-1]) == (5, (1, 5))
    assert dict(state.tails) == {"data/tail": 0}
    assert not state.is_settled(state.nodes[0])
    span = r.CommittedRange(
        stream_id=0, epoch=1, start_offset=5, end_offset=7, max_timestamp=0, size=1
    )
    own = r.CommittedObject(key="data/b", kind="so", size=1, created_ms=0, ranges=(span,))
    state = apply_records(state, [r.CommitObjects(node_id=1, node_epoch=0, objects=(own,))], 0)
    assert state.uploaded_end(state.streams[0]) == 0
    state = apply_records(state, [DONE], 0)
    assert [one.object_key for one in state.streams[0].extents] == ["data/a", "data/b"]
    assert (state.uploaded_end(state.streams[0]), dict(state.tails)) == (7, {})
    assert state.is_settled(state.nodes[0])


def test_a_tail_counts_once_for_the_fenced_epoch_and_from_a_live_node() -> None:
    refuse(start(), REACHED, "not a fenced one")
    refuse(after(FENCE, register(0, 1)), REACHED, "not a fenced one")
    refuse(after(FENCE, r.FenceNode(node_id=1, epoch=0)), REACHED, "fenced")
    refuse(after(FENCE, REACHED), REACHED, "data/tail is committed")
    whole = r.CommitObjects(
        node_id=0, node_epoch=0, objects=REACHED.objects, taker_id=1, taker_epoch=0
    )
    refuse(after(FENCE), whole, "of kind tail")
    refuse(after(FENCE), inherited(committed("data/a", 0, 5, "so")), "of kind so")


def inherited(one: r.CommittedObject) -> r.InheritTail:
    return msgspec.structs.replace(REACHED, objects=(one,))


def test_objects_of_a_tail_cover_it_exactly_and_come_from_a_live_node() -> None:
    state = after(FENCE, REACHED, MOVED)
    refuse(state, commit_tail(committed("data/a", 0, 4, "so")), "cover")
    refuse(state, commit_tail(), "cover")
    refuse(state, commit_tail(committed("data/a", 0, 5, r.TAIL)), "of kind tail")
    refuse(state, commit_tail(committed("data/a", 0, 5, "so"), taker_epoch=1), "not registered")
    refuse(after(FENCE, REACHED, DONE), DONE, "not a tail of node 0")
    gone = apply_records(state, [r.FenceNode(node_id=1, epoch=0)], 0)
    refuse(gone, DONE, "fenced")


def test_a_node_commits_its_own_tail_in_its_next_epoch() -> None:
    state = after(FENCE, REACHED, MOVED, register(0, 1))
    own = commit_tail(committed("data/a", 0, 5, "so"), taker_id=0, taker_epoch=1)
    assert not apply_records(state, [own], 0).tails


def test_nothing_that_would_lose_a_tail_is_accepted() -> None:
    state = after(FENCE, REACHED, MOVED)
    refuse(state, r.RetireNode(node_id=0), "records that are in no object yet")
    merged = r.ReplaceObjects(sources=("data/tail",), objects=(committed("data/a", 0, 5, "so"),))
    refuse(state, merged, "records of data/tail are in no object yet")


def test_a_tail_is_over_when_no_stream_needs_it() -> None:
    state = after(FENCE, REACHED, MOVED)
    trimmed = apply_records(state, [r.TrimStream(stream_id=0, start_offset=5)], 0)
    deleted = apply_records(state, [r.DeleteStream(stream_id=0)], 0)
    assert not trimmed.tails
    assert not deleted.tails


def test_an_accepted_loss_ends_the_tails_in_the_lost_log() -> None:
    log = r.StartLog(node_id=0, node_epoch=0, log_id="a" * 32)
    loss = r.AcceptLogLoss(node_id=0, node_epoch=1, log_id="", streams=1)
    state = after(log, FENCE, REACHED, MOVED, register(0, 1), loss)
    assert not state.tails
    refuse(state, DONE, "not a tail of node 0")


def test_a_restored_cluster_waits_for_no_tail() -> None:
    """The log that holds it is lost with its machine, and named in the backup."""
    state = after(FENCE, REACHED, MOVED)
    restored = restored_state(state, keys=(), node_secret="", time_ms=0)
    assert not restored.tails
    assert restored.objects["data/tail"].kind == r.HEADERS
    assert logs_elsewhere(state)[0] == LogElsewhere(node_id=0, wal="unknown", streams=1)


async def test_tails_survive_in_checkpoints() -> None:
    state = after(FENCE, REACHED, MOVED)
    checkpoint = await in_steps(tables_of(state))
    assert (await in_steps(state_of("k", checkpoint))).tails == state.tails


def test_readers_outside_of_nodes_see_a_stream_up_to_its_tail() -> None:
    first = r.CommitObjects(node_id=0, node_epoch=0, objects=(committed("data/0", 0, 3, "so"),))
    tail = inherited(committed("data/tail", 3, 5, r.TAIL))
    log = Catalog(after(first, FENCE, tail), "file:x").partition(TopicPartition("t", 0))
    assert log.end_offset == 3
    assert [one.object_key for one in log.extents] == ["data/0"]


def test_brokers_decide_again_about_partitions_when_a_tail_is_known() -> None:
    entry = r.Entry(version=2, writer="w", nonce="n", time_ms=0, records=(REACHED,))
    assert delta_of(entry).has_nodes


# ------------------------------------------------------------------ engines


async def inherit_and_die(
    taker: StreamEngine, place: Place, monkeypatch: pytest.MonkeyPatch, node_id: int = 0
) -> None:
    """Take a node over as far as its streams may be opened, and no further."""

    def dies(step: str) -> None:
        if step == "tail_inherited":
            raise StorageError("died")

    with monkeypatch.context() as patched:
        patched.setattr("lakehead.storage.stream.takeover.failpoint", dies)
        node = await fence(taker, node_id)
        with pytest.raises(StorageError, match="died"):
            await taker.take_over(node, place.left)


async def open_all(engine: StreamEngine) -> list[Stream]:
    await engine.metadata.refresh()
    return await engine.open_streams([0, 1])


async def extend(streams: Sequence[Stream], written: list[list[int]]) -> None:
    for stream, bases in zip(streams, written, strict=True):
        bases.append(await append(stream))


async def test_streams_take_and_upload_records_while_readers_wait_for_the_tail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, place = MemoryStore(), Place("records")
    written = await some_node_died(store, place)
    async with two_takers(store, place) as (one, two):
        await inherit_and_die(one, place, monkeypatch)
        streams = await open_all(one)
        await extend(streams, written)
        await one.upload_now()
        await extend(streams, written)
        reads = [asyncio.ensure_future(read_all(stream)) for stream in streams]
        search = asyncio.ensure_future(streams[0].offset_for_timestamp(0))
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in (*reads, search))
        assert await two.take_over(await fence(two, 0), place.left) > 0
        await one.metadata.refresh()
        assert [await read for read in reads] == written
        assert await search is not None
        assert not one.metadata.state.tails


async def test_readers_of_a_stream_that_is_handed_over_do_not_wait_for_its_tail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coordinator that reads its log would wait, and hold memory, for the sake of a node that
    coordinates no more.
    """
    store, place = MemoryStore(), Place("records")
    await some_node_died(store, place)
    async with running(store, place.own, node_id=1, partitions=0, seed=1) as (taker, _):
        await inherit_and_die(taker, place, monkeypatch)
        stream, _ = await open_all(taker)
        at = taker.metadata.state.uploaded_end(taker.metadata.state.streams[0])
        waits = [
            asyncio.ensure_future(stream.fetch(at, 1)),
            asyncio.ensure_future(stream.offset_for_timestamp(0)),
            asyncio.ensure_future(stream.wait_uploaded(at)),
        ]
        await asyncio.sleep(0.05)
        assert not any(wait.done() for wait in waits)
        await taker.hand_over([stream.stream_id])
        async with asyncio.timeout(LIMIT_S):
            for wait in waits:
                with pytest.raises(StreamClosed, match="not open here any more"):
                    await wait
        assert taker.metadata.state.tails
        await taker.take_over(await fence(taker, 0), place.left)
        assert await stream.fetch(at, 1), "a read that is under way ends"


async def test_a_node_that_comes_back_commits_the_tail_in_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, place = MemoryStore(), Place("records")
    written = await some_node_died(store, place)
    async with running(store, place.own, node_id=1, partitions=0, seed=1) as (taker, _):
        await inherit_and_die(taker, place, monkeypatch)
        streams = await open_all(taker)
        await extend(streams, written)
        async with running(store, place.own, partitions=0, seed=5) as (again, _):
            assert not again.metadata.state.tails
            await taker.metadata.refresh()
            assert [await read_all(stream) for stream in streams] == written


async def test_owners_that_die_one_after_the_other_leave_a_tail_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second one dies before the first one's tail is uploaded; both are, in any order."""
    store, place = MemoryStore(), Place("records")
    written = await some_node_died(store, place)
    async with running(store, place.own, node_id=1, partitions=0, seed=1) as (taker, _):
        await inherit_and_die(taker, place, monkeypatch)
        await extend(await open_all(taker), written)
    async with running(store, place.own, node_id=2, partitions=0, seed=2) as (last, _):
        await inherit_and_die(last, place, monkeypatch, node_id=1)
        assert sorted(last.metadata.state.tails.values()) == [0, 1]
        streams = await open_all(last)
        await extend(streams, written)
        for node_id in (1, 0):
            await last.take_over(await fence(last, node_id), place.left)
        assert not last.metadata.state.tails
        assert [await read_all(stream) for stream in streams] == written


async def test_a_log_that_lacks_a_record_of_its_tail_commits_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, place = MemoryStore(), Place("records")
    await some_node_died(store, place)

    def emptied(owner: WalOwner) -> MemoryWal:
        return MemoryWal()

    async with running(store, place.own, node_id=1, partitions=0, seed=1) as (taker, _):
        await inherit_and_die(taker, place, monkeypatch)
        with monkeypatch.context() as patched:
            patched.setattr(place, "own", emptied)
            with pytest.raises(WalCorrupted, match="node 0 lacks offset"):
                await taker.take_over(await fence(taker, 0), place.left)
        assert taker.metadata.state.tails
        assert await taker.take_over(await fence(taker, 0), place.left) > 0


async def test_records_of_a_tail_that_an_operator_gave_up_are_reported_as_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, place = MemoryStore(), Place("records")
    await some_node_died(store, place)
    async with running(store, place.own, node_id=1, partitions=0, seed=1) as (taker, _):
        await inherit_and_die(taker, place, monkeypatch)
        streams = await open_all(taker)
        at = taker.metadata.state.uploaded_end(taker.metadata.state.streams[0])
        await taker.metadata.commit(
            [
                register(0, 1),
                r.StartLog(node_id=0, node_epoch=1, log_id="a" * 32),
                r.AcceptLogLoss(node_id=0, node_epoch=1, log_id="", streams=2),
            ]
        )
        with pytest.raises(CorruptObject, match="lacks offset"):
            await streams[0].fetch(at, 1)
        await streams[0].trim(streams[0].confirmed_offset)
        assert await read_all(streams[0]) == []
