"""The site of the documentation has every page, by shelf, and needs no other host."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.site_build import BRANCH, release

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SHELVES = ["Learn", "Do", "Look up", "Understand"]


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Takes what mkdocs adds to YAML for nothing."""


Loader.add_multi_constructor("!", lambda *_: None)
Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def config() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    return found


def files(entries: Any) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, dict):
        for value in entries.values():
            yield from files(value)
    else:
        for entry in entries:
            yield from files(entry)


def test_every_page_is_on_a_shelf_once() -> None:
    shown = list(files(config()["nav"]))
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(shown) == sorted(pages)
    assert [next(iter(shelf)) for shelf in config()["nav"]] == SHELVES


def test_every_page_is_listed_by_the_first_one() -> None:
    """Those of formats and decisions are listed by the first page of their folder."""
    lists = [DOCS / "README.md", *(DOCS / name / "README.md" for name in ("formats", "decisions"))]
    lists += [DOCS / "benchmarks" / "README.md", DOCS / "storage.md", ROOT / "README.md"]
    text = "".join(page.read_text() for page in lists)
    missing = [
        page.relative_to(DOCS).as_posix()
        for page in DOCS.rglob("*.md")
        if page not in lists and f"{page.name})" not in text and f"{page.name}#" not in text
    ]
    assert missing == []


def test_the_theme_fetches_no_fonts_and_asks_no_host() -> None:
    assert config()["theme"]["font"] is False
    assert "repo_url" not in config()
    assert "google" not in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            ROOT / ".venv/bin/python",
            "-c",
            "import sys; from docs.site_build import *; sys.exit(build(Path(sys.argv[1])))",
            tmp_path,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    index = (tmp_path / "llms.txt").read_text()
    for name in files(config()["nav"]):
        assert f"]({name})" in index
        assert (tmp_path / name).exists()
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text, page
        assert 'rel="stylesheet" href="http' not in text, page


@pytest.mark.slow
def test_a_new_version_leaves_those_before_it_and_is_the_latest(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git("clone", "--quiet", ROOT, clone)
    git("-C", clone, "config", "user.email", "docs@example.com")
    git("-C", clone, "config", "user.name", "Docs")
    for version in ("0.1", "0.2"):
        assert release(version, clone) == 0
    listed = json.loads(git("-C", clone, "show", f"{BRANCH}:versions.json"))
    assert [(one["version"], one["aliases"]) for one in listed] == [
        ("0.2", ["latest"]),
        ("0.1", []),
    ]
    for folder in ("0.1", "0.2", "latest"):
        assert "Lakehead" in git("-C", clone, "show", f"{BRANCH}:{folder}/index.html")
        assert git("-C", clone, "show", f"{BRANCH}:{folder}/llms.txt")
    assert "latest" in git("-C", clone, "show", f"{BRANCH}:index.html")


def git(*arguments: str | Path) -> str:
    return subprocess.run(
        ["git", *arguments], check=True, capture_output=True, text=True, timeout=60
    ).stdout
