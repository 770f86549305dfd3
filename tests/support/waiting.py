"""Waiting on conditions with a deadline, never for a fixed time."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Return true if `condition` came true within `deadline_s` seconds. It is tried once more after
    these: the process may have been stopped meanwhile.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        is_late = time.monotonic() > deadline
        if condition():
            return True
        if is_late:
            return False
        time.sleep(0.005)
