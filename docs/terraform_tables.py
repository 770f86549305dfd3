"""The tables in the READMEs of infra/terraform, made from its files: as terraform-docs makes them
by `infra/terraform/.terraform-docs.yml`, letter by letter, so that either may write them.

`python docs/terraform_tables.py` writes them (`make docs`); `tests/terraform` finds out when they
are old, and `make tf-lint` compares with terraform-docs where that is on PATH.
"""

import functools
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hcl2
from hcl2.utils import SerializationOptions

ROOT = Path(__file__).resolve().parents[1] / "infra" / "terraform"
BEGIN = "<!-- BEGIN_TF_DOCS -->"
END = "<!-- END_TF_DOCS -->"
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
        """Its type, as the file has it."""
        return _expression(self.file, self.name, "type")

    @property
    def default(self) -> str | None:
        """Its default as JSON; None if it is required."""
        value = self.body.get("default", NOTHING)
        return None if value is NOTHING else json.dumps(value, indent=2)


@functools.cache
def _source(file: Path) -> str:
    return file.read_text()


def _expression(file: Path, variable: str, argument: str) -> str:
    """Return an argument of a variable as in the file, up to its closing bracket."""
    block = _source(file).partition(f'variable "{variable}" {{\n')[2].partition("\n}\n")[0]
    found = re.search(rf"^  {argument} *= *", block, re.MULTILINE)
    if found is None:
        return ""
    text, depth = block[found.end() :], 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "\n" and depth == 0:
            return text[:place]
    return text


def folders() -> list[Path]:
    """Return the root module, its modules and the examples."""
    return [ROOT, *sorted(ROOT.glob("modules/*/")), *sorted(ROOT.glob("examples/*/"))]


@functools.cache  # a file takes a tenth of a second
def parsed(file: Path) -> dict[str, Any]:
    """Return the content of a file of HCL, blocks as lists of dictionaries."""
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
    sections = [
        _section("Requirements", "| Name | Version |", "|------|---------|", _requirements(folder)),
        _section(
            "Inputs",
            "| Name | Description | Type | Default | Required |",
            "|------|-------------|------|---------|:--------:|",
            [_input(one) for one in declarations(folder, "variable")],
        ),
        _section(
            "Outputs",
            "| Name | Description |",
            "|------|-------------|",
            [f"| {one.name} | {cell(one.description)} |" for one in declarations(folder, "output")],
        ),
    ]
    return "\n".join([BEGIN, "\n\n".join(one for one in sections if one), END])


def _section(title: str, head: str, rule: str, rows: list[str]) -> str:
    return "\n".join([f"## {title}", "", head, rule, *rows]) if rows else ""


def _requirements(folder: Path) -> list[str]:
    (terraform,) = parsed(folder / "versions.tf")["terraform"]
    needs = {
        name: body["version"]
        for providers in terraform["required_providers"]
        for name, body in providers.items()
    }
    versions = {"terraform": terraform["required_version"]} | dict(sorted(needs.items()))
    return [f"| {name} | {version} |" for name, version in versions.items()]


def _input(one: Declaration) -> str:
    default = "n/a" if one.default is None else code(one.default)
    needed = "yes" if one.default is None else "no"
    return f"| {one.name} | {cell(one.description)} | {code(one.type)} | {default} | {needed} |"


def code(text: str) -> str:
    """Return a type or a value in the form of a table: in one line, unaligned."""
    if "\n" not in text:
        return f"`{text}`"
    lines = (re.sub(r"\s*=\s*", " = ", line).strip() for line in text.splitlines())
    return f"```{' '.join(line for line in lines if line)}```"


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
