"""Streams move from one live node to another: what is kept, what is refused, what goes on."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from lakehead.storage.errors import EntryRejected, Fenced, StreamClosed
from lakehead.storage.format.partition_state import StateSnapshot
from lakehead.storage.metadata.records import AssignStreams, FenceNode
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.stream import Stream
from lakehead.storage.wal import MemoryWal, WalOwner, WriteAheadLog
from tests.unit.test_object_wal_recovery import in_cluster, running, state_of
from tests.unit.test_stream_engine import append, read_all


def in_memory(_: WalOwner) -> WriteAheadLog:
    return MemoryWal()


async def open_here(engine: StreamEngine, stream_ids: Sequence[int]) -> list[Stream]:
    await engine.metadata.refresh()
    return await engine.open_streams(stream_ids)


async def assign(engine: StreamEngine, node_id: int, stream_ids: Sequence[int]) -> None:
    await engine.metadata.commit([AssignStreams(node_id=node_id, stream_ids=tuple(stream_ids))])


@pytest.mark.parametrize("open_log", [in_memory, in_cluster])
async def test_a_stream_moves_with_all_that_was_acknowledged(open_log) -> None:  # type: ignore[no-untyped-def]
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        old, streams = await stack.enter_async_context(running(store, open_log, partitions=4))
        new, _ = await stack.enter_async_context(
            running(store, open_log, node_id=1, partitions=0, seed=1)
        )
        bases = {s.stream_id: [await append(s) for _ in range(9)] for s in streams}
        await assign(new, 1, [0, 1])
        with pytest.raises(EntryRejected, match="is open on node 0"):
            await new.open_streams([0, 1])
        streams[0].state_snapshot = lambda _, end: StateSnapshot(f"as of {end}".encode())

        async def produce(stream: Stream) -> None:
            while True:
                bases[stream.stream_id].append(await append(stream))
                await asyncio.sleep(0)

        producers = asyncio.gather(*map(produce, streams[:2]), return_exceptions=True)
        entry = old.metadata.state.next_entry
        await old.hand_over([0, 1])
        assert [type(error) for error in await producers] == [StreamClosed, StreamClosed]
        assert old.hand_overs.stats.streams == 2
        moved = await open_here(new, [0, 1])
        assert [s.epoch for s in moved] == [1, 1]
        for stream in moved:
            bases[stream.stream_id].append(await append(stream))
            assert await read_all(stream) == bases[stream.stream_id]
        end = len(bases[0]) * 3 - 3
        assert (await moved[0].load_state())[::2] == ([f"as of {end}".encode()], end)
        state = await state_of(store)
        # Few entries: one for what was uploaded ahead, one for the rest and both closes, one open.
        assert state.next_entry - entry <= 5
        # What stays has not been touched, and goes on.
        assert [state.streams[n].end_offset for n in (2, 3)] == [0, 0]
        bases[2].append(await append(streams[2]))
        assert await read_all(streams[2]) == bases[2]
        await old.close()
        await new.close()
    state = await state_of(store)
    assert [s.end_offset for s in state.streams.values()] == [3 * len(b) for b in bases.values()]


class LateOpening(MemoryStore):
    """Once it is `slow`, an entry of the metadata is put after an index has been asked for."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.is_slow = False
        self.asked = asyncio.Event()

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        if self.is_slow:
            await self.asked.wait()
        await super().create(key, pieces)

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        self.asked.set()
        return await super().get_suffix(key, length)


async def test_states_are_read_while_the_entry_that_opens_is_on_its_way() -> None:
    """A round trip to the store less in the pause of a stream that moves."""
    store = MemoryStore()
    others = LateOpening(store.objects)
    async with AsyncExitStack() as stack:
        old, [stream] = await stack.enter_async_context(running(store, in_memory, partitions=1))
        new, _ = await stack.enter_async_context(
            running(others, in_memory, node_id=1, partitions=0, seed=1)
        )
        await append(stream)
        stream.state_snapshot = lambda _, end: StateSnapshot(b"state")
        await assign(new, 1, [0])
        await old.metadata.refresh()
        await old.hand_over([0])
        await new.metadata.refresh()
        others.is_slow = True
        async with asyncio.timeout(30):
            [moved] = await new.open_streams([0])
        assert (await moved.load_state()).states == [b"state"]
        assert new.reader.indexes.reads == 1, "and they are read once"


async def test_appends_on_their_way_are_waited_for_and_arrive() -> None:
    inner = MemoryStore()
    slow = FaultyStore(inner, profile=FaultProfile(latency_s_max=0.05), rng=random.Random(3))
    async with running(slow) as (engine, streams):
        before = [asyncio.ensure_future(append(streams[0])) for _ in range(5)]
        await asyncio.sleep(0)
        await engine.hand_over([0])
        assert await asyncio.gather(*before) == [0, 3, 6, 9, 12]
        assert (await state_of(inner)).streams[0].end_offset == 15
        with pytest.raises(StreamClosed):
            await append(streams[0])
        await append(streams[1])


