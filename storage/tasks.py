"""The one place where tasks are made.

A task belongs to a `TaskScope`: it is kept alive by it, a crash in it is reported and never lost,
and closing the scope ends it. Nothing else in the core creates tasks (ruff's banned-api list holds
this).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from storage.errors import LakeheadError

T = TypeVar("T")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A group of tasks that fails as one of them did, by an error of ours, not by a group of them.

    `except*` does not serve: what is raised in it is wrapped again by some releases of Python 3.11.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as errors:
        if errors.split(LakeheadError)[1] is not None:
            raise
        first: Exception = errors
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None


class TaskScope:
    """Owns background tasks.

    `on_crash(name, error)` is called on the loop when a task ends by an exception that nobody
    awaits for; the owner decides whether the node lives on.
    """

    def __init__(self, on_crash: Callable[[str, BaseException], None]) -> None:
        self._on_crash = on_crash
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def spawn(
        self, coro: Coroutine[Any, Any, T], *, name: str, is_awaited: bool = False
    ) -> asyncio.Task[T]:
        """Start `coro` as a task of this scope. Raises RuntimeError once the scope is closed.

        With `is_awaited` its errors are for whoever awaits the task, and are not reported as
        crashes.
        """
        if self._closed:
            coro.close()
            raise RuntimeError(f"task {name} started after its scope was closed")
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._awaited if is_awaited else self._finished)
        return task

    async def close(self) -> None:
        """Cancel every task and wait until all of them have ended."""
        self._closed = True
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._tasks.difference_update(tasks)

    def _awaited(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: asyncio need not complain when nobody waits any more

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._on_crash(task.get_name(), error)
