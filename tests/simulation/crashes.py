"""A simulated node that loses power at any step.

Each life runs on a loop of its own, and nothing of it runs after the crash. The next life finds the
bucket, and the device as a power loss leaves it.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.lives import Life
from tests.simulation.loop import SimulationLoop


def live(life: Callable[[], Coroutine[Any, Any, None]], *, seed: int, crash_at: int | None) -> bool:
    """Run one life; return whether it ended by itself."""
    loop = SimulationLoop(seed, shuffle=False)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_until_end_or_crash(life, loop, crash_at))
    finally:
        asyncio.set_event_loop(None)
        loop.dispose()


async def _until_end_or_crash(
    life: Callable[[], Coroutine[Any, Any, None]], loop: SimulationLoop, crash_at: int | None
) -> bool:
    process = Life(loop, "node", dies_at=crash_at)
    crashed: asyncio.Future[None] = loop.create_future()
    process.on_death.append(lambda: crashed.set_result(None))
    task = process.spawn(life(), "life")
    await asyncio.wait([task, crashed], return_when=asyncio.FIRST_COMPLETED)
    if crashed.done():
        return False
    task.result()
    return True


def pick_crash(rng: random.Random) -> int:
    """Return a step to crash at: often early, where starts and recoveries are, sometimes late."""
    return int(10 ** rng.uniform(0.5, 3.3))
