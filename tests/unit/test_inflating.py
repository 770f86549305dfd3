"""Batches are decompressed within a bound over all of them, large ones one after the other."""

import asyncio
from contextlib import AsyncExitStack

import cramjam
import pytest

from lakehead.storage.errors import StoreUnavailable
from lakehead.storage.stream.inflating import RECORD_SIZE_MIN, SMALL_SIZE, InflatedBatches
from lakehead.storage.tasks import task_group
from tests.support.wire import Batch

MIB = 1 << 20


def compressed(size: int) -> memoryview:
    body = bytes(cramjam.zstd.compress(bytes(size)))
    return memoryview(bytearray(Batch(attributes=4, body=body).encode()))


class Reader:
    """Returns one batch, and counts how often."""

    def __init__(self, batch: memoryview) -> None:
        self.batch = batch
        self.count = 0

    async def __call__(self) -> memoryview:
        self.count += 1
        return self.batch


@pytest.mark.parametrize("size", [10, 300_000, SMALL_SIZE, 5 * MIB])
async def test_the_records_are_there_and_the_memory_is_given_back(size: int) -> None:
    memory = InflatedBatches(32 * MIB)
    async with memory.inflated(Reader(compressed(size)), 64 * MIB) as (header, records):
        assert header.codec == 4
        assert records == bytes(size)
        assert size <= memory.used <= 4 * size + SMALL_SIZE
    assert memory.used == 0


async def test_many_large_batches_come_in_turn_and_small_ones_do_not_wait_for_them() -> None:
    memory = InflatedBatches(16 * MIB)
    large, small = compressed(30 * MIB), compressed(1000)
    most = at_work = done = 0

    async def search() -> None:
        nonlocal most, at_work, done
        async with memory.inflated(Reader(large), 64 * MIB):
            at_work += 1
            most = max(most, at_work)
            async with memory.inflated(Reader(small), 64 * MIB) as (_, records):
                assert len(records) == 1000
            assert memory.used <= (12 + 64 + 4 + 1) * MIB
            at_work -= 1
            done += 1

    await asyncio.gather(*(search() for _ in range(6)))
    assert (most, done, memory.used) == (1, 6, 0)


async def test_a_batch_whose_size_is_known_waits_once_behind_those_before_it() -> None:
    """However many large ones come in the meantime: none goes first by a smaller buffer."""
    memory, order = InflatedBatches(16 * MIB), list[int]()
    records, count = 10 * MIB, 10 * MIB // RECORD_SIZE_MIN

    async def check(number: int) -> None:
        reader = Reader(compressed(records))
        async with memory.inflated(reader, 16 * MIB, count):
            order.append(number)
            for _ in range(5):
                await asyncio.sleep(0)
        assert reader.count == 1, "it is decompressed once"

    async with task_group() as group:
        for number in range(20):
            group.create_task(check(number))
            await asyncio.sleep(0)
    assert order == list(range(20))


@pytest.mark.parametrize("count", [3 * MIB, 2**31 - 1])
async def test_more_records_than_any_buffer_holds_are_refused_at_once(count: int) -> None:
    memory, reader = InflatedBatches(4 * MIB), Reader(compressed(10))
    async with memory.inflated(Reader(compressed(10 * MIB)), 64 * MIB, 9 * MIB):
        with pytest.raises(ValueError, match="inflates beyond"):
            async with memory.inflated(reader, 16 * MIB, count):
                pass
    assert reader.count == memory.waits_total == 0


async def test_what_waits_holds_no_batch() -> None:
    """A batch is a view of what was read with it, which may be much."""
    memory = InflatedBatches(4 * MIB)
    async with AsyncExitStack() as stack:
        first = Reader(compressed(10 * MIB))
        await stack.enter_async_context(memory.inflated(first, 64 * MIB))
        second = Reader(compressed(10 * MIB))
        waiting = asyncio.ensure_future(
            stack.enter_async_context(memory.inflated(second, 64 * MIB))
        )
        async with asyncio.timeout(20):
            while not memory.large.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        buffer, second.batch = second.batch.obj, memoryview(b"")
        assert isinstance(buffer, bytearray)
        buffer.clear()  # raises BufferError while a view of it is held
        waiting.cancel()
        await asyncio.wait([waiting])
    assert (memory.used, memory.waiting) == (0, 0)


async def test_the_memory_is_given_back_after_every_error() -> None:
    memory = InflatedBatches(16 * MIB)

    async def unavailable() -> memoryview:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        async with memory.inflated(unavailable, 64 * MIB):
            pass
    with pytest.raises(ValueError, match="beyond"):
        async with memory.inflated(Reader(compressed(5 * MIB)), 4 * MIB):
            pass
    garbage = memoryview(bytearray(Batch(attributes=4, body=b"no zstd").encode()))
    with pytest.raises(ValueError, match="not zstd"):
        async with memory.inflated(Reader(garbage), 64 * MIB):
            pass
    with pytest.raises(RuntimeError):
        async with memory.inflated(Reader(compressed(2 * MIB)), 64 * MIB):
            raise RuntimeError
    assert memory.used == 0
