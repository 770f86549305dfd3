import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.simulation.loop import Deadlock, LoopClock, simulate


async def trace_of_a_busy_world() -> list[tuple[str, float]]:
    loop = asyncio.get_running_loop()
    trace: list[tuple[str, float]] = []
    rng = random.Random(1)

    async def worker(name: str) -> None:
        for _ in range(5):
            await asyncio.sleep(rng.choice([0, 0, 1.5, 3600]))
            trace.append((name, loop.time()))

    async with asyncio.TaskGroup() as group:
        for name in "abcdef":
            group.create_task(worker(name))
    return trace


def test_one_seed_takes_the_same_steps() -> None:
    assert simulate(trace_of_a_busy_world, seed=3) == simulate(trace_of_a_busy_world, seed=3)


def test_seeds_take_different_steps() -> None:
    traces = {tuple(simulate(trace_of_a_busy_world, seed=seed)) for seed in range(8)}
    assert len(traces) > 4


def test_hours_pass_at_once_and_exactly() -> None:
    async def world() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(7200.25)
        return loop.time(), LoopClock(loop).now_ms()

    assert simulate(world, seed=0) == (7200.25, 1_700_000_000_000 + 7_200_250)


def test_a_timeout_ends_a_wait() -> None:
    async def world() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert simulate(world, seed=0) == 30


def test_a_world_that_cannot_go_on_says_who_waits() -> None:
    async def world() -> None:
        asyncio.current_task().set_name("the-sleeper")  # type: ignore[union-attr]
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="the-sleeper"):
        simulate(world, seed=0)


def test_a_world_that_only_ticks_is_ended() -> None:
    async def world() -> None:
        for _ in range(1000):
            await asyncio.sleep(1)

    with pytest.raises(Deadlock, match="goes on"):
        simulate(world, seed=0, time_limit=50)


def test_without_shuffle_callbacks_keep_their_order() -> None:
    async def world() -> list[int]:
        order: list[int] = []
        for i in range(50):
            asyncio.get_running_loop().call_soon(order.append, i)
        await asyncio.sleep(1)
        return order

    assert simulate(world, seed=1, shuffle=False) == list(range(50))
    assert simulate(world, seed=1) != list(range(50))


def test_there_are_no_threads_in_it() -> None:
    async def world() -> None:
        await asyncio.to_thread(print)

    def start() -> Coroutine[Any, Any, None]:
        return world()

    with pytest.raises(RuntimeError, match="no threads"):
        simulate(start, seed=0)


def test_many_cancelled_timers_leave_no_trace() -> None:
    async def world() -> float:
        for _ in range(500):
            async with asyncio.timeout(10):
                await asyncio.sleep(0)
        await asyncio.sleep(5)
        return asyncio.get_running_loop().time()

    assert simulate(world, seed=2) == 5
