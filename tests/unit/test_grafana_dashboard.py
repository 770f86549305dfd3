"""The dashboard for Grafana shows metrics that nodes have, by labels that they have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "infra" / "grafana" / "lakehead.json"
METRICS = ROOT / "docs" / "metrics.md"


def panels() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Each panel's title with each of its expressions."""
    for panel in panels():
        targets = panel.get("targets", [])
        assert isinstance(targets, list)
        for target in targets:
            yield str(panel["title"]), target["expr"]


def test_every_panel_is_about_metrics_that_there_are() -> None:
    known = set(re.findall(r"^\| `(lakehead_\w+)", METRICS.read_text(), re.MULTILINE))
    for title, expression in expressions():
        names = set(re.findall(r"lakehead_\w+", expression))
        assert names, title
        assert names <= known, title


def test_sums_are_by_labels_of_the_metric() -> None:
    labels: dict[str, set[str]] = {}
    for name, text in re.findall(
        r"^\| `(lakehead_\w+)(\{[^}]*\})?", METRICS.read_text(), re.MULTILINE
    ):
        labels.setdefault(name, {"instance"}).update(re.findall(r"(\w+)=", text))
    for title, expression in expressions():
        for by in re.findall(r"by \((\w+)\)", expression):
            (name, *_) = re.findall(r"lakehead_\w+", expression)
            assert by in labels[name], title


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    places = [panel["gridPos"] for panel in panels()]
    cells = [
        (x, y)
        for place in places
        if isinstance(place, dict)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    numbers = [panel["id"] for panel in panels()]
    assert len(numbers) == len(set(numbers))
