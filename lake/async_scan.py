"""`lakehead.scan_async`: a scan for code on an event loop, which it never blocks."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Self

import pyarrow as pa

from lakehead.lake.errors import ScanClosed
from lakehead.lake.topic_scan import Scan, scan

P = ParamSpec("P")


class AsyncScan:
    """Records of a topic as an asynchronous iterator of Arrow batches: one pass over them.

        async with lakehead.scan_async(path, "orders") as batches:
            async for batch in batches:

    It plans at the first use, and plans, fetches and decodes in a thread of its own. A wait that is
    cancelled loses nothing: the next one gets its batch. Raises the errors of `lakehead.scan` and
    its passes.
    """

    def __init__(self, plan: Callable[[], Scan]) -> None:
        self._plan = plan
        self._scan: Scan | None = None
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._pending: asyncio.Future[pa.RecordBatch | None] | None = None
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scan")
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        async with self._turn:
            if self._closed:
                raise ScanClosed("the scan is closed: scan the topic again")
            if self._pending is None:
                self._pending = asyncio.get_running_loop().run_in_executor(self._thread, self._next)
            try:
                batch = await asyncio.shield(self._pending)
            finally:
                if self._pending.done():
                    self._pending = None
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """Stop fetching, once the batch that is in work is made. May be repeated."""
        self._closed = True
        if self._pending is not None:
            await asyncio.wait([self._pending])
            if not self._pending.cancelled():
                self._pending.exception()  # no caller is left to get it
        if self._scan is not None:
            self._scan.close()
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _next(self) -> pa.RecordBatch | None:
        """Runs in the thread."""
        if self._batches is None:
            self._scan = self._plan()
            self._batches = iter(self._scan)
        return next(self._batches, None)


def _asynchronous(plan: Callable[P, Scan]) -> Callable[P, AsyncScan]:
    def scan_async(*args: P.args, **kwargs: P.kwargs) -> AsyncScan:
        return AsyncScan(lambda: plan(*args, **kwargs))

    return scan_async


scan_async = _asynchronous(scan)
"""Read a topic as `lakehead.scan` does, with its arguments, from a coroutine."""
