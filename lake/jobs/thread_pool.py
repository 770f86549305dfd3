"""Runs work items in threads of this process.

For work that is compiled code and input (kernels, Arrow, the store's loop), which runs without the
interpreter's lock. Processes (`local_pool`) take seconds to start, and memory of their own each.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], *, workers: int
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, work(item)) as they are done.

    The first error of an item is raised, and what had not begun is dropped.
    """
    if workers <= 1 or len(items) <= 1:
        for item in items:
            yield item, work(item)
        return
    pool = ThreadPoolExecutor(min(workers, len(items)), thread_name_prefix="work-item")
    try:
        futures = {pool.submit(work, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
