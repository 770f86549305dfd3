"""Turns of the event loop for requests with many elements: clients decide how many there are, so
what looks at them gives way to other work again and again.
"""

import asyncio
from functools import cache
from typing import Any, cast

from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.decode import ELEMENTS_MAX
from lakehead.broker.protocol.entity_fields import entity_fields
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
