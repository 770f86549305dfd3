"""Processes that share one simulated loop: each may be killed or frozen at any await, alone.

Whatever runs inside a `Life` (callbacks, tasks, timers, and all that these schedule) carries it in
its context. The loop asks the life of each handle before it runs it: a dead life's handles are
dropped, a frozen one's are kept until it thaws, as SIGKILL, SIGSTOP and SIGCONT would have it. What
the outside world does for a process (a disk's write, a store's request on its way) is scheduled
outside of every life by `outside`, and goes on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from tests.simulation.loop import SimulationLoop

P = ParamSpec("P")
T = TypeVar("T")

LIFE: ContextVar[Life | None] = ContextVar("LIFE")
"""The process that runs now; unset outside of all."""

_NOBODY = Context()


def outside(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call something as the world does it: what it schedules outlives whoever asked."""
    return _NOBODY.copy().run(call, *args, **kwargs)


class Life:
    """One process, from its start to its death. `dies_at` counts its steps; None: not by itself."""

    def __init__(self, loop: SimulationLoop, name: str, *, dies_at: int | None = None) -> None:
        self.name = name
        self.is_dead = False
        self.is_frozen = False
        self.steps = 0
        self.on_death: list[Callable[[], None]] = []
        """Called at once when it is killed: what a kernel does for the dead."""
        self._loop = loop
        self._dies_at = dies_at
        self._held: list[asyncio.Handle] = []
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._remains: list[asyncio.Task[Any]] = []
        self._context = Context()
        self._context.run(LIFE.set, self)

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task in this life."""
        return self._loop.create_task(coro, name=name, context=self._context.copy())

    def call(self, call: Callable[[], object]) -> None:
        """Call something soon, in this life."""
        self._loop.call_soon(call, context=self._context.copy())

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Note a task that was made in this life."""
        self._tasks.add(task)

    def kill(self) -> None:
        """End it now: nothing of it runs after this."""
        if self.is_dead:
            return
        self.is_dead = True
        self._held.clear()
        # Kept: collecting a task would run its clean-up, which no kill does.
        self._remains = list(self._tasks)
        for handle in self._loop.ready_handles():
            if handle._context.get(LIFE) is self:  # type: ignore[attr-defined]
                # Not by cancel(), which lets go of the task.
                handle._cancelled = True
        for call in self.on_death:
            outside(call)

    def spare(self) -> None:
        """Let it live: it does not die by itself any more."""
        self._dies_at = None

    def freeze(self) -> None:
        """Stop it until it thaws; timers that fall due meanwhile come late."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Let it go on."""
        self.is_frozen = False
        self._loop.ready_handles().extend(self._held)
        self._held.clear()

    def admits(self, handle: asyncio.Handle) -> bool:
        """Return true if a handle of this life may run in this iteration."""
        if self.is_dead:
            return False
        if self.is_frozen:
            self._held.append(handle)
            return False
        self.steps += 1
        if self.steps == self._dies_at:
            self.kill()
            return False
        return True
