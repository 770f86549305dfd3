"""Hooks of mkdocs for the site (docs/site_build.py): links that leave the folder, llms.txt.

mkdocs loads this module by itself, in an environment without Lakehead.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")
_SENTENCE = re.compile(r".+?[.:](?=\s|$)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Lead links to files outside of the folder to the repository."""
    here = (FOLDER / page.file.src_path).parent

    def led(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        if target.is_relative_to(FOLDER) or not target.is_relative_to(ROOT):
            return found[0]
        if not config.extra["repository"]:
            return found[1]
        place = target.relative_to(ROOT).as_posix()
        kind = "tree" if target.is_dir() else "blob"
        url = f"{config.extra['repository']}/{kind}/main/{place}{found[3] or ''}"
        return f"[{found[1]}]({url})"

    return _LINK.sub(led, markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Write llms.txt (llmstxt.org): every page by shelf, and each page as Markdown beside it."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for shelf in config.nav:
        ((title, entries),) = shelf.items()
        lines += ["", f"## {title}", ""]
        for name, place in _pages(entries):
            first = _first_sentence((FOLDER / place).read_text())
            lines.append(f"- [{name}]({place})" + (f": {first}" if first else ""))
            copy = site / place
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(FOLDER / place, copy)
    (site / "llms.txt").write_text("\n".join(lines) + "\n")


def _first_sentence(text: str) -> str:
    """Return the first sentence of a page's prose; empty without any."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for paragraph in prose.split("\n\n"):
        if paragraph.strip() and paragraph.strip()[0] not in "#|!<>-*":
            found = _SENTENCE.match(" ".join(paragraph.split()))
            return found[0] if found else ""
    return ""


def _pages(entries: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the file of each page of a shelf, also of shelves within it."""
    for entry in entries:
        if isinstance(entry, str):  # the first page of a shelf, named by its heading
            yield (FOLDER / entry).read_text().partition("\n")[0].removeprefix("# "), entry
            continue
        ((name, value),) = entry.items()
        if isinstance(value, str):
            yield name, value
        else:
            yield from _pages(value)
