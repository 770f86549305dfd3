"""A volume of two nodes with any bytes changed: an error that says so, or nothing is different.

The logs were closed cleanly, so the end of each is known, and there is no excuse for a record that
is missing or other than it was. What is changed in one slice must not harm the other.
"""

import random
from functools import cache

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakehead.storage.errors import SettingsError, StorageError, WalCorrupted
from lakehead.storage.wal.block_format import HOLDER_OFFSET, RING_OFFSET, SECTOR, SLICES_START
from lakehead.storage.wal.disk import found_on
from lakehead.storage.wal.memory_device import MemoryDevice
from lakehead.storage.wal.volume import Division, format_device, open_slice, volume_image
from tests.simulation.loop import simulate
from tests.support.repetitions import examples
from tests.support.wal_tools import SMALL, append_released, recovered, started

SIZE = 2 * 1024 * 1024
HALVES = Division(slices=2)
SECOND = SLICES_START + (SIZE - SLICES_START) // 2 // SECTOR * SECTOR


@cache
def volume() -> tuple[bytes, tuple[tuple[tuple[int, bytes], ...], ...]]:
    """The content of a volume and, for each node, (end position, payload) of its records."""

    async def world() -> tuple[bytes, tuple[tuple[tuple[int, bytes], ...], ...]]:
        rng = random.Random(4)
        device = MemoryDevice(SIZE, rng=rng)
        image = volume_image(
            volume_id=b"v" * 16,
            capacity=SIZE,
            node_id=0,
            host_id="host",
            cluster_id="cluster",
            slices=2,
        )
        await format_device(device, image)
        written = []
        for node_id in (0, 1):
            wal = await open_slice(
                device.attach(), node_id=node_id, division=HALVES, settings=SMALL
            )
            listener = await started(wal, 1)
            records = []
            for size in (0, 700, 5000, 100, 9000):
                payload = rng.randbytes(size)
                records.append((await append_released(wal, listener, payload), payload))
            await wal.trim(records[0][0])
            await wal.close()
            written.append(tuple(records[1:]))
        return bytes(device.content), tuple(written)

    return simulate(world, seed=1)


async def read_back(content: bytes, node_id: int) -> tuple[tuple[int, bytes], ...] | Exception:
    device = MemoryDevice(len(content), rng=random.Random(1), content=bytearray(content))
    try:
        wal = await open_slice(device, node_id=node_id, settings=SMALL)
        records = await recovered(wal)
    except (StorageError, SettingsError) as error:
        return error
    return tuple((r.end_position, bytes(r.payload)) for r in records)


places = st.one_of(
    st.integers(0, 2 * SECTOR - 1),
    st.integers(SLICES_START, SLICES_START + RING_OFFSET + 24_000),
    st.integers(SECOND, SECOND + RING_OFFSET + 24_000),
)
bits = st.integers(0, 7)


@settings(max_examples=examples(300), deadline=None)
@given(place=places, bit=bits)
@example(place=SLICES_START + HOLDER_OFFSET + 12, bit=0)
@example(place=SLICES_START + RING_OFFSET + SECTOR + 8, bit=1)
def test_one_flipped_bit_is_never_read_as_data(place: int, bit: int) -> None:
    """Headers have two slots of which one will do; the ring has one copy of everything."""
    content, written = volume()
    damaged = bytearray(content)
    damaged[place] ^= 1 << bit

    async def world() -> None:
        for node_id in (0, 1):
            found = await read_back(bytes(damaged), node_id)
            assert isinstance(found, WalCorrupted) or _is_run(found, written[node_id])
            start = (SLICES_START, SECOND)[node_id]
            if not start + RING_OFFSET <= place < start + (SIZE - SLICES_START) // 2:
                assert not isinstance(found, WalCorrupted), "the other slice, or the other slot"

    simulate(world, seed=1)


def _is_run(found: object, written: tuple[tuple[int, bytes], ...]) -> bool:
    """All of it; or more, where the older header slot knows of a trim less."""
    return isinstance(found, tuple) and found[-len(written) :] == written


@settings(max_examples=examples(150), deadline=None)
@given(start=places, length=st.integers(1, 3 * SECTOR), seed=st.integers(0, 2**32))
def test_a_stretch_of_rubbish_is_an_error_or_no_difference(
    start: int, length: int, seed: int
) -> None:
    content, written = volume()
    damaged = bytearray(content)
    end = min(start + length, len(damaged))
    damaged[start:end] = random.Random(seed).randbytes(end - start)

    async def world() -> None:
        for node_id in (0, 1):
            found = await read_back(bytes(damaged), node_id)
            assert isinstance(found, WalCorrupted | SettingsError) or _is_run(
                found, written[node_id]
            )

    simulate(world, seed=1)


@settings(max_examples=examples(60), deadline=None)
@given(length=st.integers(0, SIZE // SECTOR - 1))
def test_a_volume_cut_short_is_refused(length: int) -> None:
    content, _ = volume()

    async def world() -> None:
        assert isinstance(
            await read_back(content[: max(length, 2) * SECTOR], 0), WalCorrupted | SettingsError
        )

    simulate(world, seed=1)


@settings(max_examples=examples(100), deadline=None)
@given(
    place=st.one_of(st.integers(0, 2**20 - 1), st.integers(SIZE - 2**20, SIZE - 1)),
    value=st.integers(1, 255),
)
def test_one_byte_at_either_end_of_a_disk_keeps_it_from_being_formatted(
    place: int, value: int
) -> None:
    async def world() -> str:
        device = MemoryDevice(SIZE, rng=random.Random(1))
        device.content[place] = value
        return await found_on(device)

    assert simulate(world, seed=1)
