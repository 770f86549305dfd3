"""Where module private_link leads and what it has brokers tell their clients, read out of mocked
applies and kept in a file.

Tests of the default suite forward real clients by the file; `make tf-test` looks whether it is
current, and `python -m tests.terraform.link_rendering --write` writes it.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

from tests.terraform.mocked_states import states
from tests.terraform.terraform import Failed, NotHere, Terraform, copied, environment

FILE = Path(__file__).with_name("rendered_link.json")
_RUNS = Path(__file__).with_name("link.tftest.hcl")
_OUTPUTS = ("client", "listeners", "settings")

Links: TypeAlias = dict[str, dict[str, Any]]
"""Outputs by run, then by name."""


def links() -> Links:
    """Return what is committed."""
    found: Links = json.loads(FILE.read_text())
    return found


def render(terraform: Terraform) -> str:
    """Return the file's text, by a copy of the modules. Raises Failed."""
    found = {
        run: {name: state["outputs"][name]["value"] for name in _OUTPUTS}
        for run, state in states(terraform, _RUNS).items()
    }
    return f"{json.dumps(found, indent=2, sort_keys=True)}\n"


def complaint(found: str) -> str:
    """Return what to do where what was rendered is not what is committed; empty if it is."""
    if FILE.exists() and found == FILE.read_text():
        return ""
    return (
        "Module private_link leads elsewhere than before: run python -m "
        "tests.terraform.link_rendering --write, and tests/integration/test_extra_listeners.py."
    )


def main() -> int:
    """Render, and compare with the file or write it. Status 1: it is not current."""
    with tempfile.TemporaryDirectory(prefix="lakehead-link-") as folder:
        try:
            settings = environment(Path(folder))
            found = render(Terraform(folder=copied(Path(folder)), environment=settings))
        except (NotHere, Failed) as error:
            print(error, file=sys.stderr)
            return 1
    if "--write" in sys.argv[1:]:
        FILE.write_text(found)
    elif told := complaint(found):
        print(told)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
