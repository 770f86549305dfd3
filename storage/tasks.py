"""The one place where tasks are made.

A task belongs to a `TaskScope`: it is kept alive by it, a crash in it is reported and never lost,
and closing the scope ends it. Nothing else in the core creates tasks (ruff's banned-api list holds
this).

A task that raises an error that nothing expects ends the node only if the node cannot go on without
it (`spawn`). One of a request, a connection, a partition or a peer ends alone (`spawn_apart`); a
duty in the background goes on with its next turn, after a pause (`spawn_loop`). A CancelledError of
a task that no party has cancelled is such an error: that of a future that another one gave up.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Generator
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, TypeVar, cast

from lakehead.storage.errors import LakeheadError
from lakehead.storage.event_logger import event_logger

T = TypeVar("T")
LOOP_PAUSE_S = 1.0
"""Pause before a duty that raised is begun again."""
_log = event_logger("storage.tasks")
OnError = Callable[[str, BaseException], None]


def log_failure(name: str, error: BaseException) -> None:
    """Log an error that ends one task alone."""
    _log.error("task_failed", task=name, error=repr(error), exc_info=error)


class WaitCancelled(Exception):
    """A task met the cancellation of a future that it waited for: it was not cancelled itself."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} waited for a future that was cancelled")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A group of tasks that fails as one of them did, by an error of ours, not by a group of them.

    One whose wait was cancelled has failed: asyncio's group goes on as if it had ended.

    `except*` does not serve: what is raised in it is wrapped again by some releases of Python 3.11.
    """
    try:
        async with _TaskGroup() as group:
            yield group
    except ExceptionGroup as errors:
        if errors.split(LakeheadError)[1] is not None:
            raise
        first: Exception = errors
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None


class _TaskGroup(asyncio.TaskGroup):
    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        begun = cast("Coroutine[Any, Any, T]", coro)
        task = super().create_task(_reported(begun), name=name, context=context)
        task.add_done_callback(lambda _: begun.close())  # it may have ended before its first step
        return task


async def _reported(coro: Coroutine[Any, Any, T]) -> T:
    """Await `coro`. Raises WaitCancelled for the cancellation of what it waits for."""
    try:
        return await coro
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or _is_cancelled(task):
            raise
        raise WaitCancelled(task.get_name()) from None


async def for_each(
    items: Collection[T], work: Callable[[T], Awaitable[object]], *, at_once: int
) -> None:
    """Do `work` for each item, begun in their order, for `at_once` of them at a time. The first
    error ends all, as that of a `task_group`.
    """
    waiting = iter(items)

    async def work_through() -> None:
        for item in waiting:
            await work(item)

    async with task_group() as group:
        for _ in range(min(at_once, len(items))):
            group.create_task(work_through())


class TaskScope:
    """Owns background tasks.

    `on_crash(name, error)` is called on the loop when a task ends by an exception that no task
    awaits: the owner cannot go on. `on_failure(name, error)` is called for an error that ends one
    task or one turn alone; it is logged, unless the owner has another use for it.
    """

    def __init__(self, on_crash: OnError, on_failure: OnError = log_failure) -> None:
        self._on_crash = on_crash
        self.on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """True once the scope ends its tasks. A CancelledError that one of them meets before that
        is of a future that another party has cancelled.
        """
        return self._closed

    def spawn(
        self, coro: Coroutine[Any, Any, T], *, name: str, is_awaited: bool = False
    ) -> asyncio.Task[T]:
        """Start `coro` as a task that the owner cannot go on without. Raises RuntimeError once the
        scope is closed.

        With `is_awaited` its errors go to the task that awaits it, and are not reported as crashes.
        """
        return self._start(coro, name, self._awaited if is_awaited else self._finished)

    def spawn_apart(
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str,
        on_error: Callable[[Exception], None] | None = None,
    ) -> asyncio.Task[T]:
        """Start `coro` as a task whose unexpected error ends nothing else. `on_error` is called
        with that error, in place of `on_failure`: it ends the request. Raises as `spawn`.
        """

        def finished(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            error = _error_of(task)
            if error is None:
                return
            if not isinstance(error, Exception):
                self._on_crash(name, error)
            elif on_error is None:
                self.on_failure(name, error)
            else:
                on_error(error)

        return self._start(coro, name, finished)

    def spawn_loop(
        self, run: Callable[[], Coroutine[Any, Any, None]], *, name: str
    ) -> asyncio.Task[None]:
        """Start `run()` as a task, and again after a pause when it raises. Raises as `spawn`."""

        async def keep() -> None:
            while True:
                try:
                    return await run()
                except asyncio.CancelledError:
                    if _is_cancelled(asyncio.current_task()):
                        raise
                    self.on_failure(name, WaitCancelled(name))
                except Exception as error:  # noqa: BLE001  # the root of a duty
                    self.on_failure(name, error)
                await asyncio.sleep(LOOP_PAUSE_S)

        return self._start(keep(), name, self._finished)

    def _start(
        self,
        coro: Coroutine[Any, Any, T],
        name: str,
        finished: Callable[[asyncio.Task[Any]], None],
    ) -> asyncio.Task[T]:
        if self._closed:
            coro.close()
            raise RuntimeError(f"task {name} started after its scope was closed")
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(finished)
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
            task.exception()  # seen: asyncio need not complain when no task waits any more

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = _error_of(task)
        if error is not None:
            self._on_crash(task.get_name(), error)


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """Return the error by which a task ended; None: it has a result, or was cancelled."""
    if not task.cancelled():
        return task.exception()
    return None if _is_cancelled(task) else WaitCancelled(task.get_name())


def _is_cancelled(task: asyncio.Task[Any] | None) -> bool:
    """Return true if a party has cancelled a task. By Python 3.11 and 3.12 also after a group of
    tasks failed in it.
    """
    return task is not None and task.cancelling() > 0
