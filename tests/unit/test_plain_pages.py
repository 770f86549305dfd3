"""Hand-written pages are plain: a sentence names its subject, and the actor has a role."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MADE_FROM_CODE = {"cli.md", "settings.md", "metrics.md", "kafka-compatibility.md"}
# A changelog has the words of its time.
LEFT_OUT = MADE_FROM_CODE | {"CHANGELOG.md"}
FOLDERS = ("dags", "docs", "examples", "infra")

OPENING = re.compile(r"(?:What|Who|Whoever|Whose|Whether|Which|How|Where)\b")
WORDS = re.compile(r"\b(?:whoever|somebody|nobody|anybody|everybody|anew)\b", re.IGNORECASE)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
MARKUP = re.compile(r"^(?:\s|#|>|[-*] |\d+\. |\*|_|\[)+")
ENDS = re.compile(r"(?<=[.!?])[*_]{0,2}\s+|\||\n(?=[#|]|\s*(?:[-*]|\d+\.) )|\n\s*\n")


def pages() -> list[Path]:
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
    found = [*ROOT.glob("*.md"), *below]
    kept = (path for path in found if path.name not in LEFT_OUT)
    return sorted(path for path in kept if ".terraform" not in path.parts)


def sentences(text: str) -> Iterator[str]:
    """Sentences, headings and cells of a page, without code and marks."""
    for piece in ENDS.split(CODE.sub("`code`", text)):
        if bare := " ".join(MARKUP.sub("", piece).split()):
            yield bare


def faults(text: str) -> list[str]:
    """The sentences that hide their subject or their actor."""
    return [one for one in sentences(text) if OPENING.match(one) or WORDS.search(one)]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_plain(page: Path) -> None:
    assert faults(page.read_text()) == [], "name the subject first, and the role that acts"


@pytest.mark.parametrize(
    "text",
    [
        "# How it works\n",
        "Before.\n\n## Who writes\n",
        "It is made. What is left\nis deleted.",
        "- **Whether it runs** is shown.",
        "| Row | What it says |\n",
        "A lease that nobody holds.",
    ],
)
def test_a_fault_is_found(text: str) -> None:
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "# Objects\n\nA sweep deletes objects that no entry names.\n",
        "It shows what is due.",
        "`--group nobody` is a name.",
        "```\nWho is it?\n```\n",
        "# Versions\n\nThe time depends on the store, and on how large the objects are.",
    ],
)
def test_plain_text_has_no_fault(text: str) -> None:
    assert not faults(text)
