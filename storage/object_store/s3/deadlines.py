"""How long a request may take before it counts as hung."""

_READ_S = 5.0
_WRITE_S = 10.0
_BYTES_PER_S = 2 * 1024 * 1024
_SLACK_MAX = 16.0
_RECOVERY = 0.9


class Deadlines:
    """A fixed time and a time by size, both stretched while requests miss them.

    S3 answers nearly every request within a second: one that takes several is better given up and
    sent again, over another connection. A link that is merely slow would never get a large object
    through so, hence the stretching: up to 16 times, which is 128 KiB/s.
    """

    def __init__(self) -> None:
        self._slack = 1.0

    def read(self, size: int) -> float:
        """Return the seconds that reading `size` bytes may take."""
        return (_READ_S + size / _BYTES_PER_S) * self._slack

    def write(self, size: int) -> float:
        """Return the seconds that writing `size` bytes may take."""
        return (_WRITE_S + size / _BYTES_PER_S) * self._slack

    def met(self) -> None:
        """A request ended in time."""
        self._slack = max(1.0, self._slack * _RECOVERY)

    def missed(self) -> None:
        """A request was given up."""
        self._slack = min(_SLACK_MAX, self._slack * 2)
