"""Processes beside the nodes of a world, one after the other, that die of anything."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lakehead.storage.errors import LakeheadError
from tests.simulation.lives import Life

if TYPE_CHECKING:
    from tests.simulation.loop import SimulationLoop
    from tests.simulation.world import World


class Processes:
    """Starts one process after the other, until it is cancelled: then the last one dies too. Each
    does `work(its name)`.
    """

    def __init__(
        self,
        world: World,
        loop: SimulationLoop,
        rng: random.Random,
        prefix: str,
        work: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self._world = world
        self._loop = loop
        self._rng = rng
        self._prefix = prefix
        self._work = work
        self._lives: list[Life] = []
        """Kept to the end: collecting what a dead process held would run its clean-up."""

    async def keep(self) -> None:
        """See the class."""
        rng = self._rng
        for number in range(1_000_000):
            await asyncio.sleep(rng.expovariate(0.7))
            dies_at = int(10 ** rng.uniform(0.5, 3.0)) if rng.random() < 0.4 else None
            life = Life(self._loop, f"{self._prefix}.{number}", dies_at=dies_at)
            self._lives.append(life)
            done = asyncio.Event()
            life.on_death.append(done.set)
            life.spawn(self._live(life), life.name)
            try:
                await self._wait(done, rng.uniform(0.2, 20.0))
                if not life.is_dead and rng.random() < 0.3:
                    life.freeze()
                    await asyncio.sleep(rng.uniform(0.1, 20.0))
                    life.thaw()
                    await self._wait(done, rng.uniform(0.1, 5.0))
            finally:
                life.kill()

    @staticmethod
    async def _wait(done: asyncio.Event, most_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await done.wait()

    async def _live(self, life: Life) -> None:
        try:
            await self._work(life.name)
        except LakeheadError as error:
            self._world.trace.add(life.name, f"gives up: {error!r}")
        except Exception as error:
            self._world.fail(error)
        life.kill()
