"""Plots of the benchmark's pages, by matplotlib in an environment of its own.

Run as a program it is that environment's side: it reads drawings as JSON and writes SVG files,
which are the same for the same figures.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.own_environment import environment_of

_DRAW_S = 600
COLOURS = {
    "Lakehead": "#1b6ca8",
    "Lakehead, object WAL": "#66a182",
    "Kafka": "#d1495b",
    "Kafka, flush.messages=1": "#edae49",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values of a contender: `y` at each `x`, with the least and the largest of each."""

    name: str
    x: Sequence[float | str]
    y: Sequence[float]
    least: Sequence[float]
    most: Sequence[float]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One plot: lines over numbers, or bars over names."""

    file: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    is_logarithmic: bool = False

    @property
    def has_bars(self) -> bool:
        """True if its x are names."""
        return any(isinstance(x, str) for one in self.series for x in one.x)


def draw(drawings: Sequence[Drawing], folder: Path) -> None:
    """Write the drawings into a folder. Raises NotInstalled if matplotlib is not to be had."""
    python = environment_of("plots", "plots") / "bin" / "python"
    given = [asdict(drawing) | {"has_bars": drawing.has_bars} for drawing in drawings]
    subprocess.run(
        [python, "-m", "bench.plots", str(folder.resolve())],
        cwd=Path(__file__).parents[1],
        input=json.dumps({"drawings": given, "colours": COLOURS}),
        text=True,
        timeout=_DRAW_S,
        check=True,
    )


def _draw_all(document: dict[str, Any], folder: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.hashsalt": "lakehead", "svg.fonttype": "none", "font.size": 9})
    for drawing in document["drawings"]:
        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.subplots()
        (_bars if drawing["has_bars"] else _lines)(axes, drawing["series"], document["colours"])
        if drawing["is_logarithmic"]:
            axes.set_yscale("symlog", linthresh=1)  # Kafka's tools round to 0 ms
        axes.set(title=drawing["title"], xlabel=drawing["x_label"], ylabel=drawing["y_label"])
        axes.grid(axis="y", alpha=0.3)
        axes.legend()
        figure.savefig(folder / drawing["file"], format="svg", metadata={"Date": None})


def _lines(axes: Any, series: Sequence[dict[str, Any]], colours: dict[str, str]) -> None:
    for one in series:
        axes.errorbar(
            one["x"],
            one["y"],
            yerr=_errors(one),
            label=one["name"],
            color=_colour(one["name"], colours),
            linestyle="--" if one["is_dashed"] else "-",
            marker="o",
            markersize=3,
            capsize=2,
        )


def _bars(axes: Any, series: Sequence[dict[str, Any]], colours: dict[str, str]) -> None:
    names = list(dict.fromkeys(x for one in series for x in one["x"]))
    width = 0.8 / len(series)
    for number, one in enumerate(series):
        axes.bar(
            [names.index(x) + (number + 0.5) * width - 0.4 for x in one["x"]],
            one["y"],
            width,
            yerr=_errors(one),
            label=one["name"],
            color=_colour(one["name"], colours),
            capsize=2,
        )
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")


def _errors(one: dict[str, Any]) -> list[list[float]]:
    below = [y - least for y, least in zip(one["y"], one["least"], strict=True)]
    above = [most - y for y, most in zip(one["y"], one["most"], strict=True)]
    return [below, above]


def _colour(name: str, colours: dict[str, str]) -> str | None:
    """The contender's; a series may have its name and more."""
    fitting = [known for known in colours if name.startswith(known)]
    return colours[max(fitting, key=len)] if fitting else None


if __name__ == "__main__":
    _draw_all(json.load(sys.stdin), Path(sys.argv[1]))
