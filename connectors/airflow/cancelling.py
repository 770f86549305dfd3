"""How a task that is to end stops its work.

Airflow asks a task to end by SIGTERM, upon which it calls `on_kill` in the middle of whatever the
main thread does, and kills the process five seconds later. So `on_kill` has to break in: it raises
`Cancelled` there, once, and only while the work runs; what gives back leases and ends children
comes after that, undisturbed.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class Cancelled(KeyboardInterrupt):
    """The task was asked to end. Not an error: nothing in between may take it for one. An event
    loop lets a KeyboardInterrupt out of a callback, and of other exceptions only tells its log.
    """


class Cancellation:
    """Of one task. For its main thread, signal handlers included."""

    def __init__(self) -> None:
        self._is_asked = False
        self._is_working = False

    def ask(self) -> None:
        """Have the work end. Raises Cancelled if it is running now."""
        if self._is_asked:
            return
        self._is_asked = True
        self._raise_if_working()

    @contextmanager
    def breaks_in(self) -> Iterator[None]:
        """While the block runs, `ask` ends it by Cancelled; so does what was asked before."""
        self._is_working = True
        try:
            if self._is_asked:
                self._raise_if_working()
            yield
        finally:
            self._is_working = False

    def _raise_if_working(self) -> None:
        if self._is_working:
            self._is_working = False
            raise Cancelled
