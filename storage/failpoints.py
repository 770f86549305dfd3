"""Named places where a test may kill the process.

`LAKEHEAD_FAILPOINT=name` in the environment makes the process end as `kill -9` would have it (no
clean-up, no flush, status 137) when it first comes to the place called `name`; `name:3` waits for
the third time. A place is a call with a literal name, so tests find every one of them by reading
the sources and none needs to be registered:

    failpoint("wal_written")

Unarmed, a call is one comparison. A name says what has just happened, in the past tense, and starts
with the part it happened in. The variable is read once, when the module is imported: a fail-point
belongs to the process, never to one broker in it.
"""

import os

KILLED = 137
"""Exit status of a process that a fail-point ended: 128 + SIGKILL."""


class _Trigger:
    """The one armed fail-point of this process and how many more visits end it."""

    __slots__ = ("name", "visits_left")

    def __init__(self, setting: str) -> None:
        name, _, visit = setting.partition(":")
        self.name = name or None
        self.visits_left = int(visit or 1)


_trigger = _Trigger(os.environ.get("LAKEHEAD_FAILPOINT", ""))


def failpoint(name: str) -> None:
    """End the process here if this place is the armed one; otherwise do nothing."""
    if _trigger.name == name:
        _trigger.visits_left -= 1
        if _trigger.visits_left <= 0:
            os._exit(KILLED)
