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


def labels_by_metric() -> dict[str, set[str]]:
    """The labels of each metric by its name in expressions; a histogram is read by its buckets."""
    labels: dict[str, set[str]] = {}
    for name, label, kind in re.findall(
        r"^\| `(lakehead_\w+)(\{[^}]*\})?` \|(?: (\w+) \|)?", METRICS.read_text(), re.MULTILINE
    ):
        is_histogram = kind == "histogram"
        shown = labels.setdefault(f"{name}_bucket" if is_histogram else name, {"instance"})
        shown.update(re.findall(r"(\w+)=", label), {"le"} if is_histogram else ())
    return labels


def test_every_panel_is_about_metrics_that_there_are() -> None:
    known = set(labels_by_metric())
    for title, expression in expressions():
        names = set(re.findall(r"lakehead_\w+", expression))
        assert names, title
        assert names <= known, title


def test_sums_are_by_labels_of_the_metric() -> None:
    labels = labels_by_metric()
    for title, expression in expressions():
        for by in re.findall(r"by \(([\w, ]+)\)", expression):
            (name, *_) = re.findall(r"lakehead_\w+", expression)
            assert set(by.split(", ")) <= labels[name], title


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
