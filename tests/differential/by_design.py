"""Where Lakehead answers other than Kafka, and why that is right."""

import re
from dataclasses import dataclass
from typing import Any

from tests.differential.brokers import Request

_ANY = object()


@dataclass(frozen=True, slots=True)
class Rule:
    """Differences of an API at a path (a regular expression), perhaps of these values alone."""

    api: str
    path: str
    reason: str
    theirs: Any = _ANY
    ours: Any = _ANY

    def holds(self, request: Request, path: str, theirs: Any, ours: Any) -> bool:
        """Whether this difference is of this rule."""
        return (
            re.fullmatch(self.api, request.name) is not None
            and re.fullmatch(self.path, path) is not None
            and (self.theirs is _ANY or self.theirs == theirs)
            and (self.ours is _ANY or self.ours == ours)
        )


RULES: tuple[Rule, ...] = ()


def reason_for(request: Request, path: str, theirs: Any, ours: Any) -> str | None:
    """Return why this difference is right, None if nothing says so."""
    held = (rule.reason for rule in RULES if rule.holds(request, path, theirs, ours))
    return next(held, None)
