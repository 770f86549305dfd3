"""Events in the nodes' logs and their times: the phases of a failover."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

_LINE = re.compile(r"^timestamp=(\S+) level=\w+(?: node_id=\d+)? event=(\w+)(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """One line of a node's log; `when` is seconds since 1970."""

    when: float
    name: str
    rest: str


def log_events(folder: Path, names: Sequence[str], since: float) -> list[LogEvent]:
    """The events of these names in all nodes' logs since then, in the order of their times."""
    found: list[LogEvent] = []
    for log in folder.glob("node-*.log"):
        for line in log.read_text(errors="replace").splitlines():
            match = _LINE.match(line)
            if match is not None and match[2] in names:
                when = datetime.fromisoformat(match[1]).timestamp()
                if when >= since:
                    found.append(LogEvent(when=when, name=match[2], rest=match[3]))
    return sorted(found, key=lambda event: event.when)
