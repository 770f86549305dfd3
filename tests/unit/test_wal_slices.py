"""Several nodes on one volume: slices of their own, added and grown without harm to each other."""

import asyncio
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from lakehead.storage.errors import (
    SettingsError,
    StorageError,
    WalCorrupted,
    WalHolderEnding,
)
from lakehead.storage.wal import BlockWal
from lakehead.storage.wal.block_format import (
    HOLDER_OFFSET,
    SECTOR,
    SLICES_MAX,
    SLICES_START,
    SliceEntry,
    VolumeHeader,
    newest,
)
from lakehead.storage.wal.block_takeover import take_slice
from lakehead.storage.wal.holder import NO_HOLDER, Holder, HostProcesses
from lakehead.storage.wal.memory_device import MemoryDevice
from lakehead.storage.wal.volume import Division, Volume, format_device, open_slice, volume_image
from tests.simulation.loop import simulate
from tests.support.wal_tools import SMALL, append_released, recovered, started

MIB = 1024 * 1024
FOUR = Division(slices=4)


async def new_volume(
    *, size: int = 8 * MIB, slices: int = 4, latency_s: tuple[float, float] | None = None
) -> MemoryDevice:
    """A volume with the slice of node 0."""
    device = MemoryDevice(size, rng=random.Random(1), latency_s=latency_s)
    image = volume_image(
        volume_id=b"v" * 16,
        capacity=size,
        node_id=0,
        host_id="host",
        cluster_id="c",
        slices=slices,
    )
    await format_device(device, image)
    return device


async def open_node(
    device: MemoryDevice, node_id: int, division: Division = FOUR
) -> tuple[MemoryDevice, BlockWal]:
    """The WAL of a node, in a process of its own."""
    handle = device.attach()
    wal = await open_slice(
        handle, node_id=node_id, host_id="host", division=division, settings=SMALL
    )
    return handle, wal


def header_of(device: MemoryDevice) -> VolumeHeader:
    header = newest(memoryview(bytes(device.content[: 2 * SECTOR])), VolumeHeader.decode)
    assert header is not None
    return header


async def test_every_node_has_a_log_of_its_own() -> None:
    device = await new_volume()
    handles = {}
    for node_id in (0, 7, 3, 5):
        handle, wal = await open_node(device, node_id)
        listener = await started(wal, 1)
        for _ in range(node_id + 1):
            await append_released(wal, listener, b"%d" % node_id * 1000)
        handles[node_id] = handle
    for node_id, handle in handles.items():
        handle.kill()
        _, wal = await open_node(device, node_id)
        payloads = [bytes(r.payload) for r in await recovered(wal)]
        assert payloads == [b"%d" % node_id * 1000] * (node_id + 1)


async def test_slices_do_not_overlap_and_fill_the_volume() -> None:
    device = await new_volume()
    for node_id in range(1, 4):
        await open_node(device, node_id)
    header = header_of(device)
    edges = [(s.start, s.start + s.length) for s in header.slices]
    assert all(end == start for (_, end), (start, _) in pairwise(edges))
    assert edges[0][0] == SLICES_START
    assert header.capacity - 4 * SECTOR <= edges[-1][1] <= header.capacity


async def test_a_node_without_room_is_told_how_to_make_it() -> None:
    device = await new_volume(slices=1)
    with pytest.raises(SettingsError, match=r"no room for .*slices=N"):
        await open_node(device, 1)
    device = await new_volume()
    for node_id in range(1, 4):
        await open_node(device, node_id)
    with pytest.raises(SettingsError, match="node 0, 1, 2, 3, not of node 4"):
        await open_node(device, 4)
    with pytest.raises(SettingsError, match="no room"):
        await open_node(device, 4, Division(slices=1000))


async def test_a_slice_in_use_names_the_process() -> None:
    device = await new_volume()
    await open_node(device, 0)
    with pytest.raises(SettingsError, match=r"in use by process \d+"):
        await open_node(device, 0)


async def taken(device: MemoryDevice) -> MemoryDevice:
    """The handle of a node that recovers node 0."""
    handle = device.attach()
    await take_slice(handle, node_id=0, host_id="host", cluster_id="c", taker=(7, 1))
    return handle


def test_a_node_waits_until_another_one_has_recovered_its_slice() -> None:
    async def main() -> None:
        device = await new_volume()
        taker = await taken(device)
        opening = asyncio.create_task(open_node(device, 0))
        await asyncio.sleep(5)
        assert not opening.done()
        taker.kill()
        _, wal = await opening
        await append_released(wal, await started(wal, 1), b"mine again")

    simulate(main, seed=1)


