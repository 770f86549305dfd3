"""Memory that requests share: bounded whatever happens, given back by all, in a fair order."""

import asyncio
import random

import pytest

from lakehead.storage.memory_pool import MemoryPool


def granted_by(pool: MemoryPool, log: list[str], name: str, size: int, share: float = 1.0) -> None:
    pool.wait(size, share, lambda: log.append(name))


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_one_taker_may_go_beyond_the_capacity_and_no_other() -> None:
    pool = MemoryPool(100)
    assert pool.try_take(99)
    assert pool.try_take(1000)
    assert not pool.try_take(1)
    pool.give_back(1000)
    assert pool.try_take(1)


async def test_those_that_wait_come_in_their_order_and_nobody_overtakes_them() -> None:
    pool, log = MemoryPool(100), list[str]()
    pool.take(100)
    for name in "abc":
        granted_by(pool, log, name, 60)
    pool.give_back(70)
    assert not pool.try_take(1), "overtaken before they were let in"
    await settle()
    assert log == ["a", "b"]
    assert pool.used == 150
    pool.give_back(150)
    await settle()
    assert log == ["a", "b", "c"]
    assert (pool.used, pool.waiting, pool.waits_total) == (60, 0, 3)


async def test_a_larger_share_goes_first_and_a_smaller_one_leaves_room() -> None:
    pool, log = MemoryPool(100), list[str]()
    pool.take(80)
    assert not pool.try_take(1, 0.5)
    assert pool.has_room(0.9)
    granted_by(pool, log, "half", 10, 0.5)
    assert pool.try_take(20), "the smaller share's wait holds up no larger one"
    granted_by(pool, log, "whole", 10)
    pool.give_back(60)
    await settle()
    assert log == ["whole"]
    pool.give_back(10)
    await settle()
    assert log == ["whole", "half"]


async def test_leaving_takes_nothing_and_lets_the_next_one_come() -> None:
    pool, log = MemoryPool(10), list[str]()
    pool.take(10)
    first = pool.wait(5, 1.0, lambda: log.append("first"))
    granted_by(pool, log, "second", 5)
    pool.leave(first)
    pool.give_back(10)
    await settle()
    assert log == ["second"]
    assert pool.used == 5


@pytest.mark.parametrize("seed", range(20))
async def test_all_is_given_back_by_takers_that_end_fail_or_are_cancelled(seed: int) -> None:
    rng = random.Random(seed)
    capacity, largest = 100, 150
    pool, most = MemoryPool(capacity), 0

    async def taker() -> None:
        nonlocal most
        async with pool.borrowed(rng.randint(1, largest), rng.choice([0.5, 1.0])):
            most = max(most, pool.used)
            for _ in range(rng.randint(0, 4)):
                await asyncio.sleep(0)
            if rng.random() < 0.2:
                raise RuntimeError

    tasks = [asyncio.ensure_future(taker()) for _ in range(60)]
    while not all(task.done() for task in tasks):
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    await settle()
    assert (pool.used, pool.waiting) == (0, 0)
    assert most < capacity + largest


async def test_those_that_come_while_others_are_let_in_are_not_forgotten() -> None:
    pool, log = MemoryPool(10), list[str]()
    pool.take(10)

    def again() -> None:
        log.append("first")
        assert not pool.try_take(1), "overtaken by the one that is let in"
        granted_by(pool, log, "again", 0)

    pool.wait(0, 1.0, again)
    granted_by(pool, log, "second", 0)
    pool.give_back(10)
    await settle()
    assert log == ["first", "second", "again"]
    assert pool.waiting == 0
