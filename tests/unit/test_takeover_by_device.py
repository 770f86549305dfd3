"""A machine is lost whose log lies on a disk that others have attached: who takes it, and how."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lakehead.broker.cluster.log_recovery import last_resorts, recoverers
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import Fenced, SettingsError, StorageError
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity
from lakehead.storage.stream.stream import Stream
from lakehead.storage.stream.unrecovered_wals import UnrecoveredWals
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import MemoryWal, WalOwner, WriteAheadLog
from lakehead.storage.wal.reservation import ReservationsUnsupported
from tests.unit.test_object_wal_recovery import LAZY
from tests.unit.test_stream_engine import append, create_topic, read_all
from tests.unit.test_takeover import fence
from tests.unit.test_wal_takeover import Disk

DISK = "block:/dev/disk/by-id/shared"


@asynccontextmanager
async def node(
    store: MemoryStore,
    node_id: int,
    host_id: str,
    wal: str,
    open_log: Callable[[], Awaitable[WriteAheadLog]] | None = None,
    *,
    disk: Disk | None = None,
) -> AsyncIterator[StreamEngine]:
    """A node with its log opened by `open_log`, or on `disk`, as one that starts does."""
    scope = TaskScope(lambda name, error: None)

    async def opener(owner: WalOwner) -> WriteAheadLog:
        if disk is not None:
            return await disk.open(host_id, machine=f"{host_id}, anew", claim=owner.claim)
        assert open_log is not None
        return await open_log()

    yield await StreamEngine.open(
        store=store,
        open_wal=opener,
        node=NodeIdentity(node_id=node_id, host="h", port=1, host_id=host_id, wal=wal),
        clock=SystemClock(),
        rng=random.Random(node_id),
        settings=LAZY,
        scope=scope,
    )
    await scope.close()


async def in_memory() -> WriteAheadLog:
    return MemoryWal()


class Attached:
    """The disk as another host has it; `error` is what its calls end with."""

    def __init__(self, disk: Disk, error: Exception | None = None) -> None:
        self.disk = disk
        self.error = error
        self.others: list[str] = []

    async def take(self, uri: str, *, host_id: str, other_hosts: Any, **_: Any) -> WriteAheadLog:
        assert uri == DISK
        self.others = list(other_hosts)
        if self.error is not None:
            raise self.error
        return await self.disk.take(host_id, other_hosts=tuple(other_hosts))

    def logs(self, engine: StreamEngine, *, is_device: bool = True) -> UnrecoveredWals:
        def look(path: Path) -> bool:
            assert path == Path("/dev/disk/by-id/shared")
            return is_device

        return UnrecoveredWals(engine, "memory:", take=self.take, is_device=look)


async def two_streams(engine: StreamEngine) -> list[Stream]:
    await engine.metadata.commit_with(create_topic(2))
    return await engine.open_streams([0, 1])


async def test_a_lost_machine_is_fenced_by_its_disk_and_recovered_elsewhere() -> None:
    store, disk = MemoryStore(), Disk()
    await disk.format("a")
    attached = Attached(disk)
    async with (
        node(store, 0, "a", DISK, lambda: disk.open("a")) as lost,
        node(store, 1, "b", "memory:", in_memory) as taker,
    ):
        streams = await two_streams(lost)
        written = [[await append(s) for _ in range(9)] for s in streams]
        dead = await fence(taker, 0)
        assert recoverers(taker.metadata.state, dead) == []
        assert last_resorts(taker.metadata.state, dead) == [1]
        assert await taker.take_over(dead, attached.logs(taker).open) > 0
        assert attached.others == ["a"]
        opened = await taker.open_streams([0, 1])
        assert [await read_all(stream) for stream in opened] == written
        # The machine was only cut off. It acknowledges nothing, whatever it believes.
        with pytest.raises((Fenced, StorageError)):
            async with asyncio.timeout(30):
                await append(streams[0])
        assert isinstance(await lost.wait_failed(), Fenced)
        assert await read_all(opened[0]) == written[0]


async def test_a_lost_machine_has_its_disk_back_when_its_node_starts() -> None:
    """Another instance, to the device; what the taker committed is there once."""
    store, disk = MemoryStore(), Disk()
    await disk.format("a")
    async with (
        node(store, 0, "a", DISK, lambda: disk.open("a")) as lost,
        node(store, 1, "b", "memory:", in_memory) as taker,
    ):
        stream = (await two_streams(lost))[0]
        written = [await append(stream) for _ in range(9)]
        dead = await fence(taker, 0)
        assert await taker.take_over(dead, Attached(disk).logs(taker).open) > 0
        async with node(store, 0, "a", DISK, disk=disk) as back:
            opened = (await back.open_streams([0]))[0]
            assert await read_all(opened) == written
            written.append(await append(opened))
            assert await read_all(opened) == written
        assert disk.table.holder == "a, anew"


async def test_a_disk_without_reservations_is_not_read() -> None:
    """Its owner may be writing still."""
    store, disk = MemoryStore(), Disk()
    await disk.format("a")
    attached = Attached(disk, ReservationsUnsupported("the device has no reservations"))
    async with (
        node(store, 0, "a", DISK, lambda: disk.open("a")) as cut_off,
        node(store, 1, "b", "memory:", in_memory) as taker,
    ):
        streams = await two_streams(cut_off)
        await append(streams[0])
        dead = await fence(taker, 0)
        with pytest.raises(SettingsError, match="no reservations"):
            await taker.take_over(dead, attached.logs(taker).open)
        assert not (await taker.metadata.refresh()).nodes[0].is_recovered


async def test_what_is_no_disk_here_or_of_a_host_that_lives_is_left_alone() -> None:
    store, disk = MemoryStore(), Disk()
    await disk.format("a")
    attached = Attached(disk)
    async with (
        node(store, 0, "a", DISK, lambda: disk.open("a")) as lost,
        node(store, 1, "b", "memory:", in_memory) as taker,
    ):
        await append((await two_streams(lost))[0])
        async with node(store, 2, "a", "memory:", in_memory) as neighbour:
            dead = await fence(taker, 0)
            assert recoverers(taker.metadata.state, dead) == [2]
            with pytest.raises(SettingsError, match="does not reach"):
                await taker.take_over(dead, attached.logs(taker).open)
            await fence(taker, neighbour.node.node_id)
        with pytest.raises(SettingsError, match="does not reach"):
            await taker.take_over(dead, attached.logs(taker, is_device=False).open)
        assert attached.others == []
        assert await taker.take_over(dead, attached.logs(taker).open) > 0