def test_a_node_waits_for_a_lock_that_no_living_process_has_signed() -> None:
    async def main() -> None:
        device = await new_volume()
        (entry,) = header_of(device).slices
        last = replace(HostProcesses().current(), start_time=1)  # of a process that has ended
        for signature in (NO_HOLDER, last):
            handle = device.attach()
            assert handle.lock(entry.start, entry.length)
            sector = signature.encode(header_of(device).volume_id)
            await handle.write(entry.start + HOLDER_OFFSET, memoryview(sector))
            opening = asyncio.create_task(open_node(device, 0))
            await asyncio.sleep(5)
            assert not opening.done()
            handle.kill()
            (await opening)[0].kill()

    simulate(main, seed=1)


def test_a_recovery_of_a_slice_that_does_not_end_is_named() -> None:
    async def main() -> None:
        device = await new_volume()
        await taken(device)
        with pytest.raises(WalHolderEnding, match=r"node 7 recovers the log of this node"):
            await open_node(device, 0)

    simulate(main, seed=1)


async def test_the_table_of_slices_holds_as_many_as_it_says() -> None:
    slices = tuple(
        SliceEntry(node_id=i, start=SLICES_START + i, length=1) for i in range(SLICES_MAX)
    )
    header = replace(
        header_of(await new_volume()), slices=slices, host_id="h" * 255, cluster_id="c" * 255
    )
    assert VolumeHeader.decode(memoryview(header.encode())) == header


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_while_a_slice_is_added_leaves_the_volume_of_before_or_after(seed: int) -> None:
    """The process ends after any of its writes, each torn anywhere: the others lose nothing."""

    async def world() -> None:
        rng = random.Random(seed)
        device = await new_volume(latency_s=(0.001, 0.002))
        _, wal = await open_node(device, 0)
        end = await append_released(wal, await started(wal, 1), b"of node 0")
        before = header_of(device).slices
        adder = device.attach()
        adder.fail_write(after=rng.randrange(5))
        try:
            await open_slice(adder, node_id=1, host_id="host", division=FOUR)
        except OSError:
            adder.kill()
        slices = header_of(device).slices
        assert slices[: len(before)] == before
        _, added = await open_node(device, 1)
        await append_released(added, await started(added, 1), b"of node 1")
        assert len(header_of(device).slices) == 2
        await wal.close()
        _, again = await open_node(device, 0)
        assert [r.end_position for r in await recovered(again)] == [end]

    simulate(world, seed=seed)


def test_nodes_that_start_at_once_get_slices_of_their_own() -> None:
    async def world() -> None:
        device = await new_volume(latency_s=(0.001, 0.01))
        wals = await asyncio.gather(*(open_node(device, node_id) for node_id in (1, 2, 3)))
        assert sorted(s.node_id for s in header_of(device).slices) == [0, 1, 2, 3]
        for _, wal in wals:
            await append_released(wal, await started(wal, 1), b"x")

    for seed in range(10):
        simulate(world, seed=seed)


def test_a_process_that_hangs_with_the_header_locked_is_named_as_the_reason() -> None:
    async def world() -> None:
        device = await new_volume()
        assert device.attach().lock(0, SLICES_START)
        with pytest.raises(StorageError, match="header locked"):
            await open_node(device, 1)

    simulate(world, seed=1)


@pytest.mark.parametrize("slot", [0, SECTOR])
async def test_one_damaged_slot_of_the_volume_header_costs_nothing(slot: int) -> None:
    device = await new_volume()
    await open_node(device, 1)
    device.content[slot + 20] ^= 1
    await open_node(device, 2)
    assert [s.node_id for s in header_of(device).slices] == [0, 1, 2]


async def test_a_slice_that_the_table_has_lost_is_not_written_over() -> None:
    device = await new_volume()
    table = bytes(device.content[: 2 * SECTOR])
    handle, wal = await open_node(device, 1)
    end = await append_released(wal, await started(wal, 1), b"kept")
    handle.kill()
    newer, device.content[: 2 * SECTOR] = bytes(device.content[: 2 * SECTOR]), table
    with pytest.raises(WalCorrupted, match="slice of node 1 begins at"):
        await open_node(device, 2)
    device.content[: 2 * SECTOR] = newer
    _, wal = await open_node(device, 1)
    assert [r.end_position for r in await recovered(wal)] == [end]


# ------------------------------------------------------------------ who holds a slice


async def test_a_clean_close_takes_the_holders_name_away() -> None:
    device = await new_volume()
    _, wal = await open_node(device, 0)
    at = SLICES_START + HOLDER_OFFSET

    def holder() -> Holder | None:
        return Holder.decode(memoryview(bytes(device.content[at : at + SECTOR])), b"v" * 16)

    signed = holder()
    assert signed is not None
    assert signed.pid > 0
    assert signed.host_id == "host"
    await wal.close()
    assert holder() == NO_HOLDER


