"""Taking a slice over: who is fenced, in which order, and what a loser may still do."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from lakehead.storage.errors import Fenced, SettingsError, StorageError
from lakehead.storage.wal import BlockWal
from lakehead.storage.wal.block_takeover import Verdict, take_slice
from lakehead.storage.wal.holder import Holder
from lakehead.storage.wal.memory_device import MemoryDevice
from lakehead.storage.wal.protocol import Claim
from lakehead.storage.wal.reservation import Reservation, reservation_key
from lakehead.storage.wal.reservation_memory import (
    FaultyReservation,
    MemoryReservation,
    ReservationTable,
)
from lakehead.storage.wal.volume import format_device, open_slice, volume_image
from tests.simulation.loop import simulate
from tests.support.wal_tools import SMALL, Listener, append_released, recovered, started

SIZE = 1024 * 1024


@dataclass
class Host:
    """A simulated host: its processes, its view of the device."""

    name: str
    running: dict[int, MemoryDevice] = field(default_factory=dict)
    killed: list[int] = field(default_factory=list)

    def process(self, pid: int) -> "Process":
        return Process(self, pid)


@dataclass
class Process:
    """Processes, as one of them sees the others."""

    host: Host
    pid: int

    def current(self) -> Holder:
        return Holder(pid=self.pid, host_id=self.host.name)

    def kill(self, holder: Holder) -> bool:
        device = self.host.running.pop(holder.pid, None)
        if device is None:
            return False
        self.host.killed.append(holder.pid)
        device.kill()
        return True


class Disk:
    """One disk with reservations, reached by several hosts."""

    def __init__(self, seed: int = 1, latency_s: tuple[float, float] | None = None) -> None:
        self.table = ReservationTable()
        self.platter = MemoryDevice(SIZE, rng=random.Random(seed), latency_s=latency_s)

    async def format(self, owner: str) -> None:
        image = volume_image(
            volume_id=b"v" * 16, capacity=SIZE, node_id=0, host_id=owner, cluster_id="c"
        )
        await format_device(self.platter, image)

    def port(self, machine: str) -> tuple[MemoryDevice, MemoryReservation]:
        """What a process of a machine opens: each has locks of its own."""
        reservation = MemoryReservation(self.table, machine)
        device = MemoryDevice(
            SIZE,
            rng=random.Random(7),
            latency_s=self.platter._latency_s,
            content=self.platter.content,
            may_write=reservation.may_write,
        )
        return device, reservation

    async def open(
        self,
        host: str,
        *,
        machine: str = "",
        claim: Claim | None = None,
        node_id: int = 0,
        wrap: Callable[[MemoryReservation], Reservation] = lambda r: r,
    ) -> BlockWal:
        device, reservation = self.port(machine or host)
        return await open_slice(
            device,
            node_id=node_id,
            host_id=host,
            cluster_id="c",
            reservation=wrap(reservation),
            settings=SMALL,
            claim=claim,
        )

    async def take(
        self,
        host: str,
        *,
        machine: str = "",
        other_hosts: tuple[str, ...] = (),
        wrap: Callable[[MemoryReservation], Reservation] = lambda r: r,
    ) -> BlockWal:
        device, reservation = self.port(machine or host)
        return await take_slice(
            device,
            node_id=0,
            host_id=host,
            cluster_id="c",
            reservation=wrap(reservation),
            other_hosts=other_hosts,
            settings=SMALL,
        )


# ------------------------------------------------------------------ inside a host


async def open_process(platter: MemoryDevice, host: Host, pid: int) -> BlockWal:
    device = platter.attach()
    host.running[pid] = device
    return await open_slice(
        device, node_id=0, host_id=host.name, processes=host.process(pid), settings=SMALL
    )


async def take_process(
    platter: MemoryDevice, host: Host, pid: int, live: frozenset[tuple[int, int]] = frozenset()
) -> BlockWal:
    device = platter.attach()
    host.running[pid] = device
    return await take_slice(
        device,
        node_id=0,
        host_id=host.name,
        cluster_id="c",
        processes=host.process(pid),
        settings=SMALL,
        taker=(pid, 7),
        judge=lambda holder, _: Verdict.LEAVE if holder.taker in live else Verdict.END,
    )


async def test_a_holder_that_is_alive_is_killed_before_its_slice_is_read() -> None:
    disk, host = Disk(), Host("h")
    await disk.format("h")
    wal = await open_process(disk.platter, host, 1)
    end = await append_released(wal, await started(wal, 1), b"acknowledged")
    wal.append(1, 1, 1, 1, b"on its way")
    taken = await take_process(disk.platter, host, 2)
    assert host.killed == [1]
    assert next(r.end_position for r in await recovered(taken)) == end
    await append_released(taken, await started(taken, 2), b"goes on")


async def test_a_taker_is_ended_by_another_only_once_it_is_fenced() -> None:
    disk, host = Disk(), Host("h")
    await disk.format("h")
    wal = await open_process(disk.platter, host, 1)
    await append_released(wal, await started(wal, 1), b"acknowledged")
    first = await take_process(disk.platter, host, 2, frozenset({(2, 7), (3, 7)}))
    with pytest.raises(StorageError, match="slice of node 0 is held by node 2, which recovers it"):
        await take_process(disk.platter, host, 3, frozenset({(2, 7), (3, 7)}))
    assert host.killed == [1]
    assert len(await recovered(first)) == 1
    third = await take_process(disk.platter, host, 4, frozenset({(2, 8), (4, 7)}))
    assert host.killed == [1, 2]
    assert len(await recovered(third)) == 1


def test_a_later_start_is_waited_for_before_it_is_ended() -> None:
    async def world() -> None:
        disk, host = Disk(), Host("h")
        await disk.format("h")
        device = disk.platter.attach()
        host.running[1] = device
        wal = await open_slice(
            device,
            node_id=0,
            host_id="h",
            processes=host.process(1),
            settings=SMALL,
            incarnation="second",
        )
        seen: list[str] = []

        def judge(holder: Holder, waited_s: float) -> Verdict:
            seen.append(holder.incarnation)
            assert host.killed == []
            return Verdict.END if waited_s >= 2 else Verdict.WAIT

        taken = await take_slice(
            disk.platter.attach(),
            node_id=0,
            host_id="h",
            cluster_id="c",
            processes=host.process(2),
            settings=SMALL,
            judge=judge,
        )
        assert host.killed == [1]
        assert set(seen) == {"second"}
        assert len(seen) > 100
        assert await recovered(taken) == []
        del wal

    simulate(world, seed=1)


async def test_nobody_is_killed_for_a_slice_that_is_free() -> None:
    disk, host = Disk(), Host("h")
    await disk.format("h")
    wal = await open_process(disk.platter, host, 1)
    await append_released(wal, await started(wal, 1), b"x")
    await wal.close()
    assert len(await recovered(await take_process(disk.platter, host, 2))) == 1
    assert host.killed == []


def test_a_lock_that_nobody_signed_is_waited_for_and_then_refused() -> None:
    async def world() -> None:
        disk, host = Disk(), Host("h")
        await disk.format("h")
        wal = await open_process(disk.platter, host, 1)
        del host.running[1]  # it cannot be found: another container's
        with pytest.raises(StorageError, match="still locked"):
            await take_process(disk.platter, host, 2)
        await wal.close()
        assert await recovered(await take_process(disk.platter, host, 3)) == []

    simulate(world, seed=1)


async def test_a_node_without_a_slice_there_is_refused() -> None:
    disk = Disk()
    await disk.format("h")
    with pytest.raises(SettingsError, match="no slice of node 9"):
        await take_slice(disk.platter.attach(), node_id=9, host_id="h", cluster_id="c")


# ------------------------------------------------------------------ between hosts


async def test_a_second_host_is_refused_and_writes_nothing() -> None:
    disk = Disk()
    await disk.format("a")
    await disk.open("a")
    before = bytes(disk.platter.content)
    with pytest.raises(SettingsError, match=r"held by another host \(a\)"):
        await disk.open("b")
    assert disk.platter.content == before


@pytest.mark.parametrize("seed", range(30))
def test_a_zombie_acknowledges_nothing_after_the_takeover(seed: int) -> None:
    """Writes are under way all the while; whatever was released must be what the taker reads."""

    async def world() -> None:
        rng = random.Random(seed)
        disk = Disk(seed, (0.0005, 0.004))
        await disk.format("a")
        zombie = await disk.open("a")
        listener = await started(zombie, 1)
        offsets = iter(range(10**6))

        async def write() -> None:
            while not listener.errors:
                zombie.append(1, 1, next(offsets), 1, b"z" * rng.randrange(9000))
                await asyncio.sleep(rng.uniform(0, 0.002))

        async with asyncio.timeout(1000):
            writing = asyncio.create_task(write())
            await asyncio.sleep(rng.uniform(0, 0.05))
            taken = await disk.take("b")
            records = await recovered(taken)
            error = await listener.wait_failed()
            await writing
        assert isinstance(error, Fenced)
        assert "taken the device over" in str(error)
        assert [r.base_offset for r in records] == list(range(len(records)))
        released = listener.positions[-1] if listener.positions else 0
        assert released <= (records[-1].end_position if records else 0)
        with pytest.raises(Fenced):
            zombie.append(1, 1, 0, 1, b"")
        await zombie.close()
        new = await started(taken, 2)
        await append_released(taken, new, b"the taker goes on")

    simulate(world, seed=seed)


async def test_a_fenced_header_write_is_fenced_too() -> None:
    disk = Disk()
    await disk.format("a")
    zombie = await disk.open("a")
    listener = await started(zombie, 1)
    end = await append_released(zombie, listener, b"x")
    await disk.take("b")
    with pytest.raises(Fenced):
        await zombie.trim(end)
    assert isinstance(listener.errors[0], Fenced)


async def test_a_restarted_owner_is_fenced_out_and_takes_its_volume_back_by_name() -> None:
    disk = Disk()
    await disk.format("a")
    wal = await disk.open("a")
    end = await append_released(wal, await started(wal, 1), b"x")
    taken = await disk.take("b")
    await recovered(taken)
    await taken.trim(end)
    await taken.close()
    with pytest.raises(SettingsError, match=r"held by another host \(b\)"):
        await disk.open("a")
    back = await disk.take("a")
    assert await recovered(back) == []
    listener = Listener()
    await back.start(epoch=2, listener=listener)
    await append_released(back, listener, b"y")
    await back.close()
    await (await disk.open("a")).close()


async def test_of_two_takers_the_slower_one_learns_that_it_lost() -> None:
    """Both know `a` as the owner; the second finds it unregistered and a stranger in its place."""
    disk = Disk()
    await disk.format("a")
    wal = await disk.open("a")
    await append_released(wal, await started(wal, 1), b"x")
    stale = bytes(disk.platter.content[: 2 * 4096])
    taken = await disk.take("b")
    signed = bytes(disk.platter.content[: 2 * 4096])
    disk.platter.content[: 2 * 4096] = stale  # what `c` had read before
    with pytest.raises(Fenced, match="another host"):
        await disk.take("c")
    disk.platter.content[: 2 * 4096] = signed
    assert len(await recovered(taken)) == 1
    listener = Listener()
    await taken.start(epoch=2, listener=listener)
    await append_released(taken, listener, b"y")


async def test_a_taker_that_died_unsigned_is_preempted_by_its_name() -> None:
    """`b` preempted `a` and died before it wrote its name: only the metadata knows of it."""
    disk = Disk()
    await disk.format("a")
    await disk.open("a")
    reservation = MemoryReservation(disk.table, "b")
    await reservation.register(reservation_key("c", "b"))
    assert await reservation.preempt(reservation_key("c", "b"), reservation_key("c", "a"))
    with pytest.raises(Fenced):
        await disk.take("d")
    await (await disk.take("d", other_hosts=("b",))).close()


@pytest.mark.parametrize("nth", range(5))
@pytest.mark.parametrize("has_effect", [False, True])
async def test_a_reservation_call_that_fails_is_resolved(nth: int, has_effect: bool) -> None:
    disk = Disk()
    await disk.format("a")
    wal = await disk.open("a")
    end = await append_released(wal, await started(wal, 1), b"x")
    taken = await disk.take(
        "b", wrap=lambda r: FaultyReservation(r, nth=nth, has_effect=has_effect)
    )
    assert [r.end_position for r in await recovered(taken)] == [end]
    assert disk.table.holder == "b"


async def test_a_device_that_refuses_every_reservation_call_fails_the_takeover() -> None:
    disk = Disk()
    await disk.format("a")
    await disk.open("a")

    class Broken(MemoryReservation):
        async def register(self, key: int) -> None:
            raise OSError(5, "simulated")

    with pytest.raises(OSError, match="simulated"):
        await disk.take("b", wrap=lambda r: Broken(disk.table, "b"))
    assert disk.table.holder == "a"
