"""Limits of processor time that hold on a machine whose host takes its processor away at times: a
guest counts that as the time of the thread that ran.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

TRIES = 3


class TooSlow(AssertionError):
    """Work that took longer than its limit."""


def check_within(seconds: float, limit_s: float, work: str = "") -> None:
    """Raise `TooSlow` unless `seconds` is below the limit."""
    if seconds >= limit_s:
        raise TooSlow(f"{seconds:.3f} s, at most {limit_s} s {work}")


def measured(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run a test again that found work too slow: work that is slow by itself is so in each of
    `TRIES`. Any other failure counts at once. The test changes none of its fixtures.
    """
    earlier = range(TRIES - 1)

    @functools.wraps(test)
    def tried(*args: Any, **kwargs: Any) -> None:
        for _ in earlier:
            try:
                test(*args, **kwargs)
            except TooSlow:
                continue
            return
        test(*args, **kwargs)

    @functools.wraps(test)
    async def tried_async(*args: Any, **kwargs: Any) -> None:
        for _ in earlier:
            try:
                await test(*args, **kwargs)
            except TooSlow:
                continue
            return
        await test(*args, **kwargs)

    return tried_async if inspect.iscoroutinefunction(test) else tried
