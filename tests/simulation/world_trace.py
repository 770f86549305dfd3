"""What happened in a world, in order: hashed always, printed when somebody asks for one seed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable


class Trace:
    """Lines of (virtual time, who, what). `echo` is given each line as text."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, echo: Callable[[str], None] | None = None
    ) -> None:
        self._loop = loop
        self._echo = echo
        self._events: list[tuple[float, str, str]] = []

    def add(self, who: str, what: str) -> None:
        """Note an event."""
        now = self._loop.time()
        self._events.append((now, who, what))
        if self._echo is not None:
            self._echo(f"{now:12.4f}  {who:10} {what}")

    def said(self) -> list[str]:
        """Return what happened, without times and names."""
        return [what for _, _, what in self._events]

    def digest(self) -> str:
        """Return a hash of all of it: equal for equal schedules."""
        digest = hashlib.sha256()
        for event in self._events:
            digest.update(repr(event).encode())
        return digest.hexdigest()
