"""How long a node stays down after it ended by itself."""

FIRST_S = 1.0
"""Time for the other nodes to notice and to take over; a node that is back at once is quicker."""
LONGEST_S = 30.0
SERVED_WELL_S = 60.0
"""A node that served for so long is not one that ends again and again."""


class BackOff:
    """The pauses before a node's next lives: doubled from life to life, until one goes well."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def after(self, served_s: float) -> float:
        """Return the pause, in seconds, after a life that served clients for `served_s`."""
        if served_s >= SERVED_WELL_S:
            self._next_s = FIRST_S
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, LONGEST_S)
        return pause_s
