"""Waiting on conditions with a deadline, never for a fixed time."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Return true if `condition` came true within `deadline_s` seconds."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
