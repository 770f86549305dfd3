"""Turns of the event loop for requests with many elements: clients decide how many there are, so
what looks at them gives way to other work again and again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import cache
from itertools import islice
from typing import Any, TypeVar, cast

from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.decode import ELEMENTS_MAX
from lakehead.broker.protocol.entity_fields import entity_fields
from lakehead.broker.services import BrokerServices
from lakehead.storage.tasks import task_group

T = TypeVar("T")
R = TypeVar("R")

CHANGED_AT_ONCE = 100
"""Topics of one request that are created, deleted or changed at once."""
STEPS_AT_ONCE = 250
"""Elements of a request that are looked at in one turn: about a millisecond's work."""
_PER_PARTITION = 4
"""An honest request names a partition once, with its topic, and for a few groups."""
ELEMENTS_AT_ONCE_MAX = 2_000
_PER_PARTITION_AT_ONCE = 2
"""A request that is handled in one turn names each partition of the cluster once, with its topic: a
consumer may own them all and commits in one request."""


class Turns:
    """Counts the work on one request."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps = 0

    async def step(self, weight: int = 1) -> None:
        """Take note of work on `weight` elements; give way when it was enough for one turn."""
        self._steps += weight
        if self._steps >= STEPS_AT_ONCE:
            await self.give_way()

    async def give_way(self) -> None:
        """Let other work have its turn, as after a decision that had to be made in one."""
        self._steps = 0
        await asyncio.sleep(0)


async def in_turns(elements: Iterable[T]) -> AsyncIterator[T]:
    """Yield the elements, each after a step of work on one request."""
    turns = Turns()
    for one in elements:
        await turns.step()
        yield one


async def change_each(
    elements: Iterable[T], change: Callable[[T], Awaitable[R]], weight: Callable[[T], int]
) -> list[R]:
    """Change something for each element, `CHANGED_AT_ONCE` at once, so that many changes are one
    entry of the metadata log; return their results in order. `weight` is an element's work, see
    `Turns.step`. Each change runs up to its first await in the order of the elements.
    """
    results: list[R] = []
    turns, waiting = Turns(), iter(elements)
    while at_once := list(islice(waiting, CHANGED_AT_ONCE)):
        tasks: list[asyncio.Task[R]] = []
        async with task_group() as group:
            for element in at_once:
                await turns.step(weight(element))
                tasks.append(group.create_task(_run(change, element)))
        results += [task.result() for task in tasks]
    return results


async def _run(change: Callable[[T], Awaitable[R]], element: T) -> R:
    return await change(element)


def elements_max(services: BrokerServices, api: Api) -> int:
    """Return how many array elements one request of an API may have: by what there is in the
    cluster.
    """
    partitions = len(services.state.streams)
    if api.is_at_once:
        return ELEMENTS_AT_ONCE_MAX + _PER_PARTITION_AT_ONCE * partitions
    return ELEMENTS_MAX + _PER_PARTITION * partitions + api.records_max


def is_long(response: Any) -> bool:
    """Return true if a response has more elements than should be encoded in one turn."""
    return _elements(response, STEPS_AT_ONCE + 1) > STEPS_AT_ONCE


def _elements(entity: Any, most: int) -> int:
    """Return how many elements an entity's arrays have, and theirs; no more are counted once there
    are `most`.
    """
    count = 0
    for name, is_flat in _arrays(cast(Any, type(entity))):
        values = getattr(entity, name) or ()
        count += len(values)
        if not is_flat:
            for value in values:
                if count >= most:
                    return count
                count += _elements(value, most - count)
    return count


@cache
def _arrays(cls: Any) -> tuple[tuple[str, bool], ...]:
    """Return the arrays of an entity, and whether their elements are primitives."""
    return tuple(
        (field.name, field.entity is None) for field in entity_fields(cls) if field.is_array
    )
