"""No circles among modules, with imports counted that only type checkers read."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import grimp

PACKAGES = ("lakehead", "pyspark_lakehead")

CIRCLES: dict[str, int] = {}
"""The circles that are left: the first module of each, with the number of its modules. It may only
shrink.
"""

Graph = dict[str, set[str]]


def imports(*packages: str) -> Graph:
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    return {one: graph.find_modules_directly_imported_by(one) for one in graph.modules}


def circles(graph: Graph) -> dict[str, int]:
    """The sets of modules that reach each other, as `CIRCLES` names them."""
    found: dict[str, int] = {}
    rest = dict(graph)
    while (start := _in_a_cycle(rest)) is not None:
        back: dict[str, set[str]] = {one: set() for one in rest}
        for one, others in rest.items():
            for other in others & rest.keys():
                back[other].add(one)
        members = _reached(start, rest) & _reached(start, back)
        found[min(members)] = len(members)
        rest = {one: others for one, others in rest.items() if one not in members}
    return found


def _in_a_cycle(graph: Graph) -> str | None:
    known: Any = {one: others & graph.keys() for one, others in graph.items()}
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        return str(error.args[1][0])
    return None


def _reached(start: str, graph: Graph) -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        for other in graph[todo.pop()] & graph.keys():
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


def test_no_module_joins_a_circle_of_imports() -> None:
    found = circles(imports(*PACKAGES))
    grown = {name: size for name, size in found.items() if size > CIRCLES.get(name, 0)}
    assert not grown, "these modules import each other, type-checking imports included"
    assert found == CIRCLES, "a circle is mended or smaller: take it out of CIRCLES"


def test_a_circle_of_type_checking_imports_is_found(tmp_path: Path, monkeypatch: Any) -> None:
    package = tmp_path / "circled"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text("from circled import b\n")
    (package / "b.py").write_text("def late() -> None:\n    from circled import c\n")
    (package / "c.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circled import a\n"
    )
    (package / "d.py").write_text("from circled import a\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert circles(imports("circled")) == {"circled.a": 3}


def test_two_circles_that_share_no_module_are_two() -> None:
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}, "e": {"a", "c"}}
    assert circles(graph) == {"a": 2, "c": 2}