async def test_what_moved_is_not_brought_back_by_the_log_of_its_old_owner() -> None:
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, lambda _: wal) as (old, streams):
        for stream in streams:
            await append(stream)
        await assign(old, 0, [0])
        await old.hand_over([0])
        assert wal.trimmed_position == 0  # what stays is not uploaded, so nothing was trimmed
    async with running(store, in_memory, node_id=1, partitions=0, seed=1) as (new, _):
        await assign(new, 1, [0])
        (moved,) = await new.open_streams([0])
        await append(moved)
        async with running(store, lambda _: wal.reopen(), partitions=0, seed=2) as (again, _):
            state = again.metadata.state
            assert (state.streams[0].end_offset, state.streams[1].end_offset) == (3, 3)
            # The second was assigned elsewhere while its owner was away.
            await assign(again, 1, [1])
            await again.hand_over([1])
        assert [s.next_offset for s in await open_here(new, [1])] == [3]
        assert await read_all(moved) == [0, 3]


async def test_the_log_is_trimmed_once_everything_is_uploaded() -> None:
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, lambda _: wal) as (engine, streams):
        for stream in streams:
            await append(stream)
        await engine.hand_over([0, 1])
        assert wal.trimmed_position == 0
        await engine.upload_now()
        assert wal.trimmed_position == wal.released_position > 0
        entries = engine.metadata.state.next_entry
        await engine.upload_now()
        assert engine.metadata.state.next_entry == entries


async def test_a_hand_over_repeated_or_of_deleted_streams_changes_nothing() -> None:
    store = MemoryStore()
    async with running(store) as (engine, streams):
        await append(streams[0])
        await engine.hand_over([0])
        entries = engine.metadata.state.next_entry
        await engine.hand_over([0, 77])
        assert engine.metadata.state.next_entry == entries
        await engine.close()


class GatedStore(MemoryStore):
    """Once it `is_closed`, data are put when `opened` is set; `reached` says that some wait."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.is_closed = False
        self.opened, self.reached = asyncio.Event(), asyncio.Event()

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        if self.is_closed and key.startswith("data/"):
            self.reached.set()
            await self.opened.wait()
        await super().create(key, pieces)


async def test_a_stream_that_comes_back_is_not_closed_by_the_hand_over_of_its_earlier_life() -> (
    None
):
    """The controller assigns it to this node again while others of the same hand-over are copied.
    The next commit of its records would be refused, and they would be recovered by no node.
    """
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, lambda _: wal) as (_, streams):
        bases = [await append(streams[0])]
    gated = GatedStore(store.objects)
    async with running(gated, lambda _: wal.reopen(), partitions=0, seed=1) as (again, _):
        (moving,) = await again.open_streams([1])
        await append(moving)
        gated.is_closed = True
        handing_over = asyncio.ensure_future(again.hand_over([0, 1]))
        async with asyncio.timeout(30):
            await gated.reached.wait()
        (back,) = await again.open_streams([0])
        bases.append(await append(back))
        gated.opened.set()
        await handing_over
        assert not moving.is_open
        assert not again.metadata.state.streams[1].is_open
        assert back.is_open
        assert again.metadata.state.is_open(0, back.epoch)
        await again.upload_now()
        assert await read_all(back) == bases


async def test_two_hand_overs_at_once_do_not_disturb_each_other() -> None:
    store = MemoryStore()
    async with running(store, partitions=4) as (engine, streams):
        for stream in streams:
            await append(stream)
        await asyncio.gather(engine.hand_over([0, 1]), engine.hand_over([2]))
        await append(streams[3])
        await engine.close()
    state = await state_of(store)
    assert [s.end_offset for s in state.streams.values()] == [3, 3, 3, 6]
    assert not any(s.is_open for s in state.streams.values())


async def test_a_fenced_node_closes_nothing_that_its_next_life_has_opened() -> None:
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, lambda _: wal) as (old, streams):
        await append(streams[0])
        async with running(store, lambda _: wal.reopen(), seed=1) as (new, reopened):
            with pytest.raises((Fenced, EntryRejected)):
                await old.hand_over([0, 1])
            state = await state_of(store)
            assert all(s.is_open and s.epoch == 1 for s in state.streams.values())
            await append(reopened[0])
            await new.metadata.commit([FenceNode(node_id=0, epoch=1)])
            with pytest.raises(Fenced):
                await new.hand_over([1])
    assert all(s.is_open for s in (await state_of(store)).streams.values())


async def test_other_uploads_wait_for_the_pause_to_end() -> None:
    """A trim of another stream would put an upload of everything before the small rest."""
    store = FaultyStore(
        MemoryStore(), profile=FaultProfile(latency_s_max=0.02), rng=random.Random(5)
    )
    async with running(store, partitions=3) as (engine, streams):
        for stream in streams:
            await append(stream)
        snapshots = engine.uploader.stats.upload_sets
        moving = asyncio.ensure_future(engine.hand_over([0]))
        while streams[0].is_open:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        trimming = asyncio.ensure_future(streams[2].trim(3))
        await moving
        assert engine.metadata.state.streams[2].end_offset == 0
        assert engine.uploader.stats.upload_sets == snapshots + 2  # ahead, and the rest
        await trimming
        assert engine.metadata.state.streams[2].start_offset == 3
