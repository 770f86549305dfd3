"""A node that stops in order after any unexpected error of its store or its log's device loses
nothing.

Either raises what it never should, at each of its calls in turn, before it has done what it was
called for or after: an error, what a library in Rust raises when it panics, or the cancellation of
a future. The node stops as one does whose task has crashed, or goes on if nothing of it has. All
that was acknowledged is there afterwards, in order.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from lakehead.storage.metadata.records import AssignStreams
from lakehead.storage.object_store import MemoryStore, ObjectMeta
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import WalOwner, WriteAheadLog
from lakehead.storage.wal.memory_device import MemoryDevice
from tests.simulation.loop import LoopClock, simulate
from tests.support.rust_panic import Panic
from tests.support.wal_tools import new_device, open_small
from tests.unit.test_stream_engine import append, create_topic, read_all
from tests.unit.test_takeover import PLACES, Place, fence, some_node_died

EAGER = StorageSettings(
    upload_size=4096,
    upload_age_s=3600,
    stream_object_size=2048,
    cache_size=8192,
    metadata_checkpoint_entries=8,
)
BATCHES = 12
PATIENCE_S = 10.0


class DefectiveStore(MemoryStore):
    """Raises `defect` at call number `at`; `is_done`: after it has done what it is called for."""

    def __init__(
        self,
        at: int,
        defect: type[BaseException],
        *,
        is_done: bool,
        objects: dict[str, bytes] | None = None,
    ) -> None:
        super().__init__(objects)
        self.calls_left = at
        self.has_raised = False
        self._defect = defect
        self._is_done = is_done

    async def _call(self, call: Callable[[], Awaitable[object]]) -> object:
        self.calls_left -= 1
        if self.calls_left != -1:
            return await call()
        self.has_raised = True
        if self._is_done:
            await call()
        raise self._defect("a defect")

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        created = super().create
        await self._call(lambda: created(key, pieces))

    async def get(self, key: str) -> bytes:
        got = super().get
        return await self._call(lambda: got(key))  # type: ignore[return-value]

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        got = super().get_suffix
        return await self._call(lambda: got(key, length))  # type: ignore[return-value]

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        listed = super().list
        return await self._call(  # type: ignore[return-value]
            lambda: listed(prefix, start_after=start_after, limit=limit)
        )

    async def delete(self, keys: Sequence[str]) -> None:
        deleted = super().delete
        await self._call(lambda: deleted(keys))


class DefectiveDevice(MemoryDevice):
    """Its write number `at` raises `defect`, or gives it to the future that it returns."""

    at = -1
    defect: type[BaseException] = RuntimeError
    is_begun = False

    def write(self, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        if self.writes != self.at:
            return super().write(offset, buffer)
        self.writes += 1
        if not self.is_begun:
            raise self.defect("a defect")
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.defect is asyncio.CancelledError:
            failed.cancel()
        else:
            failed.set_exception(self.defect("a defect"))
        return failed


OpenLog = Callable[[WalOwner], Awaitable[WriteAheadLog]]


def at_place(place: Place) -> OpenLog:
    async def open_log(owner: WalOwner) -> WriteAheadLog:
        return place.own(owner)

    return open_log


@asynccontextmanager
async def engine_on(
    store: MemoryStore, open_log: OpenLog, has_crashed: asyncio.Event, *, node_id: int = 0
) -> AsyncIterator[StreamEngine]:
    """An engine that is closed in order, whatever has become of it."""
    scope = TaskScope(lambda _name, _error: has_crashed.set(), on_failure=lambda *_: None)
    try:
        engine = await StreamEngine.open(
            store=store,
            open_wal=open_log,
            node=NodeIdentity(node_id=node_id, host="h", port=1),
            clock=LoopClock(asyncio.get_running_loop()),
            rng=random.Random(len(store.objects)),
            settings=EAGER,
            scope=scope,
        )
        try:
            yield engine
        finally:
            with suppress(Exception):
                async with asyncio.timeout(PATIENCE_S):
                    await engine.close()
    finally:
        await scope.close()


async def streams_of(engine: StreamEngine) -> list[Stream]:
    state = await engine.metadata.commit_with(create_topic(2))
    return await engine.open_streams(state.topics["t"].partitions)


async def live(store: MemoryStore, open_log: OpenLog, acknowledged: list[list[int]]) -> None:
    """Write to two streams, and hand the second one over at last."""
    has_crashed = asyncio.Event()
    async with engine_on(store, open_log, has_crashed) as engine:

        async def work() -> None:
            streams = await streams_of(engine)
            for number in range(BATCHES):
                for stream, bases in zip(streams, acknowledged, strict=True):
                    bases.append(await append(stream, size=200))
                if number % 5 == 4:
                    await engine.upload_now()
            await engine.metadata.commit([AssignStreams(node_id=0, stream_ids=(1,))])
            await engine.hand_over([1])

        working = asyncio.ensure_future(work())
        crash = asyncio.ensure_future(has_crashed.wait())
        await asyncio.wait(
            [working, crash], timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in (working, crash):
            task.cancel()
        await asyncio.gather(working, crash, return_exceptions=True)


async def check(store: MemoryStore, open_log: OpenLog, acknowledged: list[list[int]]) -> None:
    async with engine_on(MemoryStore(store.objects), open_log, asyncio.Event()) as engine:
        for stream, bases in zip(await streams_of(engine), acknowledged, strict=True):
            assert (await read_all(stream))[: len(bases)] == bases


DEFECTS = (RuntimeError, Panic, asyncio.CancelledError)


def simulate_each(world: Callable[[int], Coroutine[Any, Any, bool]]) -> None:
    """Have the defect at each place, until a world ends before it comes to it."""
    at = 0
    while simulate(partial(world, at), seed=at):
        at += 1
    assert at > 10


@pytest.mark.parametrize("name", ["cluster", "records"])
@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("is_done", [True, False])
def test_a_stop_after_any_unexpected_error_of_the_store_loses_nothing(
    name: str, defect: type[BaseException], is_done: bool
) -> None:
    async def world(at: int) -> bool:
        store, open_log = DefectiveStore(at, defect, is_done=is_done), at_place(Place(name))
        acknowledged: list[list[int]] = [[], []]
        with suppress(Exception, BaseExceptionGroup, *DEFECTS):
            await live(store, open_log, acknowledged)
        await check(store, open_log, acknowledged)
        return store.has_raised

    simulate_each(world)


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("is_begun", [True, False])
def test_a_stop_after_any_unexpected_error_of_the_device_loses_nothing(
    defect: type[BaseException], is_begun: bool
) -> None:
    async def world(at: int) -> bool:
        made = await new_device()
        device = DefectiveDevice(made.capacity, rng=random.Random(at), content=made.content)
        device.at, device.defect, device.is_begun = at, defect, is_begun
        store, acknowledged = MemoryStore(), [list[int](), list[int]()]

        async def open_here(_owner: WalOwner) -> WriteAheadLog:
            return await open_small(device)

        async def open_again(_owner: WalOwner) -> WriteAheadLog:
            return await open_small(device.crash())

        with suppress(Exception, BaseExceptionGroup, *DEFECTS):
            await live(store, open_here, acknowledged)
        await check(store, open_again, acknowledged)
        return device.writes > at

    simulate_each(world)


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("is_done", [True, False])
def test_a_takeover_after_any_unexpected_error_of_another_one_finds_everything(
    name: str, defect: type[BaseException], is_done: bool
) -> None:
    async def world(at: int) -> bool:
        store, place = MemoryStore(), Place(name)
        written = await some_node_died(store, place)
        broken = DefectiveStore(at, defect, is_done=is_done, objects=store.objects)
        with suppress(Exception, BaseExceptionGroup, *DEFECTS):
            async with engine_on(broken, at_place(place), asyncio.Event(), node_id=1) as taker:
                await taker.take_over(await fence(taker, 0), place.left)
                await taker.open_streams([0])
        async with engine_on(store, at_place(place), asyncio.Event(), node_id=2) as taker:
            for node_id in {0, 1}.intersection(taker.metadata.state.nodes):
                await taker.take_over(await fence(taker, node_id), place.left)
            opened = await taker.open_streams([0, 1])
            assert [await read_all(stream) for stream in opened] == written
        return broken.has_raised

    simulate_each(world)
