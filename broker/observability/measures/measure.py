"""One metric: its name, meaning, kind and where its value is.

Names follow Prometheus: base units (seconds, bytes), a counter's name without its `_total`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from lakehead.broker.observability.observed_node import ObservedNode

Values = float | Mapping[str, float] | None
"""A value, a value for each value of the label, or None: this node has no such part."""


class Measure(NamedTuple):
    """A metric, with at most one label."""

    name: str
    doc: str
    is_counter: bool
    read: Callable[[ObservedNode], Values]
    label: str = ""

    @property
    def shown_name(self) -> str:
        """The name as Prometheus sees it."""
        suffix = "_total" if self.is_counter else ""
        label = f'{{{self.label}="..."}}' if self.label else ""
        return f"{self.name}{suffix}{label}"


def counter(
    name: str, doc: str, read: Callable[[ObservedNode], Values], label: str = ""
) -> Measure:
    """A metric that only grows, until the node starts anew."""
    return Measure(f"lakehead_{name}", doc, True, read, label)


def gauge(name: str, doc: str, read: Callable[[ObservedNode], Values], label: str = "") -> Measure:
    """A metric that goes up and down."""
    return Measure(f"lakehead_{name}", doc, False, read, label)
