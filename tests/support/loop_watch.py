"""The longest time that one callback held the event loop, in CPU time of its thread: what else the
machine does at the time does not count.
"""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from tests.support.processor_time import check_within


class LoopWatch:
    """`longest_s`: of the callbacks so far."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest = ""

    def check(self, limit_s: float) -> None:
        """Raise `TooSlow` unless each callback took less."""
        check_within(self.longest_s, limit_s, self.longest)


@contextmanager
def watched_loop() -> Iterator[LoopWatch]:
    """Watch every callback of asyncio's loops. The garbage collector does not run meanwhile: a
    node's has little to visit (`lakehead.broker.process`), that of a process of tests all that
    they left.
    """
    watch, run = LoopWatch(), asyncio.Handle._run

    def timed(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        took = time.thread_time() - began
        if took > watch.longest_s:
            watch.longest_s, watch.longest = took, repr(handle)

    gc.disable()
    try:
        with mock.patch.object(asyncio.Handle, "_run", timed):
            yield watch
    finally:
        gc.enable()
