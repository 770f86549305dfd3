"""A node recovers another that was fenced: every kind of log, several takers, a crash anywhere."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import EntryRejected, SettingsError, StorageError
from lakehead.storage.format.partition_state import StateSnapshot
from lakehead.storage.metadata.records import FenceNode
from lakehead.storage.metadata.state import NodeState
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity
from lakehead.storage.stream.stream import Stream
from lakehead.storage.stream.unrecovered_wals import UnrecoveredWals, reaches
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import MemoryWal, ObjectWal, WalOwner, WriteAheadLog
from lakehead.storage.wal.address import public_address
from tests.support.object_wal_tools import QUICK
from tests.unit.test_hand_over import assign
from tests.unit.test_object_wal_recovery import LAZY, in_cluster, running, state_of
from tests.unit.test_stream_engine import append, make_batch, read_all


@dataclass
class Place:
    """Where nodes keep their logs, and how a taker opens one that was left there."""

    name: str
    memory: dict[int, MemoryWal] = field(default_factory=dict)
    elsewhere: MemoryStore = field(default_factory=MemoryStore)

    def own(self, owner: WalOwner) -> WriteAheadLog:
        if self.name == "records":
            known = self.memory.get(owner.node_id)
            wal = MemoryWal() if known is None else known.reopen()
            self.memory[owner.node_id] = wal
            return wal
        if self.name == "elsewhere":
            return ObjectWal(self.elsewhere, owner, QUICK, are_shared=False)
        return in_cluster(owner)

    async def left(self, node: NodeState, owner: WalOwner) -> WriteAheadLog | None:
        await asyncio.sleep(0)
        return None if self.name == "cluster" else self.own(owner)


async def fence(engine: StreamEngine, node_id: int) -> NodeState:
    state = await engine.metadata.refresh()
    node = state.nodes[node_id]
    if not node.is_fenced:
        state = await engine.metadata.commit([FenceNode(node_id=node_id, epoch=node.epoch)])
    return state.nodes[node_id]


async def some_node_died(store: MemoryStore, place: Place, batches: int = 9) -> list[list[int]]:
    """Node 0 writes two streams, uploads some of it and dies."""
    async with running(store, place.own) as (engine, streams):
        written = [[await append(s) for _ in range(batches)] for s in streams]
        await engine.upload_now()
        written = [[*bases, await append(s)] for s, bases in zip(streams, written, strict=True)]
        return [[*bases, await append(s)] for s, bases in zip(streams, written, strict=True)]


@asynccontextmanager
async def two_takers(
    store: MemoryStore, place: Place
) -> AsyncIterator[tuple[StreamEngine, StreamEngine]]:
    """Nodes 1 and 2, which have no streams."""
    async with (
        running(store, place.own, node_id=1, partitions=0, seed=1) as (one, _),
        running(store, place.own, node_id=2, partitions=0, seed=2) as (two, _),
    ):
        yield one, two


PLACES = ("cluster", "elsewhere", "records")


@pytest.mark.parametrize("name", PLACES)
async def test_several_takers_leave_everything_once_and_the_streams_go_on(name: str) -> None:
    store, place = MemoryStore(), Place(name)
    written = await some_node_died(store, place)
    async with two_takers(store, place) as takers:
        node = await fence(takers[0], 0)
        with pytest.raises(EntryRejected, match="WAL there is not recovered"):
            await takers[0].open_streams([0])
        counts = await asyncio.gather(*(taker.take_over(node, place.left) for taker in takers))
        assert min(counts) == 0 < max(counts)
        state = await state_of(store)
        assert state.nodes[0].is_recovered
        assert [s.end_offset for s in state.streams.values()] == [33, 33]
        assert await takers[1].take_over(node, place.left) == 0
        opened = [(await _open(taker, n))[0] for n, taker in enumerate(takers)]
        for stream, bases in zip(opened, written, strict=True):
            assert await read_all(stream) == bases
            bases.append(await append(stream))
        # The dead one comes back: nothing of its log is committed a second time.
        async with running(store, place.own, partitions=0, seed=9) as (again, _):
            assert again.metadata.state.nodes[0].epoch == 1
            assert [await read_all(stream) for stream in opened] == written


async def _open(engine: StreamEngine, stream_id: int) -> list[Stream]:
    await engine.metadata.refresh()
    return await engine.open_streams([stream_id])


@pytest.mark.parametrize("name", PLACES)
async def test_a_taker_may_die_anywhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass dies at a later step than the one before; the last one finds all of it."""
    store, place = MemoryStore(), Place(name)
    written = await some_node_died(store, place)
    passed: list[str] = []
    target = 0

    def dies(step: str) -> None:
        passed.append(step)
        if len(passed) > target:
            raise StorageError(f"died at {step}")

    while True:
        async with running(store, place.own, node_id=1, partitions=0, seed=target) as (taker, _):
            node = await fence(taker, 0)
            passed.clear()
            with monkeypatch.context() as patched:
                for module in MODULES:
                    patched.setattr(f"lakehead.storage.{module}.failpoint", dies)
                try:
                    await taker.take_over(node, place.left)
                except StorageError:
                    target += 1
                    assert target < 40
                    continue
            assert [await read_all((await _open(taker, n))[0]) for n in (0, 1)] == written
            break
    assert target >= 2


