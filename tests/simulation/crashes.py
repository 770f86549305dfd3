"""A simulated node that loses power at any step: real engine, partitions and block WAL on simulated
seams.

Each life runs on a loop of its own. A crash stops the loop between two callbacks, which is at any
await of any task, and nothing of that life ever runs again. The next life finds the bucket, and the
device as a power loss leaves it.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.loop import SimulationLoop

_abandoned: list[set[asyncio.Task[Any]]] = []
"""Tasks of crashed lives: kept, since collecting one would run its clean-up, which no dead process
does.
"""


class Crash(BaseException):
    """The power is gone."""


class MortalLoop(SimulationLoop):
    """A loop that crashes at an iteration."""

    def __init__(self, seed: int, *, crash_at: int | None) -> None:
        super().__init__(seed, shuffle=False)
        self._crash_at = crash_at

    def _process_events(self, event_list: list[Any]) -> None:
        super()._process_events(event_list)
        if self._crash_at is not None and self.iterations >= self._crash_at:
            raise Crash


def live(life: Callable[[], Coroutine[Any, Any, None]], *, seed: int, crash_at: int | None) -> bool:
    """Run one life; return whether it ended by itself."""
    loop = MortalLoop(seed, crash_at=crash_at)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(life())
        return True
    except Crash:
        return False
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        _abandoned.append(tasks)
        asyncio.set_event_loop(None)
        loop.close()


def pick_crash(rng: random.Random) -> int:
    """Return a step to crash at: often early, where starts and recoveries are, sometimes late."""
    return int(10 ** rng.uniform(0.5, 3.3))
