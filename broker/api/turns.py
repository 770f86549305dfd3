"""Turns of the event loop for requests with many elements: clients decide how many there are, so
what looks at them gives way to other work again and again.
"""

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any

from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.decode import ELEMENTS_MAX
from lakehead.broker.services import BrokerServices

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
    return next(islice(_elements(response), STEPS_AT_ONCE, None), None) is not None


def _elements(entity: Any) -> Iterator[bool]:
    """Yield once for each element of an entity's arrays, and of theirs."""
    for name in getattr(entity, "__dataclass_fields__", ()):
        value = getattr(entity, name)
        if type(value) is tuple:
            for element in value:
                yield True
                yield from _elements(element)
