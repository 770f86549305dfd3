"""A volume of several nodes that has become larger: after a clean stop of all, each has its share
of the room, and a crash on the way costs nobody anything.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.wal.block_format import SLICES_START
from lakehead.storage.wal.memory_device import MemoryDevice
from lakehead.storage.wal.volume import Division, open_slice
from tests.simulation.loop import simulate
from tests.support.repetitions import examples
from tests.support.wal_tools import append_released, recovered, started
from tests.unit.test_wal_slices import MIB, header_of, new_volume, open_node


async def stopped_cleanly(size: int, nodes: int) -> tuple[MemoryDevice, list[int]]:
    """A volume whose nodes have all stopped; how far each had come."""
    device = await new_volume(size=size, slices=nodes, latency_s=(0.001, 0.002))
    ends = []
    for node_id in range(nodes):
        _, wal = await open_node(device, node_id, Division(slices=nodes))
        end = await append_released(wal, await started(wal, 1), b"x" * 90_000)
        await wal.trim(end)
        await wal.close()
        ends.append(end)
    return device, ends


async def lengths(device: MemoryDevice) -> list[int]:
    entries = sorted(header_of(device).slices, key=lambda entry: entry.start)
    bounds = [SLICES_START, *(entry.start + entry.length for entry in entries)]
    assert all(e.start >= end for e, end in zip(entries, bounds, strict=False)), "none overlaps"
    return [entry.length for entry in entries]


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("factor", [1.5, 2, 5])
async def test_every_slice_of_a_larger_volume_has_its_share(nodes: int, factor: float) -> None:
    device, ends = await stopped_cleanly(2 * MIB * nodes, nodes)
    device.grow(int(2 * MIB * nodes * factor))
    division = Division(slices=nodes, grow=True)
    share = division.share(device.capacity)
    for node_id in reversed(range(nodes)):
        _, wal = await open_node(device, node_id, division)
        assert await recovered(wal) == []
        listener = await started(wal, 2)
        more = [await append_released(wal, listener, bytes([i]) * 90_000) for i in range(9)]
        assert more[0] > ends[node_id], "positions go on"
        await wal.close()
        _, wal = await open_node(device, node_id, division)
        assert [record.end_position for record in await recovered(wal)] == more
        await wal.close()
    assert await lengths(device) == [share] * nodes


async def test_nothing_moves_while_a_slice_is_in_use_or_holds_data() -> None:
    device, _ = await stopped_cleanly(4 * MIB, 2)
    before = await lengths(device)
    grow = Division(slices=2, grow=True)
    user, wal = await open_node(device, 1, Division(slices=2))
    end = await append_released(wal, await started(wal, 2), b"kept")
    device.grow(8 * MIB)
    _, first = await open_node(device, 0, grow)
    await first.close()
    assert await lengths(device) == before, "node 1 has its slice"
    user.kill()
    _, first = await open_node(device, 0, grow)
    await first.close()
    assert await lengths(device) == before, "what node 1 acknowledged is in there"
    _, wal = await open_node(device, 1, Division(slices=2))
    assert [record.end_position for record in await recovered(wal)] == [end]
    await wal.trim(end)
    await started(wal, 3)
    await wal.close()
    _, first = await open_node(device, 0, grow)
    await first.close()
    assert await lengths(device) == [grow.share(device.capacity)] * 2


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    nodes=st.integers(2, 4),
    writes=st.integers(0, 25),
    factor=st.sampled_from([1.4, 2.0, 3.0]),
)
def test_a_crash_while_slices_move_leaves_every_log_whole(
    seed: int, nodes: int, writes: int, factor: float
) -> None:
    async def world() -> None:
        device, ends = await stopped_cleanly(2 * MIB * nodes, nodes)
        device.grow(int(2 * MIB * nodes * factor))
        division = Division(slices=nodes, grow=True)
        mover = device.attach()
        mover.fail_write(after=writes)
        try:
            await open_slice(mover, node_id=random.Random(seed).randrange(nodes), division=division)
        except OSError:
            pass
        mover.kill()
        for node_id in range(nodes):
            _, wal = await open_node(device, node_id, Division(slices=nodes))
            assert await recovered(wal) == []
            end = await append_released(wal, await started(wal, 5), b"y" * 90_000)
            assert end > ends[node_id]
            await wal.trim(end)
            await wal.close()
        _, wal = await open_node(device, 0, division)
        await wal.close()
        assert await lengths(device) == [division.share(device.capacity)] * nodes

    simulate(world, seed=seed)
