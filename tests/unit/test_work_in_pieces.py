"""Work on all shards is done in pieces, each in a turn of its own, and again if it is due again."""

import asyncio
from collections.abc import Iterator

from lakehead.broker.coordinator.work_in_pieces import WorkInPieces


async def test_work_that_is_due_again_meanwhile_is_done_once_more() -> None:
    done: list[int] = []

    def work() -> Iterator[None]:
        for number in range(3):
            done.append(number)
            yield

    pieces = WorkInPieces(work)
    pieces.begin()
    assert not done
    await asyncio.sleep(0)
    assert done == [0]
    pieces.begin()
    pieces.begin()
    for _ in range(20):
        before = len(done)
        await asyncio.sleep(0)
        assert len(done) <= before + 1
    assert done == [0, 1, 2, 0, 1, 2]
    pieces.begin()
    await asyncio.sleep(0)
    assert len(done) == 7


async def test_work_that_met_an_unexpected_error_is_begun_again_when_it_is_due() -> None:
    begun, errors = 0, list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, met: errors.append(met["exception"]))

    def work() -> Iterator[None]:
        nonlocal begun
        begun += 1
        yield
        raise MemoryError

    pieces = WorkInPieces(work)
    pieces.begin()
    await asyncio.sleep(0)
    pieces.begin()
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun == 2, "it was due again meanwhile"
    pieces.begin()
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun == 3
    assert [type(error) for error in errors] == [MemoryError] * 3
