"""Commands in README and in the pages are commands that there are, with options that there are."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.parsed_command import parsed

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^ *```(?:bash|sh)?\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(lakehead [a-z].*)$")
# A page shows the form of a command, for a reader to fill in.
_FORM = re.compile(r"\[OPTIONS\]|…|\.\.\.|<[a-z]|lakehead COMMAND")


def commands(page: Path) -> Iterator[str]:
    for block in _FENCE.findall(re.sub(r"\\\n *", "", page.read_text())):
        for line in block.splitlines():
            found = _COMMAND.match(line.strip())
            if found and not _FORM.search(line):
                yield found[1].split("  ")[0]  # the rest is its meaning


WITH_COMMANDS = [page for page in PAGES if any(commands(page))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_parse(page: Path) -> None:
    for command in commands(page):
        parsed(command)


def test_commands_are_found() -> None:
    assert sum(len(list(commands(page))) for page in WITH_COMMANDS) > 100
