"""Targets of the Makefile that the texts of skipped tests name: each is there and runs them."""

import re
from pathlib import Path

import pytest

from tests.conftest import slow_target

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
_SLOW = re.compile(r"\bmark\.slow\b")
_NAMED = re.compile(r"reason=f?\"[^\"]*?make ([\w-]+)|skip\(f?\"[^\"]*?make ([\w-]+)")


def recipes() -> dict[str, str]:
    """What each target of the Makefile runs."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"^([\w-]+):[^=\n].*\n((?:\t.*\n)*)", text, re.MULTILINE)
    return dict(found)


def files_with(pattern: re.Pattern[str]) -> list[Path]:
    return [
        path
        for path in sorted(TESTS.rglob("*.py"))
        if path != Path(__file__) and pattern.search(path.read_text(encoding="utf-8"))
    ]


def slow_files() -> list[str]:
    """Files with slow tests, and each file of a folder in which all are."""
    return [path.relative_to(TESTS).as_posix() for path in files_with(_SLOW)]


@pytest.mark.parametrize("file", slow_files())
def test_the_target_that_a_skipped_test_names_runs_it(file: str) -> None:
    path = TESTS / file
    recipe = recipes()[slow_target(path)]
    runs = [line for line in recipe.splitlines() if "-m pytest" in line]
    assert any("SLOW=1" in line for line in runs), recipe
    folder = rf"tests/{path.relative_to(TESTS).parts[0]}"
    assert re.search(rf"(?<!\S)(?:tests/{re.escape(file)}|{folder})(?!\S)", " ".join(runs)), recipe


def test_every_target_that_a_skip_names_is_there() -> None:
    known = recipes()
    named = {
        (path.name, found[1] or found[2])
        for path in files_with(_NAMED)
        for found in _NAMED.finditer(path.read_text(encoding="utf-8"))
    }
    assert named
    assert [(file, target) for file, target in sorted(named) if target not in known] == []