def test_a_holders_sector_that_is_torn_or_of_another_volume_says_nothing() -> None:
    holder = Holder(
        pid=7,
        start_time=8,
        pid_namespace=9,
        boot_id=b"b" * 16,
        host_id="höst",
        taker=(0, 2**40),
        incarnation="f" * 16,
    )
    sector = bytearray(holder.encode(b"v" * 16))
    assert Holder.decode(memoryview(sector), b"v" * 16) == holder
    assert Holder.decode(memoryview(sector), b"w" * 16) is None
    for at in (0, 9, 13, 30, 40, 50, 66, 4095):
        damaged = bytearray(sector)
        damaged[at] ^= 1
        assert Holder.decode(memoryview(damaged), b"v" * 16) is None


def test_a_process_is_named_in_text_and_found_by_it() -> None:
    holder = Holder(pid=7, start_time=80_000, pid_namespace=9, boot_id=b"b" * 16)
    assert Holder.named(holder.name) == holder
    for damaged in ("", "7", "zz-1-2-3", holder.name + "-1"):
        with pytest.raises(ValueError, match=r"unpack|invalid|non-hex|odd"):
            Holder.named(damaged)


# ------------------------------------------------------------------ growing


async def test_a_device_that_grew_gives_room_for_new_slices_when_asked() -> None:
    device = await new_volume(size=2 * MIB, slices=1)
    handle, wal = await open_node(device, 0)
    end = await append_released(wal, await started(wal, 1), b"kept")
    device.grow(4 * MIB)
    with pytest.raises(SettingsError, match="no room"):
        await open_node(device, 1, Division(slices=2))
    _, second = await open_node(device, 1, Division(slices=2, grow=True))
    await append_released(second, await started(second, 1), b"new")
    handle.kill()
    _, wal = await open_node(device, 0, Division(slices=2, grow=True))
    assert [r.end_position for r in await recovered(wal)] == [end]


async def test_a_ring_grows_only_when_it_is_empty() -> None:
    device = await new_volume(size=2 * MIB, slices=1)
    grow = Division(grow=True)
    handle, wal = await open_node(device, 0)
    listener = await started(wal, 1)
    capacity = wal.capacity
    ends = [await append_released(wal, listener, bytes([i]) * 90_000) for i in range(12)]
    device.grow(4 * MIB)
    handle.kill()
    _, wal = await open_node(device, 0, grow)
    assert wal.capacity == capacity, "it holds data: every position would lie elsewhere"
    assert [r.end_position for r in await recovered(wal)] == ends
    await wal.trim(ends[-1])
    listener = await started(wal, 2)
    await wal.close()
    _, wal = await open_node(device, 0, grow)
    assert wal.capacity == capacity + 2 * MIB
    listener = await started(wal, 3)
    more = [await append_released(wal, listener, bytes([i]) * 90_000) for i in range(25)]
    await wal.close()
    _, wal = await open_node(device, 0, grow)
    found = await recovered(wal)
    assert [r.end_position for r in found] == more
    assert [bytes(r.payload[:1])[0] for r in found] == list(range(25))


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_while_a_slice_grows_leaves_the_length_of_before_or_after(seed: int) -> None:
    async def world() -> None:
        grow = Division(grow=True)
        device = await new_volume(size=2 * MIB, slices=1, latency_s=(0.001, 0.002))
        _, wal = await open_node(device, 0)
        capacity = wal.capacity
        await wal.trim(await append_released(wal, await started(wal, 1), b"x" * 90_000))
        await wal.close()
        device.grow(4 * MIB)
        grower = device.attach()
        grower.fail_write(after=random.Random(seed).randrange(5))
        try:
            await open_slice(grower, node_id=0, division=grow)
        except OSError:
            pass
        grower.kill()
        _, wal = await open_node(device, 0, Division())
        assert wal.capacity in {capacity, capacity + 2 * MIB}
        assert await recovered(wal) == []
        await wal.close()
        _, wal = await open_node(device, 0, grow)
        assert wal.capacity == capacity + 2 * MIB
        end = await append_released(wal, await started(wal, 2), b"y" * 90_000)
        await wal.close()
        _, wal = await open_node(device, 0, Division())
        assert [r.end_position for r in await recovered(wal)] == [end]

    simulate(world, seed=seed)


async def test_a_device_that_shrank_is_refused() -> None:
    device = await new_volume(size=4 * MIB)
    device.capacity = 3 * MIB
    with pytest.raises(WalCorrupted, match="cannot shrink"):
        await Volume.read(device)
