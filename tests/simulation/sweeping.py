"""Sweeps in a world: processes that list the bucket and judge what they find by a view of the
metadata that may be old, as that of a process that slept.

Nothing that they decide may rest on a clock, so they wait for none: what a listing shows goes at
once if nobody can ever commit it.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from lakehead.storage.clock import Clock
from lakehead.storage.garbage import SweepTimes, find_garbage, perform
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store.retrying import RetryingStore
from tests.simulation.processes import Processes

if TYPE_CHECKING:
    from tests.simulation.loop import SimulationLoop
    from tests.simulation.world import World

_SETTINGS = SweepTimes(grace_ms=1 << 62, margin_ms=0)


class Sweeping:
    """What the sweeping processes of a world do, one after the other."""

    def __init__(self, world: World, loop: SimulationLoop, clock: Clock, seed: int) -> None:
        self._world = world
        self._clock = clock
        self._rng = random.Random(f"sweeping {seed}")
        self._processes = Processes(world, loop, self._rng, "s", self._live)

    async def keep(self) -> None:
        """Go on until cancelled."""
        await self._processes.keep()

    async def _live(self, name: str) -> None:
        rng = self._rng
        store = RetryingStore(self._world.store_of(name), rng=rng)
        log = await MetadataLog.open(store, writer_id=name, clock=self._clock, rng=rng)
        await asyncio.sleep(rng.uniform(0.0, 20.0))  # the log goes on, its old entries go away
        for _ in range(3):
            plan = await find_garbage(store, log, self._clock, _SETTINGS)
            result = await perform(plan, store, log)
            self._world.trace.add(name, f"swept {result.deleted} objects")
            await asyncio.sleep(rng.random())
