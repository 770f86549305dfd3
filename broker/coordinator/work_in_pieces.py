"""Work on all shards of a coordinator that other work has its turn between: there may be very many
groups, offsets or states.
"""

import asyncio
from collections.abc import Callable, Iterator


class WorkInPieces:
    """Does `work` from its beginning to its end, a piece in each turn of the event loop: it yields
    after each piece. It takes note of what there is when it comes to it.
    """

    def __init__(self, work: Callable[[], Iterator[None]]) -> None:
        self._work = work
        self._pieces: Iterator[None] | None = None
        self._is_due_again = False

    def begin(self) -> None:
        """Begin soon; once more after the end if the work is being done."""
        if self._pieces is not None:
            self._is_due_again = True
            return
        self._pieces = self._work()
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        assert self._pieces is not None
        is_over = True
        try:
            is_over = next(self._pieces, self) is self
        finally:  # an unexpected error ends this work, and keeps none from beginning later
            if not is_over:
                asyncio.get_running_loop().call_soon(self._go_on)
            else:
                self._pieces = None
                if self._is_due_again:
                    self._is_due_again = False
                    self.begin()
