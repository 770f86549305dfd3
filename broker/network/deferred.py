"""An answer that nothing has to be run for: it is there when something else is.

A handler that waits for one thing alone returns it with what makes the answer of it, and costs no
task.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import Any, NamedTuple


class Deferred(NamedTuple):
    """`finish(outcome)` is the answer, once `outcome` is done; it is not asked of a cancelled
    one.
    """

    outcome: asyncio.Future[Any]
    finish: Callable[[asyncio.Future[Any]], Any]

    def __await__(self) -> Generator[Any, None, Any]:
        with contextlib.suppress(Exception):  # `finish` looks at it
            yield from self.outcome.__await__()
        return self.finish(self.outcome)
