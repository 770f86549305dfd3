"""Several calls of a store at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from lakehead.storage.errors import LakeheadError

K = TypeVar("K")
T = TypeVar("T")

CALLS_AT_ONCE = 32


async def in_order(call: Callable[[K], Awaitable[T]], items: Iterable[K]) -> list[T]:
    """Call for each item, a bounded count at once; return the results in order.

    All calls end before the first error, in order, is raised: so one schedule of a simulated world
    is one outcome.
    """
    slots = asyncio.Semaphore(CALLS_AT_ONCE)

    async def one(item: K) -> T | LakeheadError:
        async with slots:
            try:
                return await call(item)
            except LakeheadError as error:
                return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    results: list[T] = []
    for task in tasks:
        result = task.result()
        if isinstance(result, LakeheadError):
            raise result
        results.append(result)
    return results
