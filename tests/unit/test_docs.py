"""The documentation says what the code says: generated pages are fresh, nothing is left out, links
lead somewhere.
"""

import re
from pathlib import Path

import pytest

from docs.generate import pages
from lakehead.broker.setting_sources import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])


@pytest.mark.parametrize("name", sorted(pages()))
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text() == pages()[name], "run: make docs"


def test_every_setting_is_documented() -> None:
    text = (DOCS / "settings.md").read_text()
    assert [setting.name for setting in SETTINGS if f"`{setting.name}`" not in text] == []


def test_every_command_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    for command in (
        "start",
        "demo",
        "sql",
        "materialize",
        "topics list",
        "inspect wal",
        "sweep",
        "nodes",
        "drain",
    ):
        assert f"## lakehead {command}\n" in text


def test_every_dependency_has_its_reason() -> None:
    reasons = (DOCS / "dependencies.md").read_text()
    text = (ROOT / "pyproject.toml").read_text()
    project = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    names = set(re.findall(r'"([a-z0-9-]+)[<>=]', project))
    assert sorted(name for name in names if name not in reasons) == []


def anchors(page: Path) -> set[str]:
    """What a link to a page may name behind `#`: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)\s]+)", page.read_text())
    broken = []
    for target in targets:
        place, _, anchor = target.partition("#")
        found = page.parent / place if place else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


def named_tests(text: str) -> list[tuple[str, str]]:
    """Tests as pages name them: `folder/file::test` below `tests/`."""
    return re.findall(r"`(\w+/test_\w+\.py)::(\w+)`", text)


def test_tests_that_pages_name_exist() -> None:
    known: dict[str, set[str]] = {}
    missing = []
    for page in PAGES:
        for file, test in named_tests(page.read_text()):
            path = ROOT / "tests" / file
            if file not in known and path.exists():
                known[file] = set(
                    re.findall(r"(?:def |^)((?:test_|Test)\w+)", path.read_text(), re.MULTILINE)
                )
            if test not in known.get(file, ()):
                missing.append(f"{page.name}: {file}::{test}")
    assert missing == []
    assert known


PARTS = ("bench", "broker", "connectors", "dags", "lake", "lakehead", "storage", "tests")


def test_modules_that_pages_name_exist() -> None:
    path = re.compile(rf"`((?:{'|'.join(PARTS)})/[\w/.-]+\.py)`")
    named = [(page.name, one) for page in PAGES for one in path.findall(page.read_text())]
    missing = [one for one in named if not (ROOT / one[1]).exists() and "NAME" not in one[1]]
    assert missing == []
    assert len(named) > 50


def test_modules_that_pages_name_without_a_folder_exist() -> None:
    names = {
        path.name for part in (*PARTS, "docs", "examples") for path in (ROOT / part).rglob("*.py")
    }
    named = [
        (page.name, one) for page in PAGES for one in re.findall(r"`(\w+\.py)`", page.read_text())
    ]
    assert [one for one in named if one[1] not in names] == []
    assert len(named) > 50


def test_each_known_failure_has_a_test_or_is_open() -> None:
    text = (DOCS / "storage" / "known-failures.md").read_text()
    tested, open_ = text.split("## Open")
    rows = [row for row in tested.splitlines() if row.startswith("| ") and " --- " not in row]
    heads = ("| Failure |", "| Tried ")
    bare = [row for row in rows if not named_tests(row) and not row.startswith(heads)]
    assert len(rows) > 50
    assert bare == []
    assert named_tests(open_) == []
