"""Pages, docstrings and comments are plain: a sentence names its subject, the actor has a role."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MADE_FROM_CODE = {"cli.md", "settings.md", "metrics.md", "kafka-compatibility.md"}
# Packages whose docstrings and comments are read.
PACKAGES = ("broker", "storage", "lake", "connectors", "dags", "lakehead", "pyspark_lakehead")
# A changelog has the words of its time.
LEFT_OUT = MADE_FROM_CODE | {"CHANGELOG.md"}
FOLDERS = ("dags", "docs", "examples", "infra")

OPENING = re.compile(r"(?:What|Who|Whoever|Whose|Whether|Which|How|Where)\b")
WORDS = re.compile(r"\b(?:whoever|somebody|nobody|anybody|everybody|anew)\b", re.IGNORECASE)
# In code an actor is a node, a caller, a client; it sends requests and gets responses.
ROLES = re.compile(
    r"\b(?:who|whom|told|tells?|asks?|asked|answers?|answered)\b" + "|" + WORDS.pattern,
    re.IGNORECASE,
)
# "is not a log" instead of "is no log".
MESSAGES = re.compile(r"\bso many\b|(?<!there )\b(?:is|are) no (?!longer|such)\w+", re.IGNORECASE)
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


def folders() -> list[Path]:
    """Folders of the packages with modules to read."""
    found = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    return sorted(found)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, of attributes too, and comments of a module, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    start, above = 0, -1
    lines: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != above + 1:
                yield start, "\n".join(lines)
                start, lines = token.start[0], []
            above = token.start[0]
            lines.append(token.string.lstrip("# "))
    yield start, "\n".join(lines)


def faults_of_code(source: str) -> list[tuple[int, str]]:
    """The lines and sentences of texts in code that hide their subject or their actor."""
    found = ((line, one) for line, text in texts(source) for one in sentences(text))
    return [(line, one) for line, one in found if OPENING.match(one) or ROLES.search(one)]


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Texts that a program shows: helps, errors, notes. Keys and formats have no space."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) not in docstrings and " " in node.value.strip():
            yield node.lineno, node.value


def faults_of_messages(source: str) -> list[tuple[int, str]]:
    """The lines and texts that hide their subject or their actor."""
    return [
        (line, text)
        for line, text in messages(source)
        if OPENING.match(text) or ROLES.search(text) or MESSAGES.search(text)
    ]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_plain(page: Path) -> None:
    assert faults(page.read_text()) == [], "name the subject first, and the role that acts"


@pytest.mark.parametrize("folder", folders(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_docstrings_and_comments_of_a_folder_are_plain(folder: Path) -> None:
    found = {path.name: faults_of_code(path.read_text()) for path in sorted(folder.glob("*.py"))}
    assert not {name: bad for name, bad in found.items() if bad}, "name the subject, and the role"


@pytest.mark.parametrize("folder", folders(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_messages_of_a_folder_are_plain(folder: Path) -> None:
    found = {path.name: faults_of_messages(path.read_text()) for path in folder.glob("*.py")}
    assert not {name: bad for name, bad in found.items() if bad}, "name the subject, and the role"


@pytest.mark.parametrize(
    "source",
    ['f("Whether it runs")', 'f(f"{x} was told to stop")', 'X = "a file is no log"'],
)
def test_a_fault_in_a_message_is_found(source: str) -> None:
    assert faults_of_messages(source)


def test_keys_formats_and_present_things_are_no_faults() -> None:
    source = 'f("answer", "there is no topic", "it is no longer there")'
    assert not faults_of_messages(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""What is left."""',
        'X = 1\n"""Whether it is there."""',
        'def f():\n    """Return true. Whoever calls waits."""',
        "x = 1  # nobody reads it",
        "# A node that\n# asks for it.\nx = 1",
    ],
)
def test_a_fault_in_code_is_found(source: str) -> None:
    assert faults_of_code(source)


def test_plain_code_has_no_fault() -> None:
    source = '"""Return true if `who` is there."""\n# A request\nx = 1  # by its caller\n'
    assert not faults_of_code(source)


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


NAMES = re.compile(
    r"(?:^|_)(?:answer(?:s|ed|ing)?|ask(?:s|ed|ing)?|tells?|told|telling|who|whose|whoever|nobody"
    r"|somebody|duty|duties|errands?|patience|situation|inquir\w+)(?:_|$)"
)


def names(source: str) -> Iterator[tuple[int, str]]:
    """Names that a module defines, in the form of functions' names."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                name = node.name
            case ast.arg():
                name = node.arg
            case ast.Name(ctx=ast.Store()):
                name = node.id
            case ast.Attribute(ctx=ast.Store()):
                name = node.attr
            case _:
                continue
        yield node.lineno, re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@pytest.mark.parametrize("folder", folders(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_names_of_a_folder_are_the_glossarys(folder: Path) -> None:
    found = {
        path.name: [(line, name) for line, name in names(path.read_text()) if NAMES.search(name)]
        for path in folder.glob("*.py")
    }
    # A file has `tell` as Python's files do, and `told_below` is in stored asset events.
    found.pop("place.py", None)
    found.pop("asset_events.py", None)
    assert not {name: bad for name, bad in found.items() if bad}, "request, response, report"


def test_a_name_that_asks_is_found() -> None:
    found = [name for _, name in names("def f(asked):\n    isAnswered = 1\nclass Task: pass\n")]
    assert [bool(NAMES.search(name)) for name in found] == [False, False, True, True]
