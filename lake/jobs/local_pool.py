"""Runs work items on this machine: in processes, or in threads of this process.

Processes are spawned, never forked: delta-rs and obstore hang in a child whose parent used them.
Each ends when its parent does, however that ends. They take seconds to start, and memory of their
own each. Threads are for work of compiled code and input (kernels, Arrow, the store's loop), which
runs without the interpreter's lock. One that waits for a store has another thread work meanwhile.
"""

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import TypeVar

from lakehead.storage.errors import LakeheadError

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerDied(LakeheadError):
    """A worker process ended in the middle of its work (killed, or out of memory)."""


def run_items(
    work: Callable[[Item], Result], items: Sequence[Item], *, processes: int
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, work(item)) as they are done. `work`, items and results must be picklable.

    One item, or one process, is worked on in this process. The first error of an item is raised,
    and what had not begun is dropped.
    """
    if processes <= 1 or len(items) <= 1:
        for item in items:
            yield item, work(item)
        return
    pool = ProcessPoolExecutor(
        min(processes, len(items)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_end_with_parent,
    )
    try:
        futures = {pool.submit(work, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        raise WorkerDied(
            "a worker process died in the middle of its work: run the job again, it goes on"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """Watch the parent: a pool's queues stay open without it, and workers would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


class _Turns(threading.local):
    """The turns to work that the threads of a pool share; None in a thread of no pool."""

    shared: threading.Semaphore | None = None


_turns = _Turns()


@contextlib.contextmanager
def giving_turn() -> Iterator[None]:
    """Let another thread of the pool work while this one waits for a store."""
    shared = _turns.shared
    if shared is None:
        yield
        return
    shared.release()
    try:
        yield
    finally:
        shared.acquire()


def run_in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], *, workers: int
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, work(item)) as they are done. `workers` work at once, beside one that waits
    (`giving_turn`).

    The first error of an item is raised, and what had not begun is dropped.
    """
    if workers <= 1 or len(items) <= 1:
        for item in items:
            yield item, work(item)
        return
    shared = threading.Semaphore(workers)

    def take_turn(item: Item) -> Result:
        _turns.shared = shared
        with shared:
            return work(item)

    pool = ThreadPoolExecutor(min(workers + 1, len(items)), thread_name_prefix="work-item")
    try:
        futures = {pool.submit(take_turn, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
