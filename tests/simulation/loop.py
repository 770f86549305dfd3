"""A deterministic event loop: virtual time, and a seeded order of what is ready.

Use it for whole worlds in one process, with the real code on top of simulated seams::

    def test_something() -> None:
        def world() -> Coroutine[Any, Any, int]: ...
        assert simulate(world, seed=7) == 42

- `loop.time()` starts at 0 and jumps to the next timer when nothing is ready, so hours cost
  milliseconds and `asyncio.sleep` and `asyncio.timeout` work as ever. `LoopClock(loop)` is the
  `lakehead.storage.clock.Clock` that goes with it.
- In each iteration the callbacks that are ready run in an order that the seed shuffles. asyncio
  promises first come, first served for callbacks; code that is right only because of it shows up
  here. `shuffle=False` keeps that promise, for code that may rely on it.
- When nothing is ready, no timer runs and the world has not ended, it never will: `Deadlock` names
  the tasks that wait. `time_limit` (virtual seconds) catches worlds that only tick.
- There are no threads, sockets, signals or files in it: asking for them fails. Randomness is
  whatever the world seeds; two runs of one seed take the same steps.
- Several processes share the loop as `Life`s (see `lives`): what one of them schedules carries its
  mark, and stops when it is killed or frozen, while the others go on.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import math
import random
import threading
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from tests.simulation.lives import LIFE

T = TypeVar("T")


class Deadlock(Exception):
    """The world cannot go on: nothing is ready and no timer runs; or it outlived its limit."""


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number: sets of tasks have one order, whatever their addresses."""

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class SimulationLoop(asyncio.BaseEventLoop):
    """The loop; see the module's docstring. Most tests want `simulate`."""

    _ready: deque[asyncio.Handle]  # asyncio's own: what runs in the next iteration
    _scheduled: list[asyncio.TimerHandle]  # and the heap of timers

    def __init__(self, seed: int, *, shuffle: bool = True, time_limit: float = 1e6) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        self._shuffle = shuffle
        self._now = 0.0
        self._time_limit = time_limit
        self._selector = self  # asked for events when an iteration begins
        self._clock_resolution = 0.0  # what is due was taken from the heap before
        self._thread = threading.current_thread()
        self._tasks_made = 0
        self.iterations = 0
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Return virtual seconds since the world began."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Pass the time until the next timer instead of waiting for I/O."""
        if timeout is None:
            waiting = sorted(task.get_name() for task in asyncio.all_tasks(self))
            raise Deadlock(f"at {self._now} s nothing is ready and no timer runs: {waiting}")
        if timeout > 0:
            self._now = max(self._now, self._scheduled[0].when())
        if self._now > self._time_limit:
            limit, self._time_limit = self._time_limit, math.inf  # what is left may clean up
            raise Deadlock(f"the world goes on after {limit} s")
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """Called with the events of an iteration, before its callbacks run."""
        assert not event_list
        self.iterations += 1
        while self._scheduled and self._scheduled[0].when() <= self._now:  # as asyncio would next
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]  # no more in the heap
            self._ready.append(timer)
        handles = list(self._ready)
        if self._shuffle and len(handles) > 1:
            self._rng.shuffle(handles)
        self._ready.clear()
        for handle in handles:
            life = handle._context.get(LIFE)  # type: ignore[attr-defined]
            if life is None or life.admits(handle):
                self._ready.append(handle)

    def ready_handles(self) -> deque[asyncio.Handle]:
        """Return what this iteration still has to run, and the next one."""
        return self._ready

    def dispose(self) -> None:
        """End the world: nothing runs any more, and what waits is taken down, its errors unheard.

        Called when all has been judged: clean-up code of dead processes runs now, on nothing.
        """
        self.set_exception_handler(lambda loop, context: None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that never began
            for task in asyncio.all_tasks(self):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine: Any = task.get_coro()
                _close_arguments(coroutine)
                for _ in range(20):  # one that awaits while it cleans up is told again
                    with suppress(BaseException):
                        coroutine.close()
                        break
                del coroutine
        self.close()

    def _make_task(self, _: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        self._tasks_made += 1
        task = _Task(coro, number=self._tasks_made, loop=self, **options)
        context = options.get("context")
        life = LIFE.get(None) if context is None else context.get(LIFE)
        if life is not None:
            life.adopt(task)
        return task

    def _write_to_self(self) -> None:
        """Called when somebody calls `call_soon_threadsafe`, as asyncio does for generators."""
        if threading.current_thread() is not self._thread:
            raise RuntimeError("a simulated world has no threads")

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Fail: the world has no threads."""
        raise RuntimeError("a simulated world has no threads")


def _close_arguments(coroutine: Any) -> None:
    """Close the coroutines that one that never began was to await."""
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == "CORO_CREATED":
        for argument in inspect.getcoroutinelocals(coroutine).values():
            if inspect.iscoroutine(argument):
                argument.close()


class LoopClock:
    """A `lakehead.storage.clock.Clock` that tells the loop's virtual time, from a fixed date on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, start_ms: int = 1_700_000_000_000):
        self._loop = loop
        self._start_ms = start_ms

    def now_ms(self) -> int:
        """Return virtual milliseconds since the epoch."""
        return self._start_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        """Return virtual seconds."""
        return self._loop.time()


def simulate(
    world: Callable[[], Coroutine[Any, Any, T]],
    *,
    seed: int,
    shuffle: bool = True,
    time_limit: float = 1e6,
) -> T:
    """Run a world to its end on a loop of its own and return its result."""
    loop = SimulationLoop(seed, shuffle=shuffle, time_limit=time_limit)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(world())
    finally:
        asyncio.set_event_loop(None)
        loop.dispose()
