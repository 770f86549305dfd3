"""The ledger of a sandbox day: a line of JSON for each thing, on disk before the thing is made."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lakehead.storage.clock import Clock


class Ledger:
    """Lines of a file, each forced to the disk: {"at", "trial", "event", "kind", "name"}.

    Events: "intended" before something is made, "made", "removed"; "began" and "ended" of trials.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock

    def write(self, trial: str, event: str, kind: str, name: str) -> None:
        """Add a line."""
        line = {
            "at": self._clock.now_ms(),
            "trial": trial,
            "event": event,
            "kind": kind,
            "name": name,
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines. A last one that was cut by a crash is left out."""
        if not self.path.exists():
            return []
        return [json.loads(one) for one in self.path.read_text().split("\n")[:-1]]

    def pending(self) -> list[tuple[str, str, str]]:
        """Return trial, kind and name of all that may be there: intended, and not removed."""
        there: dict[tuple[str, str, str], None] = {}
        for line in self.lines():
            key = (line["trial"], line["kind"], line["name"])
            if line["event"] == "intended":
                there[key] = None
            elif line["event"] == "removed":
                there.pop(key, None)
        return list(there)

    @contextmanager
    def kept(
        self, trial: str, kind: str, name: str, remove: Callable[[], object]
    ) -> Iterator[None]:
        """Have something noted before it is made, which the body does, and removed at the end,
        whatever happens in between.
        """
        self.write(trial, "intended", kind, name)
        try:
            yield
        finally:
            remove()
            self.write(trial, "removed", kind, name)
