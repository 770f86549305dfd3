"""Results of the benchmarks of a part: figures, their peers and their goals."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value.

    With a peer, the goal is about `value / peer_value`; without, about the value itself. At least
    the goal is wanted where more is better, at most where less is.
    """

    part: str
    name: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    goal: float | None = None
    more_is_better: bool = True

    @property
    def compared(self) -> float | None:
        """The value that the goal applies to; None if the peer was not measured."""
        if not self.peer:
            return self.value
        return self.value / self.peer_value if self.peer_value else None

    @property
    def is_reached(self) -> bool | None:
        """True if the goal is reached; None without a goal, or without a value to compare."""
        compared = self.compared
        if self.goal is None or compared is None:
            return None
        return compared >= self.goal if self.more_is_better else compared <= self.goal


def save(figures: Sequence[Figure], environment: dict[str, Any], path: Path) -> None:
    """Write every figure as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "environment": environment,
        "figures": [
            dataclasses.asdict(figure)
            | {"compared": figure.compared, "is_reached": figure.is_reached}
            for figure in figures
        ],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def show(title: str, figures: Sequence[Figure], console: Console) -> None:
    """Print the figures, part by part."""
    table = Table(title=title, title_justify="left")
    for heading in ("part", "figure"):
        table.add_column(heading)
    for heading in ("value", "peer", "ratio", "goal"):
        table.add_column(heading, justify="right")
    previous = ""
    for figure in figures:
        if previous and figure.part != previous:
            table.add_section()
        table.add_row(
            figure.part if figure.part != previous else "",
            figure.name,
            f"{_number(figure.value)} {figure.unit}",
            f"{figure.peer}: {_number(figure.peer_value)}" if figure.peer else "",
            _number(figure.compared) if figure.peer else "",
            _goal(figure),
        )
        previous = figure.part
    console.print(table)


def _goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    sign = ">=" if figure.more_is_better else "<="
    colour = {True: "green", False: "red", None: "yellow"}[figure.is_reached]
    return f"[{colour}]{sign} {_number(figure.goal)}[/{colour}]"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
