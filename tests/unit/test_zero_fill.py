"""Zeros are written beside a log's writes, and only where nothing was ever written."""

import asyncio
import os
import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lakehead.storage.wal.block_format import SECTOR
from lakehead.storage.wal.device import FileDevice, IoThreads, aligned_buffer
from lakehead.storage.wal.zero_fill import PIECE, Extent, ZeroFill, unwritten_extents

SIZE = 6 * PIECE
UNIT = PIECE // 4


class Device:
    """Writes that take effect, and end, in any order; none may overlap another one under way."""

    def __init__(self, rng: random.Random) -> None:
        self.content = bytearray(b"?" * SIZE)
        self._rng = rng
        self._under_way: list[tuple[int, bytes, asyncio.Future[None]]] = []

    def write(self, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        end = offset + len(buffer)
        assert all(end <= at or offset >= at + len(data) for at, data, _ in self._under_way)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.append((offset, bytes(buffer), future))
        return future

    def end_one(self) -> bool:
        if not self._under_way:
            return False
        offset, data, future = self._under_way.pop(self._rng.randrange(len(self._under_way)))
        self.content[offset : offset + len(data)] = data
        future.set_result(None)
        return True


units = st.integers(0, SIZE // UNIT - 1)


@given(
    unwritten=st.sets(units),
    writes=st.lists(units, unique=True),
    seed=st.integers(0, 2**32),
    is_stopped=st.booleans(),
)
def test_whatever_is_written_meanwhile_zeros_are_written_to_all_the_rest_and_to_nothing_else(
    unwritten: set[int], writes: list[int], seed: int, is_stopped: bool
) -> None:
    extents: list[Extent] = []
    for unit in sorted(unwritten):
        first = extents.pop()[0] if extents and extents[-1][1] == unit * UNIT else unit * UNIT
        extents.append((first, (unit + 1) * UNIT))

    async def run() -> bytearray:
        rng = random.Random(seed)
        device = Device(rng)
        filling = ZeroFill(
            "wal", extents, memoryview(bytes(PIECE)), fill=device.write, write=device.write
        )
        waiting = list(writes)
        futures = []
        while waiting:
            if rng.random() < 0.5:
                data = memoryview(b"x" * UNIT)
                futures.append(filling.write(waiting.pop() * UNIT, data))
            else:
                device.end_one()
                await asyncio.sleep(0)
        if is_stopped:
            stopping = asyncio.ensure_future(filling.stop())
            while not stopping.done():
                device.end_one()
                await asyncio.sleep(0)
        while (filling.left and not is_stopped) or device.end_one():
            device.end_one()
            await asyncio.sleep(0)
        await asyncio.gather(*futures)
        return device.content

    content = asyncio.run(run())
    for unit in range(SIZE // UNIT):
        found = bytes(content[unit * UNIT : (unit + 1) * UNIT])
        if unit in writes:
            assert found == b"x" * UNIT
        elif unit in unwritten and not is_stopped:
            assert found == bytes(UNIT)
        elif unit not in unwritten:
            assert found == b"?" * UNIT


async def test_a_file_is_filled_to_its_end_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    path, size = tmp_path / "wal", 64 * PIECE
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        os.pwrite(file.fileno(), b"r" * SECTOR, 3 * PIECE)
        os.fsync(file.fileno())
    first = await opened(path)
    before = first.unwritten(0, size)
    assert before == [(0, 3 * PIECE), (3 * PIECE + SECTOR, size)]
    first.fill(before)
    record = aligned_buffer(SECTOR)
    record[:] = b"s" * SECTOR
    await first.write(0, record)  # where the first piece is under way
    await first.close()
    second = await opened(path)
    left = second.unwritten(0, size)
    assert left
    second.fill(left)
    async with asyncio.timeout(30):
        while second.unwritten(0, size):  # noqa: ASYNC110 - a file system sends no event
            await asyncio.sleep(0.01)
    await second.close()
    content = path.read_bytes()
    assert content[:SECTOR] == b"s" * SECTOR
    assert content[3 * PIECE : 3 * PIECE + SECTOR] == b"r" * SECTOR
    assert content.count(0) == size - 2 * SECTOR


async def opened(path: Path) -> FileDevice:
    threads = IoThreads(2)
    return await asyncio.to_thread(FileDevice.open, path, threads)


def test_a_file_whose_space_is_all_written_has_nothing_to_fill(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    path.write_bytes(b"x" * SIZE)
    with path.open("rb") as file:
        assert unwritten_extents(file.fileno(), 0, SIZE) == []
