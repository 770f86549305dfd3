"""Schemas after parsing: the values that each type's module returns and compares."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedText:
    """The text of a schema that another one refers to, and what it calls it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSchema:
    """A schema of one type. `text` is the same for two that differ by blanks alone."""

    kind: str
    text: str
    model: Any
    """The model that its type's module reads and compares."""


def difference(kind: str, description: str, path: str) -> str:
    """Return a reason as Confluent's registry writes them."""
    return f"{{errorType:'{kind}', description:'{description}', additionalInfo:'{path}'}}"
