"""What Kafka's tools may say otherwise of Lakehead, and why: all that is known, in one table."""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Lines that match `lines` in the output of calls that match `calls` do not count, on either
    side. What is left has to be the same.
    """

    calls: str
    lines: str
    reason: str

    def is_about(self, line: str) -> bool:
        """Return whether this is about a call."""
        return re.search(self.calls, line) is not None

    def rest(self, lines: Sequence[str]) -> list[str]:
        """Return the lines that count."""
        return [line for line in lines if not re.search(self.lines, line)]


KNOWN: tuple[Difference, ...] = ()
