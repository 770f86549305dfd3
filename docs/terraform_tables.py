"""The tables of variables and outputs in the READMEs of infra/terraform, made from its files.

`python docs/terraform_tables.py` writes them (`make docs`); `tests/terraform` finds out
when they are old.
"""

import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hcl2
from hcl2.utils import SerializationOptions

ROOT = Path(__file__).resolve().parents[1] / "infra" / "terraform"
BEGIN = "<!-- tables: made from the files by `make docs` -->"
END = "<!-- tables end -->"
OPTIONS = SerializationOptions(
    with_comments=False, explicit_blocks=False, preserve_heredocs=False, strip_string_quotes=True
)
NOTHING = object()


@dataclass(frozen=True, slots=True)
class Declaration:
    """A variable or an output, as its file declares it."""

    kind: str
    name: str
    file: Path
    body: dict[str, Any]

    @property
    def description(self) -> str:
        """Its description, or nothing."""
        return str(self.body.get("description", ""))

    @property
    def type(self) -> str:
        """Its type, in one word where it is an object."""
        text = str(self.body.get("type", "")).removeprefix("${").removesuffix("}")
        return text.partition("({")[0] if "({" in text else text

    @property
    def default(self) -> str:
        """Its default as HCL would have it, or `required`."""
        value = self.body.get("default", NOTHING)
        if value is NOTHING:
            return "required"
        return f"`{json.dumps(value)}`"


def folders() -> list[Path]:
    """Return the root module, its modules and the examples."""
    return [ROOT, *sorted(ROOT.glob("modules/*/")), *sorted(ROOT.glob("examples/*/"))]


@functools.cache  # a file takes a tenth of a second
def parsed(file: Path) -> dict[str, Any]:
    """Return what a file of HCL holds, blocks as lists of dictionaries."""
    with file.open() as text:
        return dict(hcl2.load(text, serialization_options=OPTIONS))


def declarations(folder: Path, kind: str) -> Iterator[Declaration]:
    """Give the `variable` or `output` blocks of a module, in the order of its files."""
    for file in sorted(folder.glob("*.tf")):
        for block in parsed(file).get(kind, []):
            for name, body in block.items():
                yield Declaration(kind, name.strip('"'), file, body)


def tables(folder: Path) -> str:
    """Return the tables of a module, between their marks."""
    lines = [BEGIN, "", "| Variable | Type | Default | Meaning |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{one.name}` | {one.type} | {one.default} | {cell(one.description)} |"
        for one in declarations(folder, "variable")
    ]
    lines += ["", "| Output | Meaning |", "| --- | --- |"]
    lines += [
        f"| `{one.name}` | {cell(one.description)} |" for one in declarations(folder, "output")
    ]
    return "\n".join([*lines, "", END])


def cell(text: str) -> str:
    """Return a text as it may stand in a table."""
    return text.replace('\\"', '"').replace("|", "\\|")


def readme(folder: Path) -> str:
    """Return a module's README with tables that are current."""
    text = (folder / "README.md").read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{tables(folder)}{after}"


def main() -> int:
    """Write every README."""
    for folder in folders():
        (folder / "README.md").write_text(readme(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