MODULES = ("stream.takeover", "stream.recovery", "stream.upload", "metadata.log")


async def test_what_an_earlier_log_left_in_the_cluster_is_found_too() -> None:
    """It died with an object log, came back with another, and died before it recovered."""
    store, place = MemoryStore(), Place("records")
    written = await some_node_died(store, Place("cluster"))

    class Dead(Exception):
        pass

    def dies(owner: WalOwner) -> WriteAheadLog:
        return Dying()

    class Dying(MemoryWal):
        @property
        def objects(self) -> None:
            raise Dead

    with pytest.raises(Dead):
        async with running(store, dies, partitions=0, seed=5):
            pass
    async with running(store, place.own, node_id=1, partitions=0, seed=1) as (taker, _):
        node = await fence(taker, 0)
        assert node.epoch == 1
        assert await taker.take_over(node, place.left) == 0
        assert [await read_all((await _open(taker, n))[0]) for n in (0, 1)] == written


async def test_a_node_that_is_alive_or_has_come_back_is_not_taken() -> None:
    store, place = MemoryStore(), Place("cluster")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(store, place.own))
        taker, _ = await stack.enter_async_context(
            running(store, place.own, node_id=1, partitions=0, seed=1)
        )
        with pytest.raises(EntryRejected, match="not a fenced one"):
            await taker.take_over(taker.metadata.state.nodes[0], place.left)
    async with AsyncExitStack() as stack:
        taker, _ = await stack.enter_async_context(
            running(store, place.own, node_id=1, partitions=0, seed=2)
        )
        node = await fence(taker, 0)
        await stack.enter_async_context(running(store, place.own, partitions=0, seed=3))
        assert await taker.take_over(node, place.left) == 0
        assert not (await taker.metadata.refresh()).nodes[0].is_recovered


async def test_a_stream_that_was_assigned_elsewhere_is_opened_there_alone() -> None:
    store, place = MemoryStore(), Place("cluster")
    await some_node_died(store, place)
    async with two_takers(store, place) as (one, two):
        await one.take_over(await fence(one, 0), place.left)
        await assign(one, 2, [0, 1])
        with pytest.raises(EntryRejected, match="assigned to node 2"):
            await one.open_streams([0])
        assert len(await _open(two, 0)) == 1
    assert (await state_of(store)).streams[0].preferred == 2


async def append_as(stream: Stream, producer_id: int, sequence: int) -> None:
    batch = bytearray(make_batch(stream.next_offset, 1, size=3000))
    batch[43:51] = producer_id.to_bytes(8, "big", signed=True)
    batch[51:57] = bytes(2) + sequence.to_bytes(4, "big")
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stream.append(
        memoryview(batch), count=1, max_timestamp=1, on_done=lambda _: done.set_result(None)
    )
    await done


@pytest.mark.parametrize("name", PLACES)
async def test_partition_states_are_made_anew_without_reading_data(name: str) -> None:
    """The state that was uploaded, and headers of what came later."""
    store, place = MemoryStore(), Place(name)
    async with running(store, place.own) as (engine, streams):
        streams[0].state_snapshot = lambda _, end: StateSnapshot(f"as of {end}".encode())
        for sequence in range(9):
            await append_as(streams[0], 7, sequence)
        await engine.upload_now()
        for sequence in range(9, 39):
            await append_as(streams[0], 7, sequence)
            await append_as(streams[0], -1, 0)
    async with running(store, place.own, node_id=1, partitions=0, seed=1) as (taker, _):
        await taker.take_over(await fence(taker, 0), place.left)
        (stream,) = await _open(taker, 0)
        states, _, offset = await stream.load_state()
        assert (states, offset) == ([b"as of 9"], 9)
        batches = [batch async for batch in stream.state_batches(offset)]
        found = [header for header, _ in batches if header.producer_id == 7]
        assert [h.base_sequence for h in found][-5:] == [34, 35, 36, 37, 38]
        assert all(h.base_offset == 9 + 2 * (h.base_sequence - 9) for h in found)
        assert taker.reader.stats.gets == 0
        await append_as(stream, 7, 39)
        assert [h.base_sequence async for h, _ in stream.state_batches(69)] == [39]


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("is_clean", [True, False])
async def test_partition_states_outlive_records_that_were_all_deleted(
    name: str, is_clean: bool
) -> None:
    """What lies in an uploaded state, and what a takeover added to it; handed over, and crashed."""
    store, place = MemoryStore(), Place(name)
    async with running(store, place.own) as (engine, streams):
        streams[0].state_snapshot = lambda _, end: StateSnapshot(f"as of {end}".encode())
        for sequence in range(9):
            await append_as(streams[0], 7, sequence)
        await engine.upload_now()
        await append_as(streams[0], 7, 9)
    async with running(store, place.own, node_id=1, partitions=0, seed=1, clean=is_clean) as (
        taker,
        _,
    ):
        await taker.take_over(await fence(taker, 0), place.left)
        (stream,) = await _open(taker, 0)
        await stream.trim(10)
        assert await known_of(stream) == ([b"as of 9"], 9, [9])
    async with running(store, place.own, node_id=2, partitions=0, seed=2) as (last, _):
        if not is_clean:
            await last.take_over(await fence(last, 1), place.left)
        (stream,) = await _open(last, 0)
        assert (stream.start_offset, stream.next_offset) == (10, 10)
        assert await known_of(stream) == ([b"as of 9"], 9, [9])
        assert last.reader.stats.gets == 0
        stream.state_snapshot = lambda _, end: StateSnapshot(f"as of {end}".encode())
        await append_as(stream, 7, 10)
        await last.upload_now()
        assert await known_of(stream) == ([b"as of 11"], 11, [])
        assert not last.metadata.state.streams[0].state_extents


async def test_a_taker_writes_as_few_objects_as_their_size_allows() -> None:
    """Each takes flushes, or a request, and everybody waits for all of them."""
    store, place = MemoryStore(), Place("records")
    settings = replace(LAZY, stream_object_size=1000, object_size_max=3000)
    written: list[list[int]] = []
    async with running(store, place.own, settings=settings) as (_, streams):
        written += [[await append(s) for _ in range(4)] for s in streams]
    async with running(store, place.own, settings=settings, node_id=1, partitions=0, seed=1) as (
        taker,
        _,
    ):
        assert await taker.take_over(await fence(taker, 0), place.left) == 2
        objects = (await state_of(store)).objects.values()
        assert [known.kind for known in objects if known.stream_ids] == ["so", "so"]
        assert [await read_all((await _open(taker, n))[0]) for n in (0, 1)] == written


async def known_of(stream: Stream) -> tuple[list[bytes], int, list[int]]:
    """What a partition's state would be made of: blobs, their end, and the sequences after it."""
    states, _, offset = await stream.load_state()
    return states, offset, [h.base_sequence async for h, _ in stream.state_batches(offset)]


# ------------------------------------------------------------------ which logs are reached


def node_state(wal: str, host_id: str) -> NodeState:
    return NodeState(
        node_id=0, epoch=0, incarnation="i", host="h", port=1, rack=None, wal=wal, host_id=host_id
    )


@pytest.mark.parametrize(
    ("wal", "host_id", "is_reached"),
    [
        ("object:", "b", True),
        ("memory:", "b", True),
        ("block:/w", "a", True),
        ("block:/w", "b", False),
        ("block:/w", "", False),
        ("object:s3://logs/x", "b", True),
        ("object:s3://logs/y", "b", False),
        ("", "a", False),
    ],
)
def test_which_logs_a_node_reaches(wal: str, host_id: str, is_reached: bool) -> None:
    survivor = node_state("object:s3://logs/x", "a")
    assert reaches(survivor, node_state(wal, host_id)) is is_reached


def test_the_address_that_the_cluster_is_told_opens_no_store() -> None:
    address = "object:s3://logs/x?aws_secret_access_key=hidden&linger_ms=2"
    assert public_address(address) == "object:s3://logs/x"
    assert public_address("object:?budget=5") == "object:"
    assert public_address("memory:") == "memory:"
    found = public_address("block:wal?size=4MiB&slices=2&preempt=plain")
    assert found.startswith("block:/")
    assert found.endswith("/wal?preempt=plain")
    with pytest.raises(SettingsError):
        public_address("tape:")


@asynccontextmanager
async def on_host(
    store: MemoryStore, host_id: str, wal: str, open_log: Callable[[WalOwner], WriteAheadLog]
) -> AsyncIterator[StreamEngine]:
    scope = TaskScope(lambda name, error: None)

    async def opener(owner: WalOwner) -> WriteAheadLog:
        return open_log(owner)

    yield await StreamEngine.open(
        store=store,
        open_wal=opener,
        node=NodeIdentity(node_id=1, host="h", port=1, host_id=host_id, wal=wal),
        clock=SystemClock(),
        rng=random.Random(8),
        settings=LAZY,
        scope=scope,
    )
    await scope.close()


async def test_a_log_that_is_out_of_reach_is_refused_by_name() -> None:
    store, place = MemoryStore(), Place("cluster")
    async with on_host(store, "a", "block:/w", place.own) as engine:
        registered = engine.metadata.state.nodes[1]
        assert (registered.host_id, registered.wal) == ("a", "block:/w")
        logs = UnrecoveredWals(engine, "block:/w")
        owner = engine._takeovers.owner_of(registered)
        with pytest.raises(SettingsError, match="node 0 of host b left its log at block:/w"):
            await logs.open(node_state("block:/w", "b"), owner)
        assert await logs.open(node_state("object:", "b"), owner) is None
